"""Writing signatures as a SavedModel, and reading from its files which ops a server must know."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from albert_tf.encoder import AlbertEncoder
from albert_tf.errors import UserError
from albert_tf.export.signatures import Signature

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}  # of tf_keras
_TEXT_OPS = "Sentencepiece"  # what the names of TensorFlow Text's ops begin with


def write_saved_model(
    folder: str | os.PathLike,
    signatures: dict[str, Signature],
    *,
    encoder: AlbertEncoder,
    tokenizer: tf.Module | None = None,
) -> None:
    """Writes a SavedModel that needs nothing beside it.

    `tokenizer` is the GraphTokenizer that the signatures use, if any.

    Raises UserError where the disk does not take it.
    """
    root = tf.Module()
    root.tokenizer = tokenizer
    with weights_read_once(encoder):
        functions = {name: concrete_function(signature) for name, signature in signatures.items()}
        variables = {id(variable): variable for function in functions.values() for variable in function.variables}
    root.weights = list(variables.values())
    try:
        # Gradients stay in, although no server wants them: without, nobody could load this export and save it again.
        tf.saved_model.save(root, str(folder), signatures=functions)
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot write the export to {folder}: {reason}; check the folder and the disk") from error


def concrete_function(signature: Signature) -> Any:
    """The traced function of a signature; its arguments have the names of the inputs."""

    def call(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.identity(value, name) for name, value in signature.call(inputs).items()}

    return tf.function(call, autograph=False).get_concrete_function(**signature.inputs)


@contextlib.contextmanager
def weights_read_once(encoder: AlbertEncoder) -> Iterator[None]:
    """Graphs traced here read what a pass derives from the weights (fused and cast) from variables made now.

    A request then does none of that work, and an export in half precision is half as large. Functions do not keep
    their variables alive: take hold of them, or finish, before this ends.
    """
    variables: dict[int, tf.Variable] = {}

    def variable_of(tensor: tf.Tensor) -> tf.Variable:
        if id(tensor) not in variables:  # blocks share tensors
            variables[id(tensor)] = tf.Variable(tensor, trainable=False)
        return variables[id(tensor)]

    tensors = encoder.read_weights()
    derived = tf.nest.map_structure(variable_of, tensors)
    encoder.read_weights = lambda: tf.nest.map_structure(tf.convert_to_tensor, derived)
    try:
        yield
    finally:
        del encoder.read_weights


def operations(folder: str | os.PathLike) -> list[str]:
    """Names of all ops of a SavedModel, sorted."""
    stored = saved_model_pb2.SavedModel.FromString((pathlib.Path(folder) / "saved_model.pb").read_bytes())
    names = set()
    for graph in (meta_graph.graph_def for meta_graph in stored.meta_graphs):
        names.update(node.op for node in graph.node)
        names.update(node.op for function in graph.library.function for node in function.node_def)
    functions = {
        function.signature.name
        for meta_graph in stored.meta_graphs
        for function in meta_graph.graph_def.library.function
    }
    return sorted(names - functions)


def custom_operations(names: list[str]) -> list[str]:
    """Those of the ops that TensorFlow itself does not have."""
    return [name for name in names if name.startswith(_TEXT_OPS)]
