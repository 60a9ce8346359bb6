"""Masks in the graph against a plain sequential reference, their statistics, and what must never be masked."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining.masking import MaskingRule, MaskingVocabulary
from albert_tf.pretraining.masks import choose_tokens, draw_ngram_length, mask_tokens, word_ends
from albert_tf.pretraining.random_bits import high_bits, low_bits, permutation, random_bits

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 1000


@pytest.fixture(scope="module")
def vocabulary():
    starts = np.random.default_rng(0).random(VOCAB) < 0.75
    return MaskingVocabulary.of(
        SimpleNamespace(pad_id=PAD, unk_id=UNK, cls_id=CLS, sep_id=SEP, mask_id=MASK, starts_word=lambda: starts)
    )


def random_rows(rows, size, *, seed=0):
    """Rows of random pieces, a quarter of them short: (input_ids int32 [rows, size], lengths int32 [rows])."""
    rng = np.random.default_rng(seed)
    ids = np.full([rows, size], PAD, np.int32)
    lengths = np.where(rng.random(rows) < 0.25, rng.integers(5, size + 1, rows), size).astype(np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = rng.integers(5, VOCAB, length)
        row[[0, rng.integers(2, length - 2), length - 1]] = CLS, SEP, SEP
    return ids, lengths


# ---- the reference: plain Python integers and loops, sharing no code with the graph

WORD = (1 << 64) - 1


def reference_bits(*counters):
    bits = 0
    for counter in counters:
        bits = (bits + (counter + 1) * 0x9E3779B97F4A7C15) & WORD
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & WORD
        bits ^= bits >> 31
    return bits


def reference_words(row, kind):
    """The words of one row as lists of columns, one list of words per segment."""
    segments = [[]]
    for column, piece in enumerate(row):
        if kind[piece] == 0:
            segments.append([])
        elif kind[piece] == 2 or not segments[-1]:
            segments[-1].append([column])
        else:
            segments[-1][-1].append(column)
    return [segment for segment in segments if segment]


def reference_choice(row, position, *, length, seed, rule, kind):
    candidates = []
    column_bits = (len(row) - 1).bit_length()
    shares = [1 / n for n in range(1, rule.ngram + 1)]
    shares = shares if rule.favor_shorter_ngram else shares[::-1]
    for words in reference_words(row, kind):
        for index, word in enumerate(words):
            bits = reference_bits(seed, position, 0, word[0])
            draw, n = (bits % 2**31) / 2**31, 1
            while draw >= sum(shares[:n]) / sum(shares):
                n += 1
            candidates.append((bits >> (34 + column_bits), word[0], words[index : index + n]))
    left = min(rule.max_predictions_per_seq, max(1, round(length * rule.masked_lm_prob)))
    covered = set()
    for _, _, ngram in sorted(candidates):
        if covered & set(sum(ngram, [])):
            continue
        while len(sum(ngram, [])) > left:
            ngram = ngram[:-1]
        covered.update(sum(ngram, []))
        left -= len(sum(ngram, []))
    return covered


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ngram": 1},
        {"ngram": 5, "favor_shorter_ngram": False},
        {"masked_lm_prob": 0.6, "max_predictions_per_seq": 9},
    ],
    ids=str,
)
def test_choice_equals_the_sequential_reference(vocabulary, options):
    rule = MaskingRule(**{"max_predictions_per_seq": 12} | options)
    ids, lengths = random_rows(200, 64)
    positions = np.arange(200, dtype=np.int64) * 10**12 + 7
    chosen = choose_tokens(ids, positions, lengths=lengths, seed=-3, rule=rule, vocabulary=vocabulary)
    kind = vocabulary.piece_kind
    for row, position, length, got in zip(ids, positions.tolist(), lengths.tolist(), chosen.numpy(), strict=True):
        expected = reference_choice(row, position, length=length, seed=-3, rule=rule, kind=kind)
        assert set(np.flatnonzero(got)) == expected


def test_word_ends_as_documented():
    kind = np.array([[0, 2, 1, 2, 0]], np.uint8)
    starts, ends = word_ends(kind, 2, whole_words=True)
    assert starts.numpy().tolist() == [[False, True, False, True, False]]
    assert [end.numpy()[0].tolist() for end in ends] == [[0, 3, 2, 4, 4], [0, 4, 2, 4, 4]]
    starts, ends = word_ends(kind, 2, whole_words=False)
    assert [end.numpy()[0].tolist() for end in ends] == [[0, 2, 3, 4, 4], [0, 3, 4, 4, 4]]


def test_a_piece_that_continues_begins_a_word_at_the_start_of_a_segment():
    kind = np.array([[0, 1, 1, 2, 0, 1, 2, 0, 0], [0, 2, 0, 0, 0, 0, 0, 0, 0]], np.uint8)
    starts, ends = word_ends(kind, 3, whole_words=True)
    assert np.argwhere(starts).tolist() == [[0, 1], [0, 3], [0, 5], [0, 6], [1, 1]]
    assert ends[2].numpy()[0, [1, 3, 5, 6]].tolist() == [4, 4, 7, 7], "n-grams stop at [SEP]"
    assert ends[2].numpy()[1, 1] == 2


@pytest.fixture(scope="module")
def masked(vocabulary):
    """A large sample: 3600 rows of 256 and what became of them."""
    ids, lengths = random_rows(3600, 256)
    rule = MaskingRule(max_predictions_per_seq=39)
    made = mask_tokens(
        tf.constant(ids), np.arange(3600, dtype=np.int64), lengths=lengths, seed=1, rule=rule, vocabulary=vocabulary
    )
    return SimpleNamespace(ids=ids, lengths=lengths, rule=rule, **{key: value.numpy() for key, value in made.items()})


def test_shapes_types_and_order(masked):
    assert masked.input_ids.dtype == masked.masked_lm_positions.dtype == masked.masked_lm_ids.dtype == np.int32
    assert masked.masked_lm_weights.dtype == np.float32
    assert (
        masked.masked_lm_positions.shape == masked.masked_lm_ids.shape == masked.masked_lm_weights.shape == (3600, 39)
    )
    for positions, ids, weights in zip(
        masked.masked_lm_positions, masked.masked_lm_ids, masked.masked_lm_weights, strict=True
    ):
        count = int(weights.sum())
        assert weights.tolist() == [1.0] * count + [0.0] * (39 - count)
        assert (np.diff(positions[:count]) > 0).all()
        assert not positions[count:].any() and not ids[count:].any()


def test_targets_are_the_ids_before_masking_and_nothing_else_changes(masked):
    rows, slots = np.nonzero(masked.masked_lm_weights)
    columns = masked.masked_lm_positions[rows, slots]
    assert (masked.masked_lm_ids[rows, slots] == masked.ids[rows, columns]).all()
    assert masked.masked_lm_ids[rows, slots].min() >= 5, "no special token is a target"
    restored = masked.input_ids.copy()
    restored[rows, columns] = masked.masked_lm_ids[rows, slots]
    assert (restored == masked.ids).all()


def test_shares(masked):
    """At least 100,000 chosen positions: 15 % to 0.3 points, the budget met, 80/10/10 to 1 point, replacements even."""
    rows, slots = np.nonzero(masked.masked_lm_weights)
    assert len(rows) > 100_000 and masked.lengths.sum() > 600_000
    assert abs(len(rows) / masked.lengths.sum() - 0.15) < 0.003
    counts = masked.masked_lm_weights.sum(axis=1).astype(int)
    budgets = [min(39, max(1, round(length * 0.15))) for length in masked.lengths.tolist()]
    assert (counts <= budgets).all() and np.mean(counts == budgets) > 0.99
    now = masked.input_ids[rows, masked.masked_lm_positions[rows, slots]]
    before = masked.masked_lm_ids[rows, slots]
    assert abs(np.mean(now == MASK) - 0.8) < 0.01
    assert abs(np.mean(now == before) - 0.1) < 0.01
    random_ones = now[(now != MASK) & (now != before)]
    assert abs(len(random_ones) / len(now) - 0.1) < 0.01
    assert random_ones.min() == 5 and random_ones.max() == VOCAB - 1
    expected = len(random_ones) / (VOCAB - 5)
    chi_square = (((np.bincount(random_ones, minlength=VOCAB)[5:] - expected) ** 2) / expected).sum()
    assert abs(chi_square - (VOCAB - 5)) < 5 * (2 * VOCAB) ** 0.5


def test_every_place_is_chosen_alike(vocabulary):
    """Words of one piece, one length of n-gram: each column inside has its share of 15 % within 5 standard errors."""
    ids = np.tile(np.r_[CLS, np.full(62, np.flatnonzero(vocabulary.piece_kind == 2)[9]), SEP], [8000, 1]).astype(
        np.int32
    )
    rule = MaskingRule(max_predictions_per_seq=12, ngram=1)
    chosen = choose_tokens(
        ids, np.arange(8000, dtype=np.int64), lengths=np.full(8000, 64), seed=5, rule=rule, vocabulary=vocabulary
    ).numpy()
    assert not chosen[:, [0, 63]].any()
    share = 10 / 62
    assert np.abs(chosen[:, 1:63].mean(axis=0) - share).max() < 5 * (share * (1 - share) / 8000) ** 0.5


@pytest.mark.parametrize("favor_shorter, shares", [(True, [6, 3, 2]), (False, [2, 3, 6])])
def test_ngram_lengths_as_drawn(favor_shorter, shares):
    rule = MaskingRule(max_predictions_per_seq=1, favor_shorter_ngram=favor_shorter)
    drawn = draw_ngram_length(random_bits(7, tf.range(200_000, dtype=tf.int64)), rule).numpy()
    assert drawn.min() == 1 and drawn.max() == 3
    assert np.abs(np.bincount(drawn)[1:] / 200_000 - np.array(shares) / 11).max() < 0.005


def test_independent_of_batch_and_repeatable_but_new_at_every_position_and_seed(vocabulary):
    ids, lengths = random_rows(60, 64)
    positions = np.arange(60, dtype=np.int64) + 12345
    rule = MaskingRule(max_predictions_per_seq=10)

    def masks(rows, shift=0, seed=1):
        made = mask_tokens(
            tf.constant(ids[rows]),
            positions[rows] + shift,
            lengths=lengths[rows],
            seed=seed,
            rule=rule,
            vocabulary=vocabulary,
        )
        return [made[key].numpy() for key in sorted(made)]

    whole = masks(slice(None))
    for rows in (slice(0, 7), slice(31, 32), slice(20, 60, 3), slice(None, None, -1)):
        for part, all_rows in zip(masks(rows), whole, strict=True):
            np.testing.assert_array_equal(part, all_rows[rows])
    for other in (masks(slice(None), shift=60), masks(slice(None), seed=2)):
        same = np.mean([np.array_equal(a, b) for a, b in zip(other[0], whole[0], strict=True)])
        assert same < 0.2, "short rows may agree by chance, most do not"


def test_rows_with_nothing_to_mask(vocabulary):
    rule = MaskingRule(max_predictions_per_seq=4)
    ids = np.array([[CLS, SEP, SEP, PAD, PAD, PAD], [PAD] * 6, [CLS, 9, SEP, 7, 8, SEP]], np.int32)
    made = mask_tokens(
        tf.constant(ids), np.arange(3), lengths=np.array([3, 0, 6]), seed=0, rule=rule, vocabulary=vocabulary
    )
    assert made["masked_lm_weights"].numpy().sum(axis=1).tolist() == [0, 0, 1]
    np.testing.assert_array_equal(made["input_ids"][:2], ids[:2])


def test_a_word_longer_than_the_budget_is_left_whole(vocabulary):
    inside = np.flatnonzero(vocabulary.piece_kind == 1)[0]
    ids = np.array([[CLS] + [inside] * 8 + [SEP]], np.int32)
    rule = MaskingRule(max_predictions_per_seq=4)
    arguments = dict(positions=np.arange(1), lengths=np.array([10]), seed=0, vocabulary=vocabulary)
    assert not choose_tokens(ids, rule=rule, **arguments).numpy().any()
    by_piece = MaskingRule(max_predictions_per_seq=4, do_whole_word_mask=False)
    assert choose_tokens(ids, rule=by_piece, **arguments).numpy().sum() == 2


def test_in_a_dataset_the_shapes_are_static(vocabulary):
    rule = MaskingRule(max_predictions_per_seq=10)
    ids, lengths = random_rows(8, 64)
    data = tf.data.Dataset.from_tensor_slices((ids, np.arange(8, dtype=np.int64), lengths)).batch(
        4, drop_remainder=True
    )
    data = data.map(lambda i, p, n: mask_tokens(i, p, lengths=n, seed=0, rule=rule, vocabulary=vocabulary))
    assert {key: tuple(spec.shape) for key, spec in data.element_spec.items()} == {
        "input_ids": (4, 64),
        "masked_lm_positions": (4, 10),
        "masked_lm_ids": (4, 10),
        "masked_lm_weights": (4, 10),
    }


@pytest.mark.parametrize("field, value", [("max_predictions_per_seq", 0), ("masked_lm_prob", 1.5), ("ngram", 0)])
def test_impossible_rules_are_refused(field, value):
    with pytest.raises(UserError, match=f"{field} is {value}"):
        MaskingRule(**{"max_predictions_per_seq": 5} | {field: value})


# ---- random bits


def test_random_bits_equal_plain_integers():
    rng = random.Random(0)
    counters = [[rng.randrange(2**62) for _ in range(20)] for _ in range(3)]
    got = random_bits(*[tf.constant(c, tf.int64) for c in counters]).numpy().tolist()
    assert got == [reference_bits(*c) for c in zip(*counters, strict=True)]


def test_random_bits_are_even_and_uncorrelated():
    """Neighbouring counters: every bit half the time, 16-bit values even, no correlation with the neighbours' bits."""
    bits = random_bits(1, tf.range(400, dtype=tf.int64)[:, None], tf.range(512, dtype=tf.int64))
    share = [np.mean((bits.numpy() >> np.uint64(place)) & np.uint64(1)) for place in range(64)]
    assert np.abs(np.array(share) - 0.5).max() < 5 * 0.5 / bits.numpy().size ** 0.5
    for values in (high_bits(bits, 12), low_bits(bits, 12)):
        counts = np.bincount(values.numpy().ravel(), minlength=4096)
        chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert abs(chi_square - 4095) < 5 * (2 * 4095) ** 0.5
    high, low = high_bits(bits, 30).numpy().astype(float), low_bits(bits, 30).numpy().astype(float)
    for a, b in ((high[:, 1:], high[:, :-1]), (high[1:], high[:-1]), (low[:, 1:], low[:, :-1]), (high, low)):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.012


def test_permutation():
    orders = {tuple(permutation(5, 3, epoch).numpy()) for epoch in range(60)}
    assert all(sorted(order) == list(range(5)) for order in orders) and len(orders) > 30
    assert permutation(0, 1).shape == [0]
