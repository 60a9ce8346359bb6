"""Many small files as one thing: a folder, or a .tar.gz that is read in place, or a part of either."""

import os
import pathlib
import tarfile
import zlib
from collections.abc import Iterator

from albert_tf.errors import UserError

ENDINGS = (".tar.gz", ".tgz", ".tar")
_MOST_BYTES = 16 << 20  # of one file inside; a damaged or hostile archive may claim anything


def located(path: str | os.PathLike) -> tuple[pathlib.Path, str]:
    """A path that may go on inside an archive: "a/RACE.tar.gz/dev/high" is (a/RACE.tar.gz, "dev/high").

    Other paths are (path, "").
    """
    path = pathlib.Path(path)
    for outer in (path, *path.parents):
        if is_archive(outer):
            inner = path.relative_to(outer).as_posix()
            return outer, "" if inner == "." else inner
    return path, ""


def is_archive(path: str | os.PathLike) -> bool:
    """Whether there is a file with the ending of an archive."""
    return str(path).lower().endswith(ENDINGS) and os.path.isfile(path)


def exists(path: str | os.PathLike) -> bool:
    """Like os.path.exists, also for a folder inside an archive."""
    outer, inner = located(path)
    if not inner:
        return outer.exists()
    with _opened(outer) as archive:
        return any(_inside(member.name, inner) for member in _members(archive, outer))


def texts(path: str | os.PathLike, ending: str) -> Iterator[tuple[str, str, str]]:
    """(name, place, text) of every file with that ending, in the order of their names.

    `name` is the path below `path` ("dev/high/1.txt"), `place` the whole one, for messages. A path may be one file.
    Links, hidden files and anything that is no plain file are passed over; nothing is unpacked.

    Raises UserError where the path is missing, a file is not UTF-8 or too large, or the archive is damaged.
    """
    outer, inner = located(path)
    read = _archive_bytes(outer, inner, ending) if is_archive(outer) else _folder_bytes(outer, ending)
    for name, content in read:
        place = name if outer.is_file() and not is_archive(outer) else f"{outer}/{name}"
        try:
            yield name, place, content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{place} is not UTF-8 at byte {error.start}; convert it") from error


def _folder_bytes(path: pathlib.Path, ending: str) -> Iterator[tuple[str, bytes]]:
    if not path.exists():
        raise UserError(f"no file or folder {path}; check the path")
    if path.is_file():
        yield str(path), path.read_bytes()
        return
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob(f"*{ending}") if file.is_file())
    for name in names:
        if not _is_hidden(name):
            yield name, (path / name).read_bytes()


def _archive_bytes(path: pathlib.Path, inner: str, ending: str) -> Iterator[tuple[str, bytes]]:
    found = {}
    with _opened(path) as archive:
        for member in _members(archive, path):
            if not member.isfile() or not member.name.endswith(ending) or _is_hidden(member.name):
                continue
            if not _inside(member.name, inner):
                continue
            if member.size > _MOST_BYTES:
                raise UserError(f"{path}/{member.name} has {member.size} bytes, expected at most {_MOST_BYTES}")
            try:
                found[member.name.removeprefix("./")] = archive.extractfile(member).read()
            except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
                raise _damaged(path, error) from error
    yield from sorted(found.items())


def _opened(path: pathlib.Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error


def _members(archive: tarfile.TarFile, path: pathlib.Path) -> Iterator[tarfile.TarInfo]:
    try:
        yield from archive
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(f"{path} is truncated or no archive ({error}); copy it again")


def _inside(name: str, inner: str) -> bool:
    """Whether the member lies in the folder `inner`, which may itself lie in an outer folder ("RACE/")."""
    return not inner or f"/{inner}/" in f"/{name.removeprefix('./')}/"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != "." for part in name.split("/"))
