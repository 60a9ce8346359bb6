"""Writing so that a file under its final name is always whole, and reading small JSON files."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from albert_tf.errors import UserError

_PARTIAL = ".partial-"  # marks what was not finished; a later run of the same command may remove it


def write_atomically(path: str | os.PathLike, data: bytes | str) -> None:
    """Writes `data` to `path` so that a reader sees the old content or the new, never a part.

    Raises UserError where the folder cannot be written to.
    """
    path = pathlib.Path(path)
    payload = data.encode("utf-8") if isinstance(data, str) else data
    partial = path.with_name(f"{_PARTIAL}{os.getpid()}-{path.name}")
    try:
        with open(partial, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True) if partial.parent.is_dir() else None
        raise UserError(f"cannot write {path}: {error.strerror}; check the folder, its rights and the disk") from error


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON with a final newline, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike, what: str) -> dict:
    """Reads a JSON object; `what` names it in the error ("model configuration", "records description").

    Raises UserError where the file is missing, is not JSON, or is not an object.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError as error:
        raise UserError(f"no {what} at {path}: the file does not exist; check the path") from error
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}; check the path and its rights") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"the {what} {path} is not valid JSON: {error}; expected one JSON object") from error
    if not isinstance(value, dict):
        raise UserError(f"the {what} {path} holds a {type(value).__name__}; expected one JSON object")
    return value


@contextlib.contextmanager
def new_folder(final: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives a temporary folder beside `final` that becomes `final` on success and vanishes on failure.

    An empty folder at `final` is replaced; temporary folders that killed runs left for `final` are removed. The caller
    decides beforehand what a full one means.

    Raises UserError where the folder cannot be made or `final` holds something.
    """
    final = pathlib.Path(final)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise UserError(f"{final} exists and is not empty; give a new folder or empty this one")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        partial, lock = _locked_folder(final)
    except OSError as error:
        raise UserError(f"cannot make the folder {final}: {error.strerror}; check the path and its rights") from error
    try:
        yield partial
        os.chmod(partial, 0o755)  # mkdtemp is private; a model folder is to be shared
        os.replace(partial, final)
    except OSError as error:
        raise UserError(f"cannot write {final}: {error.strerror}; check the folder, its rights and the disk") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _locked_folder(final: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A temporary folder beside `final` and the descriptor that locks it for as long as this process lives."""
    while True:
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{final.name}-", dir=final.parent))
        lock = os.open(partial, os.O_RDONLY)
        with contextlib.suppress(OSError):  # file systems without locks: nothing is ever taken for abandoned there
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if partial.exists():  # else another process took it for abandoned before it was locked
            return partial, lock
        os.close(lock)


def _remove_abandoned(final: pathlib.Path) -> None:
    """Removes temporary folders for `final` whose process was killed: those that nobody locks."""
    for partial in final.parent.glob(f"{glob.escape(_PARTIAL + final.name)}-*"):
        try:
            lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)


def sha256(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file's bytes, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a JSON value, the same for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()
