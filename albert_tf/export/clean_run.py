"""Loads SavedModels as a stranger would, with TensorFlow alone, and answers requests. Run as a program of its own.

Each line of standard input is a job: {"folder", "libraries", "requests": {signature: {input: array}}}; each line of
standard output its answers: {"answers": {signature: {output: array}}} or {"error"}. An array is {"dtype", "shape",
"values"}. Nothing of this project is imported, so that nothing of it can be missing where the model is served.
"""

import gc
import json
import sys

import numpy as np
import tensorflow as tf


def answer(job: dict) -> dict:
    """Loads a model and calls its signatures."""
    for library in job["libraries"]:
        tf.load_op_library(library)
    model = tf.saved_model.load(job["folder"])
    return {
        name: {key: packed(value.numpy()) for key, value in model.signatures[name](**unpacked(inputs)).items()}
        for name, inputs in job["requests"].items()
    }


def unpacked(inputs: dict) -> dict:
    """Arrays of a job as tensors."""
    tensors = {}
    for name, array in inputs.items():
        is_text = array["dtype"] == "object"
        values = [bytes.fromhex(value) for value in array["values"]] if is_text else array["values"]
        dtype = tf.string if is_text else array["dtype"]
        tensors[name] = tf.reshape(tf.constant(values, dtype), array["shape"])
    return tensors


def packed(array: np.ndarray) -> dict:
    """An array as a job and an answer hold it; bytes in hexadecimal."""
    values = array.reshape(-1).tolist()
    values = [value.hex() for value in values] if array.dtype == object else values
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}


def main() -> None:
    """Answers jobs until the input ends."""
    for line in sys.stdin:
        try:
            result = {"answers": answer(json.loads(line))}
        except Exception as error:  # whatever it is, the export is not usable, and the other side says so
            result = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()  # a loaded model is full of cycles, and the next one may be as large
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
