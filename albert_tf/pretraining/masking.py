"""Which tokens are masked: the rule, and the masks of `--masking=static` in NumPy, many rows at a time.

The input pipeline's own masks (masks.py) follow the same rule in TensorFlow ops.

Letters: R rows, S sequence, P predictions, W words of a row, N longest n-gram, V vocabulary.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.tokenization import Tokenizer

_LONGEST_NGRAM = 100  # words; memory grows with it
NEVER, CONTINUES, STARTS = 0, 1, 2  # what a piece may be: not maskable, inside a word, first of a word


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingRule:
    """How many tokens to mask and which may be masked together (paper section 3.1 and appendix, release's flags)."""

    max_predictions_per_seq: int
    masked_lm_prob: float = 0.15  # share of a row's real tokens, [CLS] and [SEP] counted as in the release
    ngram: int = 3  # longest n-gram, in words
    favor_shorter_ngram: bool = True  # p(n) proportional to 1/n; else the same numbers in reverse
    do_whole_word_mask: bool = True  # else every piece counts as a word

    def __post_init__(self) -> None:
        if self.max_predictions_per_seq < 1:
            raise UserError(f"max_predictions_per_seq is {self.max_predictions_per_seq}; expected at least 1")
        if not 0 < self.masked_lm_prob < 1:
            raise UserError(f"masked_lm_prob is {self.masked_lm_prob}; expected a share above 0 and below 1")
        if not 1 <= self.ngram <= _LONGEST_NGRAM:
            raise UserError(f"ngram is {self.ngram}; expected 1 to {_LONGEST_NGRAM} words")

    def budget(self, length: int) -> int:
        """Gives the number of tokens to mask in a row of `length` real tokens: round(share), within 1 .. P."""
        return min(self.max_predictions_per_seq, max(1, round(length * self.masked_lm_prob)))

    def ngram_shares(self) -> np.ndarray:
        """Gives p(n) for n = 1 .. N, float64 [N]: 6/11, 3/11, 2/11 by default."""
        shares = 1 / np.arange(1, self.ngram + 1)
        shares /= shares.sum()
        return shares if self.favor_shorter_ngram else shares[::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class MaskingVocabulary:
    """What masking has to know of the tokeniser."""

    piece_kind: np.ndarray  # uint8 [V]: may the piece be masked, and does it begin a word
    replacements: np.ndarray  # int32: the ids that a random replacement is drawn from
    mask_id: int

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "MaskingVocabulary":
        """Reads the special ids and word starts of an `albert_tf.tokenization.Tokenizer`.

        Random replacements come from all pieces but the five special ones, evenly. (The release draws from the whole
        vocabulary, [PAD] and [CLS] included.) An unknown piece in the text may be masked, as in the release.
        """
        kind = np.where(tokenizer.starts_word(), STARTS, CONTINUES).astype(np.uint8)
        kind[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]] = NEVER
        ordinary = kind != NEVER
        ordinary[tokenizer.unk_id] = False
        return cls(kind, np.flatnonzero(ordinary).astype(np.int32), tokenizer.mask_id)


@dataclasses.dataclass(frozen=True)
class MaskedRows:
    """Rows after masking; prediction lists are ascending and end in weight 0, position 0, id 0."""

    input_ids: np.ndarray  # int32 [R, S]
    positions: np.ndarray  # int32 [R, P]
    ids: np.ndarray  # int32 [R, P], before masking
    weights: np.ndarray  # float32 [R, P]
    drawn_ngrams: np.ndarray  # int64 [N]: how often each length was drawn, rejected draws included


def mask_rows(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    rule: MaskingRule,
    *,
    vocabulary: MaskingVocabulary,
    rng: np.random.Generator,
) -> MaskedRows:
    """Masks rows: of the chosen tokens 80 % become [MASK], 10 % stay, 10 % become a random piece.

    input_ids: int32 [R, S] of [CLS] A [SEP] B [SEP] and padding with [PAD]; lengths: int [R] without the padding.
    """
    chosen, drawn = choose_tokens(vocabulary.piece_kind[input_ids], lengths, rule, rng)
    rows, columns = np.nonzero(chosen)
    ranks = np.arange(rows.size) - np.searchsorted(rows, rows)  # place in its row's list
    shape = (len(input_ids), rule.max_predictions_per_seq)
    positions, ids, weights = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    before = input_ids[rows, columns]
    positions[rows, ranks], ids[rows, ranks], weights[rows, ranks] = columns, before, 1.0

    fate = rng.random(rows.size)
    random_ids = vocabulary.replacements[rng.integers(len(vocabulary.replacements), size=rows.size)]
    masked = input_ids.copy()
    masked[rows, columns] = np.where(fate < 0.8, vocabulary.mask_id, np.where(fate < 0.9, before, random_ids))
    return MaskedRows(masked, positions, ids, weights, drawn)


def choose_tokens(
    kind: np.ndarray, lengths: np.ndarray, rule: MaskingRule, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the tokens to predict: (bool [R, S], draws of each n-gram length int64 [N]).

    kind: uint8 [R, S]; lengths: int [R]. Every word is a candidate: the n-gram of n words that begins there, n drawn
    with `ngram_shares`, cut at the end of its segment. Candidates come in random order; one too long for what is left
    of the budget is shortened by whole words until it fits; one that still does not, or that touches what is chosen
    already, is skipped. All rows take their next candidate at the same time.
    """
    words = _Words.of(kind, rule)
    num_rows, width = len(kind), int(words.counts.max(initial=0))
    priority = rng.random((num_rows, width), np.float32)
    priority[np.arange(width) >= words.counts[:, None]] = 2.0  # no word: last in the order
    # Stable: NumPy's other orders of equal priorities, met in one row of 200, differ with the processor.
    order = np.argsort(priority, axis=1, kind="stable")
    wanted = 1 + rng.choice(rule.ngram, p=rule.ngram_shares(), size=(num_rows, width))

    budget = np.array([rule.budget(int(length)) for length in lengths])
    covered = np.zeros(words.begins.shape, bool)
    drawn = np.zeros(rule.ngram, np.int64)
    rows = np.arange(num_rows)
    for turn in range(width):
        rows = rows[(budget[rows] > 0) & (words.counts[rows] > turn)]
        if not rows.size:
            break
        drawn += np.bincount(wanted[rows, turn] - 1, minlength=rule.ngram)
        words.take(rows, order[rows, turn], wanted[rows, turn], covered=covered, budget=budget)
    return words.tokens(covered), drawn


@dataclasses.dataclass(frozen=True, eq=False)
class _Words:
    """The words of rows: where each begins, and where the n-grams that begin there end."""

    counts: np.ndarray  # int [R]
    begins: np.ndarray  # int [R, W + N]; S where there is no word
    ends: np.ndarray  # int [R, W, N]; growing in n, not beyond the segment
    of_token: np.ndarray  # int [R, S]: the word a token is of; the last place where it is of none

    @classmethod
    def of(cls, kind: np.ndarray, rule: MaskingRule) -> "_Words":
        num_rows, size = kind.shape
        maskable = kind != NEVER
        starts = maskable.copy()
        if rule.do_whole_word_mask:
            starts[:, 1:] &= (kind[:, 1:] == STARTS) | ~maskable[:, :-1]
        counts = starts.sum(axis=1)
        width = int(counts.max(initial=0))
        rank = np.cumsum(starts, axis=1) - 1
        rows, columns = np.nonzero(starts)

        begins = np.full((num_rows, width + rule.ngram), size)
        begins[rows, rank[rows, columns]] = columns
        # What a word's last token has behind it: the next word or the first token that may not be masked.
        boundary = np.where(starts | ~maskable, np.arange(size), size)
        following = np.minimum.accumulate(boundary[:, ::-1], axis=1)[:, ::-1]
        following = np.pad(following[:, 1:], ((0, 0), (0, 1)), constant_values=size)
        single = np.zeros((num_rows, width + rule.ngram), np.int64)
        single[rows, rank[rows, columns]] = following[rows, columns]
        ends = [single[:, :width]]
        for n in range(1, rule.ngram):
            goes_on = ends[-1] == begins[:, n : n + width]
            ends.append(np.where(goes_on, single[:, n : n + width], ends[-1]))
        return cls(counts, begins, np.stack(ends, axis=-1), np.where(maskable, rank, width + rule.ngram - 1))

    def take(self, rows, word, wanted, *, covered: np.ndarray, budget: np.ndarray) -> None:
        """One candidate of each of `rows`: marks its words in `covered` and lowers `budget` where it is taken."""
        begin = self.begins[rows, word]
        ends = self.ends[rows, word]  # [rows, N]
        allowed = ends - begin[:, None] <= budget[rows][:, None]
        allowed &= np.arange(ends.shape[1]) < wanted[:, None]
        end = np.where(allowed, ends, 0).max(axis=1)  # 0: not even one word fits
        inside = [self.begins[rows, word + i] < end for i in range(ends.shape[1])]
        touched = np.zeros(len(rows), bool)
        for i, within in enumerate(inside):
            touched |= within & covered[rows, word + i]
        taken = (end > 0) & ~touched
        budget[rows[taken]] -= (end - begin)[taken]
        for i, within in enumerate(inside):
            marked = taken & within
            covered[rows[marked], word[marked] + i] = True

    def tokens(self, covered: np.ndarray) -> np.ndarray:
        """bool [R, S]: the tokens of the covered words."""
        return np.take_along_axis(covered, self.of_token, axis=1)
