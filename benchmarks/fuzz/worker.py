"""Cases in a row in this process: python -m benchmarks.fuzz.worker SEED FIRST COUNT MATERIAL SCRATCH RESULTS.

Each verdict is a JSON line in RESULTS as soon as it is known, so that a process that dies has named its case.
"""

import dataclasses
import faulthandler
import json
import pathlib
import shutil
import sys

from benchmarks.fuzz import cases, judge, watch


def main() -> None:
    """Runs the cases; what the commands print through C goes where the process's own output goes."""
    seed, first, count = map(int, sys.argv[1:4])
    material, scratch, results = map(pathlib.Path, sys.argv[4:7])
    sys.dont_write_bytecode = True
    watch.install(scratch / "outside")
    with open(results, "a", encoding="utf-8") as file:
        for number in range(first, first + count):
            case = cases.make_case(seed, number, material=material, folder=scratch / "case")
            faulthandler.dump_traceback_later(2 * judge.SECONDS, exit=True)  # where no exception gets through
            verdict = judge.run_in_process(case)
            faulthandler.cancel_dump_traceback_later()
            file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
            file.flush()
            shutil.rmtree(case.folder)


if __name__ == "__main__":
    main()
