import dataclasses
import json
import struct

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.records import (
    DESCRIPTION,
    RecordsInfo,
    Shard,
    check_file,
    frame,
    read_payloads,
    shard_name,
)


@pytest.fixture(scope="module")
def payloads():
    rng = np.random.default_rng(0)
    return [rng.bytes(int(size)) for size in [*range(20), *rng.integers(0, 3000, 1500)]]


def test_framing_equals_tensorflow(tmp_path, payloads):
    import tensorflow as tf

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"".join(frame(payloads)))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for payload in payloads:
            writer.write(payload)
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(read_payloads(theirs)) == payloads
    assert check_file(theirs) == len(payloads)


def test_empty_file(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert check_file(tmp_path / "a") == 0 and frame([]) == []


def test_damage_is_named_by_file_and_offset(tmp_path, payloads):
    framed = frame(payloads)
    whole, offset = b"".join(framed), sum(map(len, framed[:1000]))
    path = tmp_path / "records"

    def message(content):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            check_file(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    def flipped(place):
        return whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]

    for place, words in (
        (offset + 20, "checksum does not match its content"),  # in the payload
        (offset + len(framed[1000]) - 1, "checksum does not match its content"),  # in its checksum
        (offset + 1, "its length"),
        (offset + 9, "its length"),
    ):
        text = message(flipped(place))
        assert f"byte offset {offset} " in text and words in text
    for cut in (offset + 5, offset + 12, offset + len(framed[1000]) - 1):
        text = message(whole[:cut])
        assert f"byte offset {offset} " in text and f"at byte {cut}" in text
    text = message(struct.pack("<Q", 2**60) + b"junk" * 100)
    assert "byte offset 0 " in text
    with pytest.raises(UserError, match="cannot read"):
        check_file(tmp_path / "none")


def test_examples_equal_tensorflow():
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = 50
    columns = {
        "ids": rng.integers(0, 30_000, (rows, 300)),
        "large": rng.integers(0, 2**28, (rows, 4)),
        "edges": np.array([[0, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28 - 1]] * rows),
        "small": rng.integers(0, 2, (rows, 70)).astype(bool),
        "weights": rng.random((rows, 77)).astype(np.float32),
        "tokens": [rng.bytes(int(size)) for size in rng.integers(0, 40_000, rows)],
        "empty": np.zeros((rows, 0), np.int64),
    }
    for i, payload in enumerate(encode_examples(columns)):
        feature = tf.train.Example.FromString(payload).features.feature
        assert set(feature) == set(columns)
        for name in ("ids", "large", "edges", "small", "empty"):
            assert list(feature[name].int64_list.value) == columns[name][i].tolist()
        assert np.array(feature["weights"].float_list.value, np.float32).tolist() == columns["weights"][i].tolist()
        assert list(feature["tokens"].bytes_list.value) == [columns["tokens"][i]]
    parsed = tf.io.parse_single_example(payload, {"large": tf.io.FixedLenFeature([4], tf.int64)})
    assert parsed["large"].numpy().tolist() == columns["large"][-1].tolist()


@pytest.fixture
def folder(tmp_path):
    """A records folder of two shards and its description."""
    shards = []
    for number in range(2):
        name, data = shard_name(number, 2), b"".join(frame([b"abcd"] * 3))
        (tmp_path / name).write_bytes(data)
        shards.append(Shard(name, 3, len(data)))
    info = RecordsInfo(
        masking="dynamic",
        max_seq_length=128,
        max_predictions_per_seq=19,
        masked_lm_prob=0.15,
        do_whole_word_mask=True,
        ngram=3,
        favor_shorter_ngram=True,
        objective="sop",
        token_dtype="uint16",
        vocab_size=800,
        vocabulary_hash="00",
        tokenizer_kind="sentencepiece",
        do_lower_case=True,
        keep_accents=False,
        random_seed=1,
        dupe_factor=1,
        short_seq_prob=0.1,
        num_records=6,
        shards=tuple(shards),
        counts={"documents": 1},
        code_version="1",
    )
    info.write(tmp_path)
    return tmp_path, info


def test_description_round_trip(folder):
    path, info = folder
    assert RecordsInfo.read(path) == info
    assert info.paths(path) == [str(path / "records-00000-of-00002.tfrecord"), str(path / info.shards[1].name)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 2}, "format version 2"),
        ({"objective": "order"}, "objective"),
        ({"token_dtype": "int8"}, "token_dtype"),
        ({"num_records": 7}, "6 records together"),
        ({"new_key": 1}, "new_key"),
        ({"ngram": None}, "ngram"),
        ({"shards": [{"name": "x"}]}, "list of shards"),
        ({"shards": 5}, "list of shards"),
        ({"shards": [{"name": 5, "num_records": 6, "num_bytes": 1}]}, "found name 5"),
        ({"counts": [1]}, "found counts"),
        ({"num_records": True}, "found num_records True"),
        ({"masked_lm_prob": "0.15"}, "found masked_lm_prob '0.15'"),
        ({"shards": ["x"]}, "list of shards"),
        ({"max_predictions_per_seq": 10**9}, "max_predictions_per_seq is 1000000000; expected 1 to"),
        ({"max_seq_length": -1}, "max_seq_length is -1; expected 1 to"),
        ({"vocab_size": 2**40}, "vocab_size is"),
    ],
)
def test_damaged_descriptions(folder, change, words):
    path, info = folder
    value = json.loads((path / DESCRIPTION).read_text()) | change
    (path / DESCRIPTION).write_text(json.dumps({key: item for key, item in value.items() if item is not None}))
    with pytest.raises(UserError, match=f"{words}.*; make the records again$"):
        RecordsInfo.read(path)


@pytest.mark.parametrize("name", ["../other/records-00000-of-00002.tfrecord", "/etc/passwd", "", "..", "a\0b"])
def test_shards_elsewhere_are_not_opened(folder, name):
    path, _ = folder
    value = json.loads((path / DESCRIPTION).read_text())
    value["shards"][0]["name"] = name
    (path / DESCRIPTION).write_text(json.dumps(value))
    with pytest.raises(UserError, match="is no name of a file beside it"):
        RecordsInfo.read(path)


def test_shards_that_do_not_fit(folder):
    path, info = folder
    shard = path / info.shards[1].name
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{shard.name} is truncated or replaced"):
        RecordsInfo.read(path)
    shard.unlink()
    with pytest.raises(UserError, match=f"no records file .*{shard.name}"):
        RecordsInfo.read(path)
    with pytest.raises(UserError, match="records description"):
        RecordsInfo.read(path / "none")
    assert dataclasses.is_dataclass(info)
