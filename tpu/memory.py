"""How much memory a training step will take, told before it starts."""

from albert_tf.config import AlbertConfig
from albert_tf.encoder import block_plan, parameter_count

_OPTIMIZER_SLOTS = 2  # first and second moment
_FLOAT32 = 4  # bytes


def training_bytes(
    config: AlbertConfig, *, rows: int, max_seq_length: int, num_predictions: int, mixed_precision: str = "float32"
) -> dict[str, int]:
    """Bytes on one device for one forward and backward pass over `rows` sequences.

    Returns state (weights, their gradients, optimiser slots, all float32), activations kept for the backward pass, and
    their total. Weight sharing saves state, not activations: every layer keeps its own.
    """
    parameters = parameter_count(config)
    state = parameters * (2 + _OPTIMIZER_SLOTS) * _FLOAT32
    size = _FLOAT32 if mixed_precision == "float32" else 2
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    tokens = rows * max_seq_length
    # Per token and layer: query, key, value, context, two sub-layer outputs and sums; LayerNorm works in float32;
    # the tanh GELU keeps its steps; scores and probabilities are float32 whatever the policy.
    linear = 8 * hidden * size + 6 * hidden * _FLOAT32 + 7 * inner * size
    attention = heads * max_seq_length * (2 * _FLOAT32 + size)
    layers = len(block_plan(config)[1])
    logits = 3 * rows * num_predictions * config.vocab_size * _FLOAT32
    activations = tokens * layers * (linear + attention) + logits
    return {"state": state, "activations": activations, "total": state + activations}
