"""The training stream and the evaluation pass, against plain Python over the records that the test wrote."""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as dataset_module
from albert_tf.pretraining import records
from albert_tf.pretraining.dataset import Batching, evaluation_dataset, pretraining_dataset
from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.random_bits import permutation
from albert_tf.pretraining.record_source import open_records

PAD, _, CLS, SEP, MASK = range(5)
SIZE, PREDICTIONS = 16, 3
COUNTS = (11, 0, 7, 15)  # records in each file
TOTAL = sum(COUNTS)


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


@pytest.fixture(scope="module")
def write_records(write_folder):
    """A function (folder, **options) -> folder with the records 0 .. 32 in four files."""

    def write(folder, *, make=make_row, **changes):
        begins = np.cumsum([0, *COUNTS])
        rows = [
            [make(begin + index) for index in range(count)] for begin, count in zip(begins[:-1], COUNTS, strict=True)
        ]
        kind = changes.get("token_dtype", "uint16")
        return write_folder(folder, [encode_dynamic(file, kind) if file else [] for file in rows], **changes)

    return write


def encode_dynamic(rows, kind):
    return encode_examples(
        {
            "tokens": [tokens.astype(kind).tobytes() for tokens, _, _ in rows],
            "segment_a_length": np.array([[first] for _, first, _ in rows]),
            "sentence_label": np.array([[label] for _, _, label in rows]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records):
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


@pytest.fixture
def training(tokenizer):
    """`pretraining_dataset` of batches of six."""
    return lambda source, start_position=0, **options: pretraining_dataset(
        source,
        Batching(**dict(tokenizer=tokenizer, global_batch_size=6, seed=3) | options),
        start_position=start_position,
    )


# ---- the stream


def test_the_stream_is_as_described_and_every_epoch_holds_every_record_once(source, training):
    expected = list(stream(source, 3, 4))
    got = sum((numbers(element) for element in take(training(source), 22)), [])
    assert got == expected[: len(got)] and len(got) == 4 * TOTAL
    epochs = [got[i * TOTAL : (i + 1) * TOTAL] for i in range(4)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert got != sum((numbers(element) for element in take(training(source, seed=4), 22)), [])


def test_it_begins_anywhere(source, training):
    whole = take(training(source), 30)
    for step in (1, 6, 29):  # within a window, in the second epoch, late
        again = take(training(source, start_position=step * 6), 1)[0]
        assert all(np.array_equal(again[key], whole[step][key]) for key in again), step
    far = 6 * 10**12  # would take years if what lies before were read
    assert len(set(numbers(take(training(source, start_position=far), 1)[0]))) == 6


def test_beginning_late_opens_no_earlier_file(folder, tmp_path, training):
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


@pytest.mark.parametrize("num_workers, replicas", [(2, 3), (6, 1)])
def test_global_batches_do_not_depend_on_the_workers(source, num_workers, replicas, training):
    """Six workers are more than the four files."""
    whole = take(training(source, start_position=12), 8)
    parts = [
        take(
            training(source, start_position=12, num_workers=num_workers, worker=worker, replicas_per_worker=replicas),
            8 * replicas,
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


def test_masks_are_new_each_epoch_and_repeat_with_the_seed(source, training):
    per_epoch = take(training(source, global_batch_size=TOTAL), 2)
    again = take(training(source, global_batch_size=TOTAL), 1)[0]
    assert all(np.array_equal(again[key], per_epoch[0][key]) for key in again)
    places = [dict(zip(numbers(e), map(tuple, e["masked_lm_positions"]), strict=True)) for e in per_epoch]
    assert sum(places[0][number] != places[1][number] for number in range(TOTAL)) > TOTAL / 2


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_features(tmp_path, kind, write_records, training):
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


def test_the_paddings_id_is_the_tokenisers(source, training, tokenizer):
    other = SimpleNamespace(**vars(tokenizer) | {"pad_id": 7})
    for element in take(training(source, tokenizer=other), 3):
        assert (original_tokens(element)[element["input_mask"] == 0] == 7).all()


def test_no_sentence_objective_gives_zero_weights(tmp_path, write_records, training):
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


def test_rows_with_nothing_to_mask_and_batches_beyond_a_chunk(tmp_path, write_records, training):
    empty = lambda number: (np.array([CLS, SEP, SEP], np.int32), 2, 0)  # noqa: E731
    source = open_records(write_records(tmp_path / "records", make=empty))
    element = take(training(source, global_batch_size=32), 1)[0]
    assert element["input_ids"].shape == (32, SIZE) and not element["masked_lm_weights"].any()


def test_predictions_may_be_set_for_dynamic_masks(source, training):
    assert take(training(source, max_predictions_per_seq=7), 1)[0]["masked_lm_ids"].shape == (6, 7)


def test_distributed_by_a_strategy(source, training):
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


def test_shares_that_do_not_divide_are_refused(source, training):
    with pytest.raises(UserError, match="batch of 6 rows is not divisible by 4"):
        training(source, num_workers=2, replicas_per_worker=2)
    with pytest.raises(UserError, match="start_position is 3"):
        training(source, num_workers=2, start_position=3)


# ---- evaluation


@pytest.fixture
def evaluation(tokenizer):
    """`evaluation_dataset` of batches of eight."""
    return lambda source, num_records=None, sentence_objective=None, **options: evaluation_dataset(
        source,
        Batching(**dict(tokenizer=tokenizer, global_batch_size=8) | options),
        num_records=num_records,
        sentence_objective=sentence_objective,
    )


def joined(elements):
    return {key: np.concatenate([element[key] for element in elements]) for key in elements[0]}


def test_evaluation_is_one_pass_in_order_with_fixed_masks(source, evaluation):
    elements = list(evaluation(source).as_numpy_iterator())
    assert len(elements) == evaluation(source).cardinality() == 5  # 33 records in batches of 8
    rows = joined(elements)
    assert numbers({key: value[:TOTAL] for key, value in rows.items()}) == list(range(TOTAL))
    assert rows["sentence_weights"].tolist() == [1.0] * TOTAL + [0.0] * 7
    assert not rows["masked_lm_weights"][TOTAL:].any() and rows["masked_lm_weights"][:TOTAL].any(axis=1).all()
    assert rows["input_mask"].any(axis=1).all(), "rows that fill are real rows, safe in every softmax"
    other = joined(list(evaluation(source, global_batch_size=4).as_numpy_iterator()))
    assert all(np.array_equal(other[key][:TOTAL], rows[key][:TOTAL]) for key in rows)


def test_no_iterator_waits_for_the_auto_tuner_when_it_ends(source, training, evaluation):
    """Seen: an auto-tuned training stream held its run for 5 s after the last step, the untuned one for 0.3 s."""
    for dataset in (training(source), evaluation(source)):
        assert dataset.options().autotune.enabled is False


def test_evaluation_by_workers_and_of_a_part(source, evaluation):
    whole = joined(list(evaluation(source).as_numpy_iterator()))
    parts = [list(evaluation(source, num_workers=2, worker=worker).as_numpy_iterator()) for worker in range(2)]
    assert [len(part) for part in parts] == [5, 5]
    for worker, part in enumerate(parts):
        assert all(np.array_equal(joined(part)[key], whole[key][worker::2]) for key in whole)
    few = joined(list(evaluation(source, num_records=10).as_numpy_iterator()))
    assert few["sentence_weights"].tolist() == [1.0] * 10 + [0.0] * 6


def test_pairs_of_the_other_objective_do_not_depend_on_batch_or_workers(source, evaluation):
    whole = joined(list(evaluation(source, sentence_objective="nsp").as_numpy_iterator()))
    exchanged = [index % 4 >= 2 and index ^ 1 < TOTAL for index in range(TOTAL)]
    assert whole["sentence_labels"][:TOTAL].tolist() == exchanged
    dataset = evaluation(source, sentence_objective="nsp", global_batch_size=2, num_workers=2, worker=1)
    part = joined(list(dataset.as_numpy_iterator()))
    assert all(np.array_equal(part[key][: TOTAL // 2], whole[key][1:TOTAL:2]) for key in whole)


# ---- static records


def write_static(path, rows):
    """Records with the release's features; every row masks its last inner token."""
    pad = lambda values, size: np.array([[*row, *[0] * (size - len(row))] for row in values])  # noqa: E731
    columns = {
        "input_ids": pad([[*tokens[:-2], MASK, SEP] for tokens, _, _ in rows], SIZE),
        "input_mask": pad([[1] * len(tokens) for tokens, _, _ in rows], SIZE),
        "segment_ids": pad([[0] * first + [1] * (len(tokens) - first) for tokens, first, _ in rows], SIZE),
        "masked_lm_positions": pad([[len(tokens) - 2] for tokens, _, _ in rows], PREDICTIONS),
        "masked_lm_ids": pad([[tokens[-2]] for tokens, _, _ in rows], PREDICTIONS),
        "masked_lm_weights": pad([[1.0] for _ in rows], PREDICTIONS).astype(np.float32),
        "next_sentence_labels": np.array([[label] for _, _, label in rows]),
    }
    path.write_bytes(b"".join(records.frame(encode_examples(columns))))


@pytest.fixture
def release(tmp_path):
    """A folder as the release leaves it: no description."""
    (tmp_path / "release").mkdir()
    for name, begin, end in (("a.tfrecord", 0, 10), ("b.tfrecord", 10, TOTAL)):
        write_static(tmp_path / "release" / name, [make_row(number) for number in range(begin, end)])
    return tmp_path / "release"


def test_static_records_pass_through(release, training, tokenizer):
    source = open_records(release, tokenizer=tokenizer)
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


def test_static_records_on_the_other_objective_are_masked_anew(release, source, evaluation, tokenizer):
    static = evaluation(open_records(release, tokenizer=tokenizer), sentence_objective="nsp")
    got, expected = joined(take(static, 5)), joined(take(evaluation(source, sentence_objective="nsp"), 5))
    assert all(np.array_equal(got[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["seq128_pred20", "seq512_pred77", "variants/seq128_no_wwm"])
def test_records_made_by_the_release(shared, name, evaluation, tokenizer):
    import json

    tokenizer = SimpleNamespace(**{**vars(tokenizer), "vocab_size": 30_000})
    path = shared / "golden" / "data" / f"{name}.first20.tfrecord"
    expected = json.loads(path.with_suffix(".json").read_text())
    source = open_records(path, tokenizer=tokenizer)
    rows = joined(list(evaluation(source, global_batch_size=20).as_numpy_iterator()))
    for key in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(rows[key], [row[key] for row in expected])
    np.testing.assert_array_equal(rows["sentence_labels"], [row["next_sentence_labels"][0] for row in expected])


# ---- what a TPU host can run


def ops_of(dataset):
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor, external_state_policy=1)
    graph = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def test_no_python_runs_in_the_pipeline(source, release, training, evaluation, tokenizer):
    python = tf.data.Dataset.range(3).map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
    assert any("PyFunc" in op for op in ops_of(python))
    static = open_records(release, tokenizer=tokenizer)
    for dataset in (training(source), training(static), evaluation(source), evaluation(static)):
        assert not any("PyFunc" in op for op in ops_of(dataset))
    for opened in (source, static):
        assert not any("PyFunc" in op for op in ops_of(evaluation(opened, sentence_objective="nsp")))


# ---- files that are not as described


def test_files_that_change_while_reading_are_noticed(folder, tmp_path, training):
    shutil.copytree(folder, tmp_path / "copy")
    source = open_records(tmp_path / "copy")
    (tmp_path / "copy" / records.shard_name(0, 4)).write_bytes(b"")
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds fewer than records.json says"):
        take(training(source), 12)


def test_a_record_longer_than_described_is_refused(tmp_path, write_records, training):
    source = open_records(write_records(tmp_path / "records", make=lambda number: make_row(number, size=40)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="more tokens than records.json says"):
        take(training(source), 12)


@pytest.mark.parametrize("name", ["tokens", "first_length", "sentence_labels"])
def test_numbers_without_a_place_in_the_model_are_refused(tmp_path, write_records, training, name):
    def make(number):
        tokens, first, label = make_row(number)
        tokens[2] = 500 if name == "tokens" else tokens[2]
        return tokens, 17 if name == "first_length" else first, 2 if name == "sentence_labels" else label

    source = open_records(write_records(tmp_path / "records", make=make))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a record has {name} that are not from 0 to"):
        take(training(source), 12)
