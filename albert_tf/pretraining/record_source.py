"""A folder of records made ready for reading: which files, how many records, and whether they fit model and flags."""

import collections
import dataclasses
import glob
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.pretraining import addresses, records
from albert_tf.pretraining.records import RecordsInfo, Shard

if TYPE_CHECKING:
    from albert_tf.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class Span:
    """Readable records in a row: `count` of them, after the `first` ones of a file. A whole shard is one span."""

    path: str
    first: int
    count: int


@dataclasses.dataclass(frozen=True)
class RecordSource:
    """What the input pipeline reads."""

    info: RecordsInfo
    spans: tuple[Span, ...]
    num_skipped: int = 0  # corrupt records left out; the rest of a file whose framing is broken counts as one

    @property
    def num_records(self) -> int:
        """Records that can be read."""
        return sum(span.count for span in self.spans)

    @property
    def paths(self) -> list[str]:
        """The files that they are in, each once."""
        return list(dict.fromkeys(span.path for span in self.spans))


def open_records(
    data_dir: str | os.PathLike, *, tokenizer: "Tokenizer | None" = None, skip_corrupt_records: bool = False
) -> RecordSource:
    """Opens a records folder of ours, or TFRecord files of the release (folder without records.json, file, pattern).

    A records folder may lie at an address that TensorFlow reads, such as gs://bucket/records.

    The release's files describe nothing: lengths come from the first record, counts from reading them once, and the
    tokeniser has to be given. With skip_corrupt_records every file is read once and what is damaged is left out.

    Raises UserError where there is nothing to read, or it is damaged.
    """
    if addresses.is_address(data_dir):
        address = os.fspath(data_dir)
        info = RecordsInfo.read(addresses.with_small_files(address), addresses.size_function(address))
        shards = list(zip(info.paths(address), (shard.num_records for shard in info.shards), strict=True))
    elif (pathlib.Path(data_dir) / records.DESCRIPTION).exists():
        info = RecordsInfo.read(data_dir)
        shards = list(zip(info.paths(data_dir), (shard.num_records for shard in info.shards), strict=True))
    else:
        paths = _release_files(data_dir)
        info = _describe_release(paths, tokenizer)
        shards = [(path, None) for path in paths]
    spans, skipped = [], 0
    for path, count in shards:
        if skip_corrupt_records:
            found, bad = _readable_spans(path)
            spans, skipped = spans + found, skipped + bad
        else:
            spans.append(Span(path, 0, _count(path) if count is None else count))
    source = RecordSource(info, tuple(span for span in spans if span.count), skipped)
    if not source.num_records:
        raise UserError(f"no records in {data_dir}: its {len(shards)} files hold none; make the records again")
    if not info.num_records:  # the release's: known only now
        shards = tuple(Shard(os.path.basename(s.path), s.count, os.path.getsize(s.path)) for s in source.spans)
        source = dataclasses.replace(
            source, info=dataclasses.replace(info, num_records=source.num_records, shards=shards)
        )
    return source


def check_records(
    source: RecordSource,
    *,
    config: AlbertConfig,
    tokenizer: "Tokenizer",
    global_batch_size: int | None = None,
    max_seq_length: int | None = None,
    max_predictions_per_seq: int | None = None,
) -> None:
    """Compares records with model, tokeniser and flags, before anything slow. None means that the flag was not given.

    Raises UserError that names both values.
    """
    info = source.info
    if info.vocabulary_hash != tokenizer.hash:
        raise UserError(
            f"the records were made with another vocabulary than {tokenizer.path}: sha256 {info.vocabulary_hash[:12]}… "
            f"({info.vocab_size} pieces) against {tokenizer.hash[:12]}… ({tokenizer.vocab_size} pieces); "
            "use the tokeniser of the records folder or make the records again"
        )
    found, wanted = (
        f"do_lower_case={rules.do_lower_case}, keep_accents={rules.keep_accents}" for rules in (info, tokenizer)
    )
    if found != wanted:
        raise UserError(
            f"the records were made with {found}, the tokeniser {tokenizer.path} is used with {wanted}: text would be "
            "read in another way than it was learned; use the tokeniser of the records folder or make the records again"
        )
    expectations = (
        ("vocab_size", "the model", config.vocab_size, info.vocab_size),
        ("max_seq_length", "the flag", max_seq_length, info.max_seq_length),
    )
    for name, who, wanted, found in expectations:
        if wanted is not None and wanted != found:
            raise UserError(f"{name} is {found} in the records but {wanted} in {who}; give the same for both")
    if info.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"the records have {info.max_seq_length} tokens a row but the model has {config.max_position_embeddings} "
            "positions (max_position_embeddings); make shorter records or a model with more positions"
        )
    if info.objective != "none" and config.type_vocab_size < 2:
        raise UserError(
            f"the records hold pairs of segments but the model knows {config.type_vocab_size} (type_vocab_size); use a "
            "model with 2, or records with --objective=none"
        )
    if info.masking == "static" and max_predictions_per_seq not in (None, info.max_predictions_per_seq):
        raise UserError(
            f"max_predictions_per_seq is {info.max_predictions_per_seq} in the records, whose masks are static, but "
            f"{max_predictions_per_seq} in the flag; leave the flag out or make the records again"
        )
    if (max_predictions_per_seq or 1) > info.max_seq_length:
        raise UserError(
            f"max_predictions_per_seq is {max_predictions_per_seq}, but a row of the records has {info.max_seq_length} "
            "tokens: give at most as many, or leave the flag out"
        )
    if global_batch_size is not None and source.num_records < global_batch_size:
        raise UserError(
            f"the records are fewer than one batch: {source.num_records} records, batch {global_batch_size}; "
            "give a smaller --train_batch_size or more data"
        )


def locate_corruption(paths: Sequence[str]) -> UserError | None:
    """Finds the first damaged record after a tf.errors.DataLossError, which names no file.

    Gives an error to raise that names file and byte offset, or None where every file reads well.
    """
    for path in paths:
        try:
            _count(path)
        except UserError as error:
            return error
    return None


def locate_shortage(source: RecordSource) -> UserError | None:
    """Finds the files that hold fewer records than they did, or should have, when the source was opened.

    Gives an error to raise that names each with the numbers found and expected, or None where there is none; one that
    names file and offset where a file is damaged.
    """
    found, expected = collections.Counter(), collections.Counter()
    for span in source.spans:
        expected[span.path] += span.count
        try:
            found[span.path] += _size(tf.data.TFRecordDataset(span.path).skip(span.first).take(span.count))
        except tf.errors.OpError:
            return locate_corruption([span.path])
    short = [f"{path} holds {found[path]} of {expected[path]}" for path in expected if found[path] < expected[path]]
    if not short:
        return None
    more = f" and {len(short) - 5} more files" if len(short) > 5 else ""
    return UserError(
        f"files hold fewer than {records.DESCRIPTION} says: {', '.join(short[:5])}{more}; they were replaced or "
        "truncated while reading: copy or make the records again, all of them, and run again"
    )


def _count(path: str) -> int:
    """Reads a file once, checksums included: the number of its records. Raises UserError with file and offset."""
    try:
        return _size(tf.data.TFRecordDataset(path))
    except tf.errors.DataLossError as error:
        if not addresses.is_address(path):
            records.check_file(path)  # slower, and says where
        raise UserError(f"{path} is damaged: {error.message}; copy it or make the records again") from error
    except tf.errors.OpError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: tf.errors.OpError) -> UserError:
    return UserError(f"cannot read the records {path}: {error.message}; check the path and its rights")


def _size(dataset: tf.data.Dataset) -> int:
    return int(
        dataset.batch(1024).reduce(tf.constant(0, tf.int64), lambda count, batch: count + tf.size(batch, tf.int64))
    )


def _readable_spans(path: str) -> tuple[list[Span], int]:
    """Gives a file's spans of whole records and the number of damaged ones between them.

    A damaged payload is stepped over; a damaged length leaves no way to find the next record, so the file ends there.

    Raises UserError where the file cannot be read at all: that would leave out whole records.
    """
    try:
        return [Span(path, 0, _size(tf.data.TFRecordDataset(path)))], 0
    except tf.errors.DataLossError as error:
        if addresses.is_address(path):
            raise UserError(
                f"{path} is damaged, and damaged records can be left out on a disk only: copy the folder to one, or "
                "make the records again"
            ) from error
    except tf.errors.OpError as error:
        raise _unreadable(path, error) from error
    framed, broken_framing = 0, 0
    try:
        for _ in records.read_payloads(path, check=False):
            framed += 1
    except UserError:
        broken_framing = 1
    spans, skipped, first = [], broken_framing, 0
    while first < framed:
        count = _size(tf.data.TFRecordDataset(path).skip(first).ignore_errors())
        spans.append(Span(path, first, count))
        skipped += first + count < framed
        first += count + 1
    return spans, skipped


def _release_files(data_dir: str | os.PathLike) -> list[str]:
    """Finds the TFRecord files that a folder, a file name or a pattern stands for, in order of their names."""
    name = str(data_dir)
    if os.path.isdir(name):
        paths = [path for path in glob.glob(os.path.join(glob.escape(name), "*.tfrecord*")) if os.path.isfile(path)]
        if not paths:
            raise UserError(
                f"no records in {name}: neither {records.DESCRIPTION} nor *.tfrecord files; "
                "give the folder that create_pretraining_data wrote"
            )
    elif not (paths := [path for path in glob.glob(name) if os.path.isfile(path)]):
        raise UserError(f"no records at {name}: no such folder, file or pattern; check --data_dir")
    return sorted(paths)


def _describe_release(paths: Sequence[str], tokenizer: "Tokenizer | None") -> RecordsInfo:
    """Describes files that the release wrote by their first record and the tokeniser. num_records stays 0."""
    first = next((payload for path in paths for payload in _first_payload(path)), None)
    if first is None:
        raise UserError(f"no records in {paths[0]} and the files beside it: all are empty; make the records again")
    try:
        features = tf.train.Example.FromString(first).features.feature
    except Exception as error:  # protobuf's DecodeError has no stable public place
        raise UserError(f"{paths[0]} holds no tf.train.Example: {error}; give pretraining records") from error
    if "tokens" in features:
        raise UserError(
            f"{records.DESCRIPTION} is missing beside {paths[0]}: records with masks made later need it; "
            "copy the whole folder"
        )
    wanted = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    if missing := [name for name in (*wanted, "next_sentence_labels") if name not in features]:
        raise UserError(
            f"{paths[0]} holds no pretraining records: no feature {', '.join(missing)} "
            f"(found: {', '.join(sorted(features)) or 'nothing'}); give the release's records or ours"
        )
    if tokenizer is None:
        raise UserError(
            f"the records {paths[0]} do not say which vocabulary made them ({records.DESCRIPTION} is missing); "
            "name it with --spm_model_file or --vocab_file"
        )
    predictions = len(features["masked_lm_positions"].int64_list.value)
    return RecordsInfo(
        masking="static",
        max_seq_length=len(features["input_ids"].int64_list.value),
        max_predictions_per_seq=predictions,
        masked_lm_prob=0.15,
        do_whole_word_mask=True,
        ngram=3,
        favor_shorter_ngram=True,
        objective="sop",
        token_dtype="uint16" if tokenizer.vocab_size <= 65536 else "uint32",
        vocab_size=tokenizer.vocab_size,
        vocabulary_hash=tokenizer.hash,
        tokenizer_kind=tokenizer.kind,
        do_lower_case=tokenizer.do_lower_case,
        keep_accents=tokenizer.keep_accents,
        random_seed=0,
        dupe_factor=1,
        short_seq_prob=0.1,
        num_records=0,
        shards=(),
        counts={},
        code_version="release",
    )


def _first_payload(path: str) -> list[bytes]:
    for payload in records.read_payloads(path):
        return [payload]
    return []
