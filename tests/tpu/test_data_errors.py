"""What TensorFlow says of bad records, in words that name the folder."""

import json
import shutil

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import record_source, records
from albert_tf.pretraining.dataset import Batching, evaluation_dataset, pretraining_dataset
from albert_tf.pretraining.record_source import open_records
from albert_tf.tokenization import load_tokenizer
from tpu import data_errors


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (tf.train.Example().SerializeToString(), r"Feature: \w+ .*is required"),
        (b"\xb1\xff" * 20, "Could not parse example input|is no tf.train.Example"),
        (
            tf.train.Example(
                features=tf.train.Features(
                    feature={"tokens": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
                )
            ).SerializeToString(),
            "Data types don't match",
        ),
    ],
)
def test_records_that_are_no_examples(make_records, tmp_path, payload, words):
    folder = tmp_path / "records"
    shutil.copytree(make_records(), folder)
    info = json.loads((folder / "records.json").read_text())
    shard = info["shards"][0]
    data = b"".join(records.frame([payload] * shard["num_records"]))
    (folder / shard["name"]).write_bytes(data)
    shard["num_bytes"] = len(data)
    (folder / "records.json").write_text(json.dumps(info))
    source, tokenizer = open_records(folder), load_tokenizer(folder)
    with pytest.raises(UserError, match=words) as caught, data_errors.named_by_file(source):
        for _ in evaluation_dataset(source, Batching(tokenizer=tokenizer, global_batch_size=4)):
            pass
    assert f"(records in {folder})" in str(caught.value) and "{{" not in str(caught.value)


@pytest.mark.parametrize("reader", [pretraining_dataset, evaluation_dataset])
def test_files_that_lost_records_are_named_with_both_numbers(reader, make_records, tmp_path, capsys):
    folder = shutil.copytree(make_records(), tmp_path / "records")
    source, tokenizer = open_records(folder), load_tokenizer(folder)
    whole, half, none = (folder / shard.name for shard in source.info.shards)
    counts = [shard.num_records for shard in source.info.shards]
    half.write_bytes(b"".join(records.frame(list(records.read_payloads(half))[:3])))
    none.write_bytes(b"")
    with pytest.raises(UserError) as caught, data_errors.named_by_file(source):
        for _ in reader(source, Batching(tokenizer=tokenizer, global_batch_size=4)):
            pass
    told = f": {half} holds 3 of {counts[1]}, {none} holds 0 of {counts[2]};"
    assert told in str(caught.value) and str(whole) not in str(caught.value)
    whole.write_bytes(whole.read_bytes()[:-3])
    assert f"{whole} is damaged" in str(record_source.locate_shortage(source))
    shutil.copytree(make_records(), folder, dirs_exist_ok=True)
    assert record_source.locate_shortage(source) is None


def test_other_errors_of_tensorflow_stay_what_they_are(make_records):
    source = open_records(make_records())
    with pytest.raises(tf.errors.InvalidArgumentError), data_errors.named_by_file(source):
        tf.reshape(tf.zeros([3]), [2])
