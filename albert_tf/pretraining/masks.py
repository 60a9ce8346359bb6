"""Masks made in the input pipeline: n-grams of whole words, anew for each position of the training stream.

TensorFlow ops only (a TPU host cannot call Python). What a row gets depends on the seed and on its position in the
stream, on nothing else: not on the batch it sits in, nor on how many workers read. The rule is that of masking.py.

Letters: B batch, S sequence, P predictions, N longest n-gram, V vocabulary.
"""

import numpy as np
import tensorflow as tf

from albert_tf.pretraining.masking import NEVER, STARTS, MaskingRule, MaskingVocabulary
from albert_tf.pretraining.random_bits import high_bits, low_bits, random_bits

_CHOICE, _REPLACEMENT = 0, 1  # purposes of random numbers, so that no number is used twice
_DEAD = 2**31 - 1  # the priority of what can no longer be chosen; real priorities are below


def mask_tokens(
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    *,
    lengths: tf.Tensor,
    seed: int,
    rule: MaskingRule,
    vocabulary: MaskingVocabulary,
) -> dict[str, tf.Tensor]:
    """Masks a batch of rows.

    Takes input_ids int32 [B, S] ([CLS] A [SEP] B [SEP] and padding; S known), positions int64 [B] of the rows in the
    stream, lengths int32 [B] of the rows without padding.

    Gives `input_ids` int32 [B, S] with 80 % of the chosen tokens replaced by [MASK], 10 % kept, 10 % random, and
    `masked_lm_positions` int32 [B, P] ascending, `masked_lm_ids` int32 [B, P] (the ids before masking),
    `masked_lm_weights` float32 [B, P] (0 after the last prediction; a row of nothing maskable has zeros only).
    """
    chosen = choose_tokens(input_ids, positions, lengths=lengths, seed=seed, rule=rule, vocabulary=vocabulary)
    width = rule.max_predictions_per_seq
    where = tf.where(chosen)  # [picks, 2] row and column, in reading order
    rank = tf.gather_nd(tf.cumsum(tf.cast(chosen, tf.int32), axis=1) - 1, where)
    slots = tf.stack([tf.cast(where[:, 0], tf.int32), rank], axis=1)
    shape = [tf.shape(input_ids)[0], width]
    columns = tf.scatter_nd(slots, tf.cast(where[:, 1], tf.int32), shape)  # [B, P]
    targets = tf.scatter_nd(slots, tf.gather_nd(input_ids, where), shape)
    weights = tf.scatter_nd(slots, tf.ones(tf.shape(rank), tf.float32), shape)
    bits = random_bits(seed, tf.gather(positions, where[:, 0]), _REPLACEMENT, where[:, 1])
    replaced = tf.tensor_scatter_nd_update(
        input_ids, where, _replacement(bits, tf.gather_nd(input_ids, where), vocabulary)
    )
    batch = input_ids.shape[0]
    return {
        "input_ids": tf.ensure_shape(replaced, input_ids.shape),
        "masked_lm_positions": tf.ensure_shape(columns, [batch, width]),
        "masked_lm_ids": tf.ensure_shape(targets, [batch, width]),
        "masked_lm_weights": tf.ensure_shape(weights, [batch, width]),
    }


def choose_tokens(
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    *,
    lengths: tf.Tensor,
    seed: int,
    rule: MaskingRule,
    vocabulary: MaskingVocabulary,
) -> tf.Tensor:
    """Chooses the tokens to predict: bool [B, S].

    Every word is a candidate: the n-gram of n words that begins there, n drawn with `ngram_shares`, cut at the end of
    its segment. Candidates come in random order; one that touches what is chosen already is skipped; one too long for
    what is left of the budget is shortened by whole words until it fits, or skipped. So the budget is never exceeded,
    and is reached wherever single words of the row allow it.
    """
    size = input_ids.shape[1]
    kind = tf.gather(vocabulary.piece_kind, input_ids)
    starts, ends = word_ends(kind, rule.ngram, whole_words=rule.do_whole_word_mask)
    columns = tf.range(size)
    bits = random_bits(seed, positions[:, tf.newaxis], _CHOICE, columns)
    length = draw_ngram_length(bits, rule)
    for words in range(2, rule.ngram + 1):  # n-grams stop at the drawn length
        ends[words - 1] = tf.where(length >= words, ends[words - 1], ends[words - 2])
    # Priorities carry their own column: unique, and the winner's place comes with the minimum.
    column_bits = max(1, (size - 1).bit_length())
    priority = tf.cast(high_bits(bits, 30 - column_bits), tf.int32) * 2**column_bits + columns
    budgets = tf.gather(np.array([rule.budget(n) for n in range(size + 1)], np.int32), lengths)
    return _choose_in_order(tf.where(starts, priority, _DEAD), tf.stack(ends, axis=-1), budgets, column_bits)


def word_ends(kind: tf.Tensor, ngram: int, *, whole_words: bool) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Finds the words of rows and where n-grams of them end.

    Takes the pieces' kinds uint8 [B, S]; a row must begin with a piece that is never masked, as [CLS] is.
    Gives (starts bool [B, S], ends: N arrays int32 [B, S]). At a start, ends[n-1] is the column after the n-gram that
    begins there; elsewhere its own column. A piece that continues a word begins one where nothing maskable precedes
    it, and an n-gram stops before the first token that may not be masked, so it never crosses segments.

    [CLS] a ##b c [SEP]  with N = 2: starts at 1 and 3, ends[0] = 0 3 2 4 4, ends[1] = 0 4 2 4 4.
    """
    maskable = kind != NEVER
    after_special = tf.pad(tf.logical_not(maskable[:, :-1]), [[0, 0], [1, 0]])
    starts = tf.logical_and(maskable, tf.logical_or(kind == STARTS, after_special)) if whole_words else maskable
    # The next boundary of each token, over the whole batch as one line: the row's columns are taken back at the end.
    boundary = tf.reshape(tf.logical_or(starts, tf.logical_not(maskable)), [-1])
    total = tf.size(boundary)
    boundaries = tf.concat([tf.cast(tf.where(boundary)[:, 0], tf.int32), [total]], axis=0)
    following = tf.gather(boundaries, tf.cumsum(tf.cast(boundary, tf.int32)))
    here = tf.range(total)
    step = tf.concat([tf.where(tf.reshape(starts, [-1]), following, here), [total]], axis=0)
    ends = [step[:-1]]
    while len(ends) < ngram:
        ends.append(tf.gather(step, ends[-1]))
    row_begin = tf.reshape(here, tf.shape(kind))[:, :1]
    return starts, [tf.ensure_shape(tf.reshape(end, tf.shape(kind)) - row_begin, kind.shape) for end in ends]


def draw_ngram_length(bits: tf.Tensor, rule: MaskingRule) -> tf.Tensor:
    """Draws n-gram lengths 1 .. N with `rule.ngram_shares()` from the low half of `bits`: int32, the shape of bits."""
    thresholds = np.rint(np.cumsum(rule.ngram_shares())[:-1] * 2**31).astype(np.int32)
    draw = tf.cast(low_bits(bits, 31), tf.int32)
    return 1 + sum((tf.cast(draw >= threshold, tf.int32) for threshold in thresholds), tf.zeros_like(draw))


def _choose_in_order(living: tf.Tensor, ends: tf.Tensor, remaining: tf.Tensor, column_bits: int) -> tf.Tensor:
    """Takes candidates greedily: each round takes the best living candidate of every row and buries what it rules out.

    Takes living priorities int32 [B, S], ends int32 [B, S, N] (growing, the last one is the drawn length's end),
    remaining budgets int32 [B]. Gives the covered tokens, bool [B, S].
    """
    columns = tf.range(living.shape[1])
    first_size, last_end = ends[:, :, 0] - columns, ends[:, :, -1]

    def bury(living, ruled_out, remaining):
        ruled_out = tf.logical_or(ruled_out, first_size > remaining[:, tf.newaxis])
        living = tf.maximum(living, tf.cast(ruled_out, tf.int32) * _DEAD)  # several times faster here than tf.where
        return living, tf.reduce_min(living, axis=1)

    def take(living, best, remaining, covered):
        found = best < _DEAD
        begin = tf.where(found, tf.bitwise.bitwise_and(best, 2**column_bits - 1), 0)
        options = tf.gather(ends, begin, axis=1, batch_dims=1)  # [B, N]
        fits = options - begin[:, tf.newaxis] <= remaining[:, tf.newaxis]
        end = tf.where(found, tf.reduce_max(tf.where(fits, options, 0), axis=1), 0)
        remaining -= tf.maximum(end - begin, 0)
        begin, end = begin[:, tf.newaxis], end[:, tf.newaxis]
        before_end = columns < end
        covered = tf.logical_or(covered, tf.logical_and(columns >= begin, before_end))
        living, best = bury(living, tf.logical_and(last_end > begin, before_end), remaining)
        return living, best, remaining, covered

    covered = tf.zeros_like(living, tf.bool)
    living, best = bury(living, covered, remaining)
    *_, covered = tf.while_loop(
        lambda living, best, remaining, covered: tf.reduce_any(best < _DEAD),
        take,
        (living, best, remaining, covered),
    )
    return covered


def _replacement(bits: tf.Tensor, ids: tf.Tensor, vocabulary: MaskingVocabulary) -> tf.Tensor:
    """Gives what stands in the place of chosen tokens: [MASK] at 80 %, the token itself at 10 %, any piece at 10 %."""
    draw = tf.cast(high_bits(bits, 31), tf.int32)
    count = len(vocabulary.replacements)
    pick = tf.bitwise.right_shift(low_bits(bits, 32) * count, tf.constant(32, tf.int64))
    random = tf.gather(vocabulary.replacements, pick)
    return tf.where(draw < round(0.8 * 2**31), vocabulary.mask_id, tf.where(draw < round(0.9 * 2**31), ids, random))
