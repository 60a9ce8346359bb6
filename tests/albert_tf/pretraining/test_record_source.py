"""Opening records: what is found, what is refused with which words, and what can be saved of damaged files."""

import dataclasses
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.pretraining import records
from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.record_source import check_records, locate_corruption, open_records

COUNTS = (11, 0, 7, 15)  # records in each file
TOTAL, VOCAB, SIZE = sum(COUNTS), 500, 16
CONFIG = AlbertConfig(vocab_size=VOCAB, max_position_embeddings=SIZE)


def payloads_of(numbers):
    """Examples that hold their number, each of another length."""
    return encode_examples({"tokens": [bytes([number]) * (10 + number) for number in numbers]}) if numbers else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_folder):
    ends = np.cumsum(COUNTS)
    files = [payloads_of(range(end - count, end)) for end, count in zip(ends, COUNTS, strict=True)]
    return write_folder(tmp_path_factory.mktemp("data") / "records", files)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def read(source):
    """The numbers of all records in the source's spans."""
    data = [tf.data.TFRecordDataset(span.path).skip(span.first).take(span.count) for span in source.spans]
    examples = [tf.train.Example.FromString(record.numpy()) for dataset in data for record in dataset]
    return [example.features.feature["tokens"].bytes_list.value[0][0] for example in examples]


def write_static(path, number, *, without=()):
    """Records with the release's features."""
    rows = np.zeros([number, SIZE], np.int64)
    columns = {key: rows for key in ("input_ids", "input_mask", "segment_ids")}
    columns |= {"masked_lm_positions": rows[:, :3], "masked_lm_ids": rows[:, :3], "next_sentence_labels": rows[:, :1]}
    columns |= {"masked_lm_weights": np.zeros([number, 3], np.float32)}
    path.write_bytes(b"".join(records.frame(encode_examples({k: v for k, v in columns.items() if k not in without}))))


@pytest.fixture
def release(tmp_path):
    """A folder as the release leaves it: no description."""
    (tmp_path / "release").mkdir()
    write_static(tmp_path / "release" / "b.tfrecord", 23)
    write_static(tmp_path / "release" / "a.tfrecord-00000", 10)
    return tmp_path / "release"


def test_a_folder_of_ours(folder):
    source = open_records(folder)
    assert [span.count for span in source.spans] == [11, 7, 15]
    assert (source.num_records, source.num_skipped) == (TOTAL, 0)
    assert read(source) == list(range(TOTAL))


@pytest.mark.parametrize("pattern, counts", [("", [10, 23]), ("b.tfrecord", [23]), ("?.tf*", [10, 23])])
def test_files_of_the_release(release, tokenizer, pattern, counts):
    source = open_records(release / pattern, tokenizer=tokenizer)
    assert [span.count for span in source.spans] == counts
    info = source.info
    assert (info.masking, info.num_records, info.max_seq_length, info.max_predictions_per_seq) == (
        "static",
        sum(counts),
        SIZE,
        3,
    )
    assert (info.vocab_size, info.vocabulary_hash) == (VOCAB, tokenizer.hash)
    check_records(source, config=CONFIG, tokenizer=tokenizer)


# ---- what does not fit


def test_matching_records_pass(folder, tokenizer):
    check_records(
        open_records(folder), config=CONFIG, tokenizer=tokenizer, global_batch_size=TOTAL, max_seq_length=SIZE
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"config": AlbertConfig(vocab_size=501)}, ["vocab_size is 500", "501 in the model"]),
        ({"config": AlbertConfig(vocab_size=VOCAB, max_position_embeddings=8)}, ["16 tokens", "8 positions"]),
        (
            {"config": AlbertConfig(vocab_size=VOCAB, type_vocab_size=1)},
            ["pairs of segments", "knows 1 (type_vocab_size"],
        ),
        ({"max_seq_length": 128}, ["max_seq_length is 16", "128 in the flag"]),
        ({"max_predictions_per_seq": 17}, ["max_predictions_per_seq is 17", "has 16 tokens"]),
        ({"global_batch_size": 34}, ["33 records", "batch 34"]),
    ],
    ids=["vocab_size", "positions", "segments", "max_seq_length", "predictions", "batch"],
)
def test_what_does_not_fit_is_named_with_both_values(folder, tokenizer, changes, words):
    with pytest.raises(UserError) as error:
        check_records(open_records(folder), **dict(config=CONFIG, tokenizer=tokenizer) | changes)
    assert all(word in str(error.value) for word in words), error.value


def test_another_vocabulary_is_named_by_both_hashes(folder, tokenizer):
    other = SimpleNamespace(**vars(tokenizer) | {"hash": "0" * 64})
    with pytest.raises(UserError, match=f"sha256 {tokenizer.hash[:12]}….* against {'0' * 12}…"):
        check_records(open_records(folder), config=CONFIG, tokenizer=other)


@pytest.mark.parametrize("rule", [{"do_lower_case": False}, {"keep_accents": True}])
def test_the_same_vocabulary_under_other_text_rules_is_named(folder, tokenizer, rule):
    other = SimpleNamespace(**vars(tokenizer) | rule)
    with pytest.raises(UserError, match=f"{next(iter(rule))}={next(iter(rule.values()))}"):
        check_records(open_records(folder), config=CONFIG, tokenizer=other)


def test_static_masks_cannot_change_their_number(release, tokenizer):
    source = open_records(release, tokenizer=tokenizer)
    with pytest.raises(UserError, match="max_predictions_per_seq is 3 in the records.* 20 in the flag"):
        check_records(source, config=CONFIG, tokenizer=tokenizer, max_predictions_per_seq=20)


# ---- nothing to read, or something else


def test_nothing_to_read(tmp_path, release, tokenizer, write_folder):
    with pytest.raises(UserError, match="no such folder"):
        open_records(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither records.json nor"):
        open_records(tmp_path / "empty")
    (tmp_path / "empty" / "x.tfrecord").touch()
    with pytest.raises(UserError, match="all are empty"):
        open_records(tmp_path / "empty", tokenizer=tokenizer)
    with pytest.raises(UserError, match="hold none"):
        open_records(write_folder(tmp_path / "zero", [[], []]))
    with pytest.raises(UserError, match="--spm_model_file"):
        open_records(release)


def test_foreign_files(tmp_path, copy, tokenizer):
    os.remove(copy / records.DESCRIPTION)
    with pytest.raises(UserError, match="records.json is missing beside"):
        open_records(copy, tokenizer=tokenizer)
    write_static(tmp_path / "other.tfrecord", 1, without=["masked_lm_ids"])
    with pytest.raises(UserError, match="no feature masked_lm_ids"):
        open_records(tmp_path / "other.tfrecord", tokenizer=tokenizer)
    (tmp_path / "no_example.tfrecord").write_bytes(b"".join(records.frame([b"no protocol buffer"])))
    with pytest.raises(UserError, match="holds no tf.train.Example"):
        open_records(tmp_path / "no_example.tfrecord", tokenizer=tokenizer)
    (tmp_path / "text.tfrecord").write_text("this is a text and no record at all")
    with pytest.raises(UserError, match="text.tfrecord is damaged: the record at byte offset 0"):
        open_records(tmp_path / "text.tfrecord", tokenizer=tokenizer)


# ---- damage


def damage(folder, *, record, byte):
    """Flips one bit of a record of the last file (numbers 18 to 32); gives (file, offset of the record)."""
    path = folder / records.shard_name(3, 4)
    data, offset = bytearray(path.read_bytes()), 0
    for _ in range(record):
        offset += 16 + int.from_bytes(data[offset : offset + 8], "little")
    data[offset + byte] ^= 1
    path.write_bytes(data)
    return path, offset


@pytest.mark.parametrize("byte", [20, 3], ids=["payload", "length"])
def test_a_corrupt_record_is_located(copy, byte):
    path, offset = damage(copy, record=6, byte=byte)
    source = open_records(copy)  # sizes agree: nothing is read yet
    assert f"{path} is damaged: the record at byte offset {offset}" in str(locate_corruption(source.paths))
    assert locate_corruption(source.paths[:2]) is None


@pytest.mark.parametrize("byte, lost", [(20, [24]), (3, list(range(24, TOTAL)))], ids=["payload", "length"])
def test_corrupt_records_can_be_left_out(copy, byte, lost):
    """A damaged length hides where the next record begins: the rest of that file is lost."""
    damage(copy, record=6, byte=byte)
    source = open_records(copy, skip_corrupt_records=True)
    assert source.num_skipped == 1
    assert read(source) == [number for number in range(TOTAL) if number not in lost]


def test_corrupt_neighbours_at_both_ends_can_be_left_out(copy):
    for record in (0, 6, 7, 14):
        damage(copy, record=record, byte=20)
    source = open_records(copy, skip_corrupt_records=True)
    assert source.num_skipped == 4
    assert read(source) == [number for number in range(TOTAL) if number not in (18, 24, 25, 32)]


def test_a_file_that_cannot_be_read_is_not_left_out(folder, monkeypatch):
    def refuse(path):
        raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(tf.data, "TFRecordDataset", refuse)
    with pytest.raises(UserError, match="cannot read the records .*Permission denied"):
        open_records(folder, skip_corrupt_records=True)


def test_damage_at_an_address_is_not_left_out(copy):
    """Python cannot look for the damage there: the whole file would be lost."""
    damage(copy, record=6, byte=20)
    address = f"ram://{copy.parent.name}/records"
    tf.io.gfile.makedirs(address)
    for path in copy.iterdir():
        tf.io.gfile.copy(str(path), f"{address}/{path.name}")
    with pytest.raises(UserError, match=r"records-00003-of-00004.tfrecord is damaged, and .* on a disk only"):
        open_records(address, skip_corrupt_records=True)
    assert "records-00003-of-00004.tfrecord is damaged" in str(locate_corruption(open_records(address).paths))


def test_whole_files_lose_nothing(folder):
    source = open_records(folder, skip_corrupt_records=True)
    assert (source.num_skipped, read(source)) == (0, list(range(TOTAL)))


def test_truncated_shards_are_refused_at_once(copy):
    path = copy / records.shard_name(2, 4)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=f"{path} is truncated or replaced: .* bytes, expected"):
        open_records(copy)


def test_wrong_totals_are_refused(copy):
    dataclasses.replace(records.RecordsInfo.read(copy), num_records=99).write(copy)
    with pytest.raises(UserError, match="33 records together, it says 99"):
        open_records(copy)
