"""A plain NumPy forward pass in float64, written against the names that a SOURCE uses.

It is what conversions are checked with, so it shares nothing with them: it reads the stored tensors and the stored
configuration by itself and knows neither the tables of names nor the encoder. Only `forward` is common to the sources.

Axes: B batch, S sequence, H hidden, A heads, D head size, P predictions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

Tensors = dict[str, np.ndarray]


class Affine(NamedTuple):
    """x @ kernel [N, M] + bias [M]."""

    kernel: np.ndarray
    bias: np.ndarray | float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x @ self.kernel + self.bias


class Norm(NamedTuple):
    """LayerNorm over the last axis."""

    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + self.epsilon) * self.gamma + self.beta


class Block(NamedTuple):
    """Weights of one block."""

    query: Affine
    key: Affine
    value: Affine
    attention_output: Affine
    attention_norm: Norm
    intermediate: Affine
    output: Affine
    output_norm: Norm


class Network(NamedTuple):
    """A whole model; `blocks` has one entry for each layer and inner group, in running order."""

    word: np.ndarray
    position: np.ndarray
    segment: np.ndarray
    embedding_norm: Norm
    projection: Affine | None
    blocks: list[Block]
    pooler: Affine | None
    num_heads: int
    activation: Callable[[np.ndarray], np.ndarray]
    heads: dict[str, tuple]


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU in the tanh form of the release."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    """GELU in its exact form."""
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


_PLAIN = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "linear": lambda x: x}
# The same word means two functions: "gelu" is the tanh form in the release and the exact one in Hugging Face.
# "gelu_erf" is ours; the user may have asked for it, or written it beside a release checkpoint.
ACTIVATIONS = {**_PLAIN, "gelu": gelu_tanh, "gelu_erf": gelu_erf}
HUGGINGFACE_ACTIVATIONS = {
    **_PLAIN,
    "gelu": gelu_erf,
    "gelu_python": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
}


def forward(network: Network, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Everything the model says about `inputs`, in float64.

    inputs: input_ids, input_mask, segment_ids int [B, S]; masked_lm_positions int [B, P] for a masked LM;
    start_positions int [B] and forbidden [B, S], 1 where no answer may be, for the conditional span head. Returns
    sequence_output [B, S, H], pooled_output [B, H] where there is a pooler, and one entry or more for each head.
    """
    ids = inputs["input_ids"]
    hidden = network.word[ids] + network.position[: ids.shape[1]] + network.segment[inputs["segment_ids"]]
    hidden = network.embedding_norm(hidden)
    if network.projection is not None:
        hidden = network.projection(hidden)
    score_bias = (1.0 - inputs["input_mask"][:, None, None, :]) * -10_000.0
    for block in network.blocks:
        attended = _attention(block, hidden, score_bias, network.num_heads)
        hidden = block.attention_norm(hidden + block.attention_output(attended))
        inner = network.activation(block.intermediate(hidden))
        hidden = block.output_norm(hidden + block.output(inner))
    outputs = {"sequence_output": hidden}
    if network.pooler is not None:
        outputs["pooled_output"] = np.tanh(network.pooler(hidden[:, 0]))
    for name, parts in network.heads.items():
        outputs.update(_head(name, parts, network, outputs, inputs))
    return outputs


def _attention(block: Block, hidden: np.ndarray, score_bias: np.ndarray, num_heads: int) -> np.ndarray:
    batch, length, width = hidden.shape
    query, key, value = (
        part(hidden).reshape(batch, length, num_heads, width // num_heads)
        for part in (block.query, block.key, block.value)
    )
    scores = np.einsum("bqad,bkad->baqk", query, key) / math.sqrt(width // num_heads) + score_bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("baqk,bkad->bqad", weights, value).reshape(batch, length, width)


def _head(
    name: str, parts: tuple, network: Network, outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    sequence = outputs["sequence_output"]
    if name == "masked_lm":
        dense, norm, bias = parts
        at = np.take_along_axis(sequence, inputs["masked_lm_positions"][:, :, None], axis=1)
        return {name: norm(network.activation(dense(at))) @ network.word.T + bias}  # [B, P, V]
    if name == "conditional_span":
        return _conditional_span(parts, sequence, inputs)
    (dense,) = parts
    return {name: dense(sequence if name in ("span", "token_classifier") else outputs["pooled_output"])}


def _conditional_span(parts: tuple, sequence: np.ndarray, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    start, end_dense, end_norm, end, answer_dense, answer = parts
    start_logits = start(sequence)[..., 0]
    starts = sequence[np.arange(len(sequence)), inputs["start_positions"]]
    pairs = np.concatenate([sequence, np.broadcast_to(starts[:, None], sequence.shape)], axis=-1)
    masked = np.where(inputs["forbidden"] == 0, start_logits, -np.inf)
    share = np.exp(masked - masked.max(-1, keepdims=True))
    expected = np.einsum("bs,bsh->bh", share / share.sum(-1, keepdims=True), sequence)
    return {
        "conditional_span.start": start_logits,
        "conditional_span.end": end(end_norm(np.tanh(end_dense(pairs))))[..., 0],
        "conditional_span.answer": answer(np.tanh(answer_dense(np.concatenate([expected, sequence[:, 0]], axis=-1)))),
    }


class _Reader:
    """Float64 tensors of one source, each made once."""

    def __init__(self, stored: Tensors, epsilon: float) -> None:
        self.stored, self.epsilon = stored, epsilon

    def __call__(self, name: str) -> np.ndarray:
        return np.asarray(self.stored[name], np.float64)


class _KernelReader(_Reader):
    """TensorFlow names: kernel [in, out], bias, gamma, beta."""

    def affine(self, name: str) -> Affine:
        return Affine(self(f"{name}/kernel"), self(f"{name}/bias"))

    def rows(self, name: str) -> Affine:
        """The release's task heads: output_weights [out, in]."""
        return Affine(self(f"{name}output_weights").T, self(f"{name}output_bias"))

    def norm(self, name: str) -> Norm:
        return Norm(self(f"{name}/gamma"), self(f"{name}/beta"), self.epsilon)


class _TorchReader(_Reader):
    """PyTorch names: weight [out, in] or gamma, bias."""

    def affine(self, name: str) -> Affine:
        return Affine(self(f"{name}.weight").T, self(f"{name}.bias"))

    def norm(self, name: str) -> Norm:
        return Norm(self(f"{name}.weight"), self(f"{name}.bias"), self.epsilon)


def release_network(stored: Tensors, config: dict[str, Any], heads: Iterable[str]) -> Network:
    """The release's checkpoint with its albert_config.json; `heads` are our names of the heads to compute."""
    read = _KernelReader(stored, epsilon=config.get("layer_norm_epsilon", 1e-12))  # the release has no such key
    made = {}
    for group in range(config.get("num_hidden_groups", 1)):
        for inner in range(config.get("inner_group_num", 1)):
            at = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
            made[group, inner] = Block(
                query=read.affine(f"{at}/attention_1/self/query"),
                key=read.affine(f"{at}/attention_1/self/key"),
                value=read.affine(f"{at}/attention_1/self/value"),
                attention_output=read.affine(f"{at}/attention_1/output/dense"),
                attention_norm=read.norm(f"{at}/LayerNorm"),
                intermediate=read.affine(f"{at}/ffn_1/intermediate/dense"),
                output=read.affine(f"{at}/ffn_1/intermediate/output/dense"),
                output_norm=read.norm(f"{at}/LayerNorm_1"),
            )
    mapped = "bert/encoder/embedding_hidden_mapping_in"
    return Network(
        word=read("bert/embeddings/word_embeddings"),
        position=read("bert/embeddings/position_embeddings"),
        segment=read("bert/embeddings/token_type_embeddings"),
        embedding_norm=read.norm("bert/embeddings/LayerNorm"),
        projection=read.affine(mapped) if f"{mapped}/kernel" in stored else None,
        blocks=_in_running_order(_release_groups(config), made, config),
        pooler=read.affine("bert/pooler/dense"),
        num_heads=config["num_attention_heads"],
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
        heads={head: _release_head(read, head) for head in heads},
    )


def _release_head(read: _KernelReader, head: str) -> tuple:
    if head == "masked_lm":
        at = "cls/predictions"
        return read.affine(f"{at}/transform/dense"), read.norm(f"{at}/transform/LayerNorm"), read(f"{at}/output_bias")
    if head == "conditional_span":
        return (
            read.affine("start_logits/dense"),
            read.affine("end_logits/dense_0"),
            read.norm("end_logits/LayerNorm"),
            read.affine("end_logits/dense_1"),
            read.affine("answer_class/dense_0"),
            Affine(read("answer_class/dense_1/kernel"), 0.0),
        )
    prefixes = {"sentence_order": "cls/seq_relationship/", "span": "cls/squad/"}
    return (read.rows(prefixes.get(head, "")),)


def huggingface_network(stored: Tensors, config: dict[str, Any], heads: Iterable[str]) -> Network:
    """A Hugging Face state dict with its config.json."""
    config = {"num_hidden_layers": 12, "num_attention_heads": 64, **config}  # what transformers fills in
    read = _TorchReader(stored, epsilon=config.get("layer_norm_eps", 1e-12))
    root = "albert." if any(name.startswith("albert.") for name in stored) else ""
    made = {}
    for group in range(config.get("num_hidden_groups", 1)):
        for inner in range(config.get("inner_group_num", 1)):
            at = f"{root}encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            made[group, inner] = Block(
                query=read.affine(f"{at}.attention.query"),
                key=read.affine(f"{at}.attention.key"),
                value=read.affine(f"{at}.attention.value"),
                attention_output=read.affine(f"{at}.attention.dense"),
                attention_norm=read.norm(f"{at}.attention.LayerNorm"),
                intermediate=read.affine(f"{at}.ffn"),
                output=read.affine(f"{at}.ffn_output"),
                output_norm=read.norm(f"{at}.full_layer_layer_norm"),
            )
    return Network(
        word=read(f"{root}embeddings.word_embeddings.weight"),
        position=read(f"{root}embeddings.position_embeddings.weight"),
        segment=read(f"{root}embeddings.token_type_embeddings.weight"),
        embedding_norm=read.norm(f"{root}embeddings.LayerNorm"),
        projection=read.affine(f"{root}encoder.embedding_hidden_mapping_in"),
        blocks=_in_running_order(_huggingface_groups(config), made, config),
        pooler=read.affine(f"{root}pooler") if f"{root}pooler.weight" in stored else None,
        num_heads=config["num_attention_heads"],
        activation=HUGGINGFACE_ACTIVATIONS[config.get("hidden_act", "gelu_new")],
        heads={head: _huggingface_head(read, head) for head in heads},
    )


def _huggingface_head(read: _TorchReader, head: str) -> tuple:
    if head == "masked_lm":
        return read.affine("predictions.dense"), read.norm("predictions.LayerNorm"), read("predictions.bias")
    names = {"sentence_order": "sop_classifier.classifier", "span": "qa_outputs"}
    return (read.affine(names.get(head, "classifier")),)


def native_network(stored: Tensors, config: dict[str, Any], heads: Iterable[str]) -> Network:
    """The tensors of a model folder of this project, every way of sharing included."""
    read = _KernelReader(stored, epsilon=config.get("layer_norm_epsilon", 1e-12))
    sharing, layers = config.get("sharing", "all"), config["num_hidden_layers"]
    inner = config.get("inner_group_num", 1)
    if sharing == "all":
        groups = config.get("num_hidden_groups", 1)
        plan = {(group, i): (group * inner + i,) * 2 for group in range(groups) for i in range(inner)}
    else:
        shared = {"attention": (0, 1), "feed_forward": (1, 0), "none": (1, 1)}[sharing]
        plan = {(layer, 0): (layer * shared[0], layer * shared[1]) for layer in range(layers)}
    attention = {i: _native_attention(read, i) for i in {first for first, _ in plan.values()}}
    feed_forward = {i: _native_feed_forward(read, i) for i in {second for _, second in plan.values()}}
    made = {at: Block(*attention[first], *feed_forward[second]) for at, (first, second) in plan.items()}
    in_order = _in_running_order(_release_groups(config), made, config) if sharing == "all" else list(made.values())
    projected = "encoder/embeddings/projection/kernel" in stored
    return Network(
        word=read("encoder/embeddings/word_embeddings"),
        position=read("encoder/embeddings/position_embeddings"),
        segment=read("encoder/embeddings/segment_embeddings"),
        embedding_norm=read.norm("encoder/embeddings/layer_norm"),
        projection=read.affine("encoder/embeddings/projection") if projected else None,
        blocks=in_order,
        pooler=read.affine("encoder/pooler") if "encoder/pooler/kernel" in stored else None,
        num_heads=config["num_attention_heads"],
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
        heads={head: _native_head(read, head) for head in heads},
    )


def _native_attention(read: _KernelReader, index: int) -> tuple[Affine, Affine, Affine, Affine, Norm]:
    at = f"encoder/attention_{index}"
    parts = [read.affine(f"{at}/{name}") for name in ("query", "key", "value", "output")]
    return (*parts, read.norm(f"{at}/layer_norm"))


def _native_feed_forward(read: _KernelReader, index: int) -> tuple[Affine, Affine, Norm]:
    at = f"encoder/feed_forward_{index}"
    return read.affine(f"{at}/intermediate"), read.affine(f"{at}/output"), read.norm(f"{at}/layer_norm")


def _native_head(read: _KernelReader, head: str) -> tuple:
    if head == "masked_lm":
        return read.affine("masked_lm/dense"), read.norm("masked_lm/layer_norm"), read("masked_lm/output_bias")
    if head == "conditional_span":
        at = "conditional_span"
        return (
            read.affine(f"{at}/start"),
            read.affine(f"{at}/end_dense"),
            read.norm(f"{at}/end_layer_norm"),
            read.affine(f"{at}/end"),
            read.affine(f"{at}/answer_dense"),
            Affine(read(f"{at}/answer/kernel"), 0.0),
        )
    return (read.affine(head),)


def _in_running_order(groups: list[int], made: dict[tuple[int, int], Block], config: dict[str, Any]) -> list[Block]:
    """Each layer runs every inner block of its group."""
    return [made[group, inner] for group in groups for inner in range(config.get("inner_group_num", 1))]


def _release_groups(config: dict[str, Any]) -> list[int]:
    """Group of each layer, as the release computes it in floating point."""
    layers, groups = config["num_hidden_layers"], config.get("num_hidden_groups", 1)
    return [int(layer / layers * groups) for layer in range(layers)]


def _huggingface_groups(config: dict[str, Any]) -> list[int]:
    """The same in transformers; for a few pairs of numbers (18 layers in 14 groups) rounding gives another group."""
    layers, groups = config["num_hidden_layers"], config.get("num_hidden_groups", 1)
    return [int(layer / (layers / groups)) for layer in range(layers)]


NETWORKS: dict[str, Callable[[Tensors, dict[str, Any], Iterable[str]], Network]] = {
    "release": release_network,
    "hub": release_network,  # read with its prefix taken off
    "huggingface": huggingface_network,
    "native": native_network,
}
