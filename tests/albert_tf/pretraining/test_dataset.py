"""The training stream and the evaluation pass, against plain Python over the records that the test wrote."""

import dataclasses
import hashlib
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as dataset_module
from albert_tf.pretraining import records
from albert_tf.pretraining.dataset import evaluation_dataset, pretraining_dataset
from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.random_bits import permutation
from albert_tf.pretraining.record_source import check_records, locate_corruption, open_records

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB, SIZE, PREDICTIONS = 500, 16, 3
COUNTS = (11, 0, 7, 15)  # records in each file
TOTAL = sum(COUNTS)

TOKENIZER = SimpleNamespace(
    pad_id=PAD,
    unk_id=UNK,
    cls_id=CLS,
    sep_id=SEP,
    mask_id=MASK,
    vocab_size=VOCAB,
    starts_word=lambda: np.arange(VOCAB) % 4 != 0,
    hash=hashlib.sha256(b"vocabulary").hexdigest(),
    path="spiece.model",
    kind="sentencepiece",
    do_lower_case=True,
    keep_accents=False,
)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(dataset_module, "WINDOW", 8)
    monkeypatch.setattr(dataset_module, "_CHUNK_TOKENS", 5 * SIZE)


def make_row(number, size=SIZE):
    """Record `number` as (tokens, segment_a_length, label): its first token is 100 + number, a third are short."""
    rng = np.random.default_rng(number)
    length = int(rng.integers(6, size + 1)) if number % 3 == 0 else size
    tokens = rng.integers(5, 100, length)
    first = int(rng.integers(3, length - 1))
    tokens[[0, first - 1, length - 1]] = CLS, SEP, SEP
    tokens[1] = 100 + number
    return tokens.astype(np.int32), first, int(rng.integers(2))


def write_records(folder, *, counts=COUNTS, make=make_row, **changes):
    """Writes a records folder as create_pretraining_data does; gives the folder."""
    folder.mkdir()
    kind = changes.get("token_dtype", "uint16")
    shards, number = [], 0
    for index, count in enumerate(counts):
        rows = [make(number + i) for i in range(count)]
        number += count
        name = records.shard_name(index, len(counts))
        payloads = encode_dynamic(rows, kind) if rows else []
        (folder / name).write_bytes(b"".join(records.frame(payloads)) if rows else b"")
        shards.append(records.Shard(name, count, (folder / name).stat().st_size))
    fields = dict(
        masking="dynamic",
        max_seq_length=SIZE,
        max_predictions_per_seq=PREDICTIONS,
        masked_lm_prob=0.15,
        do_whole_word_mask=True,
        ngram=3,
        favor_shorter_ngram=True,
        objective="sop",
        token_dtype=kind,
        vocab_size=VOCAB,
        vocabulary_hash=TOKENIZER.hash,
        tokenizer_kind="sentencepiece",
        do_lower_case=True,
        keep_accents=False,
        random_seed=1,
        dupe_factor=1,
        short_seq_prob=0.1,
        num_records=sum(counts),
        shards=tuple(shards),
        counts={},
        code_version="test",
    )
    records.RecordsInfo(**(fields | changes)).write(folder)
    return folder


def encode_dynamic(rows, kind):
    return encode_examples(
        {
            "tokens": [tokens.astype(kind).tobytes() for tokens, _, _ in rows],
            "segment_a_length": np.array([[first] for _, first, _ in rows]),
            "sentence_label": np.array([[label] for _, _, label in rows]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data") / "records")


@pytest.fixture
def source(folder):
    return open_records(folder)


def take(dataset, count):
    return [{key: value.numpy() for key, value in element.items()} for element in dataset.take(count)]


def original_tokens(element):
    """The rows before masking."""
    tokens = element["input_ids"].copy()
    rows, slots = np.nonzero(element["masked_lm_weights"])
    tokens[rows, element["masked_lm_positions"][rows, slots]] = element["masked_lm_ids"][rows, slots]
    return tokens


def numbers(element):
    """Which records an element holds."""
    return (original_tokens(element)[:, 1] - 100).tolist()


def stream(source, seed, epochs):
    """The reference: the record at every position, file by file and window by window."""
    begins = np.cumsum([0] + [span.count for span in source.spans])
    for epoch in range(epochs):
        order = permutation(len(source.spans), seed, dataset_module._FILES, epoch).numpy()
        in_order = [number for file in order for number in range(begins[file], begins[file + 1])]
        for window in range(0, TOTAL, 8):
            part = in_order[window : window + 8]
            shuffled = permutation(len(part), seed, dataset_module._RECORDS, epoch, window // 8).numpy()
            yield from (part[index] for index in shuffled)


def training(source, **options):
    return pretraining_dataset(source, **dict(tokenizer=TOKENIZER, global_batch_size=6, seed=3) | options)


# ---- the stream


def test_the_stream_is_as_described_and_every_epoch_holds_every_record_once(source):
    expected = list(stream(source, 3, 4))
    got = sum((numbers(element) for element in take(training(source), 22)), [])
    assert got == expected[: len(got)] and len(got) == 4 * TOTAL
    epochs = [got[i * TOTAL : (i + 1) * TOTAL] for i in range(4)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert got != sum((numbers(element) for element in take(training(source, seed=4), 22)), [])


def test_it_begins_anywhere(source):
    whole = take(training(source), 30)
    for step in (1, 6, 29):  # within a window, in the second epoch, late
        again = take(training(source, start_position=step * 6), 1)[0]
        assert all(np.array_equal(again[key], whole[step][key]) for key in again), step
    far = 10**12 // TOTAL * TOTAL // 6 * 6
    begin = time.monotonic()
    assert len(numbers(take(training(source, start_position=far), 1)[0])) == 6
    assert time.monotonic() - begin < 10


def test_beginning_late_opens_no_earlier_file(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "records")
    source = open_records(tmp_path / "records")
    order = permutation(len(source.spans), 3, dataset_module._FILES, 0).numpy()
    first = source.spans[order[0]]
    expected = take(training(source, start_position=24), 1)[0]
    assert first.count < 24
    os.remove(first.path)
    again = take(training(source, start_position=24), 1)[0]
    assert numbers(again) == numbers(expected)
    with pytest.raises(tf.errors.NotFoundError):
        take(training(source), 1)


@pytest.mark.parametrize("num_workers, replicas", [(3, 2), (6, 1)])
def test_global_batches_do_not_depend_on_the_workers(source, num_workers, replicas):
    """Six workers are more than the four files."""
    whole = take(training(source, start_position=12), 14)
    parts = [
        take(
            training(source, start_position=12, num_workers=num_workers, worker=worker, replicas_per_worker=replicas),
            14 * replicas,
        )
        for worker in range(num_workers)
    ]
    for step, batch in enumerate(whole):
        rows = {}
        for part in parts:
            for element in part[step * replicas : (step + 1) * replicas]:
                assert len(element["input_ids"]) == 6 // num_workers // replicas
                for index, number in enumerate(numbers(element)):
                    rows[number] = {key: value[index] for key, value in element.items()}
        assert sorted(rows) == sorted(set(numbers(batch)))
        for index, number in enumerate(numbers(batch)):
            if numbers(batch).count(number) == 1:  # at the seam of two epochs a batch may hold a record twice
                assert all(np.array_equal(rows[number][key], batch[key][index]) for key in batch)


def test_masks_are_new_each_epoch_and_repeat_with_the_seed(source):
    per_epoch = take(training(source, global_batch_size=TOTAL), 2)
    again = take(training(source, global_batch_size=TOTAL), 1)[0]
    assert all(np.array_equal(again[key], per_epoch[0][key]) for key in again)
    places = [dict(zip(numbers(e), map(tuple, e["masked_lm_positions"]), strict=True)) for e in per_epoch]
    assert sum(places[0][number] != places[1][number] for number in range(TOTAL)) > TOTAL / 2


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_features(tmp_path, kind):
    source = open_records(write_records(tmp_path / "records", token_dtype=kind))
    dataset = training(source, global_batch_size=12)
    shapes = {key: (spec.dtype.name, *spec.shape) for key, spec in dataset.element_spec.items()}
    assert shapes == {
        **{key: ("int32", 12, SIZE) for key in ("input_ids", "input_mask", "segment_ids")},
        **{key: ("int32", 12, PREDICTIONS) for key in ("masked_lm_positions", "masked_lm_ids")},
        "masked_lm_weights": ("float32", 12, PREDICTIONS),
        "sentence_labels": ("int32", 12),
        "sentence_weights": ("float32", 12),
    }
    for element in take(dataset, 3):
        tokens = original_tokens(element)
        for index, number in enumerate(numbers(element)):
            expected, first, label = make_row(number)
            length = len(expected)
            assert tokens[index].tolist() == expected.tolist() + [PAD] * (SIZE - length)
            assert element["input_mask"][index].tolist() == [1] * length + [0] * (SIZE - length)
            assert element["segment_ids"][index].tolist() == [0] * first + [1] * (length - first) + [0] * (
                SIZE - length
            )
            assert element["sentence_labels"][index] == label
            assert element["masked_lm_weights"][index].sum() in (max(1, round(length * 0.15)), 1)
        assert element["sentence_weights"].tolist() == [1.0] * 12


def test_the_paddings_id_is_the_tokenisers(source):
    tokenizer = SimpleNamespace(**vars(TOKENIZER) | {"pad_id": 7})
    for element in take(training(source, tokenizer=tokenizer), 3):
        assert (original_tokens(element)[element["input_mask"] == 0] == 7).all()


def test_no_sentence_objective_gives_zero_weights(tmp_path):
    def one_segment(number):
        tokens, _, _ = make_row(number)
        return (
            np.where(np.arange(len(tokens)) < len(tokens) - 1, np.where(tokens == SEP, 9, tokens), SEP),
            len(tokens),
            0,
        )

    source = open_records(write_records(tmp_path / "records", make=one_segment, objective="none"))
    element = take(training(source), 1)[0]
    assert not element["sentence_weights"].any() and not element["segment_ids"].any()


def test_rows_with_nothing_to_mask_and_batches_beyond_a_chunk(tmp_path):
    empty = lambda number: (np.array([CLS, SEP, SEP], np.int32), 2, 0)  # noqa: E731
    source = open_records(write_records(tmp_path / "records", make=empty))
    element = take(training(source, global_batch_size=32), 1)[0]
    assert element["input_ids"].shape == (32, SIZE) and not element["masked_lm_weights"].any()


def test_predictions_may_be_set_for_dynamic_masks(source):
    assert take(training(source, max_predictions_per_seq=7), 1)[0]["masked_lm_ids"].shape == (6, 7)


def test_distributed_by_a_strategy(source):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    def batches(context):
        return training(
            source,
            num_workers=context.num_input_pipelines,
            worker=context.input_pipeline_id,
            replicas_per_worker=context.num_replicas_in_sync // context.num_input_pipelines,
        )

    element = next(iter(strategy.distribute_datasets_from_function(batches)))
    np.testing.assert_array_equal(element["input_ids"], take(training(source), 1)[0]["input_ids"])


def test_shares_that_do_not_divide_are_refused(source):
    with pytest.raises(UserError, match="batch of 6 rows is not divisible by 4"):
        training(source, num_workers=2, replicas_per_worker=2)
    with pytest.raises(UserError, match="start_position is 3"):
        training(source, num_workers=2, start_position=3)


# ---- evaluation


def evaluation(source, **options):
    return evaluation_dataset(source, **dict(tokenizer=TOKENIZER, global_batch_size=8) | options)


def joined(elements):
    return {key: np.concatenate([element[key] for element in elements]) for key in elements[0]}


def test_evaluation_is_one_pass_in_order_with_fixed_masks(source):
    elements = list(evaluation(source).as_numpy_iterator())
    assert len(elements) == evaluation(source).cardinality() == 5  # 33 records in batches of 8
    rows = joined(elements)
    assert numbers({key: value[:TOTAL] for key, value in rows.items()}) == list(range(TOTAL))
    assert rows["sentence_weights"].tolist() == [1.0] * TOTAL + [0.0] * 7
    assert not rows["masked_lm_weights"][TOTAL:].any() and rows["masked_lm_weights"][:TOTAL].any(axis=1).all()
    assert rows["input_mask"].any(axis=1).all(), "rows that fill are real rows, safe in every softmax"
    other = joined(list(evaluation(source, global_batch_size=4).as_numpy_iterator()))
    assert all(np.array_equal(other[key][:TOTAL], rows[key][:TOTAL]) for key in rows)


def test_evaluation_by_workers_and_of_a_part(source):
    whole = joined(list(evaluation(source).as_numpy_iterator()))
    parts = [list(evaluation(source, num_workers=2, worker=worker).as_numpy_iterator()) for worker in range(2)]
    assert [len(part) for part in parts] == [5, 5]
    for worker, part in enumerate(parts):
        assert all(np.array_equal(joined(part)[key], whole[key][worker::2]) for key in whole)
    few = joined(list(evaluation(source, num_records=10).as_numpy_iterator()))
    assert few["sentence_weights"].tolist() == [1.0] * 10 + [0.0] * 6


def bodies(number):
    """Segments of a record in the order of the text, without special tokens."""
    tokens, first, label = make_row(number)
    pair = tokens[1 : first - 1].tolist(), tokens[first:-1].tolist()
    return pair[::-1] if label else pair


def rows_of(elements):
    rows = joined(elements)
    tokens = original_tokens(rows)
    for index, mask in enumerate(rows["input_mask"]):
        yield tokens[index][: mask.sum()].tolist(), rows["segment_ids"][index].tolist(), rows["sentence_labels"][index]


def test_next_sentence_pairs_out_of_sentence_order_records(source):
    got = list(rows_of(list(evaluation(source, sentence_objective="nsp").as_numpy_iterator())))
    for index in range(TOTAL):
        exchanged = index % 4 >= 2 and index ^ 1 < TOTAL
        first, second = bodies(index)[0], bodies(index ^ 1 if exchanged else index)[1]
        second = second[: SIZE - 3 - len(first)]
        tokens, segments, label = got[index]
        assert tokens == [CLS, *first, SEP, *second, SEP]
        assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * (SIZE - len(tokens))
        assert label == exchanged
    other = list(
        rows_of(
            list(evaluation(source, sentence_objective="nsp", global_batch_size=2, num_workers=2).as_numpy_iterator())
        )
    )
    assert [row for row, _, _ in other[:16]] == [row for row, _, _ in got[:32:2]]


def test_sentence_order_out_of_next_sentence_records(tmp_path):
    source = open_records(write_records(tmp_path / "records", objective="nsp"))
    elements = list(evaluation(source, sentence_objective="sop").as_numpy_iterator())
    got, weights = list(rows_of(elements)), joined(elements)["sentence_weights"]
    for index in range(TOTAL):
        tokens, first, label = make_row(index)
        pair = tokens[1 : first - 1].tolist(), tokens[first:-1].tolist()
        first, second = pair[::-1] if index % 2 else pair
        assert got[index][0] == [CLS, *first, SEP, *second, SEP]
        assert got[index][2] == index % 2
        assert weights[index] == (label == 0)


def test_no_pairs_to_measure(tmp_path):
    source = open_records(write_records(tmp_path / "records", objective="none"))
    with pytest.raises(UserError, match="cannot measure sop on records made with the objective none"):
        evaluation(source, sentence_objective="sop")


# ---- static records


def write_static(path, rows, *, first_features=None):
    """Records with the release's features through TensorFlow's own writer; every row masks its last inner token."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for tokens, first, label in rows:
            length = len(tokens)
            integers = {
                "input_ids": [*tokens[:-2], MASK, SEP] + [0] * (SIZE - length),
                "input_mask": [1] * length + [0] * (SIZE - length),
                "segment_ids": [0] * first + [1] * (length - first) + [0] * (SIZE - length),
                "masked_lm_positions": [length - 2, 0, 0],
                "masked_lm_ids": [tokens[-2], 0, 0],
                "next_sentence_labels": [label],
            }
            features = {
                key: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for key, value in integers.items()
            }
            features["masked_lm_weights"] = tf.train.Feature(float_list=tf.train.FloatList(value=[1, 0, 0]))
            for key in first_features or ():
                del features[key]
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


@pytest.fixture
def release(tmp_path):
    """A folder as the release leaves it: no description."""
    (tmp_path / "release").mkdir()
    for name, begin, end in (("a.tfrecord", 0, 10), ("b.tfrecord", 10, TOTAL)):
        write_static(tmp_path / "release" / name, [make_row(number) for number in range(begin, end)])
    return tmp_path / "release"


def test_static_records_pass_through(release):
    source = open_records(release, tokenizer=TOKENIZER)
    assert (source.num_records, source.info.max_seq_length, source.info.max_predictions_per_seq) == (TOTAL, SIZE, 3)
    assert [span.count for span in source.spans] == [10, 23]
    for element in take(training(source), 6):
        for index, number in enumerate(numbers(element)):
            tokens, first, label = make_row(number)
            length = len(tokens)
            padding = [0] * (SIZE - length)
            assert element["input_ids"][index].tolist() == [*tokens[:-2], MASK, SEP] + padding
            assert element["masked_lm_positions"][index].tolist() == [length - 2, 0, 0]
            assert element["masked_lm_ids"][index].tolist() == [tokens[-2], 0, 0]
            assert element["masked_lm_weights"][index].tolist() == [1, 0, 0]
            assert element["segment_ids"][index].tolist() == [0] * first + [1] * (length - first) + padding
            assert element["sentence_labels"][index] == label
    assert "token_boundary" not in element and "tokens" not in element


def test_static_records_on_the_other_objective_are_masked_anew(release, source):
    static = evaluation(open_records(release, tokenizer=TOKENIZER), sentence_objective="nsp")
    got, expected = joined(take(static, 5)), joined(take(evaluation(source, sentence_objective="nsp"), 5))
    assert all(np.array_equal(got[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["seq128_pred20", "seq512_pred77", "variants/seq128_no_wwm"])
def test_records_made_by_the_release(shared, name):
    import json

    path = shared / "golden" / "data" / f"{name}.first20.tfrecord"
    expected = json.loads(path.with_suffix(".json").read_text())
    source = open_records(path, tokenizer=TOKENIZER)
    rows = joined(list(evaluation(source, global_batch_size=20).as_numpy_iterator()))
    for key in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(rows[key], [row[key] for row in expected])
    np.testing.assert_array_equal(rows["sentence_labels"], [row["next_sentence_labels"][0] for row in expected])


# ---- wrong input


CONFIG = AlbertConfig(vocab_size=VOCAB, max_position_embeddings=SIZE)


def test_matching_records_pass(source):
    check_records(source, config=CONFIG, tokenizer=TOKENIZER, global_batch_size=TOTAL, max_seq_length=SIZE)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"tokenizer": SimpleNamespace(**vars(TOKENIZER) | {"hash": "0" * 64})}, ["0" * 12, TOKENIZER.hash[:12]]),
        ({"config": AlbertConfig(vocab_size=501)}, ["vocab_size is 500", "501 in the model"]),
        ({"config": AlbertConfig(vocab_size=VOCAB, max_position_embeddings=8)}, ["16 tokens", "8 positions"]),
        ({"max_seq_length": 128}, ["max_seq_length is 16", "128 in the flag"]),
        ({"global_batch_size": 34}, ["33 records", "batch 34"]),
    ],
    ids=["vocabulary", "vocab_size", "positions", "max_seq_length", "batch"],
)
def test_what_does_not_fit_is_named_with_both_values(source, changes, words):
    with pytest.raises(UserError) as error:
        check_records(source, **dict(config=CONFIG, tokenizer=TOKENIZER) | changes)
    assert all(word in str(error.value) for word in words), error.value


def test_static_masks_cannot_change_their_number(release):
    source = open_records(release, tokenizer=TOKENIZER)
    with pytest.raises(UserError, match="max_predictions_per_seq is 3 in the records.* 20 in the flag"):
        check_records(source, config=CONFIG, tokenizer=TOKENIZER, max_predictions_per_seq=20)


def test_nothing_to_read(tmp_path, release):
    with pytest.raises(UserError, match="no such folder"):
        open_records(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither records.json nor"):
        open_records(tmp_path / "empty")
    (tmp_path / "empty" / "x.tfrecord").touch()
    with pytest.raises(UserError, match="all are empty"):
        open_records(tmp_path / "empty", tokenizer=TOKENIZER)
    with pytest.raises(UserError, match="hold none"):
        open_records(write_records(tmp_path / "zero", counts=(0, 0)))
    with pytest.raises(UserError, match="--spm_model_file"):
        open_records(release)


def test_foreign_files(tmp_path, folder):
    os.mkdir(tmp_path / "x")
    shutil.copy(folder / records.shard_name(0, 4), tmp_path / "x")
    with pytest.raises(UserError, match="records.json is missing beside"):
        open_records(tmp_path / "x", tokenizer=TOKENIZER)
    write_static(tmp_path / "other.tfrecord", [make_row(0)], first_features=["masked_lm_ids"])
    with pytest.raises(UserError, match="no feature masked_lm_ids"):
        open_records(tmp_path / "other.tfrecord", tokenizer=TOKENIZER)
    (tmp_path / "text.tfrecord").write_text("this is a text and no record at all")
    with pytest.raises(UserError, match="text.tfrecord is damaged: the record at byte offset 0"):
        open_records(tmp_path / "text.tfrecord", tokenizer=TOKENIZER)


def damage(folder, copy, *, record, byte):
    """Copies a folder and flips one byte of a record of the last file; gives (folder, file, offset of the record)."""
    shutil.copytree(folder, copy)
    path = copy / records.shard_name(3, 4)
    data = bytearray(path.read_bytes())
    offset = 0
    for _ in range(record):
        offset += 16 + int.from_bytes(data[offset : offset + 8], "little")
    data[offset + byte] ^= 1
    path.write_bytes(data)
    return copy, path, offset


def test_a_corrupt_record_is_located(folder, tmp_path):
    copy, path, offset = damage(folder, tmp_path / "copy", record=6, byte=20)
    source = open_records(copy)  # sizes agree: nothing is read yet
    with pytest.raises(tf.errors.DataLossError):
        take(training(source), 11)
    assert f"{path} is damaged: the record at byte offset {offset}" in str(locate_corruption(source.paths))
    assert locate_corruption(source.paths[:1]) is None


@pytest.mark.parametrize("byte, lost", [(20, [24]), (3, list(range(24, TOTAL)))], ids=["payload", "length"])
def test_corrupt_records_can_be_left_out(folder, tmp_path, byte, lost):
    copy, *_ = damage(folder, tmp_path / "copy", record=6, byte=byte)
    source = open_records(copy, skip_corrupt_records=True)
    assert (source.num_records, source.num_skipped) == (TOTAL - len(lost), 1)
    one_epoch = sum(
        (numbers(element) for element in take(training(source, global_batch_size=1), TOTAL - len(lost))), []
    )
    assert sorted(one_epoch) == sorted(set(range(TOTAL)) - set(lost))
    assert open_records(folder, skip_corrupt_records=True).num_skipped == 0


def test_two_corrupt_neighbours_can_be_left_out(folder, tmp_path):
    first, *_ = damage(folder, tmp_path / "first", record=6, byte=20)
    both, *_ = damage(first, tmp_path / "both", record=7, byte=20)
    source = open_records(both, skip_corrupt_records=True)
    assert (source.num_records, source.num_skipped) == (TOTAL - 2, 2)


def test_files_that_change_while_reading_are_noticed(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    source = open_records(tmp_path / "copy")
    (tmp_path / "copy" / records.shard_name(0, 4)).write_bytes(b"")
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds fewer than records.json says"):
        take(training(source), 12)


def test_a_record_longer_than_described_is_refused(tmp_path):
    source = open_records(write_records(tmp_path / "records", make=lambda number: make_row(number, size=40)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="more tokens than records.json says"):
        take(training(source), 12)


def test_truncated_shards_are_refused_at_once(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / records.shard_name(2, 4)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=f"{path} is truncated or replaced: .* bytes, expected"):
        open_records(tmp_path / "copy")


def test_wrong_totals_are_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    dataclasses.replace(records.RecordsInfo.read(folder), num_records=99).write(tmp_path / "copy")
    with pytest.raises(UserError, match="33 records together, it says 99"):
        open_records(tmp_path / "copy")
