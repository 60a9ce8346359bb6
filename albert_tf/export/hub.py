"""The two SavedModels of TF-Hub's convention for text: a preprocessor and an encoder that can be trained further.

preprocessor(texts)            string [B] -> input_word_ids, input_mask, input_type_ids int32 [B, S]
preprocessor.tokenize(texts)   string [B] -> int32 [B, (T)]
preprocessor.bert_pack_inputs([first, second], seq_length)   one or two ragged -> the three above
encoder(inputs, training)      -> pooled_output [B, H], sequence_output [B, S, H], encoder_outputs (one a layer)
"""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.export.clean_process import CleanProcess
from albert_tf.export.signatures import SAMPLE_TEXTS, Arrays, Signature, Tensors, as_arrays, string_array
from albert_tf.tokenization.in_graph import GraphTokenizer, operation_library, packed

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model

ENCODER, PREPROCESSOR = "encoder", "preprocessor"
_NAMES = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}
_SPECS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in _NAMES}


def write_encoder(folder: pathlib.Path, model: "Model", clean: CleanProcess) -> float:
    """Writes a checked encoder; returns the largest difference from the Python model."""
    signature = _encoder_signature(model)
    root = tf.train.Checkpoint()  # unlike tf.Module, it lets `variables` be a list, which hub.KerasLayer reads
    root.variables = model.encoder.variables
    root.trainable_variables = model.encoder.trainable_variables
    root.regularization_losses = []

    def call(inputs: Tensors, training: bool = False, mask: Any = None) -> dict[str, Any]:
        outputs = model.encoder({ours: inputs[theirs] for theirs, ours in _NAMES.items()}, training=training)
        return tf.nest.map_structure(lambda value: tf.cast(value, tf.float32), outputs)

    root.__call__ = tf.function(call, autograph=False)
    for training in (False, True):
        root.__call__.get_concrete_function(_SPECS, training=training)
        root.__call__.get_concrete_function(_SPECS, training=training, mask=None)
    serving = tf.function(lambda **inputs: signature.call(inputs), autograph=False).get_concrete_function(**_SPECS)
    _save(root, folder, serving)
    return clean.check(folder, {"serving_default": signature}, precision="float32")["serving_default"]


def write_preprocessor(folder: pathlib.Path, model: "Model", max_seq_length: int, clean: CleanProcess) -> None:
    """Writes a checked preprocessor, whose rows have max_seq_length tokens unless its caller asks for others.

    Raises UserError for a tokeniser that is not SentencePiece.
    """
    tokenizer = GraphTokenizer(model.tokenizer)
    root = tf.train.Checkpoint(tokenizer=tokenizer)
    texts = tf.TensorSpec([None], tf.string, "text")

    def pack(segments: list[tf.RaggedTensor], seq_length: int | tf.Tensor = max_seq_length) -> Tensors:
        rows = packed(list(segments), tokenizer, seq_length)
        missing = seq_length - tf.shape(rows["input_ids"])[1]
        padding = {"input_ids": tokenizer.pad_id}
        padded = {
            name: tf.pad(value, [[0, 0], [0, missing]], constant_values=padding.get(name, 0))
            for name, value in rows.items()
        }
        return {theirs: padded[ours] for theirs, ours in _NAMES.items()}

    root.__call__ = tf.function(lambda texts: pack([tokenizer.encode(texts)]), [texts], autograph=False)
    root.tokenize = tf.function(tokenizer.encode, [texts], autograph=False)
    root.bert_pack_inputs = tf.function(pack, autograph=False)
    ragged = tf.RaggedTensorSpec([None, None], tf.int32)
    for count in (1, 2):
        root.bert_pack_inputs.get_concrete_function([ragged] * count, tf.TensorSpec([], tf.int32, "seq_length"))
        root.bert_pack_inputs.get_concrete_function([ragged] * count)
    _save(root, folder, tf.function(lambda text: pack([tokenizer.encode(text)]), [texts], autograph=False))
    signature = _preprocessor_signature(model, texts, max_seq_length)
    clean.check(folder, {"serving_default": signature}, precision="float32", libraries=(operation_library(),))


def _save(root: Any, folder: pathlib.Path, serving: Any) -> None:
    try:
        tf.saved_model.save(root, str(folder), signatures=serving)
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot write the export to {folder}: {reason}; check the folder and the disk") from error


def _encoder_signature(model: "Model") -> Signature:
    def call(inputs: Tensors) -> Tensors:
        outputs = model.encoder({ours: inputs[theirs] for theirs, ours in _NAMES.items()})
        return {name: tf.identity(outputs[name]) for name in ("pooled_output", "sequence_output")}

    lengths = np.array([12, 5, 1])
    mask = (np.arange(12) < lengths[:, None]).astype(np.int32)
    ids = np.random.default_rng(0).integers(5, model.config.vocab_size, mask.shape, np.int32) * mask
    request = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": mask * 0}
    expected = as_arrays(call({name: tf.constant(value) for name, value in request.items()}))
    return Signature(inputs=_SPECS, call=call, request=request, expected=expected)


def _preprocessor_signature(model: "Model", texts: tf.TensorSpec, max_seq_length: int) -> Signature:
    """Only its request and expectation are used: the rows that the Python tokeniser makes."""
    python = model.tokenizer
    expected: Arrays = {name: np.zeros([len(SAMPLE_TEXTS), max_seq_length], np.int32) for name in _NAMES}
    expected["input_word_ids"][:] = python.pad_id
    for row, text in enumerate(SAMPLE_TEXTS):
        ids = [python.cls_id, *python.encode(text)[: max_seq_length - 2], python.sep_id]
        expected["input_word_ids"][row, : len(ids)] = ids
        expected["input_mask"][row, : len(ids)] = 1
    request = {"text": string_array(SAMPLE_TEXTS)}
    return Signature(inputs={"text": texts}, call=lambda inputs: {}, request=request, expected=expected)
