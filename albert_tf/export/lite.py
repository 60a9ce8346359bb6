"""TensorFlow Lite files of the ids signature: built-in ops only, in float32 and with weights of 8 bits."""

import contextlib
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.export.clean_process import compare
from albert_tf.export.saved_model import write_saved_model
from albert_tf.export.signatures import DEFAULT, Arrays, Signature

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model

FILES = {"float32": "model.tflite", "int8_weights": "model_int8.tflite"}


def write_lite(folder: pathlib.Path, model: "Model", ids: Signature) -> dict[str, Any]:
    """Writes both files and returns the parity report: how far each is from the Python model, by output,
    relative where numbers exceed 1.

    Strings are left out: small devices get numbers, and the manifest names the labels.

    Raises UserError where the float32 file differs from the Python model.
    """
    numbers = {name for name, value in ids.expected.items() if value.dtype != object}
    signature = Signature(
        inputs=ids.inputs,
        call=lambda inputs: {name: value for name, value in ids.call(inputs).items() if name in numbers},
        request=ids.request,
        expected={name: ids.expected[name] for name in sorted(numbers)},
    )
    report = {}
    with tempfile.TemporaryDirectory() as source:  # only SavedModels keep their signature in the conversion
        write_saved_model(source, {DEFAULT: signature}, encoder=model.encoder)
        for kind, name in FILES.items():
            data = _converted(source, small=kind != "float32")
            files.write_atomically(folder / name, data)
            answers = run(folder / name, signature.request)
            if kind == "float32":
                compare(answers, signature.expected, precision="float32", what=name)
            differences = {
                key: _difference(answers[key], right)
                for key, right in signature.expected.items()
                if right.dtype.kind == "f"
            }
            report[kind] = {"file": name, "bytes": len(data), "largest_difference": differences}
    return report


def run(path: pathlib.Path, inputs: Arrays) -> Arrays:
    """The answers of a file to int32 inputs of any batch and length."""
    with _quiet():
        interpreter = tf.lite.Interpreter(model_path=str(path))
        runner = interpreter.get_signature_runner()
    return {name: np.array(value) for name, value in runner(**inputs).items()}


def operations(path: pathlib.Path) -> list[str]:
    """Names of the ops of a file."""
    with _quiet():
        interpreter = tf.lite.Interpreter(model_path=str(path))
        return sorted({details["op_name"] for details in interpreter._get_ops_details()} - {"DELEGATE"})


def _converted(source: str, *, small: bool) -> bytes:
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_saved_model(source, signature_keys=[DEFAULT])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if small:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return converter.convert()
        except Exception as error:  # the converter raises types of its own, by stage
            raise UserError(f"TensorFlow Lite cannot convert the model: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tf.lite announces the package that is to replace it
        yield


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    scale = np.maximum(1.0, np.abs(expected.astype(np.float64)))
    return float((np.abs(found.astype(np.float64) - expected) / scale).max(initial=0.0))
