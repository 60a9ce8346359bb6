"""Many cases: workers one after another, each for some hundred cases, and a verdict also on those that kill theirs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from benchmarks.fuzz import cases, judge, watch
from benchmarks.fuzz.judge import Verdict

_CASES_A_WORKER = 250  # TensorFlow keeps every graph: a fresh process now and then keeps memory small
_STALLED = 75  # how a process ends that its own watchdog stops (--stall_timeout)


def run(seed: int, first: int, count: int, material: pathlib.Path) -> Iterator[Verdict]:
    """The verdicts on cases first, first + 1, ...; material: a folder that material.make made."""
    with tempfile.TemporaryDirectory(prefix="albert_tf-fuzz-") as folder:
        scratch = pathlib.Path(os.path.realpath(folder))
        watch.make_outside(material, scratch / "outside")
        number, end = first, first + count
        while number < end:
            worker = _start(seed, number, min(_CASES_A_WORKER, end - number), material, scratch)
            with worker:
                for line in worker.stdout:
                    yield Verdict(**json.loads(line))
                    number += 1
            if worker.returncode:
                yield _death(seed, number, worker.returncode, material, scratch)
                number += 1


def run_command_lines(seed: int, numbers: list[int], material: pathlib.Path) -> Iterator[Verdict]:
    """The verdicts on those cases, each in a process as a user's shell starts it."""
    with tempfile.TemporaryDirectory(prefix="albert_tf-fuzz-") as folder:
        for number in numbers:
            case = cases.make_case(
                seed, number, material=material, folder=pathlib.Path(os.path.realpath(folder)) / "case"
            )
            if any("\0" in argument for argument in case.arguments):  # no process can be given that
                continue
            yield judge.run_command_line(case)


def _start(seed: int, first: int, count: int, material: pathlib.Path, scratch: pathlib.Path) -> subprocess.Popen:
    """A worker; where its exit code is not 0, the case after those it gave verdicts on was its end."""
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
    with open(scratch / "worker.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fuzz.worker", *map(str, (seed, first, count, material, scratch))],
            cwd=pathlib.Path(__file__).resolve().parents[2],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def _death(seed: int, number: int, code: int, material: pathlib.Path, scratch: pathlib.Path) -> Verdict:
    case = cases.make_case(seed, number, material=material, folder=scratch / "case")
    said = (scratch / "worker.log").read_text(encoding="utf-8", errors="replace").strip()[-3000:]
    if code == _STALLED:
        return Verdict(seed, number, case.kind, case.arguments, code, 0.0, "", None)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Verdict(seed, number, case.kind, case.arguments, code, 0.0, said, f"kills the process: {how}")


def counted(verdicts: list[Verdict]) -> dict[str, dict[str, int]]:
    """Class of input -> how many cases, accepted, refused, and how many misbehaved."""
    table = {kind: {"cases": 0, "accepted": 0, "refused": 0, "problems": 0} for kind in cases.CLASSES}
    for verdict in verdicts:
        row = table[verdict.kind]
        row["cases"] += 1
        row["problems" if verdict.problem else "accepted" if verdict.code == 0 else "refused"] += 1
    return table


def shown(verdicts: list[Verdict], say: Callable[[str], None] = print) -> None:
    """Prints the counts as a Markdown table, and every problem with its case."""
    say("| class | cases | accepted | refused | problems |\n|---|---|---|---|---|")
    for kind, row in counted(verdicts).items():
        say(f"| {kind} | {row['cases']:,} | {row['accepted']:,} | {row['refused']:,} | {row['problems']} |")
    seconds = sum(verdict.seconds for verdict in verdicts)
    say(f"\n{len(verdicts):,} cases, {seconds:.0f} s, {seconds / max(1, len(verdicts)):.2f} s a case")
    for verdict in verdicts:
        if verdict.problem:
            say(f"seed {verdict.seed} case {verdict.number} ({verdict.kind}): {verdict.problem}")
            say(f"  {verdict.arguments!r}"[:600])
            say(f"  {verdict.said[-600:]}")
