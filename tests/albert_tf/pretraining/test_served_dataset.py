"""The stream out of a tf.data service is the stream without one, in values and in order."""

import random

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as dataset_module
from albert_tf.pretraining import served_dataset as served_module
from albert_tf.pretraining.dataset import Batching, pretraining_dataset
from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.record_source import open_records
from albert_tf.pretraining.served_dataset import check_service, in_order, served_dataset, service_place

COUNTS = (41, 0, 28, 61)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(dataset_module, "WINDOW", 8)
    monkeypatch.setattr(dataset_module, "_CHUNK_TOKENS", 5 * 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_folder):
    rng = np.random.default_rng(1)

    def file(count):
        rows = [[2, *rng.integers(5, 500, 6), 3, *rng.integers(5, 500, 4), 3] for _ in range(count)]
        return encode_examples(
            {
                "tokens": [np.array(row, "<u2").tobytes() for row in rows],
                "segment_a_length": np.full([count, 1], 8),
                "sentence_label": rng.integers(2, size=[count, 1]),
            }
        )

    return write_folder(tmp_path_factory.mktemp("data") / "records", [file(count) if count else [] for count in COUNTS])


@pytest.fixture
def service():
    """(address, workers): a dispatcher and two workers in this process."""
    dispatcher = tf.data.experimental.service.DispatchServer(
        tf.data.experimental.service.DispatcherConfig(worker_timeout_ms=2000)
    )
    place = dispatcher.target.removeprefix("grpc://")
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=place, heartbeat_interval_ms=200)
    workers = [tf.data.experimental.service.WorkerServer(config) for _ in range(2)]
    yield dispatcher.target, workers
    for worker in workers:
        worker._stop()
    dispatcher._stop()


def assert_same(served, local, count):
    assert served.element_spec == local.element_spec
    taken = 0
    for got, expected in zip(served.take(count), local.take(count), strict=True):
        taken += 1
        for name, value in expected.items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"{name} of element {taken}")
    assert taken == count


@pytest.mark.parametrize(("num_workers", "start"), [(1, 0), (2, 6 * 50)])
def test_the_same_batches(folder, tokenizer, service, num_workers, start):
    """Over ends of epochs of 130 records (17 windows, the last of two), from the start and from the middle."""
    for worker in range(num_workers):
        batching = Batching(tokenizer=tokenizer, global_batch_size=6, seed=3, num_workers=num_workers, worker=worker)
        source = open_records(folder)
        local = pretraining_dataset(source, batching, start_position=start)
        served = served_dataset(source, batching, service=service[0], start_position=start)
        assert_same(served, local, 60 // num_workers)


def test_a_worker_that_stops_loses_nothing(folder, tokenizer, service, monkeypatch):
    monkeypatch.setattr(served_module, "AHEAD", 6)
    batching = Batching(tokenizer=tokenizer, global_batch_size=6, seed=3)
    source = open_records(folder)
    address, workers = service
    served = iter(served_dataset(source, batching, service=address))
    for number, expected in enumerate(pretraining_dataset(source, batching).take(70)):
        if number == 20:
            workers[0]._stop()
        np.testing.assert_array_equal(next(served)["input_ids"], expected["input_ids"], err_msg=str(number))


@pytest.mark.parametrize("seed", range(3))
def test_order_losses_and_doubles(monkeypatch, seed):
    """Pieces of 0 to 3 rows, up to 5 places away from their own, a tenth lost, a tenth twice."""
    monkeypatch.setattr(served_module, "AHEAD", 7)
    rng = random.Random(seed)
    numbers = [number for number in range(30, 400) for _ in range(rng.choice([0, *[1] * 8, 2]))]
    numbers.sort(key=lambda number: number + rng.uniform(0, 5))
    numbers += [500] * 2  # far ahead: all before it is overdue
    computed = []

    def rows(number):
        return [[number, row] for row in range(number % 4)]

    def compute(number):
        def note(number):
            computed.append(int(number))
            return np.array(rows(int(number)), np.int32).reshape(-1, 2)

        return tf.ensure_shape(tf.numpy_function(note, [number], tf.int32), [None, 2])

    pieces = tf.data.Dataset.from_generator(
        lambda: ((number, np.array(rows(number), np.int32).reshape(-1, 2)) for number in numbers),
        output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([None, 2], tf.int32)),
    )
    got = [row.tolist() for piece in in_order(pieces, compute, first=30, num_columns=2) for row in piece.numpy()]
    assert got == [row for number in range(30, 494) for row in rows(number)]
    missing = {number for number in range(30, 400)} - set(numbers)
    assert (
        missing
        and missing <= set(computed)
        and len(set(computed) - missing) == 94
        and len(computed) == len(set(computed))
    )


@pytest.mark.parametrize(
    "service", ["localhost:1", "http://localhost:1", "grpc://localhost", "grpc://a b:1", "grpc://:1"]
)
def test_wrong_addresses(folder, tokenizer, service):
    with pytest.raises(UserError, match="expected grpc://host:port"):
        served_dataset(open_records(folder), Batching(tokenizer=tokenizer, global_batch_size=6), service=service)
    assert service_place("grpc://[::1]:12") == ("::1", 12)


def test_nobody_there():
    with pytest.raises(UserError, match="no data service at grpc://localhost:9"):
        check_service("grpc://localhost:9")
