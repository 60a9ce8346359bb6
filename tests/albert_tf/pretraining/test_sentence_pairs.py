"""Pairs of the other sentence objective, against plain lists."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining.sentence_pairs import repair_rows

CLS, SEP, SIZE = 2, 3, 12


def make_rows(segments, labels):
    """Rows of (A, B) as records hold them."""
    tokens = [[CLS, *a, SEP, *b, SEP] for a, b in segments]
    return {
        "tokens": tf.constant([row + [0] * (SIZE - len(row)) for row in tokens], tf.int32),
        "length": tf.constant([len(row) for row in tokens], tf.int32),
        "first_length": tf.constant([len(a) + 2 for a, _ in segments], tf.int32),
        "sentence_labels": tf.constant(labels, tf.int32),
        "sentence_weights": tf.ones([len(segments)]),
    }


def segments_of(rows):
    """The (A, B) of rows; checks their form."""
    for tokens, length, first in zip(*(rows[key].numpy() for key in ("tokens", "length", "first_length")), strict=True):
        assert tokens[0] == CLS and tokens[first - 1] == tokens[length - 1] == SEP and not tokens[length:].any()
        yield tokens[1 : first - 1].tolist(), tokens[first : length - 1].tolist()


def random_segments(number):
    rng = np.random.default_rng(0)
    for _ in range(number):
        size = int(rng.integers(2, SIZE - 2))
        text = rng.integers(5, 1000, size).tolist()
        cut = int(rng.integers(1, size))
        yield text[:cut], text[cut:]


@pytest.mark.parametrize("number, num_real", [(40, 40), (40, 35), (3, 3), (1, 1)])
def test_next_sentence_pairs_out_of_sentence_order(number, num_real):
    """In order, and the last two of every four exchange their second segments, where both are real."""
    ordered = list(random_segments(number))
    labels = [index % 3 == 0 for index in range(number)]
    rows = make_rows([(b, a) if swapped else (a, b) for (a, b), swapped in zip(ordered, labels, strict=True)], labels)
    real = tf.range(number) < num_real
    got = repair_rows(rows, real=real, records_objective="sop", objective="nsp")
    exchanged = [index % 4 >= 2 and max(index, index ^ 1) < num_real for index in range(number)]
    for index, (a, b) in enumerate(segments_of(got)):
        assert a == ordered[index][0]
        other = ordered[index ^ 1 if exchanged[index] else index][1]
        assert b == other[: SIZE - 3 - len(a)]
    assert got["sentence_labels"].numpy().tolist() == exchanged
    assert got["sentence_weights"].numpy().all()


def test_sentence_order_out_of_next_sentence_pairs():
    """Every other row swapped; random pairs count nothing."""
    segments, labels = list(random_segments(40)), [index % 3 == 0 for index in range(40)]
    rows = make_rows(segments, labels)
    got = repair_rows(rows, real=tf.fill([40], True), records_objective="nsp", objective="sop")
    for index, (a, b) in enumerate(segments_of(got)):
        assert (a, b) == (segments[index][::-1] if index % 2 else segments[index])
    assert got["sentence_labels"].numpy().tolist() == [index % 2 for index in range(40)]
    assert got["sentence_weights"].numpy().tolist() == [float(not label) for label in labels]


def test_the_same_objective_changes_nothing():
    rows = make_rows([([5], [6])], [1])
    assert repair_rows(rows, real=tf.constant([True]), records_objective="sop", objective="sop") is rows


@pytest.mark.parametrize("records_objective, objective", [("none", "sop"), ("sop", "none")])
def test_no_pairs(records_objective, objective):
    rows = make_rows([([5], [6])], [0])
    with pytest.raises(UserError, match=f"cannot measure {objective} on records made with the objective"):
        repair_rows(rows, real=tf.constant([True]), records_objective=records_objective, objective=objective)
