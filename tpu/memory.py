"""How much memory a training step takes, told before it starts.

The account follows what TensorFlow's executor really holds (benchmarks/memory.py compares it with measurements): the
activations that the backward pass reads, the gradients that wait to be added up, the optimiser's new values.
"""

from albert_tf import costs
from albert_tf.config import AlbertConfig

_FLOAT32 = 4  # bytes
_COMPUTE_BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}
# Tensors of the inner width that an activation and the product behind it keep: GELU's input and output, or the output.
_ACTIVATION_TENSORS = {"gelu": 2, "gelu_erf": 2, "relu": 1, "tanh": 1, "linear": 1}
# The optimiser's products that exist at once beside the gradients, as many values as parameters each, of both moments,
# the weight decay and the squared gradient: measured, without and with recomputation, which spreads the gradients out.
_UPDATE_TENSORS, _UPDATE_TENSORS_RECOMPUTED = 3, 2
# On the host: what the allocator cannot reuse and kernels work in, for any model; for each layer the traced graph, its
# optimised copies and the executor's tables, measured with layers of hardly any width.
_HOST, _PROGRAM_OF_LAYER, _PROGRAM_OF_RECOMPUTED_LAYER = 80 << 20, 6 << 20, 9 << 20


def training_bytes(
    config: AlbertConfig,
    *,
    rows: int,
    max_seq_length: int,
    num_predictions: int,
    mixed_precision: str = "float32",
    recompute: bool = False,
    accumulate: bool = False,
) -> dict[str, int]:
    """Bytes on one device at the fullest moment of a step with `rows` sequences in a forward and backward pass.

    accumulate: gradients of earlier passes of the same step wait beside it.

    Returns `state` (weights and two moments, float32), `activations` (kept between the passes; sharing weights does
    not make them fewer, as every layer keeps its own), `program` (the graph itself, and what the allocator loses) and
    `total`, which also counts gradients and the optimiser's temporaries where they meet the activations, or outweigh
    them.
    """
    compute = _COMPUTE_BYTES[mixed_precision]
    tokens, steps = rows * max_seq_length, costs.block_counts(config).steps
    last = rows * (1 + num_predictions)
    parameters = sum(costs.parameters(config).values())
    full, end = (_layer_bytes(config, n, max_seq_length, compute) for n in (tokens, last))
    end += 2 * tokens * config.hidden_size * compute  # keys and values of the last layer are everywhere
    one_layer = max(full, end)
    block = costs.layer_parameters(config) * compute
    kept = 5 * tokens * config.embedding_size * _FLOAT32
    if recompute:
        kept += tokens * config.hidden_size * compute * (steps - 1)
        again = one_layer + block  # a layer run again works on a copy of the block's weights
    else:
        kept += full * (steps - 1) + end
        again = 0
    casts = _weight_copies(config, compute)
    backward = config.vocab_size * config.embedding_size * _FLOAT32  # the gradient of the table
    backward += _passing_gradients(config, tokens, max_seq_length, compute)
    # Logits and their gradient, and under mixed precision the product before the cast.
    logits = rows * num_predictions * config.vocab_size * (2 * _FLOAT32 + (compute if compute < _FLOAT32 else 0))
    between = kept + casts + max(logits, again + backward + 2 * block)
    before_sums = (again or one_layer) + casts + backward + _waiting_gradients(config, compute, recompute)
    update = parameters * _FLOAT32 * (1 + (_UPDATE_TENSORS_RECOMPUTED if recompute else _UPDATE_TENSORS))
    waiting = parameters * _FLOAT32 if accumulate else 0
    state = parameters * 3 * _FLOAT32
    program = _HOST + steps * (_PROGRAM_OF_RECOMPUTED_LAYER if recompute else _PROGRAM_OF_LAYER)
    return {
        "state": state,
        "activations": kept + (one_layer if recompute else 0),
        "program": program,
        "total": state + program + max(max(between, before_sums) + waiting, update),
    }


def _layer_bytes(config: AlbertConfig, queries: int, length: int, compute: int) -> int:
    """What a layer keeps for its backward pass, where `queries` positions ask."""
    norm = 3 * _FLOAT32 + compute  # sum, centred sum and scale in float32; the output
    attention = 4 * compute  # query, key, value, context
    inner = _ACTIVATION_TENSORS[config.hidden_act] * compute * config.intermediate_size
    score = _FLOAT32 + (compute if compute < _FLOAT32 else 0)  # a probability, and its value in the compute type
    if config.attention_probs_dropout_prob:
        score += 1 + (_FLOAT32 if compute == _FLOAT32 else 0)  # whether it is kept; the scaled value
    hidden = 2 * norm + attention + (2 if config.hidden_dropout_prob else 0)
    return queries * (hidden * config.hidden_size + inner + config.num_attention_heads * length * score)


def _passing_gradients(config: AlbertConfig, tokens: int, length: int, compute: int) -> int:
    """Gradients on their way through one layer."""
    inner, scores = 2 * config.intermediate_size * compute, 2 * config.num_attention_heads * length * _FLOAT32
    return tokens * max(inner, scores)


def _weight_copies(config: AlbertConfig, compute: int) -> int:
    """The fused query, key and value kernel, again in parts for the last layer; all weights in the compute type."""
    fused = 2 * 3 * config.hidden_size**2 * costs.block_counts(config).attentions * compute
    if compute == _FLOAT32:
        return fused
    return fused + (sum(costs.parameters(config).values())) * compute


def _waiting_gradients(config: AlbertConfig, compute: int, recompute: bool) -> int:
    """Gradients of the layers' weights before they are added up.

    One from each use of a shared weight: the tape would add up some early, but TensorFlow's graph optimiser makes one
    sum of such sums, at the very end. Recomputed layers add theirs one after the other (AlbertBlock.share_out).
    """
    attention, feed_forward = 4 * config.hidden_size**2, 2 * config.hidden_size * config.intermediate_size
    counts = costs.block_counts(config)
    if recompute:
        kept = counts.attentions * attention + counts.feed_forwards * feed_forward
        return (kept + attention + feed_forward) * compute
    return counts.steps * (attention + feed_forward) * compute
