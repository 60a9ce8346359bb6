import random
import time
from collections import Counter

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining.sequences import IN_ORDER, SWAPPED, SequenceRule, TokenDocument, make_sequences

NUM_TOKENS = 300_000


@pytest.fixture(scope="module")
def book():
    """One long document of sentences of about 20 tokens, and where words begin."""
    rng = np.random.default_rng(0)
    inner = np.unique(np.cumsum(rng.geometric(1 / 20, NUM_TOKENS // 10)))
    bounds = [0, *inner[inner < NUM_TOKENS].tolist(), NUM_TOKENS]
    return TokenDocument(bounds), rng.random(NUM_TOKENS) < 0.8


def cut(documents, starts_word, seed=1, partners=(), **rule):
    counts = Counter()
    rule = SequenceRule(**rule)
    rng = random.Random(seed)
    rows = list(make_sequences(documents, starts_word, rule, rng=rng, counts=counts, partners=partners))
    return rows, counts


def in_order(row):
    return (row.first, row.second) if row.label == IN_ORDER else (row.second, row.first)


def test_two_sentences_by_hand():
    document = TokenDocument([10, 13, 18])  # tokens 10..12 and 13..17
    rows, _ = cut([document], np.ones(20, bool), max_seq_length=16, short_seq_prob=0.0)
    (row,) = rows
    assert in_order(row) == ((10, 13), (13, 18))
    assert row.length == 3 + 8
    assert row.segment_a_length == 2 + (3 if row.label == IN_ORDER else 5)


@pytest.mark.parametrize("max_seq_length", [32, 128, 512])
def test_sentence_order_rows(book, max_seq_length):
    document, starts_word = book
    rows, counts = cut([document], starts_word, max_seq_length=max_seq_length)
    bounds, used = set(document.bounds), np.zeros(NUM_TOKENS, int)
    gaps = repeated = 0
    for row in rows:
        (a_begin, a_end), (b_begin, b_end) = in_order(row)
        assert a_begin < a_end <= b_begin < b_end <= NUM_TOKENS
        assert row.length <= max_seq_length
        assert b_begin == a_end or (b_begin in bounds and b_begin - a_end < max_seq_length)
        gaps += b_begin - a_end
        repeated += used[a_begin:b_end].sum()
        used[a_begin:b_end] = 1
    # Every token is in a row or counted as left out, and what is used twice is counted.
    assert used.all() and counts["tokens_left_out"] == gaps and counts["tokens_repeated"] == repeated
    assert gaps < 10 * len(rows)
    assert counts["targets"] == len(rows)


def test_a_gap_is_inside_one_sentence():
    document = TokenDocument(list(range(0, 30_001, 10)))  # sentences of 10 tokens
    rows, _ = cut([document], np.ones(30_000, bool), max_seq_length=128)
    gaps = 0
    for (_, a_end), (b_begin, _) in map(in_order, rows):
        assert b_begin - a_end < 10  # the end of A's last sentence, which is still there in part
        gaps += b_begin > a_end
    assert 0.4 < gaps / len(rows) < 0.55


def test_shares(book):
    document, starts_word = book
    rows, counts = cut([document], starts_word, max_seq_length=32)
    lengths = np.array([row.length for row in rows])
    assert len(rows) > 10_000 and lengths.sum() > 300_000
    assert abs(counts["short_targets"] / counts["targets"] - 0.1) < 0.01
    assert abs(np.mean([row.label == SWAPPED for row in rows]) - 0.5) < 0.01
    # Rows are exactly as long as drawn: 90 % full, and the short ones uniform in 2 .. 29 tokens.
    assert abs(np.mean(lengths < 32) - 0.1 * 27 / 28) < 0.01
    short = np.bincount(lengths[lengths < 32] - 3, minlength=29)[2:29]
    assert short.min() > 0.5 * short.mean() and short.max() < 1.6 * short.mean()


def test_where_a_segment_breaks_off_does_not_tell_the_order(book):
    document, starts_word = book
    rows, _ = cut([document], starts_word, max_seq_length=128)
    rows += cut([document], starts_word, seed=2, max_seq_length=128)[0]
    bounds = set(document.bounds)
    for segment in ("first", "second"):
        for edge in (0, 1):
            inside = [getattr(row, segment)[edge] not in bounds for row in rows]
            share = [np.mean([x for x, row in zip(inside, rows, strict=True) if row.label == y]) for y in (0, 1)]
            assert abs(share[0] - share[1]) < 0.06, (segment, edge, share)


def test_seeds(book):
    document, starts_word = book
    first, again, other = (cut([document], starts_word, seed=seed, max_seq_length=128)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_a_single_piece_is_split_in_two():
    starts_word = np.array([1, 0, 0, 1, 0, 0], bool)
    rows, counts = cut([TokenDocument([0, 6])], starts_word, max_seq_length=16, short_seq_prob=0.0)
    (row,) = rows
    assert in_order(row) == ((0, 3), (3, 6))  # where the second word begins
    assert counts["pieces_split"] == 1


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
def test_odd_documents(objective):
    documents = [TokenDocument(bounds, index) for index, bounds in enumerate(([0], [0, 1], [1, 3], [3, 1000], [1000]))]
    rows, counts = cut(documents, np.zeros(1000, bool), max_seq_length=8, objective=objective)
    assert max(row.length for row in rows) <= 8 and min(row.length for row in rows) >= 3
    assert counts["skipped_too_short"] == (0 if objective == "none" else counts["skipped_too_short"])
    if objective == "sop":
        assert counts["skipped_too_short"] >= 1  # the document of one token


def test_single_segments(book):
    document, starts_word = book
    rows, counts = cut([document], starts_word, max_seq_length=128, objective="none")
    assert [row.first[0] for row in rows] == [0, *(row.first[1] for row in rows[:-1])]
    assert rows[-1].first[1] == NUM_TOKENS
    assert all(row.second is None and row.label == IN_ORDER and row.length <= 128 for row in rows)
    assert rows[0].segment_a_length == rows[0].length
    assert abs(counts["short_targets"] / counts["targets"] - 0.1) < 0.02


def test_next_sentence_pairs(book):
    document, starts_word = book
    half = len(document.bounds) // 2
    documents = [TokenDocument(document.bounds[: half + 1], 0), TokenDocument(document.bounds[half:], 1)]
    middle = document.bounds[half]
    rows, counts = cut(documents, starts_word, max_seq_length=64, objective="nsp")
    for row in rows:
        (a_begin, a_end), (b_begin, _) = row.first, row.second
        if row.label == IN_ORDER:
            assert b_begin == a_end
        else:
            assert (a_begin < middle) != (b_begin < middle) and b_begin in document.bounds
        assert row.length <= 64
    assert abs(np.mean([row.label for row in rows]) - 0.5) < 0.02
    covered = np.zeros(NUM_TOKENS, bool)
    for row in rows:
        covered[slice(*row.first)] = True
        if row.label == IN_ORDER:
            covered[slice(*row.second)] = True
    assert NUM_TOKENS - covered.sum() == counts["skipped_too_short"] <= 2


def test_next_sentence_without_another_document(book):
    document, starts_word = book
    rows, counts = cut([document], starts_word, max_seq_length=64, objective="nsp")
    assert all(row.label == IN_ORDER for row in rows) and counts["skipped_no_partner"] > 1000
    own = TokenDocument([0, 20, 40], 0)
    partner = TokenDocument([40, 60, 80, 100], 1)
    rows, _ = cut([own], np.ones(100, bool), partners=[partner], max_seq_length=16, objective="nsp", short_seq_prob=0)
    assert {row.second[0] for row in rows if row.label == SWAPPED} <= {40, 60, 80}
    assert all(row.first[1] <= 40 for row in rows)


@pytest.mark.parametrize(
    "wrong", [{"objective": "mlm"}, {"max_seq_length": 7}, {"short_seq_prob": 1.5}, {"max_seq_length": 70_000}]
)
def test_wrong_rules(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SequenceRule(**wrong)


def test_random_text_is_never_nothing():
    """A document may have no token left (accents alone, say): as a second segment it would give the label away."""
    own, nothing, other = TokenDocument([0, 40, 80], 0), TokenDocument([80], 1), TokenDocument([80, 120], 2)
    rows, counts = cut([own, nothing, other], np.ones(120, bool), max_seq_length=16, objective="nsp", short_seq_prob=0)
    assert len(rows) > 5 and all(end > begin for row in rows for begin, end in (row.first, row.second))
    _, counts = cut([own, nothing], np.ones(120, bool), max_seq_length=16, objective="nsp", short_seq_prob=0)
    assert counts["skipped_no_partner"]


def test_random_text_comes_from_all_other_documents():
    numbers = [0, 1, 1, 1, 3, 3, 4]  # parts of one document are neighbours; document 2 has no token
    documents = [TokenDocument([4 * place, 4 * place + 4], number) for place, number in enumerate(numbers)]
    documents.insert(4, TokenDocument([16], 2))
    drawn = {number: set() for number in numbers}
    for seed in range(200):
        rows, _ = cut(documents, np.ones(28, bool), seed, max_seq_length=16, objective="nsp", short_seq_prob=0)
        for row in rows:
            if row.label == SWAPPED:
                drawn[numbers[row.first[0] // 4]].add(row.second[0] // 4)
    for number, places in drawn.items():
        assert places == {place for place, other in enumerate(numbers) if other != number}


def test_many_short_documents_are_not_slow():
    """A megabyte of lines with a blank line between them is 20,000 documents."""
    documents = [TokenDocument([4 * i, 4 * i + 2, 4 * i + 4], i) for i in range(20_000)]
    start = time.process_time()
    rows, _ = cut(documents, np.ones(80_000, bool), max_seq_length=32, objective="nsp")
    assert time.process_time() - start < 4 and len(rows) > 20_000
