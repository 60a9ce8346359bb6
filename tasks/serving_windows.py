"""Cutting texts into windows inside a graph: tasks.windows.cut for a batch.

Axes: B texts, W windows of all of them in order, S row positions.
"""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """int32 [W] each: the text that a window is of, and its fields as in tasks.windows.Window."""

    text: tf.Tensor
    first: tf.Tensor
    stop: tf.Tensor
    owned_from: tf.Tensor
    owned_to: tf.Tensor


def cut(lengths: tf.Tensor, room: tf.Tensor, stride: tf.Tensor) -> Windows:
    """Numbers of tokens, room and stride, int32 [B] -> windows; every text has at least one."""
    counts = 1 + tf.maximum(lengths - room + stride - 1, 0) // stride
    text = tf.repeat(tf.range(tf.size(lengths)), counts)
    number = tf.ragged.range(counts).values
    length, room, stride = (tf.gather(values, text) for values in (lengths, room, stride))
    first = number * stride
    stop = tf.minimum(first + room, length)
    border = (first + tf.minimum(first - stride + room, length) - 1) // 2 + 1  # to the window before
    next_border = (first + stride + stop - 1) // 2 + 1
    is_last = number == tf.gather(counts, text) - 1
    return Windows(text, first, stop, tf.where(number == 0, 0, border), tf.where(is_last, length, next_border))


def window_values(values: tf.RaggedTensor, windows: Windows) -> tf.RaggedTensor:
    """[B, (T)] -> the part of each window, [W, (T)]."""
    base = tf.cast(tf.gather(values.row_splits, windows.text), tf.int32)
    places = tf.ragged.range(base + windows.first, base + windows.stop, row_splits_dtype=tf.int64)
    return places.with_values(tf.gather(values.values, places.values))
