"""The rules on characters as lookup tables over all code points, for graphs."""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.tokenization.normalization import sentencepiece_normalizer
from albert_tf.tokenization.tokenizer import is_invisible

UNCHANGED = -1  # a replacement by the character itself
SPACE = 1  # number of the replacement of white space; 0 leaves a character as it is
_CODE_POINTS = 0x110000
_PAGE = 256
# Where there are characters that any rule knows. Between and after these are unassigned and private ones.
_ASSIGNED = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
# SentencePiece's ops read up to a NUL; a character that no vocabulary has gives the same ids.
_NUL_STAND_IN = 0xF8FF


class Lookup(NamedTuple):
    """A number for every code point: `values` of the distinct pages, int32 [pages * 256]; `page` int32 [4352]."""

    page: tf.Tensor
    values: tf.Tensor

    def rows(self, codes: tf.Tensor) -> tf.Tensor:
        """Code points int32 [N] -> where in `values` their numbers are."""
        return tf.gather(self.page, codes // _PAGE) * _PAGE + codes % _PAGE


class CodePointTables(NamedTuple):
    """What a graph must know of characters.

    `replacement` numbers the rows of `replacements` (code points; UNCHANGED stands for the character itself).
    `sigma_context` is 1 for letters with case, 2 for what the rule on a final sigma looks through, else 0. `invisible`
    is 1 for white space and characters without a shape.
    """

    replacement: Lookup
    replacements: tf.RaggedTensor
    sigma_context: Lookup
    invisible: Lookup


@functools.cache
def code_point_tables(*, do_lower_case: bool, keep_accents: bool) -> CodePointTables:
    """The tables of one casing, made by evaluating the rules at every code point."""
    rule = sentencepiece_normalizer(do_lower_case=do_lower_case, keep_accents=keep_accents).table.rule
    rows = [(UNCHANGED,), (ord(" "),)]  # white space has a row of its own: signs that decompose into a space stay signs
    numbers: dict[tuple[int, ...], int] = {}

    def number_of(character: str) -> int:
        if character.isspace():
            return SPACE
        changed = rule(character)
        if do_lower_case:  # a capital sigma waits until its neighbours are known
            changed = "".join(part if part == "\u03a3" else part.lower() for part in changed)
        if character == "\0":
            changed = chr(_NUL_STAND_IN)
        if changed == character:
            return 0
        row = tuple(map(ord, changed))
        if row not in numbers:
            numbers[row] = len(rows)
            rows.append(row)
        return numbers[row]

    with tf.init_scope():  # kept for other graphs than the one that asks first
        return CodePointTables(
            replacement=_lookup(number_of),
            replacements=ragged_rows(rows),
            sigma_context=_shared_lookups()[0],
            invisible=_shared_lookups()[1],
        )


@functools.cache
def _shared_lookups() -> tuple[Lookup, Lookup]:
    return _lookup(_sigma_context), _lookup(lambda character: int(is_invisible(character)))


def _sigma_context(character: str) -> int:
    """What str.lower takes a character for, found by asking it."""
    if f"1{character}\u03a3".lower().endswith("\u03c2"):
        return 1
    return 2 if f"a{character}\u03a3".lower().endswith("\u03c2") else 0


def _lookup(number_of: Callable[[str], int]) -> Lookup:
    numbers = np.zeros(_CODE_POINTS, np.int32)
    for code in itertools.chain(*_ASSIGNED):
        numbers[code] = number_of(chr(code))
    pages, page = np.unique(numbers.reshape(-1, _PAGE), axis=0, return_inverse=True)
    return Lookup(tf.constant(page.reshape(-1), tf.int32), tf.constant(pages.reshape(-1), tf.int32))


def ragged_rows(rows: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    """Rows of whole numbers as int32 [N, (M)]."""
    values = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return tf.RaggedTensor.from_row_lengths(values, np.array([len(row) for row in rows], np.int64))


def unicode_version() -> str:
    """The version of Unicode that the tables follow."""
    return unicodedata.unidata_version
