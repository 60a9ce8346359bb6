"""This project and its peers, side by side: `make bench`.

    python -m benchmarks.peers
    python -m benchmarks.peers --cases=train_8x128_float32 --systems=ours,ours_jit,keras_hub_jit --rounds=2 --output=

Prints a table, and writes it with machine, versions and goals to docs/results/performance.md, the numbers to
performance.json and a picture to performance.png beside it. Nothing else may run meanwhile.
"""

import argparse
import fnmatch
import json
import pathlib
import sys
import tempfile

from benchmarks.peers import catalog, runner
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="*", help=f"names or patterns of: {', '.join(catalog.CASES)}")
    parser.add_argument("--systems", help=f"only these of: {', '.join(catalog.SYSTEMS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--steps", type=int, help="calls a round")
    parser.add_argument("--warm_ups", type=int, default=2, help="calls before the first round")
    parser.add_argument("--peers_python", type=pathlib.Path, default=runner.Settings.own_python)
    parser.add_argument("--output", default=str(DOCUMENT), help="the report; empty: print only")
    arguments = parser.parse_args()
    log = pathlib.Path(tempfile.gettempdir()) / "albert_tf_bench_peers.log"
    settings = runner.Settings(
        rounds=arguments.rounds,
        steps=arguments.steps,
        warm_ups=arguments.warm_ups,
        own_python=arguments.peers_python,
        log=log,
    )
    cases = chosen_cases(arguments.cases, arguments.systems)
    results = runner.run(cases, settings, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
