"""Files as Apache Beam sees them: local paths, and addresses such as gs://bucket/folder where Beam has their module."""

import contextlib
import fnmatch
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from albert_tf.errors import UserError
from albert_tf.files import new_folder
from albert_tf.pretraining.corpus import TEXT_SUFFIXES, Storage, each_once
from albert_tf.pretraining.records import DESCRIPTION

_BLOCK_BYTES = 4 << 20


class BeamStorage(Storage):
    """Text on local disks and behind addresses with a scheme."""

    def find(self, patterns: str | Sequence[str]) -> list[str]:
        listed = patterns.split(",") if isinstance(patterns, str) else list(patterns)
        found: list[str] = []
        for pattern in filter(None, (item.strip() for item in listed)):
            found += _find(pattern) if _has_scheme(pattern) else super().find([pattern])
        return each_once(found) or super().find([])

    def size(self, path: str) -> int:
        if not _has_scheme(path):
            return super().size(path)
        with _told(path):
            return FileSystems.match([path])[0].metadata_list[0].size_in_bytes

    def open(self, path: str) -> BinaryIO:
        if not _has_scheme(path):
            return super().open(path)
        with _told(path):
            return open_file(path)


def _find(pattern: str) -> list[str]:
    within = _match(f"{pattern.rstrip('/')}/**")
    if within:  # a folder
        paths = [path for path in within if path.endswith(TEXT_SUFFIXES)]
    else:
        paths = _match(pattern)
    if not paths:
        raise UserError(f"no input file at {pattern}: nothing matches; check the address")
    return sorted(paths)


def _match(pattern: str) -> list[str]:
    with _told(pattern):
        return [file.path for file in FileSystems.match([pattern])[0].metadata_list]


def open_file(path: str) -> BinaryIO:
    """Opens a file to read it as it is, compressed or not."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def create_file(path: str) -> BinaryIO:
    """Opens a new file to write to."""
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)


def copy_into(path: str, file: BinaryIO) -> int:
    """Appends a file to an open one and gives its number of bytes."""
    size = 0
    with open_file(path) as source:
        while block := source.read(_BLOCK_BYTES):
            file.write(block)
            size += len(block)
    return size


def make_folder(path: str) -> None:
    """Makes a folder that may be there already."""
    if not FileSystems.exists(path):
        FileSystems.mkdirs(path)


def write_small_files(folder: str, write: Callable[[pathlib.Path], None]) -> None:
    """Puts into `folder` what `write` writes into a local one, records.json last: it says that the rest is there."""
    with tempfile.TemporaryDirectory(prefix="albert_tf-") as scratch:
        write(pathlib.Path(scratch))
        for path in sorted(pathlib.Path(scratch).iterdir(), key=lambda path: (path.name == DESCRIPTION, path.name)):
            with open(path, "rb") as source, create_file(f"{folder}/{path.name}") as target:
                shutil.copyfileobj(source, target)


@contextlib.contextmanager
def output_folder(output_dir: str) -> Iterator[str]:
    """Gives a folder to write to that becomes `output_dir` on success and vanishes on failure.

    A bucket cannot rename folders, so there it is `output_dir` itself, and the description that comes last makes it
    whole. Raises UserError where something is there already.
    """
    if not _has_scheme(str(output_dir)):
        with new_folder(output_dir) as folder:
            yield str(folder)
        return
    folder = str(output_dir).rstrip("/")
    if taken := _match(f"{folder}/**"):
        raise UserError(f"{folder} holds something ({taken[0]}); name a new or empty folder")
    try:
        with _told(folder):
            make_folder(folder)
        yield folder
    except BaseException:
        with contextlib.suppress(BeamIOError):
            FileSystems.delete([folder])
        raise


def _has_scheme(path: str) -> bool:
    return fnmatch.fnmatch(path, "*://*")


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Words Beam's errors (no such scheme, no rights, no such file) in one line."""
    try:
        yield
    except (BeamIOError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot reach {path} ({reason}): check the address, its rights and Beam's extras") from error
