"""What every tokeniser offers, and the parts that do not depend on how text is cut into pieces."""

import abc
import dataclasses
import functools
import hashlib
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from albert_tf import files
from albert_tf.tokenization.normalization import Normalizer

SETTINGS_FILE = "tokenizer_config.json"
_SPECIAL_TEXT = re.compile(r"\[CLS\]|\[SEP\]|\[MASK\]")


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Pieces of one text.

    `offsets[i]` is the half-open range of characters of the untouched text that piece i stands for, without white space
    or invisible characters at its edges. Ranges never go backwards and leave out only what leaves no piece behind.
    Pieces made of one character (a ligature, a fraction) share its range; one without a visible character has an empty
    range. SentencePiece shows an unknown piece in `pieces[i]` by its normalised text.
    """

    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]

    def __add__(self, other: "Encoding") -> "Encoding":
        return Encoding(self.ids + other.ids, self.pieces + other.pieces, self.offsets + other.offsets)


class Tokenizer(abc.ABC):
    """Text to ids and back. Made by `load_tokenizer`; can be pickled and used by several processes.

    Attributes: kind ("sentencepiece" or "wordpiece"), vocab_size, pad_id, unk_id, cls_id, sep_id, mask_id, the settings
    do_lower_case and keep_accents, path (of the file it was read from) and hash (SHA-256 of the file's bytes, hex).
    """

    kind: str
    file_name: str
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int

    def __init__(self, data: bytes, path: pathlib.Path, normalizer: Normalizer, settings: tuple[bool, bool]):
        self._data = data
        self._normalize = normalizer
        self.path = path
        self.do_lower_case, self.keep_accents = settings
        self.hash = hashlib.sha256(data).hexdigest()

    @abc.abstractmethod
    def pieces(self) -> list[str]:
        """All pieces, by id."""

    @abc.abstractmethod
    def starts_word(self) -> np.ndarray:
        """bool [V]: True where a piece begins a new word, False where it goes on with the word before it."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids; [CLS], [SEP], [MASK] and padding leave nothing."""

    @abc.abstractmethod
    def _encode_parts(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of many texts without special tokens."""

    @abc.abstractmethod
    def _encode_part(self, text: str, follows_special: bool) -> list[int]:
        """Ids of a text without special tokens; `follows_special` where [MASK] or the like directly precedes it."""

    @abc.abstractmethod
    def _encode_part_with_offsets(self, text: str, follows_special: bool) -> Encoding:
        """The same with pieces and offsets into `text`."""

    @property
    def serialized(self) -> bytes:
        """The bytes of the vocabulary file."""
        return self._data

    @property
    def vocab_size(self) -> int:
        """Number of pieces, which is the number of rows of the embedding table."""
        return len(self.pieces())

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Ids of `text`; no [CLS] or [SEP] is added.

        Text that reads "[CLS]", "[SEP]" or "[MASK]" is ordinary text, unless `special_tokens` asks for their ids.
        """
        if not special_tokens:
            return self._encode_part(text, False)
        ids: list[int] = []
        for start, end, special_id in self._split_specials(text):
            if special_id is None:
                ids += self._encode_part(text[start:end], start > 0)
            else:
                ids.append(special_id)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text, as `encode` gives them; the fast way for many.

        Raises TypeError for a single text, whose letters would be taken for texts.
        """
        if isinstance(texts, str):
            raise TypeError(
                f"encode_batch was given a single text, {texts[:40]!r}: expected a list of texts; use encode"
            )
        return self._encode_parts(texts)

    def encode_with_offsets(self, text: str, *, special_tokens: bool = False) -> Encoding:
        """Like `encode`, with pieces and the place of each in the untouched text."""
        if not special_tokens:
            return self._encode_part_with_offsets(text, False)
        result = Encoding([], [], [])
        for start, end, special_id in self._split_specials(text):
            if special_id is not None:
                result += Encoding([special_id], [text[start:end]], [(start, end)])
                continue
            part = self._encode_part_with_offsets(text[start:end], start > 0)
            moved = [(first + start, last + start) for first, last in part.offsets]
            result += Encoding(part.ids, part.pieces, moved)
        return result

    def id_to_piece(self, piece_id: int) -> str:
        """The piece of an id. Raises ValueError for an id outside the vocabulary."""
        if not 0 <= piece_id < self.vocab_size:
            raise ValueError(f"id {piece_id} is outside the vocabulary of {self.vocab_size} pieces")
        return self.pieces()[piece_id]

    @abc.abstractmethod
    def piece_to_id(self, piece: str) -> int:
        """The id of a piece; unk_id where the vocabulary has no such piece."""

    def save(self, folder: str | pathlib.Path) -> None:
        """Writes the tokeniser file under its usual name and its settings beside it.

        Raises UserError where `folder` cannot be written to.
        """
        folder = pathlib.Path(folder)
        files.write_atomically(folder / self.file_name, self._data)
        files.write_json(folder / SETTINGS_FILE, self.settings())

    def settings(self) -> dict:
        """What belongs to the vocabulary but is not in its file, as `load_tokenizer` reads it back."""
        return {
            "tokenizer_kind": self.kind,
            "do_lower_case": self.do_lower_case,
            "keep_accents": self.keep_accents,
            "vocabulary_hash": self.hash,
        }

    def _split_specials(self, text: str) -> Iterator[tuple[int, int, int | None]]:
        """Cuts `text` into (start, end, id of the special token or None for ordinary text)."""
        ids = {"[CLS]": self.cls_id, "[SEP]": self.sep_id, "[MASK]": self.mask_id}
        position = 0
        for match in _SPECIAL_TEXT.finditer(text):
            if position < match.start():
                yield position, match.start(), None
            yield match.start(), match.end(), ids[match.group()]
            position = match.end()
        if position < len(text):
            yield position, len(text), None


def trim_invisible(text: str, start: int, end: int) -> tuple[int, int]:
    """Narrows a range of `text` until a visible character stands at both ends; empty, at `end`, where there is none."""
    while start < end and is_invisible(text[start]):
        start += 1
    while start < end and is_invisible(text[end - 1]):
        end -= 1
    return start, end


@functools.cache
def is_invisible(character: str) -> bool:
    """Whether a character is white space, a control or a format character."""
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")
