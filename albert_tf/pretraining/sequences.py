"""Documents as token ids -> the rows `[CLS] A [SEP] B [SEP]` of sentence-order prediction, NSP, or single segments.

A and B are whole sentences that follow each other in one document. A row takes sentences until its target length is
reached; the last one is then too long by a few tokens, and these have to go somewhere. Cutting always at the end of the
row's text would give the order away (the later segment would be the one that breaks off), so a coin decides which
segment loses its end. Where it is the later one, its cut sentence begins the next row and nothing is lost.

Letters: T tokens of a batch of documents, laid end to end.
"""

import bisect
import dataclasses
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from albert_tf.errors import UserError

IN_ORDER, SWAPPED = 0, 1  # sentence labels; for NSP: the next text, a random one
Span = tuple[int, int]  # from, to (exclusive) in the T tokens


@dataclasses.dataclass(frozen=True)
class TokenDocument:
    """Where a document lies in the T tokens: the places where its sentences begin, and its end."""

    bounds: list[int]
    index: int = 0  # number of the document in the corpus; its parts share it


@dataclasses.dataclass(frozen=True)
class Sequence:
    """One row: segments in the order in which they are shown (second is None for a single segment) and the label."""

    first: Span
    second: Span | None
    label: int

    @property
    def segment_a_length(self) -> int:
        """Positions with segment id 0: [CLS], the first segment, [SEP]."""
        return self.first[1] - self.first[0] + 2

    @property
    def length(self) -> int:
        """Positions of the row, special tokens included."""
        return self.segment_a_length + (self.second[1] - self.second[0] + 1 if self.second else 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRule:
    """How rows are cut from documents."""

    max_seq_length: int = 512  # positions, special tokens included
    short_seq_prob: float = 0.1  # share of rows whose target is uniform in 2 .. the longest
    objective: str = "sop"  # sop, nsp or none

    def __post_init__(self) -> None:
        if self.objective not in ("sop", "nsp", "none"):
            raise UserError(f"unknown objective: {self.objective!r}; expected sop, nsp or none")
        if not 8 <= self.max_seq_length <= 65_536:
            raise UserError(f"max_seq_length is {self.max_seq_length}; expected 8 to 65536 positions")
        if not 0 <= self.short_seq_prob <= 1:
            raise UserError(f"short_seq_prob is {self.short_seq_prob}; expected a share between 0 and 1")

    @property
    def max_tokens(self) -> int:
        """Text tokens that fit in a row."""
        return self.max_seq_length - (2 if self.objective == "none" else 3)

    def draw_target(self, rng: random.Random, counts: Counter) -> int:
        """Tokens the next row aims at. Counts what was drawn: `targets` and `short_targets`."""
        counts["targets"] += 1
        if rng.random() >= self.short_seq_prob:
            return self.max_tokens
        counts["short_targets"] += 1
        return rng.randint(2, self.max_tokens)


def make_sequences(
    documents: Iterable[TokenDocument],
    starts_word: np.ndarray,
    rule: SequenceRule,
    *,
    rng: random.Random,
    counts: Counter,
    partners: Iterable[TokenDocument] = (),
) -> Iterator[Sequence]:
    """Cuts documents into rows.

    starts_word: bool [T], tokens that begin a word. partners: where NSP takes random text from, beside the documents.
    counts: added to, by name: targets, short_targets, tokens_left_out, tokens_repeated, pieces_split (rows of a single
    sentence, which is split in two), skipped_too_short (tokens at a document's end that make no row),
    skipped_no_partner (NSP rows for which no other document was in reach).
    """
    documents = list(documents)
    pool = _Pool([*documents, *partners])
    for document in documents:
        if rule.objective == "none":
            yield from _single_segments(document, rule, rng, counts)
        elif rule.objective == "nsp":
            yield from _next_sentence_pairs(document, pool, starts_word, rule, rng=rng, counts=counts)
        else:
            yield from _ordered_pairs(document, starts_word, rule, rng, counts)


def _single_segments(document: TokenDocument, rule: SequenceRule, rng, counts: Counter) -> Iterator[Sequence]:
    position, end = document.bounds[0], document.bounds[-1]
    while position < end:
        stop = min(end, position + rule.draw_target(rng, counts))
        yield Sequence((position, stop), None, IN_ORDER)
        position = stop


def _ordered_pairs(
    document: TokenDocument, starts_word, rule: SequenceRule, rng, counts: Counter
) -> Iterator[Sequence]:
    position, end = document.bounds[0], document.bounds[-1]
    while end - position >= 2:
        target = rule.draw_target(rng, counts)
        inner, stop = _take(document.bounds, position, target)
        excess = max(0, stop - position - target)
        if not inner:
            stop -= excess
            split = _split_inside(position, stop, starts_word, rng)
            counts["pieces_split"] += 1
            a_end, b_end, following = split, stop, stop
        else:
            if excess and rng.random() < 0.5 and (splits := _splits_after_long(inner, position, excess)):
                split = rng.choice(splits)
                a_end, b_end, following = split - excess, stop, stop
                counts["tokens_left_out"] += excess
            else:
                split = rng.choice(inner)
                a_end, b_end, following = split, stop - excess, inner[-1] if excess else stop
                counts["tokens_repeated"] += b_end - following if excess else 0
        a, b = (position, a_end), (split, b_end)
        yield Sequence(b, a, SWAPPED) if rng.random() < 0.5 else Sequence(a, b, IN_ORDER)
        position = following
    counts["skipped_too_short"] += end - position


def _next_sentence_pairs(
    document: TokenDocument, pool: "_Pool", starts_word, rule: SequenceRule, *, rng, counts: Counter
) -> Iterator[Sequence]:
    """B is what follows A, or, half the time, text from another document; then what followed A begins the next row."""
    position, end = document.bounds[0], document.bounds[-1]
    while end - position >= 2:
        target = rule.draw_target(rng, counts)
        inner, stop = _take(document.bounds, position, target)
        cut = stop > position + target
        stop = min(stop, position + target)
        if inner:
            split = rng.choice(inner)
        else:
            split = _split_inside(position, stop, starts_word, rng)
            counts["pieces_split"] += 1
        if rng.random() < 0.5:
            yield Sequence((position, split), (split, stop), IN_ORDER)
            position = inner[-1] if inner and cut else stop
        elif (other := pool.draw_other(document.index, rng)) is not None:
            yield Sequence((position, split), _random_text(other, stop - split, rng), SWAPPED)
            position = split
        else:
            counts["skipped_no_partner"] += 1
            position = split
    counts["skipped_too_short"] += end - position


class _Pool:
    """The documents that random text may come from; the parts of one document are neighbours among them."""

    def __init__(self, documents: Iterable[TokenDocument]):
        self._documents = [document for document in documents if len(document.bounds) > 1]  # some have no token
        self._places: dict[int, tuple[int, int]] = {}  # of a document's parts: first, and after the last
        for place, document in enumerate(self._documents):
            first, _ = self._places.get(document.index, (place, place))
            self._places[document.index] = first, place + 1

    def draw_other(self, index: int, rng: random.Random) -> TokenDocument | None:
        """A document, or part of one, that is not of number `index`; None where there is none."""
        first, end = self._places.get(index, (0, 0))
        others = len(self._documents) - (end - first)
        if not others:
            return None
        pick = rng.randrange(others)
        return self._documents[pick if pick < first else pick + end - first]


def _take(bounds: list[int], position: int, target: int) -> tuple[list[int], int]:
    """Takes sentences from `position` on up to `target` tokens: the bounds between them, and where the last ends."""
    first = bisect.bisect_right(bounds, position)
    last = min(bisect.bisect_left(bounds, position + target, first), len(bounds) - 1)
    return bounds[first:last], bounds[last]


def _splits_after_long(inner: list[int], position: int, excess: int) -> list[int]:
    """Bounds whose sentence before can lose `excess` tokens; else those with so many tokens before them in the row."""
    begins = [position, *inner[:-1]]
    alone = [bound for begin, bound in zip(begins, inner, strict=True) if bound - begin > excess]
    return alone or [bound for bound in inner if bound - position > excess]


def _split_inside(position: int, stop: int, starts_word: np.ndarray, rng: random.Random) -> int:
    """A place to split a single sentence: where a word begins, if one does."""
    words = np.flatnonzero(starts_word[position + 1 : stop])
    return position + 1 + (int(rng.choice(words)) if words.size else rng.randrange(stop - position - 1))


def _random_text(document: TokenDocument, size: int, rng: random.Random) -> Span:
    """`size` tokens from a random sentence on; fewer where the document has fewer."""
    choices = bisect.bisect_right(document.bounds, document.bounds[-1] - size)
    start = document.bounds[rng.randrange(choices)] if choices else document.bounds[0]
    return start, min(start + size, document.bounds[-1])
