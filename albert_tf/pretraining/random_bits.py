"""Random numbers as a function of counters, in TensorFlow ops: any batch, worker or restart draws the same."""

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads consecutive counters over the whole range
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64 (Steele, Lea, Flood 2014)


def random_bits(*counters: tf.Tensor | int) -> tf.Tensor:
    """Gives 64 random bits for each combination of counters: uint64 in the counters' broadcast shape.

    `random_bits(seed, row[:, None], column)` is [rows, columns]; element (i, j) depends on seed, row[i] and column[j]
    alone. Absorbs the counters one after another, each with one SplitMix64 step.
    """
    bits = tf.zeros([], tf.uint64)
    for counter in counters:
        counter = tf.cast(tf.convert_to_tensor(counter, dtype_hint=tf.int64), tf.uint64)
        bits = _mix(bits + (counter + 1) * tf.constant(_GOLDEN, tf.uint64))
    return bits


def high_bits(bits: tf.Tensor, count: int) -> tf.Tensor:
    """Gives the highest `count` bits as int64 in 0 .. 2**count - 1 (count at most 63)."""
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(64 - count, tf.uint64)), tf.int64)


def low_bits(bits: tf.Tensor, count: int) -> tf.Tensor:
    """Gives the lowest `count` bits, independent of the high ones, as int64 in 0 .. 2**count - 1 (count at most 63)."""
    return tf.cast(tf.bitwise.bitwise_and(bits, tf.constant((1 << count) - 1, tf.uint64)), tf.int64)


def permutation(size: tf.Tensor | int, *counters: tf.Tensor | int) -> tf.Tensor:
    """Gives a random order of 0 .. size-1, int32 [size], fixed by the (scalar) counters."""
    keys = high_bits(random_bits(*counters, tf.range(tf.cast(size, tf.int64))), 63)
    return tf.argsort(keys, stable=True)


def _mix(bits: tf.Tensor) -> tf.Tensor:
    for shift, multiplier in _MIX:
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64)))
        bits *= tf.constant(multiplier, tf.uint64)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(31, tf.uint64)))
