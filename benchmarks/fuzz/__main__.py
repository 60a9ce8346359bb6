"""Hostile input for every command, by numbers.

    python -m benchmarks.fuzz --cases=10000               # seed 1, cases 0 to 9999: about an hour
    python -m benchmarks.fuzz --first=4711 --cases=1      # one of them again
    python -m benchmarks.fuzz --cases=100 --command_line  # each in a process of its own

Prints a table of the classes and every case that misbehaved, and ends with 1 where there is one.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

from albert_tf.__main__ import quieten_tensorflow
from benchmarks.fuzz import cases, material, runner
from benchmarks.fuzz.judge import Verdict


def main() -> None:
    """Runs the cases that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--command_line", action="store_true", help="a process for each case")
    parser.add_argument("--material", type=pathlib.Path, help="folder of the material, made where it is not there")
    parser.add_argument("--results", type=pathlib.Path, help="file that the verdicts are added to, a JSON line each")
    parser.add_argument("--keep", type=pathlib.Path, help="only make the files of case FIRST, in this new folder")
    given = parser.parse_args()
    quieten_tensorflow()
    with tempfile.TemporaryDirectory(prefix="albert_tf-fuzz-") as scratch:
        store = given.material or pathlib.Path(scratch) / "material"
        if not store.exists():
            material.make(store)
        if given.keep is not None:
            print(cases.make_case(given.seed, given.first, material=store, folder=given.keep.resolve()).arguments)
            return
        verdicts = _run(given, store)
    runner.shown(verdicts)
    sys.exit(any(verdict.problem for verdict in verdicts))


def _run(given: argparse.Namespace, store: pathlib.Path) -> list[Verdict]:
    numbers = range(given.first, given.first + given.cases)
    found = (
        runner.run_command_lines(given.seed, list(numbers), store)
        if given.command_line
        else runner.run(given.seed, given.first, given.cases, store)
    )
    verdicts = []
    for verdict in found:
        verdicts.append(verdict)
        if given.results is not None:
            with open(given.results, "a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
    return verdicts


if __name__ == "__main__":
    main()
