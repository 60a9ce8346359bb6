"""Writing so that a file under its final name is always whole, and reading small JSON files."""

import contextlib
import fcntl
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from albert_tf.errors import UserError

_PARTIAL = ".partial-"  # marks what was not finished; a later run of the same command may remove it
# TensorFlow takes names with these characters for patterns; the last range stands for bytes that are not UTF-8.
_HARD_TO_OPEN = re.compile(r"[*?\[\]\\\udc80-\udcff]")


def write_atomically(path: str | os.PathLike, data: bytes | str) -> None:
    """Writes `data` to `path` so that a reader sees the old content or the new, never a part.

    Raises UserError where the folder cannot be written to.
    """
    with writing(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Gives a file beside `path` that takes its place once it is written, and vanishes on failure.

    What killed runs left beside `path` is removed. A device or a pipe (/dev/stdout, /dev/null) keeps its place and is
    written to; so does a link, whose target is what is replaced.

    Raises UserError where the folder cannot be written to.
    """
    path = pathlib.Path(path)
    if _is_stream(path):
        with _told(path), open(path, "wb") as file:
            yield file
        return
    final = pathlib.Path(os.path.realpath(path)) if path.is_symlink() else path
    with _told(path):
        _remove_abandoned(final)
        with _locked_file(final) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, final)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)


def _is_stream(path: pathlib.Path) -> bool:
    """Whether `path` is a device, a pipe, or leads to what this process has open (/dev/stdout), whatever that is."""
    opened = path.is_symlink() and os.path.abspath(path).startswith(("/dev/", "/proc/"))
    return opened or (path.exists() and not path.is_file() and not path.is_dir())


@contextlib.contextmanager
def _told(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; check the folder, its rights and the disk") from error


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON with a final newline, atomically; see json_text."""
    text = json_text(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode("utf-8", "backslashreplace"))  # half a character (\udcff) becomes JSON's escape


def json_text(value: Any, **layout: Any) -> str:
    """`value` as JSON, `layout` as of json.dumps. NaN and infinity, for which JSON has no word, become null."""
    return json.dumps(_finite(value), allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: str | os.PathLike, what: str) -> dict:
    """Reads a JSON object, with or without a byte-order mark; `what` names it in the error ("model configuration").

    Raises UserError where the file is missing, is not JSON, or is not an object.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
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

    An empty folder at `final` is replaced, or the one that a link there leads to; temporary folders that killed runs
    left for `final` are removed. The caller decides beforehand what a full one means.

    Raises UserError where the folder cannot be made or `final` holds something.
    """
    check_new_folder(final)
    final = pathlib.Path(os.path.realpath(final))
    made = [folder for folder in final.parents if not folder.exists()]  # innermost first
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
        reason = error.strerror or error
        raise UserError(f"cannot write {final}: {reason}; check the folder, its rights and the disk") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
        with contextlib.suppress(OSError):  # those that now hold something stay
            for folder in made:
                folder.rmdir()


def check_new_folder(path: str | os.PathLike) -> None:
    """Raises UserError where `new_folder` could not put a folder: beforehand, not after hours of work."""
    try:
        final = pathlib.Path(os.path.realpath(path))
        if not final.exists():
            return
        taken = not final.is_dir() or any(final.iterdir())
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror}; check the path and its rights") from error
    if taken:
        raise UserError(f"{path} exists and is not empty; give a new folder or empty this one")
    here = final == pathlib.Path(os.path.realpath(os.curdir))
    if here or os.path.ismount(final):
        what = "the folder you are in" if here else "where a disk is mounted"
        raise UserError(f"{path} is {what}, which a finished folder cannot replace; give a new folder in it")


def check_output_file(path: str | os.PathLike | None, *read: str | os.PathLike | None) -> None:
    """Raises UserError where --output_file has no folder, is one, or is a file that is read: before the work."""
    if path is None:
        return
    path = pathlib.Path(path)
    if path.is_dir():
        raise UserError(f"cannot write --output_file={path}: it is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"cannot write --output_file={path}: there is no folder {path.parent}; make it first")
    if path.is_file() and any(other and os.path.realpath(other) == os.path.realpath(path) for other in read):
        raise UserError(f"--output_file={path} is the file that is read, and would replace it; give another name")


def is_hard_to_open(path: str | os.PathLike) -> bool:
    """Whether TensorFlow takes the path for a pattern, and so does not find there what it has written itself."""
    return _HARD_TO_OPEN.search(str(path)) is not None


@contextlib.contextmanager
def plainly_named(path: pathlib.Path, endings: Iterable[str] = ("",)) -> Iterator[pathlib.Path]:
    """Gives `path`, or a link to it where TensorFlow would not find it by its name.

    endings: of the files that have `path` as common beginning, where there is none of that name itself.
    """
    if not is_hard_to_open(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="albert_tf-") as scratch:
        link = pathlib.Path(scratch) / "linked"
        for ending in endings:
            os.symlink(os.path.realpath(f"{path}{ending}"), f"{link}{ending}")
        yield link


def _locked_file(final: pathlib.Path) -> BinaryIO:
    """A temporary file beside `final`, locked for as long as it is open."""
    while True:
        # Not tempfile's, which only its owner may read: a file gets the rights that any new file has.
        file = open(final.with_name(f"{_PARTIAL}{final.name}-{secrets.token_hex(4)}"), "xb")  # noqa: SIM115 the caller's
        if _locked(file.fileno(), file.name):
            return file
        file.close()


def _locked_folder(final: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A temporary folder beside `final` and the descriptor that locks it for as long as this process lives."""
    while True:
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{final.name}-", dir=final.parent))
        try:
            lock = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for abandoned, and was quick
            continue
        if _locked(lock, partial):
            return partial, lock
        os.close(lock)


def _locked(descriptor: int, partial: str | os.PathLike) -> bool:
    """Locks what was just made; False where another process had taken it for abandoned before that."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # it is about to be removed
    except OSError:
        pass  # file systems without locks: nothing is ever taken for abandoned there
    return os.path.exists(partial)


def _remove_abandoned(final: pathlib.Path) -> None:
    """Removes temporary files and folders for `final` whose process was killed: those that nobody locks."""
    for partial in final.parent.glob(f"{glob.escape(_PARTIAL + final.name)}-*"):
        try:
            lock = os.open(partial, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink()
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
