"""The parts of served graphs are their Python counterparts: rows, windows, options in blanks."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.in_graph import GraphTokenizer, packed
from tasks import serving, serving_windows, windows
from tasks.race import filled
from tasks.text import text_feature


@pytest.mark.parametrize("counts", [(0,), (3,), (50,), (0, 0), (3, 50), (50, 3), (50, 50), (9, 10)])
def test_rows(counts, tiny_spm):
    tokenizer = load_tokenizer(tiny_spm)
    segments = [np.arange(5, 5 + count) for count in counts]
    ragged = [tf.RaggedTensor.from_row_lengths(tf.constant(ids, tf.int32), [len(ids)]) for ids in segments]
    rows = packed(ragged, GraphTokenizer(tokenizer), 20)
    expected = text_feature(segments, tokenizer, 20)
    for name, value in expected.items():
        np.testing.assert_array_equal(rows[name][0], value)
    assert rows["input_mask"][0].numpy().tolist() == [1] * len(expected["input_ids"])


def test_windows():
    """Every length from none to many windows, each with its own room and stride."""
    cases = [(length, room, stride) for room, stride in ((4, 2), (5, 5), (7, 3), (1, 1)) for length in range(24)]
    found = serving_windows.cut(*(tf.constant(column) for column in zip(*cases, strict=True)))
    expected = [
        (text, *window)
        for text, (length, room, stride) in enumerate(cases)
        for window in windows.cut(length, room=room, stride=stride)
    ]
    np.testing.assert_array_equal(np.stack(found, axis=1), expected)
    values = tf.RaggedTensor.from_row_lengths(tf.range(sum(case[0] for case in cases)), [case[0] for case in cases])
    parts = serving_windows.window_values(values, found)
    assert parts.to_list() == [values[text][first:stop].numpy().tolist() for text, first, stop, *_ in expected]


def test_options_in_blanks():
    questions = ["What is _?", "no blank", "__ and ___\nend_", "_", ""]
    options = [["a", "b_c"], ["", "x\\1"], ["\u6771", "q"], ["one", "two"], ["y", ""]]
    found = serving._filled(tf.constant(questions), tf.constant(options)).numpy()
    expected = [[filled(question, option) for option in row] for question, row in zip(questions, options, strict=True)]
    assert [[text.decode() for text in row] for row in found.tolist()] == expected
    empty = serving._filled(tf.zeros([0], tf.string), tf.zeros([0, 3], tf.string))
    assert empty.shape == [0, 3]
