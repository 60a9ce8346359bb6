"""What happens to characters before they are cut into pieces, as rules on single code points.

Dropping every combining mark after the decomposition makes its canonical reordering irrelevant, so each code point can
be replaced on its own. One table then serves strings and offsets, and a lookup inside a TensorFlow graph: evaluate the
rule at every code point. Lower-casing stays a step of its own: a Greek capital sigma looks at its neighbours.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Sequence

_SURROGATES = range(0xD800, 0xE000)  # half a character, which JSON can bring in and no encoding can carry
_REPLACEMENT = "\ufffd"

# The blocks that the original BERT calls Chinese characters; Hangul and kana are written with words and stay whole.
_IDEOGRAPHS = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class CharacterTable(dict):
    """Code point -> replacement for `str.translate`, filled by `rule` as characters turn up."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self.rule = rule

    def __missing__(self, code_point: int) -> str:
        replacement = self.rule(_REPLACEMENT if code_point in _SURROGATES else chr(code_point))
        self[code_point] = replacement
        return replacement

    def __reduce__(self):
        return CharacterTable, (self.rule,)


def keep_character(character: str) -> str:
    """The rule that changes nothing."""
    return character


def drop_accents(character: str) -> str:
    """SentencePiece rule of the release: compatibility decomposition without the combining marks."""
    return "".join(part for part in unicodedata.normalize("NFKD", character) if not unicodedata.combining(part))


def isolate_symbols(character: str, *, strip_accents: bool) -> str:
    """WordPiece rule of BERT: controls vanish, white space is one space, ideographs and punctuation stand alone."""
    category = unicodedata.category(character)
    if character in " \t\n\r" or category == "Zs":
        return " "
    if character == _REPLACEMENT or category in ("Cc", "Cf"):
        return ""
    parts = character
    if strip_accents:
        parts = "".join(part for part in unicodedata.normalize("NFD", character) if unicodedata.category(part) != "Mn")
    parts = "".join(f" {part} " if is_punctuation(part) else part for part in parts)
    return f" {parts} " if any(ord(character) in block for block in _IDEOGRAPHS) else parts


def is_punctuation(character: str) -> bool:
    """Punctuation in BERT's sense: every ASCII sign that is neither letter nor digit, and Unicode's category P."""
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


@dataclasses.dataclass(frozen=True)
class Aligned:
    """A normalised text in which character i came from `original[starts[i]:ends[i]]`; the spans cover the original."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """White space, case and the character table, applied in the order of the fields."""

    join_white_space: bool  # runs of white space to one space, and trim
    lower_first: bool
    table: CharacterTable
    lower_last: bool
    keeps_ascii: bool  # the table leaves ASCII alone, so most English text never meets it

    def __call__(self, text: str) -> str:
        """The normalised text."""
        if self.join_white_space:
            text = " ".join(text.split())
        if self.lower_first:
            text = text.lower()
        if not (self.keeps_ascii and text.isascii()):
            text = text.translate(self.table)
        return text.lower() if self.lower_last else text

    def aligned(self, text: str) -> Aligned:
        """The normalised text with the place of each of its characters in `text`.

        What leaves nothing behind (a combining mark, white space after the first of a run) belongs to the character
        before it, and at the start of the text to the first one.
        """
        normalized = self(text)
        if self.keeps_ascii and text.isascii() and len(normalized) == len(text):
            return Aligned(normalized, range(len(text)), range(1, len(text) + 1))
        origins = []
        for position in self._kept_positions(text):
            for character in text[position].lower() if self.lower_first else text[position]:
                replacement = " " if self.join_white_space and character.isspace() else self.table[ord(character)]
                length = len(replacement.lower() if self.lower_last else replacement)
                origins.extend([position] * length)
        assert len(normalized) == len(origins), "the table and the alignment disagree"
        starts, ends = list(origins), [len(text)] * len(origins)
        for index in range(len(origins) - 2, -1, -1):
            same = origins[index] == origins[index + 1]
            ends[index] = ends[index + 1] if same else origins[index + 1]
        for index, origin in enumerate(origins):
            if origin != origins[0]:
                break
            starts[index] = 0
        return Aligned(normalized, starts, ends)

    def _kept_positions(self, text: str) -> list[int]:
        """Positions that reach the table: all, or those that are left when white space is joined."""
        if not self.join_white_space:
            return list(range(len(text)))
        kept = []
        for position, character in enumerate(text):
            if not character.isspace():
                kept.append(position)
            elif kept and not text[position - 1].isspace():
                kept.append(position)
        if kept and text[kept[-1]].isspace():
            kept.pop()
        return kept


def sentencepiece_normalizer(*, do_lower_case: bool, keep_accents: bool) -> Normalizer:
    """The release's preprocessing: white space, then accents (unless kept), then lower case."""
    rule = keep_character if keep_accents else drop_accents
    return Normalizer(True, False, CharacterTable(rule), do_lower_case, keeps_ascii=True)


def wordpiece_normalizer(*, do_lower_case: bool, keep_accents: bool) -> Normalizer:
    """BERT's preprocessing: lower case first, and accents dropped only where the case is; words end at a space."""
    rule = functools.partial(isolate_symbols, strip_accents=do_lower_case and not keep_accents)
    return Normalizer(False, do_lower_case, CharacterTable(rule), False, keeps_ascii=False)
