"""This project and its peers, side by side: `make bench`.

    python -m benchmarks.peers
    python -m benchmarks.peers --cases=train_8x128_float32 --systems=ours,ours_jit,keras_hub_jit --rounds=2

Prints a report with machine, versions, tables and goals. A run of everything also writes it to
docs/results/performance.md, the numbers to performance.json and a picture to performance.png beside it. Nothing else
may run meanwhile.
"""

import argparse
import fnmatch
import functools
import json
import pathlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from albert_tf import files
from benchmarks.peers import catalog, goals, records, report, runner
from benchmarks.peers.work import Case

DOCUMENT = runner.ROOT / "docs" / "results" / "performance.md"


def chosen_cases(patterns: str, systems: str | None) -> list[tuple[Case, tuple[str, ...]]]:
    """Cases by name or pattern (train_*, *_float32), with the systems asked for or those of the catalogue.

    Raises SystemExit for a name that nothing has.
    """
    known = catalog.CASES
    names: list[str] = []
    for pattern in patterns.split(","):
        found = fnmatch.filter(known, pattern)
        if not found:
            raise SystemExit(f"no case is named {pattern!r}; there are {', '.join(known)}")
        names += [name for name in found if name not in names]
    if systems is None:
        return [known[name] for name in names]
    asked = systems.split(",")
    if unknown := [name for name in asked if name not in catalog.SYSTEMS]:
        raise SystemExit(f"no system is named {unknown[0]!r}; there are {', '.join(catalog.SYSTEMS)}")
    cases = [known[name][0] for name in names]
    return [(case, tuple(name for name in asked if catalog.fits(name, case))) for case in cases]


def main() -> None:
    """Measures, prints and writes."""
    arguments = _arguments()
    whole = arguments.cases == "*" and arguments.systems is None
    output = arguments.output if arguments.output is not None else DOCUMENT if whole else None
    say = functools.partial(print, file=sys.stderr, flush=True)
    if arguments.results is not None:
        data = json.loads(arguments.results.read_text())
    else:
        data = measure(arguments, whole=whole, say=say)
    if output is None:
        print(report.document(data))
        return
    write(output, data)
    print(output.read_text())
    say(f"wrote {output}")


def measure(arguments: argparse.Namespace, *, whole: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that was asked for, as report.document takes it."""
    log = pathlib.Path(tempfile.gettempdir()) / "albert_tf_bench_peers.log"
    log.unlink(missing_ok=True)
    settings = runner.Settings(
        rounds=arguments.rounds,
        steps=arguments.steps,
        warm_ups=arguments.warm_ups,
        own_python=arguments.peers_python,
        log=log,
    )
    say(f"what the systems' libraries print goes to {log}")
    partial = log.with_suffix(".json")
    say(f"what is measured is kept in {partial}; --results={partial} --output=PAGE.md makes a report of it")
    start = time.perf_counter()
    data: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.peers", *sys.argv[1:]]) if not whole else "make bench",
        "machine": report.machine(),
        "python": platform.python_version(),
    }

    def keep(results: runner.Results) -> None:
        files.write_json(
            partial, {**data, "results": {name: case for name, case in results.items() if case["systems"]}}
        )

    data["results"] = runner.run(chosen_cases(arguments.cases, arguments.systems), settings, say=say, keep=keep)
    if goals.LARGEST_CASE in data["results"]:
        data["estimated_bytes"] = estimated_bytes()
    if whole:
        say("records creation")
        data["records"] = records.measure()
    say(f"took {(time.perf_counter() - start) / 60:.1f} minutes")
    return data


def estimated_bytes() -> int:
    """What the project says that a step of goals.LARGEST_CASE takes."""
    from albert_tf import config
    from tpu import memory

    case, _ = catalog.CASES[goals.LARGEST_CASE]
    return memory.training_bytes(
        config.preset(case.preset),
        rows=case.batch,
        max_seq_length=case.length,
        num_predictions=case.predictions,
        mixed_precision="mixed_bfloat16",
        recompute=True,
    )["total"]


def write(document: pathlib.Path, data: dict[str, Any]) -> None:
    """The report, and beside it its numbers (.json) and its picture (.png)."""
    document.parent.mkdir(parents=True, exist_ok=True)
    picture = document.with_suffix(".png")
    drawn = report.draw(data["results"], picture)
    files.write_json(document.with_suffix(".json"), data)
    files.write_atomically(document, report.document(data, picture=picture.name if drawn else None))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="*", help=f"names or patterns of: {', '.join(catalog.CASES)}")
    parser.add_argument("--systems", help=f"only these of: {', '.join(catalog.SYSTEMS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--steps", type=int, help="calls a round")
    parser.add_argument("--warm_ups", type=int, help="calls before the first round")
    parser.add_argument("--peers_python", type=pathlib.Path, default=runner.Settings.own_python)
    parser.add_argument("--output", type=pathlib.Path, help=f"the report; left out, a whole run writes {DOCUMENT}")
    parser.add_argument("--results", type=pathlib.Path, help="write the report of this .json, and measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
