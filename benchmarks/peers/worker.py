"""A system's process: prepares a case when told so, and measures when told so, so that rounds can be interleaved.

    python -m benchmarks.peers.worker MODULE VARIANT

Reads a line of JSON for each order and answers with one; everything else that libraries print goes to stderr.

    (start)                                             {"versions": {package: version}}
    {"prepare": {fields of Case}, "warm_ups": 2}        {"scales": {part: 1.0}, "values": {part: 9.9}, "seconds": 31.0}
    {"measure": part, "times": 3}                       {"seconds": [...], "peak_bytes": ...}
    (anything that fails)                               {"error": "..."}, and the process ends
"""

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
import time
import traceback
from typing import Any

from benchmarks.peers.contract import Part
from benchmarks.peers.work import Case


class Session:
    """The case that is prepared at present."""

    def __init__(self, module: Any, variant: str) -> None:
        self._module, self._variant = module, variant
        self._parts: dict[str, Part] = {}

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries an order out."""
        if "prepare" in order:
            return self._prepare(Case(**order["prepare"]), order["warm_ups"])
        return self._measure(order["measure"], order["times"])

    def _prepare(self, case: Case, warm_ups: int) -> dict[str, Any]:
        start = time.perf_counter()
        self._parts = {}
        gc.collect()  # what a previous case made goes before new things come
        self._parts = self._module.prepare(case, self._variant)
        values = {}
        for name, part in self._parts.items():
            for _ in range(warm_ups):
                values[name] = (part.warm_up or part.run)()
        reset_peak_memory()
        scales = {name: part.scale for name, part in self._parts.items()}
        return {"scales": scales, "values": values, "seconds": time.perf_counter() - start}

    def _measure(self, name: str, times: int) -> dict[str, Any]:
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            self._parts[name].run()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "peak_bytes": peak_memory()}


def reset_peak_memory() -> None:
    """Gives free memory back to the system and starts the count of the peak anew (Linux)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        pass  # then the peak is that of the whole process


def peak_memory() -> int | None:
    """The most bytes that this process has had in memory since reset_peak_memory; None where nothing tells."""
    try:
        status = pathlib.Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def main() -> None:
    """Serves orders until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module_name, variant = sys.argv[1:]
    try:
        module = importlib.import_module(f"benchmarks.peers.systems.{module_name}")
        versions = {package: importlib.metadata.version(package) for package in module.PACKAGES}
        print(json.dumps({"versions": versions}), file=answers)
        session = Session(module, variant)
        for line in sys.stdin:
            print(json.dumps(session.answer(json.loads(line))), file=answers)
    except Exception as error:  # whatever a framework throws: the runner leaves the system out and says why
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        print(json.dumps({"error": f"{type(error).__name__}: {lines[0][:200]}"}), file=answers)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
