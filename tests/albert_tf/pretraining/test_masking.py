import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining.masking import (
    CONTINUES,
    NEVER,
    STARTS,
    MaskingRule,
    MaskingVocabulary,
    choose_tokens,
    mask_rows,
)

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY_SIZE = 1000


class Tokenizer:
    """What masking asks of a tokeniser: one piece in five goes on with a word."""

    pad_id, unk_id, cls_id, sep_id, mask_id = PAD, UNK, CLS, SEP, MASK

    def starts_word(self):
        return np.arange(VOCABULARY_SIZE) % 5 > 0


VOCABULARY = MaskingVocabulary.of(Tokenizer())


def random_rows(size, number, seed=0, full=False):
    """[CLS] A [SEP] B [SEP] rows of random pieces, and their lengths."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(5, VOCABULARY_SIZE, (number, size)).astype(np.int32)
    lengths = np.full(number, size) if full else rng.integers(5, size + 1, number)
    for row, length in zip(rows, lengths, strict=True):
        row[0] = CLS
        row[rng.integers(2, length - 2)] = SEP
        row[length - 1] = SEP
        row[length:] = PAD
    return rows, lengths


def mask(rows, lengths, seed=1, **rule):
    rule = MaskingRule(**{"max_predictions_per_seq": round(0.15 * rows.shape[1]), **rule})
    return mask_rows(rows, lengths, rule, vocabulary=VOCABULARY, rng=np.random.default_rng(seed)), rule


def test_vocabulary():
    assert VOCABULARY.piece_kind[[PAD, UNK, CLS, SEP, MASK]].tolist() == [NEVER, STARTS, NEVER, NEVER, NEVER]
    assert VOCABULARY.piece_kind[[5, 6]].tolist() == [CONTINUES, STARTS]
    assert VOCABULARY.replacements.tolist() == list(range(5, VOCABULARY_SIZE))


def test_statistics():
    """The shares of the issue, over 1,000,000 positions."""
    rows, lengths = random_rows(512, 2000, full=True)
    masked, _ = mask(rows, lengths)
    chosen = masked.weights > 0
    assert abs(chosen.sum() / lengths.sum() - 0.15) < 0.003
    after = np.take_along_axis(masked.input_ids, masked.positions, axis=1)[chosen]
    before = masked.ids[chosen]
    shares = [np.mean(after == MASK), np.mean(after == before), np.mean((after != before) & (after != MASK))]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)
    random_ids = after[(after != before) & (after != MASK)]
    assert random_ids.min() >= 5 and np.unique(random_ids).size > 0.9 * VOCABULARY_SIZE
    np.testing.assert_allclose(masked.drawn_ngrams / masked.drawn_ngrams.sum(), [6 / 11, 3 / 11, 2 / 11], atol=0.01)


def test_positions_are_chosen_evenly():
    rows, lengths = random_rows(128, 5000, full=True)
    masked, _ = mask(rows, lengths)
    hits = np.bincount(masked.positions[masked.weights > 0], minlength=128) / 5000
    assert hits[4:127].min() > 0.12 and hits.max() < 0.18
    assert hits[1] > 0.08  # a segment's first words are in fewer n-grams than others


@pytest.mark.parametrize(
    "rule",
    [{}, {"favor_shorter_ngram": False}, {"do_whole_word_mask": False}, {"ngram": 1}, {"ngram": 7}]
    + [{"max_predictions_per_seq": 1}, {"masked_lm_prob": 0.9, "max_predictions_per_seq": 64}],
)
def test_rows_keep_to_the_rule(rule):
    rows, lengths = random_rows(64, 800)
    before = rows.copy()
    masked, rule = mask(rows, lengths, **rule)
    np.testing.assert_array_equal(rows, before)  # the caller's rows stay
    word = np.cumsum((VOCABULARY.piece_kind[rows] != CONTINUES) | (np.roll(rows, 1, 1) < 5), axis=1)
    for i in range(len(rows)):
        number = int(masked.weights[i].sum())
        places, ids = masked.positions[i, :number], masked.ids[i, :number]
        assert number <= rule.budget(lengths[i])
        assert masked.weights[i].tolist() == [1.0] * number + [0.0] * (len(masked.weights[i]) - number)
        assert not masked.positions[i, number:].any() and not masked.ids[i, number:].any()
        assert (np.diff(places) > 0).all()
        assert ids.tolist() == before[i, places].tolist()  # the id before masking
        assert not np.isin(ids, [PAD, CLS, SEP]).any()
        unchosen = np.setdiff1d(np.arange(64), places)
        assert masked.input_ids[i, unchosen].tolist() == before[i, unchosen].tolist()
        if rule.do_whole_word_mask:
            chosen_words = np.isin(word[i], word[i, places])
            assert chosen_words.sum() == number  # no word is chosen in part


def test_reversed_ngrams():
    rows, lengths = random_rows(256, 800, full=True)
    drawn = mask(rows, lengths, favor_shorter_ngram=False)[0].drawn_ngrams
    np.testing.assert_allclose(drawn / drawn.sum(), [2 / 11, 3 / 11, 6 / 11], atol=0.01)


def test_budget_is_reached_where_words_are_single_pieces():
    rows, lengths = random_rows(128, 500)
    masked, rule = mask(rows, lengths, do_whole_word_mask=False)
    assert masked.weights.sum(axis=1).tolist() == [rule.budget(length) for length in lengths]
    assert [rule.budget(n) for n in (3, 10, 100, 128)] == [1, 2, 15, 19]


def test_ngrams_stay_in_their_segment():
    kind = np.array([[NEVER, STARTS, CONTINUES, NEVER, STARTS, STARTS, NEVER, NEVER]] * 4000, np.uint8)
    rule = MaskingRule(max_predictions_per_seq=2, masked_lm_prob=0.3, ngram=3)
    chosen, _ = choose_tokens(kind, np.full(4000, 7), rule, np.random.default_rng(0))
    kinds = {tuple(np.flatnonzero(row)) for row in chosen}
    # Two tokens: the word of two pieces, or two words beside each other; never a piece of each segment.
    assert kinds == {(1, 2), (4, 5), (4,), (5,)} or kinds == {(1, 2), (4, 5)}


def test_nothing_to_mask():
    rows = np.array([[CLS, SEP, SEP, PAD, PAD, PAD, PAD, PAD]], np.int32)
    masked, _ = mask(rows, np.array([3]))
    assert not masked.weights.any() and masked.input_ids.tolist() == rows.tolist()


def test_seeds():
    rows, lengths = random_rows(64, 50)
    first, again, other = (mask(rows, lengths, seed=seed)[0] for seed in (1, 1, 2))
    assert (first.positions == again.positions).all() and (first.input_ids == again.input_ids).all()
    assert (first.positions != other.positions).any()


class _Coarse:
    """A generator whose numbers are often equal; `step` sets equal ones of a row apart, the first the lowest."""

    def __init__(self, step):
        self.rng, self.step = np.random.default_rng(3), step

    def random(self, shape, dtype):
        return np.floor(self.rng.random(shape, dtype) * 8) / 8 + (np.arange(shape[1]) * self.step).astype(dtype)

    def choice(self, *arguments, **more):
        return self.rng.choice(*arguments, **more)


def test_equal_priorities_have_one_order():
    """Else the same seed masks other words on another processor, as sorts differ in what they do with equal numbers."""
    rows, lengths = random_rows(512, 20, full=True)
    kind, rule = VOCABULARY.piece_kind[rows], MaskingRule(max_predictions_per_seq=77)
    equal, apart = (choose_tokens(kind, lengths, rule, _Coarse(step))[0] for step in (0.0, 1e-5))
    np.testing.assert_array_equal(equal, apart)


@pytest.mark.parametrize("wrong", [{"max_predictions_per_seq": 0}, {"masked_lm_prob": 1.0}, {"ngram": 0}])
def test_wrong_rules(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        MaskingRule(**{"max_predictions_per_seq": 10, **wrong})
