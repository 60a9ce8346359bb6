"""Runs a case and says what a command did that none may do, whatever it was given."""

import contextlib
import dataclasses
import hashlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from benchmarks.fuzz import watch
from benchmarks.fuzz.cases import Case

SECONDS = 60.0  # of wall clock; a case takes a second on a quiet machine, a short training ten
_MOST_GROWTH = 1 << 30  # bytes of memory above what the process had; TensorFlow's graphs take some 100 MB
_LONGEST_LINE = 3000  # characters of an error that can still be read
_RUNS = ("pretrain", "finetune")  # their output folder outlives an error: the run can go on
_MARK = ".partial-"  # in names of what is not finished (albert_tf/files.py)
_AUTOGRAPH = "__autograph_generated_file"  # of TensorFlow, which removes them when the process ends


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a case came to. `problem` is None where the command behaved."""

    seed: int
    number: int
    kind: str
    arguments: list[str]
    code: int | None
    seconds: float
    said: str  # the last line on standard error
    problem: str | None


class TooLong(BaseException):
    """The case's time is over; no handler of errors catches this."""


def run_in_process(case: Case) -> Verdict:
    """Runs the case through the command table, in this process, in the case's folder."""
    said, code, problem = io.StringIO(), None, None
    before, started, memory = snapshot(case.folder), time.monotonic(), watch.resident_bytes()
    with _limited(SECONDS), _in_folder(case.folder), watch.watched(case.folder) as seen:
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                from albert_tf.__main__ import main

                code = main(["albert_tf", *case.arguments])
        except TooLong:
            problem = f"takes more than {SECONDS:.0f} seconds: {_place()}"
        except (Exception, SystemExit) as error:
            problem = f"raises {type(error).__name__}: {_place()}"
            said.write("".join(traceback.format_exception(error)))
    growth = watch.peak_bytes() - memory
    if problem is None and growth > _MOST_GROWTH:
        problem = f"takes {growth / 1e9:.1f} GB of memory"
    problem = problem or judged(case, code, said.getvalue(), before) or next(iter(seen), None)
    return _verdict(case, code, time.monotonic() - started, said.getvalue(), problem)


def run_command_line(case: Case) -> Verdict:
    """Runs the case as a process of its own, `python -m albert_tf ...`, as a user's shell does."""
    before, started = snapshot(case.folder), time.monotonic()
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {
        **os.environ,
        "TMPDIR": str(case.folder / "tmp"),
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "albert_tf", *case.arguments],
            cwd=case.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * SECONDS,
        )
    except subprocess.TimeoutExpired:
        problem = f"takes more than {2 * SECONDS:.0f} seconds"
        return _verdict(case, None, time.monotonic() - started, "", problem)
    said = done.stderr.decode("utf-8", "replace")
    return _verdict(
        case, done.returncode, time.monotonic() - started, said, judged(case, done.returncode, said, before)
    )


def judged(case: Case, code: int, said: str, before: dict[str, str]) -> str | None:
    """What is wrong with a finished case: its code, what it said, what it left."""
    if "Traceback (most recent call last)" in said:
        return "prints a traceback"
    if code not in (0, 2):
        return f"ends with code {code}"
    if code == 2 and (problem := _judged_line(case, said)):
        return problem
    after = snapshot(case.folder)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    outputs = _output_folders(case)
    for path in changed:
        is_output = any(path == one or path.startswith(f"{one}/") for one in outputs)
        if _MARK in path:
            return f"leaves {path}"
        if path in before and not is_output:
            return f"changes {path}"
        if path.startswith(f"tmp/{_AUTOGRAPH}"):
            continue
        if path.startswith("tmp/"):
            return f"leaves {path} among the temporary files"
        if code != 0 and path not in before and not (is_output and case.arguments[0] in _RUNS):
            return f"leaves {path} although it failed"
    return None


def _judged_line(case: Case, said: str) -> str | None:
    lines = said.strip("\n").split("\n")
    errors = [line for line in lines if line.startswith("albert_tf")]
    if len(errors) != 1 or lines[-1] != errors[0]:
        return f"says {len(errors)} lines of error, expected one at the end"
    line = errors[0]
    if len(line) > _LONGEST_LINE:
        return f"says a line of {len(line)} characters"
    if not line.isprintable():
        return "says characters that drive the terminal"
    return None


def _output_folders(case: Case) -> list[str]:
    values = [argument.split("=", 1)[1] for argument in case.arguments if argument.startswith("--output_dir=")]
    return [os.path.normpath(value) for value in values]


def snapshot(folder: pathlib.Path) -> dict[str, str]:
    """Every path below a folder with its kind or the hash of its content."""
    found = {}
    for top, names, others in os.walk(folder):
        for name in names + others:
            path = os.path.join(top, name)
            kind = "link" if os.path.islink(path) else "folder" if os.path.isdir(path) else ""
            if not kind:
                with open(path, "rb") as file:
                    kind = (
                        hashlib.file_digest(file, "sha1").hexdigest()
                        if hasattr(hashlib, "file_digest")
                        else _hash(file)
                    )
            found[os.path.relpath(path, folder)] = kind
    return found


def _hash(file) -> str:
    return hashlib.sha1(file.read()).hexdigest()


def _place() -> str:
    """Where the exception that is handled was raised, in the project's code: the last of its lines there."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [frame for frame in frames if any(f"/{room}/" in frame.filename for room in ("albert_tf", "tpu", "tasks"))]
    last = (own or frames)[-1]
    return f"{'/'.join(pathlib.Path(last.filename).parts[-3:])}:{last.lineno} ({last.name})"


def _verdict(case: Case, code: int | None, seconds: float, said: str, problem: str | None) -> Verdict:
    last = said.strip().splitlines()[-1][:500] if said.strip() else ""
    return Verdict(case.seed, case.number, case.kind, case.arguments, code, round(seconds, 3), last, problem)


@contextlib.contextmanager
def _limited(seconds: float):
    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _in_folder(folder: pathlib.Path):
    """The case's folder is the current one, and its `tmp` the place of temporary files."""
    place, scratch, variable = os.getcwd(), tempfile.tempdir, os.environ.get("TMPDIR")
    os.chdir(folder)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    try:
        yield
    finally:
        os.chdir(place)
        tempfile.tempdir = scratch
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable
