"""Cases in a row in this process: python -m benchmarks.fuzz.worker SEED FIRST COUNT MATERIAL SCRATCH.

Each verdict is a JSON line on standard output as soon as it is known, so that a process that dies has named its case.
"""

import dataclasses
import faulthandler
import json
import os
import pathlib
import shutil
import sys

from benchmarks.fuzz import cases, judge, watch


def main() -> None:
    """Runs the cases; what the commands print through C goes to standard error."""
    seed, first, count = map(int, sys.argv[1:4])
    material, scratch = map(pathlib.Path, sys.argv[4:6])
    sys.dont_write_bytecode = True
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import tf_keras  # noqa: F401  TensorFlow's start, with its memory and the settings it reads, is no part of a case

    watch.install(scratch / "outside")
    for number in range(first, first + count):
        case = cases.make_case(seed, number, material=material, folder=scratch / "case")
        faulthandler.dump_traceback_later(2 * judge.SECONDS, exit=True)  # where no exception gets through
        verdict = judge.run_in_process(case)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(dataclasses.asdict(verdict)), file=results, flush=True)
        shutil.rmtree(case.folder)


if __name__ == "__main__":
    main()
