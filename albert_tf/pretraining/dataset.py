"""From records to batches of static shape: an endless training stream, and one pass for evaluation.

The training stream is a sequence of positions 0, 1, 2, ... without end. Position p belongs to epoch p // R (R records).
In each epoch the files come in a new order, and within it every window of 1024 neighbouring records is shuffled. So a
position names one record and its masks, by arithmetic alone: a resumed run begins anywhere at once, and worker i of n
takes the positions p with p % n == i, whatever n is. (Records were shuffled as a whole when they were made.)

Letters: B batch, S sequence, P predictions, R records.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining.masking import MaskingRule, MaskingVocabulary
from albert_tf.pretraining.masks import mask_tokens
from albert_tf.pretraining.random_bits import permutation
from albert_tf.pretraining.record_source import RecordSource
from albert_tf.pretraining.records import RecordsInfo
from albert_tf.pretraining.sentence_pairs import repair_rows

if TYPE_CHECKING:
    from albert_tf.tokenization import Tokenizer

WINDOW = 1024  # records shuffled together; even, so that evaluation pairs stay within one
_CHUNK_TOKENS = 1 << 15  # parsed and masked at once: enough to make ops cheap, few enough for the processor's cache
_READ_BUFFER = 4 << 20  # bytes
_FILES, _RECORDS = 101, 102  # purposes of random numbers; masks.py has its own
_ENDLESS = 2**62

Rows = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How records become batches, and which share of each global batch one worker makes."""

    tokenizer: "Tokenizer"
    global_batch_size: int
    seed: int = 0
    num_workers: int = 1  # processes that share each global batch
    worker: int = 0
    replicas_per_worker: int = 1  # each takes every so-many-th element
    max_predictions_per_seq: int | None = None  # None: as many as the records say

    @property
    def rows(self) -> int:
        """Rows of a replica. Raises UserError where the batch does not divide."""
        parts = self.num_workers * self.replicas_per_worker
        if self.global_batch_size < 1 or self.global_batch_size % parts:
            raise UserError(
                f"the batch of {self.global_batch_size} rows is not divisible by {parts} replicas; change one of them"
            )
        return self.global_batch_size // parts

    def share(self, context: tf.distribute.InputContext) -> "Batching":
        """What one worker of a strategy makes."""
        workers = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // workers
        return dataclasses.replace(
            self, num_workers=workers, worker=context.input_pipeline_id, replicas_per_worker=replicas
        )

    def is_mine(self, positions: tf.Tensor) -> tf.Tensor:
        """Which of the positions (int64 [n]) this worker takes, bool [n]."""
        return positions % self.num_workers == self.worker


def pretraining_dataset(source: RecordSource, batching: Batching, *, start_position: int = 0) -> tf.data.Dataset:
    """Endless training batches of one worker, from stream position start_position (= step * global_batch_size) on.

    An element is one replica's share, B = batching.rows, gradient accumulation included: input_ids, input_mask,
    segment_ids int32 [B, S]; masked_lm_positions, masked_lm_ids int32 [B, P]; masked_lm_weights float32 [B, P] (0 pads
    the list); sentence_labels int32 [B] (1 = swapped or random); sentence_weights float32 [B] (0 where the records have
    no sentence objective). Global batch k holds the positions k * global_batch_size onwards for any number of workers
    and replicas. Dynamic masks are new at every position.

    Raises UserError where batch and workers do not divide; tf.errors.DataLossError while iterating over damaged files.
    """
    rows = batching.rows
    if start_position < 0 or start_position % batching.num_workers:
        raise UserError(
            f"start_position is {start_position}; expected a multiple of the number of workers {batching.num_workers}"
        )
    features = _features_function(source.info, batching)
    parse = functools.partial(parse_rows, info=source.info)
    select = functools.partial(_select, batching=batching, start=start_position, total=source.num_records)
    first_epoch, offset = divmod(start_position, source.num_records)
    first_window = offset // WINDOW

    def epoch_windows(epoch: tf.Tensor) -> tf.data.Dataset:
        begin = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        order = permutation(len(source.spans), batching.seed, _FILES, epoch)
        windows = _read(source, order, begin * WINDOW).batch(WINDOW)
        numbers = tf.data.Dataset.range(begin, _ENDLESS)
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(epoch).repeat(), numbers, windows))

    dataset = tf.data.Dataset.range(first_epoch, _ENDLESS).flat_map(epoch_windows).map(select)
    dataset = dataset.rebatch(_chunk_rows(source), drop_remainder=True)
    dataset = dataset.map(
        lambda serialized, positions: features(parse(serialized), positions), num_parallel_calls=tf.data.AUTOTUNE
    )
    dataset = dataset.rebatch(rows, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(stream_options())


def window_function(
    source: RecordSource, batching: Batching, *, start_position: int
) -> Callable[[tf.Tensor, tf.Tensor], Rows]:
    """Gives the function (epoch, number of the window in it), int64 [] each -> the rows that pretraining_dataset reads.

    The rows are the worker's features [n, ...] in the order of positions, n at most WINDOW, perhaps 0.
    """
    features = _features_function(source.info, batching)
    chunk = _chunk_rows(source)

    def window_rows(epoch: tf.Tensor, number: tf.Tensor) -> Rows:
        order = permutation(len(source.spans), batching.seed, _FILES, epoch)
        window = _read(source, order, number * WINDOW).batch(WINDOW).take(1)

        def select(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            mine, positions = _select(
                epoch,
                number,
                serialized,
                batching=batching,
                start=start_position,
                total=source.num_records,
            )
            # One row more, dropped below, so that there is always an element to ask for.
            return tf.concat([mine, serialized[:1]], 0), tf.concat([positions, [0]], 0)

        parts = window.map(select).rebatch(chunk)
        parts = parts.map(lambda serialized, positions: features(parse_rows(serialized, info=source.info), positions))
        rows = parts.rebatch(WINDOW + 1).get_single_element()
        return {name: value[:-1] for name, value in rows.items()}

    return window_rows


def evaluation_dataset(
    source: RecordSource,
    batching: Batching,
    *,
    num_records: int | None = None,
    sentence_objective: str | None = None,
) -> tf.data.Dataset:
    """One pass in the order of the files with the same masks every time; elements as in `pretraining_dataset`.

    The last global batch is filled with rows of zero weights, so every worker and replica has as many elements.
    num_records: read only so many (default all). sentence_objective "sop" or "nsp": pairs and labels of that objective
    out of the same records (see sentence_pairs.py); static masks are then made anew.

    Raises UserError where batch and workers do not divide, or the records hold no sentence pairs.
    """
    rows, global_batch_size = batching.rows, batching.global_batch_size
    info, total = source.info, min(num_records or source.num_records, source.num_records)
    repair = sentence_objective not in (None, info.objective)
    num_batches = -(-total // global_batch_size)
    window = functools.partial(
        _evaluation_window,
        parse=functools.partial(parse_rows, info=info, unmask=repair),
        repair=functools.partial(repair_rows, records_objective=info.objective, objective=sentence_objective)
        if repair
        else lambda rows, real: rows,
        batching=batching,
        total=total,
    )
    features = _features_function(info, batching)
    records = _read(source, tf.range(len(source.spans)), 0).take(total)
    records = records.apply(tf.data.experimental.assert_cardinality(total))  # files may be replaced while reading
    filled = records.concatenate(records.repeat()).take(num_batches * global_batch_size)  # padding: real rows again
    dataset = filled.batch(WINDOW).enumerate().map(window, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.map(features, num_parallel_calls=tf.data.AUTOTUNE).rebatch(rows, drop_remainder=True)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_batches * batching.replicas_per_worker))
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(stream_options())


def parse_rows(serialized: tf.Tensor, *, info: RecordsInfo, unmask: bool = False) -> Rows:
    """Parses tf.train.Examples, string [B].

    Dynamic records give tokens int32 [B, S] (0 after the end), length, first_length, sentence_labels int32 [B];
    static ones their features with masks, or with `unmask` the same as dynamic ones. Both: sentence_weights float32
    [B].
    """
    rows = _parse_dynamic(serialized, info) if info.masking == "dynamic" else _parse_static(serialized, info)
    rows = _in_range(rows, info)
    if unmask and info.masking == "static":
        rows = _unmask(rows)
    weight = 0.0 if info.objective == "none" else 1.0
    return {**rows, "sentence_weights": tf.fill(tf.shape(rows["sentence_labels"]), weight)}


# The stream


def _read(source: RecordSource, order: tf.Tensor, begin: tf.Tensor | int) -> tf.data.Dataset:
    """Reads the source's spans in `order`, passing over the first `begin` records; opens no file before that one."""
    paths = tf.gather(tf.constant([span.path for span in source.spans]), order)
    firsts = tf.gather(tf.constant([span.first for span in source.spans], tf.int64), order)
    counts = tf.gather(tf.constant([span.count for span in source.spans], tf.int64), order)
    ends = tf.cumsum(counts)
    skipped = tf.clip_by_value(tf.cast(begin, tf.int64) - (ends - counts), 0, counts)
    spans = tf.data.Dataset.from_tensor_slices((paths, firsts + skipped, counts - skipped))
    spans = spans.filter(lambda path, skip, take: take > 0)
    return spans.flat_map(
        lambda path, skip, take: tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER).skip(skip).take(take)
    )


def _select(
    epoch: tf.Tensor,
    number: tf.Tensor,
    serialized: tf.Tensor,
    *,
    batching: Batching,
    start: int,
    total: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Shuffles a window and keeps what this worker reads: serialized records string [n], positions int64 [n]."""
    size = tf.size(serialized, tf.int64)
    expected = tf.minimum(tf.constant(WINDOW, tf.int64), total - number * WINDOW)
    message = "a file of records holds fewer than records.json says: it was replaced or truncated while reading"
    with tf.control_dependencies([tf.debugging.assert_equal(size, expected, message)]):
        order = permutation(size, batching.seed, _RECORDS, epoch, number)
    positions = epoch * total + number * WINDOW + tf.range(size)
    mine = (positions >= start) & batching.is_mine(positions)
    return tf.gather(serialized, tf.boolean_mask(order, mine)), tf.boolean_mask(positions, mine)


def _evaluation_window(
    number: tf.Tensor,
    serialized: tf.Tensor,
    *,
    parse: Callable,
    repair: Callable,
    batching: Batching,
    total: int,
) -> tuple[Rows, tf.Tensor]:
    """Parses a window and keeps this worker's rows; what only fills the last batch has weight 0."""
    positions = number * WINDOW + tf.range(tf.size(serialized, tf.int64))
    real = positions < total
    rows = repair(parse(serialized), real=real)
    zero = tf.cast(real, tf.float32)
    rows["sentence_weights"] *= zero
    rows["row_weights"] = zero
    mine = batching.is_mine(positions)
    return {key: tf.boolean_mask(value, mine) for key, value in rows.items()}, tf.boolean_mask(positions, mine)


def _chunk_rows(source: RecordSource) -> int:
    """Rows that are parsed and masked at once; masks do not depend on it."""
    return max(1, _CHUNK_TOKENS // source.info.max_seq_length)


def stream_options() -> tf.data.Options:
    """In order, never shared out a second time by tf.distribute, and not auto-tuned.

    An auto-tuned iterator cannot end before the tuner's next turn: a run would stand still for seconds, up to a minute,
    after its last step. Without it AUTOTUNE means as many calls as there are cores, which is what masking wants.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )  # workers share already
    return options


# Rows to features


def _features_function(info: RecordsInfo, batching: Batching) -> Callable[[Rows, tf.Tensor], Rows]:
    """Gives the function (rows, positions) -> features of the model, masks made for rows that have none yet."""
    rule = MaskingRule(
        max_predictions_per_seq=batching.max_predictions_per_seq or info.max_predictions_per_seq,
        masked_lm_prob=info.masked_lm_prob,
        ngram=info.ngram,
        favor_shorter_ngram=info.favor_shorter_ngram,
        do_whole_word_mask=info.do_whole_word_mask,
    )
    vocabulary = MaskingVocabulary.of(batching.tokenizer)

    def features(rows: Rows, positions: tf.Tensor) -> Rows:
        rows = dict(rows)
        row_weights = rows.pop("row_weights", None)
        if "tokens" in rows:
            rows["tokens"] = _pad_with(rows["tokens"], rows["length"], batching.tokenizer.pad_id)
            rows = _mask(rows, positions, seed=batching.seed, rule=rule, vocabulary=vocabulary)
        if row_weights is not None:
            rows["masked_lm_weights"] *= row_weights[:, tf.newaxis]
        return rows

    return features


def _mask(rows: Rows, positions: tf.Tensor, *, seed: int, rule: MaskingRule, vocabulary: MaskingVocabulary) -> Rows:
    tokens, length = rows["tokens"], rows["length"]
    columns = tf.range(tokens.shape[1])
    input_mask = tf.cast(columns < length[:, tf.newaxis], tf.int32)
    return {
        **mask_tokens(tokens, positions, lengths=length, seed=seed, rule=rule, vocabulary=vocabulary),
        "input_mask": input_mask,
        "segment_ids": tf.where(columns >= rows["first_length"][:, tf.newaxis], input_mask, 0),
        "sentence_labels": rows["sentence_labels"],
        "sentence_weights": rows["sentence_weights"],
    }


def _pad_with(tokens: tf.Tensor, length: tf.Tensor, pad_id: int) -> tf.Tensor:
    """Rows come padded with 0; a WordPiece vocabulary may have its [PAD] elsewhere."""
    return tokens if pad_id == 0 else tf.where(tf.range(tokens.shape[1]) < length[:, tf.newaxis], tokens, pad_id)


def _parse_dynamic(serialized: tf.Tensor, info: RecordsInfo) -> Rows:
    kind = {"uint16": tf.uint16, "uint32": tf.int32}[info.token_dtype]  # decode_raw has no uint32; ids are below 2**31
    number = tf.io.FixedLenFeature([], tf.int64)
    parsed = tf.io.parse_example(
        serialized,
        {"tokens": tf.io.FixedLenFeature([], tf.string), "segment_a_length": number, "sentence_label": number},
    )
    length = tf.strings.length(parsed["tokens"]) // kind.size
    too_long = "a record holds more tokens than records.json says"  # decode_raw would cut it in silence
    with tf.control_dependencies([tf.debugging.assert_less_equal(length, info.max_seq_length, too_long)]):
        length = tf.identity(length)
        first_length = tf.cast(parsed["segment_a_length"], tf.int32)
        tokens = tf.io.decode_raw(parsed["tokens"], kind, fixed_length=info.max_seq_length * kind.size)
    return {
        "tokens": tf.ensure_shape(tf.cast(tokens, tf.int32), [serialized.shape[0], info.max_seq_length]),
        "length": length,
        "first_length": first_length,
        "sentence_labels": tf.cast(parsed["sentence_label"], tf.int32),
    }


def _parse_static(serialized: tf.Tensor, info: RecordsInfo) -> Rows:
    sequence = tf.io.FixedLenFeature([info.max_seq_length], tf.int64)
    predictions = tf.io.FixedLenFeature([info.max_predictions_per_seq], tf.int64)
    parsed = tf.io.parse_example(
        serialized,
        {
            "input_ids": sequence,
            "input_mask": sequence,
            "segment_ids": sequence,
            "masked_lm_positions": predictions,
            "masked_lm_ids": predictions,
            "masked_lm_weights": tf.io.FixedLenFeature([info.max_predictions_per_seq], tf.float32),
            "next_sentence_labels": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    rows = {key: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for key, value in parsed.items()}
    rows["sentence_labels"] = rows.pop("next_sentence_labels")
    return rows


def _in_range(rows: Rows, info: RecordsInfo) -> Rows:
    """The same rows; reading them fails where a number has no place in the model, which would fail at a random spot."""
    ids = dict.fromkeys(("tokens", "input_ids", "masked_lm_ids"), info.vocab_size)
    flags = dict.fromkeys(("input_mask", "segment_ids", "sentence_labels"), 2)
    limits = {**ids, **flags, "masked_lm_positions": info.max_seq_length, "first_length": info.max_seq_length + 1}
    checks = []
    for name in filter(rows.__contains__, limits):
        fits = tf.reduce_all((rows[name] >= 0) & (rows[name] < limits[name]))
        message = f"a record has {name} that are not from 0 to {limits[name] - 1}, as records.json says"
        checks.append(tf.debugging.Assert(fits, [message]))
    with tf.control_dependencies(checks):
        return {name: tf.identity(value) for name, value in rows.items()}


def _unmask(rows: Rows) -> Rows:
    """Turns static rows back into what they were before masking."""
    where = tf.where(rows["masked_lm_weights"] > 0)  # row and slot
    columns = tf.gather_nd(rows["masked_lm_positions"], where)
    targets = tf.gather_nd(rows["masked_lm_ids"], where)
    places = tf.stack([tf.cast(where[:, 0], tf.int32), columns], axis=1)
    length = tf.reduce_sum(rows["input_mask"], axis=1)
    return {
        "tokens": tf.tensor_scatter_nd_update(rows["input_ids"], places, targets),
        "length": length,
        "first_length": length - tf.reduce_sum(rows["segment_ids"], axis=1),
        "sentence_labels": rows["sentence_labels"],
    }
