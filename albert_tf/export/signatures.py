"""What an exported model answers: named inputs and outputs, and the Python model's answer to compare with.

Axes: B batch, S sequence, C choices, H hidden.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from albert_tf.encoder import INPUT_NAMES
from albert_tf.tokenization.in_graph import GraphTokenizer, packed

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model
    from albert_tf.config import AlbertConfig

Tensors = dict[str, tf.Tensor]
Arrays = dict[str, np.ndarray]
DEFAULT, INT64, IDS, TEXT = "serving_default", "int64", "ids", "text"

# Strings of the smoke requests: accents, a digit before a comma, no text, several scripts, a word of the special ones.
# No letter or digit thrice in a row: a vocabulary with "0" and "00" cuts "000" in two ways that are equally likely, and
# the SentencePiece of TensorFlow Text may take another than Python's.
SAMPLE_TEXTS = (
    "The river ran past 2,019 old stones.",
    "",
    "Caf\u00e9 \u039f\u0394\u039f\u03a3 \u6771\u4eac \U0001f642 [MASK]",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """One callable of an export.

    `request` is what the export is tried with, `expected` the Python model's answer to it: arrays of some or all of the
    outputs. Strings are arrays of bytes objects.
    """

    inputs: dict[str, tf.TensorSpec]
    call: Callable[[Tensors], Tensors]
    request: Arrays
    expected: Arrays


def named(ids: Signature, text: Signature | None, which: str) -> dict[str, Signature]:
    """The signatures under the names that they have in a SavedModel; `which` is ids, text or both.

    Every export answers ids, so that `albert_tf predict` can use it; `which` decides the one that callers get who name
    none.
    """
    if which == "text":
        return {DEFAULT: text, TEXT: text, IDS: ids}
    both = {DEFAULT: ids, INT64: _int64(ids)}
    return both if which == "ids" else {**both, TEXT: text}


def ids_signature(
    config: "AlbertConfig", forward: Callable[[Tensors], Tensors], *, choices: bool = False, checks: bool = True
) -> Signature:
    """The signature on token ids.

    Args:
      forward: int32 input_ids, input_mask, segment_ids [B, S] (with choices, [B, C, S]) -> outputs by name.
      checks: whether requests that the model cannot answer get a message; TensorFlow Lite has no op for it.
    """
    shape = [None, None, None] if choices else [None, None]

    def call(inputs: Tensors) -> Tensors:
        return float32(forward(checked(inputs, config) if checks else inputs))

    request = _ids_request(config, choices)
    return Signature(
        inputs={name: tf.TensorSpec(shape, tf.int32, name) for name in INPUT_NAMES},
        call=call,
        request=request,
        expected=as_arrays(call({name: tf.constant(value) for name, value in request.items()})),
    )


def encoder_outputs(model: "Model", inputs: Tensors) -> Tensors:
    """What an encoder without a task answers: sequence_output float32 [B, S, H], pooled_output float32 [B, H]."""
    outputs = model.encoder({name: inputs[name] for name in INPUT_NAMES})
    return float32({name: outputs[name] for name in ("sequence_output", "pooled_output")})


def encoder_text_signature(model: "Model", tokenizer: GraphTokenizer, max_seq_length: int) -> Signature:
    """`text` string [B] -> sequence_output, pooled_output, and the input_ids and input_mask they belong to."""

    def call(inputs: Tensors) -> Tensors:
        rows = packed([tokenizer.encode(inputs["text"])], tokenizer, max_seq_length)
        return {**encoder_outputs(model, rows), "input_ids": rows["input_ids"], "input_mask": rows["input_mask"]}

    python = model.tokenizer
    tokens = [python.encode(text)[: max_seq_length - 2] for text in SAMPLE_TEXTS]
    ids = [[python.cls_id, *row, python.sep_id] for row in tokens]
    width = max(map(len, ids))
    rows = {
        "input_ids": np.array([row + [python.pad_id] * (width - len(row)) for row in ids], np.int32),
        "input_mask": np.array([[1] * len(row) + [0] * (width - len(row)) for row in ids], np.int32),
        "segment_ids": np.zeros([len(ids), width], np.int32),
    }
    expected = as_arrays(encoder_outputs(model, {name: tf.constant(value) for name, value in rows.items()}))
    return Signature(
        inputs={"text": tf.TensorSpec([None], tf.string, "text")},
        call=call,
        request={"text": string_array(SAMPLE_TEXTS)},
        expected={**expected, "input_ids": rows["input_ids"], "input_mask": rows["input_mask"]},
    )


def checked(inputs: Tensors, config: "AlbertConfig") -> Tensors:
    """The inputs, once they are known to be answerable; else the request fails with a message that says why."""
    ids, mask, segments = (inputs[name] for name in INPUT_NAMES)
    length = tf.shape(ids)[-1]
    limits = (
        (tf.reduce_all(tf.shape(ids) == tf.shape(mask)), "input_mask must have the shape of input_ids", tf.shape(mask)),
        (
            tf.reduce_all(tf.shape(ids) == tf.shape(segments)),
            "segment_ids must have the shape of input_ids",
            tf.shape(segments),
        ),
        (
            (length >= 1) & (length <= config.max_position_embeddings),
            f"the model reads 1 to {config.max_position_embeddings} tokens a row; cut the rows of this request",
            length,
        ),
        (
            tf.reduce_all((ids >= 0) & (ids < config.vocab_size)),
            f"input_ids must be from 0 to {config.vocab_size - 1}, the model's vocabulary; use its tokeniser",
            tf.reduce_max(ids),
        ),
        (
            tf.reduce_all((segments >= 0) & (segments < config.type_vocab_size)),
            f"segment_ids must be from 0 to {config.type_vocab_size - 1}",
            tf.reduce_max(segments),
        ),
    )
    asserts = [tf.debugging.Assert(condition, [message, "found", found]) for condition, message, found in limits]
    with tf.control_dependencies([check for check in asserts if check is not None]):
        return {name: tf.identity(inputs[name]) for name in INPUT_NAMES}


def float32(outputs: Tensors) -> Tensors:
    """Half precision stays inside: outputs are float32, which every client reads."""
    halves = (tf.float16, tf.bfloat16)
    return {name: tf.cast(value, tf.float32) if value.dtype in halves else value for name, value in outputs.items()}


def as_arrays(outputs: Tensors) -> Arrays:
    """Tensors of an eager call as arrays."""
    return {name: value.numpy() for name, value in outputs.items()}


def string_array(texts: object) -> np.ndarray:
    """Texts, in lists as deep as need be, as an array of bytes objects."""
    return np.vectorize(lambda text: text.encode("utf-8", "replace"), otypes=[object])(np.array(texts, object))


def _int64(signature: Signature) -> Signature:
    """The same for callers whose numbers are int64."""

    def call(inputs: Tensors) -> Tensors:
        # Clipped first: a cast alone would turn a number beyond int32 into one that looks valid.
        most = tf.int32.max
        return signature.call({name: tf.cast(tf.clip_by_value(x, -1, most), tf.int32) for name, x in inputs.items()})

    return Signature(
        inputs={name: tf.TensorSpec(spec.shape, tf.int64, name) for name, spec in signature.inputs.items()},
        call=call,
        request={name: value.astype(np.int64) for name, value in signature.request.items()},
        expected=signature.expected,
    )


def _ids_request(config: "AlbertConfig", choices: bool) -> Arrays:
    """Rows of different lengths; with choices, one question lacks its last option."""
    random = np.random.default_rng(0)
    width = min(24, config.max_position_embeddings)
    lengths = np.array([[width, 5, width // 2], [3, width, 0]] if choices else [width, width // 2, 3])
    mask = (np.arange(width) < lengths[..., None]).astype(np.int32)
    ids = random.integers(min(5, config.vocab_size - 1), config.vocab_size, mask.shape, np.int32)
    segments = (np.arange(width) >= lengths[..., None] // 2).astype(np.int32) * (config.type_vocab_size > 1)
    return {"input_ids": ids * mask, "input_mask": mask, "segment_ids": (segments * mask).astype(np.int32)}
