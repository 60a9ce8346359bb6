"""The check of every export: a process that imports nothing but TensorFlow gives the answers of the Python model."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from types import TracebackType

import numpy as np

from albert_tf.errors import UserError
from albert_tf.export.signatures import Arrays, Signature

# Largest allowed difference, as a share of the expected number (at least 1). The same graph runs on both sides, but
# TensorFlow may fuse and reorder it differently; half precision then rounds elsewhere.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


class CleanProcess:
    """A Python process with TensorFlow only, started early because importing that takes a while.

    >>> with CleanProcess() as clean:
    ...     export(clean)
    """

    def __enter__(self) -> "CleanProcess":
        self._log = tempfile.TemporaryFile()
        program = pathlib.Path(__file__).with_name("clean_run.py")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def answers(
        self, folder: str | os.PathLike, requests: dict[str, Arrays], *, libraries: tuple[str, ...] = ()
    ) -> dict[str, Arrays]:
        """The answers of a SavedModel's signatures to {signature: inputs}; `libraries` are loaded before.

        Raises UserError where the model cannot be loaded or a request fails.
        """
        from albert_tf.export.clean_run import packed

        wanted = {name: {key: packed(value) for key, value in inputs.items()} for name, inputs in requests.items()}
        job = {"folder": str(folder), "libraries": list(libraries), "requests": wanted}
        line = ""
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            self._log.seek(0)
            last = self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"the export check ended without an answer ({last[0]}); check memory, and export again")
        result = json.loads(line)
        if "error" in result:
            raise UserError(f"the exported model does not run in a clean process: {result['error'][:500]}")
        return {
            name: {key: _array(value) for key, value in outputs.items()} for name, outputs in result["answers"].items()
        }

    def check(
        self,
        folder: str | os.PathLike,
        signatures: dict[str, Signature],
        *,
        precision: str,
        libraries: tuple[str, ...] = (),
    ) -> dict[str, float]:
        """Tries every signature, and returns the largest difference from the Python model's answer for each.

        Raises UserError where an answer is missing, has another shape or differs.
        """
        requests = {name: signature.request for name, signature in signatures.items()}
        answers = self.answers(folder, requests, libraries=libraries)
        return {
            name: compare(answers[name], signature.expected, precision=precision, what=f"signature {name}")
            for name, signature in signatures.items()
        }


def compare(found: Arrays, expected: Arrays, *, precision: str, what: str) -> float:
    """The largest difference of numbers, relative where they exceed 1; strings and whole numbers must be the same.

    In half precision, what depends on an order (labels, answers) is not compared: it turns on the last digit.

    Raises UserError.
    """
    largest = 0.0
    for name, right in expected.items():
        if name not in found or found[name].shape != right.shape:
            shape = list(found[name].shape) if name in found else "nothing"
            raise UserError(
                f"{what}: output {name} is {shape}, the Python model's is {list(right.shape)}; not exported"
            )
        if right.dtype.kind != "f":
            if precision == "float32" and not np.array_equal(found[name], right):
                raise UserError(f"{what}: output {name} differs from the Python model's; not exported")
            continue
        scale = np.maximum(1.0, np.abs(right.astype(np.float64)))
        difference = float((np.abs(found[name].astype(np.float64) - right) / scale).max(initial=0.0))
        if not difference <= TOLERANCES[precision]:  # also where it is not a number
            raise UserError(
                f"{what}: output {name} differs from the Python model's by {difference:.3g}, allowed is "
                f"{TOLERANCES[precision]:g}; not exported"
            )
        largest = max(largest, difference)
    return largest


def _array(packed: dict) -> np.ndarray:
    values = packed["values"]
    if packed["dtype"] == "object":
        values = [bytes.fromhex(value) for value in values]
    return np.array(values, packed["dtype"]).reshape(packed["shape"])
