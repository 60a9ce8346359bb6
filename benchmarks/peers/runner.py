"""Runs systems in turn, each in a process of its own: all prepare a case, then rounds go A B C A B C."""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.peers import catalog
from benchmarks.peers.work import Case

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
THREADS = "2"
# Results: {case: {"systems": {system: SystemResult}, "skipped": {system: reason}}}, where SystemResult is
# {"parts": {part: {"seconds": [one a call], "rounds": [calls of each round], "scale": ...}}, "values": {part: ...},
#  "peak_bytes": ..., "prepare_seconds": ..., "versions": {...}}
Results = dict[str, dict[str, dict[str, Any]]]


class Failed(Exception):
    """A system cannot do what it was asked; the text says why."""


class Process(Protocol):
    """A system that takes orders."""

    versions: dict[str, str]

    def ask(self, **order: Any) -> dict[str, Any]:
        """Gives an order of worker.py and waits for the answer; raises Failed."""

    def close(self) -> None:
        """Ends it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured."""

    rounds: int | None = None  # None, as in the next two: as the case needs
    steps: int | None = None  # calls a round
    warm_ups: int | None = None
    own_python: pathlib.Path = ROOT / ".venv-peers" / "bin" / "python"
    log: pathlib.Path = pathlib.Path(os.devnull)  # what the systems' libraries print

    def rounds_of(self, case: Case) -> int:
        """Rounds of a case."""
        return self.rounds or (1 if case.natural else 2 if _is_long(case) else 3)

    def steps_of(self, case: Case) -> int:
        """Calls of each part in a round."""
        return self.steps or (3 if case.kind == "infer" and not case.natural else 1)

    def warm_ups_of(self, case: Case) -> int:
        """Calls of each part before the first round; the first of them compiles."""
        return self.warm_ups or (1 if case.natural or _is_long(case) else 2)


def _is_long(case: Case) -> bool:
    """A call takes most of a minute and many gigabytes."""
    return case.preset != "albert_base" or case.batch > 8


class Worker:
    """A process that runs worker.py."""

    def __init__(self, name: str, settings: Settings) -> None:
        system = catalog.SYSTEMS[name]
        python = settings.own_python if system.own_python else pathlib.Path(sys.executable)
        if not python.exists():
            raise Failed(f"there is no {python}: run `make bench-peers`")
        threads = {name: THREADS for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TRANSFORMERS_VERBOSITY": "error"}
        with open(settings.log, "ab") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.peers.worker", system.module, system.variant],
                cwd=ROOT,
                env={**os.environ, **threads, **quiet},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.versions = self._answer()["versions"]

    def ask(self, **order: Any) -> dict[str, Any]:
        """See Process."""
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed("its process has ended") from None
        return self._answer()

    def close(self) -> None:
        """See Process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"its process ended with code {self._process.wait()}"}
        if "error" in answer:
            self.close()
            raise Failed(answer["error"])
        return answer


def run(
    chosen: Sequence[tuple[Case, Sequence[str]]],
    settings: Settings,
    *,
    start: Callable[[str, Settings], Process] = Worker,
    say: Callable[[str], None] = print,
    keep: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Measures cases, each with its systems; `keep` is given what there is after each case.

    Cases beside each other that share work (shape and precision) and systems share processes. A system that fails is
    left out of the rest of that group and listed under "skipped".
    """
    results: Results = {case.name: {"systems": {}, "skipped": {}} for case, _ in chosen}
    for (_, systems), group in itertools.groupby(chosen, key=lambda pair: (pair[0].work, tuple(pair[1]))):
        processes: dict[str, Process] = {}
        try:
            for case, _ in group:
                _run_case(case, systems, settings, start=start, say=say, processes=processes, result=results[case.name])
                keep(results)
        finally:
            for process in processes.values():
                process.close()
    return results


def _run_case(
    case: Case,
    systems: Sequence[str],
    settings: Settings,
    *,
    start: Callable[[str, Settings], Process],
    say: Callable[[str], None],
    processes: dict[str, Process],
    result: dict[str, dict[str, Any]],
) -> None:
    say(f"{case.name}: {', '.join(systems)}")
    order = {"prepare": dataclasses.asdict(case), "warm_ups": settings.warm_ups_of(case)}

    def prepare(name: str) -> dict[str, Any]:
        if name not in processes:
            processes[name] = start(name, settings)
        return processes[name].ask(**order)

    # Compilers use a core each, so two systems at once; nothing is timed yet.
    with concurrent.futures.ThreadPoolExecutor(1 if _is_long(case) else 2) as pool:
        waiting = {name: pool.submit(prepare, name) for name in systems}
        for name, future in waiting.items():
            try:
                ready = future.result()
            except Failed as failure:
                _skip(name, failure, processes, result, say)
                continue
            result["systems"][name] = {
                "parts": {part: {"scale": scale, "rounds": []} for part, scale in ready["scales"].items()},
                "values": ready["values"],
                "prepare_seconds": ready["seconds"],
                "versions": processes[name].versions,
            }
            say(f"  {name}: ready in {ready['seconds']:.1f} s, {_shown(ready['values'])}")
    for number in range(settings.rounds_of(case)):
        for name in list(result["systems"]):
            try:
                _round(processes[name], result["systems"][name], settings.steps_of(case))
            except Failed as failure:
                del result["systems"][name]
                _skip(name, failure, processes, result, say)
                continue
            say(f"  round {number + 1} {name}: {_times(result['systems'][name])}")


def _round(process: Process, result: dict[str, Any], times: int) -> None:
    for name, part in result["parts"].items():
        answer = process.ask(measure=name, times=times)
        part["rounds"].append(answer["seconds"])
        result["peak_bytes"] = answer["peak_bytes"]


def _skip(
    name: str,
    failure: Failed,
    processes: dict[str, Process],
    result: dict[str, dict[str, Any]],
    say: Callable[[str], None],
) -> None:
    process = processes.pop(name, None)
    if process is not None:
        process.close()
    result["skipped"][name] = str(failure)
    say(f"  {name}: skipped: {failure}")


def _shown(values: dict[str, float]) -> str:
    return ", ".join(f"{part} gave {value:.4f}" for part, value in values.items())


def _times(result: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {' '.join(f'{s:.3f}' for s in part['rounds'][-1])} s" for name, part in result["parts"].items()
    )
