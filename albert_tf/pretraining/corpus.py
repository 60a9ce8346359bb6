"""Text files -> documents, as a stream: memory stays a few megabytes whatever the files' size.

Files are plain text, gzip, or (compressed) tar archives of texts; the content decides, not the name. Text is UTF-8;
bytes that are not are replaced and counted. A document longer than MAX_DOCUMENT_CHARS comes in parts cut between
paragraphs.
"""

import codecs
import contextlib
import dataclasses
import glob
import gzip
import itertools
import os
import pathlib
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from albert_tf.errors import UserError
from albert_tf.pretraining.sentences import split_paragraph, split_text

INPUT_FORMATS = ("auto", "paragraphs", "sentences")
MAX_DOCUMENT_CHARS = 500_000
_BLOCK_BYTES = 1 << 18
_SAMPLE_FILES, _SAMPLE_CHARS = 12, 32_768  # what `auto` looks at
_MAX_INVALID_SHARE = 0.2  # of a file's bytes: more is no UTF-8 text at all
TEXT_SUFFIXES = (".txt", ".gz", ".tgz", ".tar")  # looked for where a folder is given
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"%PDF": "a PDF",
}

_TERMINATED = re.compile(r"[.!?…。！？।॥؟۔:;]['\"”’»)\]」』]{0,3}\s*\Z")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
# A heading is a line of its own: markdown, CHAPTER IV / Part 2 / Prologue, a Roman number, or a line in capitals; all
# but markdown with a blank line behind. Every repetition is bounded, so that no text makes the search slow.
_HEADING = (
    r"(?:\#{1,6}[^\S\n]\S[^\n]{0,120}(?=\n)|(?:"
    r"(?i:chapter|book|part|volume|canto|act|prologue|epilogue)\b[^\n.]{0,60}\.?"
    r"|[IVXLC]{1,7}\.?"
    r"|(?=[^\n]{0,60}[A-Z]{3})[A-Z][^a-z\n]{2,60}"
    r")(?=[^\S\n]{0,40}\n[^\S\n]{0,40}\n))"
)
_HEADING_HERE = re.compile(_HEADING)
_HEADING_LATER = re.compile(rf"\n[^\S\n]{{0,40}}\n(?P<heading>[^\S\n]{{0,40}}{_HEADING})")
_SPACE = re.compile(r"\s*")


@dataclasses.dataclass(frozen=True)
class Document:
    """A document, or one part of a very long one (parts share `index`)."""

    text: str
    input_format: str  # "paragraphs" or "sentences"
    index: int  # number of the document in the corpus
    file_index: int  # number of the file (archive member) it is from
    source: str  # its file, for messages

    @property
    def num_chars(self) -> int:
        """Characters of the text."""
        return len(self.text)

    def sentences(self) -> list[str]:
        """The text cut into sentences by the rule of its format."""
        return split_text(self.text, self.input_format)


class Storage:
    """Where text lies: here, the disks of this machine."""

    def find(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind paths, folders and globs; see find_files."""
        return find_files(patterns)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return os.path.getsize(path)

    def open(self, path: str) -> BinaryIO:
        """A file to read bytes from."""
        return open(path, "rb")


@dataclasses.dataclass
class Corpus:
    """The files behind `patterns` and what reading them found; `documents()` may be called again and starts over.

    patterns: files, folders or globs, as a list or separated by commas. input_format: one of INPUT_FORMATS; "auto" is
    replaced by what a sample of the text looks like, `reason` says why. storage: what finds and opens them.

    Raises UserError for a pattern without files, an unreadable file, or a file that is no UTF-8 text.
    """

    patterns: str | Sequence[str]
    input_format: str = "auto"
    storage: Storage = dataclasses.field(default_factory=Storage)

    def __post_init__(self) -> None:
        if self.input_format not in INPUT_FORMATS:
            raise UserError(f"unknown input format: {self.input_format!r}; expected one of {', '.join(INPUT_FORMATS)}")
        self.files = self.storage.find(self.patterns)
        sizes = [self.storage.size(file) for file in self.files]
        self.num_bytes = sum(sizes)
        self.reason = "as asked"
        # Whether there are several files, or an archive of some; and a guess at the text, made before reading it.
        self.has_many_texts, self.expected_chars = len(self.files) > 1, 0
        for file, size in zip(self.files, sizes, strict=True):
            is_gzip, is_archive = self._container(file)
            self.has_many_texts |= is_archive
            self.expected_chars += size * (3 if is_gzip else 1)
        self._start()
        if self.input_format == "auto":
            self.input_format, self.reason = _guess_format(self._texts())
            self._start()

    def _start(self) -> None:
        self.bytes_read = 0  # of num_bytes, compressed where the files are
        self.num_texts = self.num_chars = self.invalid_characters = self.null_characters = 0
        self.damaged: list[str] = []  # files with invalid UTF-8

    def documents(self) -> Iterator[Document]:
        """The documents in order, from the start each time; what reading them found is counted anew."""
        self._start()
        index = 0
        for file_index, (source, blocks) in enumerate(self._texts()):
            find_end = _next_heading if self.input_format == "paragraphs" else _next_blank_line
            has_text = False
            for part, ends in _parts(blocks, find_end, self.input_format):
                if part.strip():
                    has_text = True
                    yield Document(part, self.input_format, index, file_index, source)
                if ends:
                    index, has_text = index + has_text, False

    def _texts(self) -> Iterator[tuple[str, Iterator[str]]]:
        """(name, blocks of text) for every file and archive member, in order."""
        done = 0
        for path in self.files:
            with _errors_named(path), self.storage.open(path) as raw:
                for source, stream in _members(path, raw, *self._container(path)):
                    self.num_texts += 1
                    yield source, self._decode(stream, source, raw, done)
            done += self.storage.size(path)
        self.bytes_read = done

    def _container(self, path: str) -> tuple[bool, bool]:
        """Whether a file is gzip, and whether it is (then) a tar archive."""
        with _errors_named(path), self.storage.open(path) as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            head = (gzip.open(raw) if is_gzip else raw).read(512)
        return is_gzip, head[257:262] == b"ustar"

    def _decode(self, stream: BinaryIO, source: str, raw: BinaryIO, done: int) -> Iterator[str]:
        """Blocks of text with `\\n` line ends, no byte-order mark and no NUL."""
        decoder = codecs.getincrementaldecoder("utf-8")(_COUNTED)
        read, invalid, text = 0, 0, ""
        more = True
        while more:
            with _errors_named(source):
                block = stream.read(_BLOCK_BYTES)
            more = bool(block)
            block = block if read else _without_mark(block, source)
            read += len(block)
            self.bytes_read = done + raw.tell()
            replaced_before = _count_invalid.number
            text += decoder.decode(block, final=not more)
            invalid += _count_invalid.number - replaced_before
            if invalid > _MAX_INVALID_SHARE * read:
                raise UserError(
                    f"{source} is not UTF-8 text: {invalid} of its first {read} bytes are invalid; convert or remove it"
                )
            whole = len(text) - text.endswith("\r") if more else len(text)  # the line end may go on in the next block
            yield self._clean(text[:whole])
            text = text[whole:]
        if invalid:
            self.invalid_characters += invalid
            self.damaged.append(source)

    def _clean(self, text: str) -> str:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.num_chars += len(text)
        if nulls := text.count("\0"):
            self.null_characters += nulls
            text = text.replace("\0", " ")
        return text


def documents(patterns: str | Sequence[str], input_format: str = "auto") -> Iterator[Document]:
    """Streams the documents of the files behind `patterns` (see Corpus)."""
    return Corpus(patterns, input_format).documents()


def sentences(patterns: str | Sequence[str], input_format: str = "auto") -> Iterator[str]:
    """Streams the sentences of the files behind `patterns` (see Corpus)."""
    for document in documents(patterns, input_format):
        yield from document.sentences()


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """Files behind comma-separated paths, folders and globs: each once, sorted within its pattern.

    Hidden files in a folder (".name") are passed over, as a glob does; linked folders within it, too, and told.

    Raises UserError for a pattern that matches no file, or names a device or a pipe: text is read more than once.
    """
    listed = patterns.split(",") if isinstance(patterns, str) else list(patterns)
    files: list[str] = []
    for pattern in filter(None, (os.path.expanduser(str(item).strip()) for item in listed)):
        if os.path.isdir(pattern):
            folder = pathlib.Path(pattern)
            entries = [path for path in folder.rglob("*") if not _is_hidden(path, folder)]
            within = [path for path in entries if path.is_file()]
            linked = sorted(str(path) for path in entries if path.is_symlink() and path.is_dir())
            found = sorted(str(path) for path in within if path.name.endswith(TEXT_SUFFIXES))
            if linked:  # they may lead in circles
                names = ", ".join(linked[:3]) + (" ..." if len(linked) > 3 else "")
                print(f"NOTICE: linked folders are not looked into, name them as well: {names}", file=sys.stderr)
            if not found:
                raise UserError(
                    f"no text in the folder {pattern}: expected .txt, .gz or .tar.gz files; name others by a glob"
                )
            if len(found) < len(within):
                print(
                    f"NOTICE: {len(within) - len(found)} of {len(within)} files in {pattern} end in neither .txt, .gz "
                    "nor .tar.gz and are left out; name them by a glob to take them",
                    file=sys.stderr,
                )
        else:
            found = (
                [pattern]
                if os.path.exists(pattern)
                else sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
            )
            if not found:
                raise UserError(f"no input file at {pattern}: nothing matches; check the path")
        if not all(map(os.path.isfile, found)):
            raise UserError(
                f"{pattern} is a device or a pipe, and text is read more than once; save it to a file first"
            )
        files += found
    if not files:
        raise UserError("no input file: the list of files is empty; give files, folders or globs")
    return each_once(files)


def each_once(files: Iterable[str]) -> list[str]:
    """The files without those that are there already, perhaps with their path spelt in another way."""
    first: dict[str, str] = {}
    for file in files:
        first.setdefault(os.path.abspath(file), file)
    return list(first.values())


def _is_hidden(path: pathlib.Path, folder: pathlib.Path) -> bool:
    """Whether a file, or the part of `folder` that it lies in, is one that a glob passes over."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _members(path: str, raw: BinaryIO, is_gzip: bool, is_archive: bool) -> Iterator[tuple[str, BinaryIO]]:
    """Opens one file: itself, or what it holds where it is an archive."""
    stream = gzip.open(raw) if is_gzip else raw
    if not is_archive:
        yield path, stream
        return
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.isfile() and not pathlib.PurePath(member.name).name.startswith("."):
                content = archive.extractfile(member)
                yield f"{path}:{member.name}", gzip.open(content) if member.name.endswith(".gz") else content


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Turns what reading a file may raise into a UserError that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise UserError(f"cannot read {path}: it is truncated or corrupt ({error}); make or copy it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file and its rights") from error


class _InvalidCounter:
    """An error handler of the decoder: replaces and counts, so that U+FFFD in the text itself is not counted."""

    number = 0

    def __call__(self, error: UnicodeError) -> tuple[str, int]:
        self.number += 1
        return "\ufffd", error.end


_count_invalid = _InvalidCounter()
_COUNTED = "albert_tf.count_invalid"
codecs.register_error(_COUNTED, _count_invalid)


def _without_mark(block: bytes, source: str) -> bytes:
    """First block of a file without UTF-8's byte-order mark. Raises UserError for what is plainly something else."""
    for magic, kind in _FOREIGN.items():
        if block.startswith(magic):
            raise UserError(f"{source} is {kind}: expected UTF-8 text, .gz or .tar.gz; unpack it or leave it out")
    nulls = [block[start::2].count(0) for start in (0, 1)]
    is_wide = abs(nulls[0] - nulls[1]) > max(3, 0.2 * len(block))  # UTF-16, UTF-32 of Latin letters without a mark
    if is_wide or block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{source} is UTF-16 or UTF-32 text: expected UTF-8; convert it, for example with iconv")
    return block.removeprefix(codecs.BOM_UTF8)


def _parts(
    blocks: Iterator[str], find_end: Callable[[str, int], int | None], input_format: str
) -> Iterator[tuple[str, bool]]:
    """Cuts a stream of text where documents end (True) and, where one is too long, inside (False)."""
    pending = ""
    for block in blocks:
        pending, start = pending + block, 0
        while True:
            end = find_end(pending, start)
            if end is not None and end - start <= MAX_DOCUMENT_CHARS:
                yield pending[start:end], True
            elif len(pending) - start > MAX_DOCUMENT_CHARS:
                end = _cut_inside(pending, start, input_format)
                yield pending[start:end], False
            else:
                break
            start = end
        pending = pending[start:]
    yield pending, True


def _next_heading(text: str, start: int) -> int | None:
    """Where the next heading begins that has text before it; a title and a chapter heading in a row stay together."""
    while title := _HEADING_HERE.match(text, _SPACE.match(text, start).end()):
        start = title.end()
    found = _HEADING_LATER.search(text, start)
    return found.start("heading") if found else None


def _next_blank_line(text: str, start: int) -> int | None:
    found = _BLANK_LINES.search(text, start)
    return found.end() if found else None


def _cut_inside(text: str, start: int, input_format: str) -> int:
    """Where to cut a long document: after a paragraph, else a sentence, else a word, in the limit's second half."""
    low, high = start + MAX_DOCUMENT_CHARS // 2, start + MAX_DOCUMENT_CHARS
    for separator in ("\n\n", ".\n", ". ", "\n", " ") if input_format == "paragraphs" else ("\n", " "):
        cut = text.rfind(separator, low, high)
        if cut >= 0:
            return cut + len(separator)
    return high


def _guess_format(texts: Iterator[tuple[str, Iterator[str]]]) -> tuple[str, str]:
    """("sentences" or "paragraphs", why). In the first, lines end a sentence, hold just one, and stand together."""
    lines, blocks, ended, single = 0, 0, 0, 0
    for _, text in itertools.islice(texts, _SAMPLE_FILES):
        sample = next(text, "")[:_SAMPLE_CHARS]
        blocks += len(_BLANK_LINES.findall(sample.strip())) + 1
        for line in filter(str.strip, sample.split("\n")):
            found = split_paragraph(line)
            lines += 1
            single += len(found) == 1
            ended += _TERMINATED.search(line) is not None
    if not lines:
        return "paragraphs", "the text begins with no line"
    as_sentences = single >= 0.8 * lines and ended >= 0.7 * lines and lines >= 2 * blocks
    shares = f"of {lines} sampled lines {ended / lines:.0%} end a sentence, {single / lines:.0%} hold just one"
    shares += f", {lines / blocks:.1f} stand together"
    return ("sentences" if as_sentences else "paragraphs"), shares
