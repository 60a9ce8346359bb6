"""`albert_tf data_service` as processes: the stream stays what it is whoever dies, and a run does not notice."""

import faulthandler
import os
import re
import signal
import socket

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.pretraining import dataset
from albert_tf.pretraining.record_source import open_records
from albert_tf.pretraining.served_dataset import served_dataset
from albert_tf.tokenization import load_tokenizer


@pytest.fixture(autouse=True)
def time_limit():
    """Waiting for a service that never answers is out of Python's reach: then the process ends."""
    faulthandler.dump_traceback_later(400, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def serve(start):
    """serve(*flags) -> an `albert_tf data_service` that is ready, with its `address`."""

    def serve(*flags):
        program = start(["albert_tf", "data_service", *flags])
        program.wait_for(" at grpc://")
        program.address = re.search(r" at (grpc://localhost:\d+)\n", program.said())[1]
        return program

    return serve


def end(program, number=signal.SIGKILL):
    """Sends a signal and gives the exit code."""
    program.send(number)
    return program.code(60)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.fixture
def stream(records):
    """The records, and batches of 16 of them."""
    return open_records(records), dataset.Batching(tokenizer=load_tokenizer(records), global_batch_size=16, seed=5)


def records_of(element):
    """The rows as they were before masking, one tuple each."""
    ids = element["input_ids"].numpy()
    row, slot = np.nonzero(element["masked_lm_weights"].numpy())
    ids[row, element["masked_lm_positions"].numpy()[row, slot]] = element["masked_lm_ids"].numpy()[row, slot]
    return list(map(tuple, np.concatenate([ids, element["segment_ids"]], 1).tolist()))


def assert_same(got, expected, number):
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} of batch {number}")


@pytest.mark.slow
def test_workers_killed_and_replaced(serve, stream, tmp_path, monkeypatch):
    """Six epochs. Two workers are killed as they work and one comes anew; the dispatcher is killed and comes again."""
    monkeypatch.setattr(dataset, "WINDOW", 128)  # so many windows that some are lost each time
    source, batching = stream
    port = free_port()
    dispatching = ["--role=dispatcher", f"--port={port}", f"--work_dir={tmp_path / 'state'}"]
    dispatcher = serve(*dispatching)
    working = ["--role=worker", f"--dispatcher={dispatcher.address}"]
    workers = [serve(*working) for _ in range(2)]
    batches = 6 * source.num_records // 16
    served = iter(served_dataset(source, batching, service=dispatcher.address))
    records = []
    for number, expected in enumerate(dataset.pretraining_dataset(source, batching).take(batches)):
        if number == batches // 6:
            assert end(workers[0]) == -signal.SIGKILL
        if number == batches // 3:
            workers.append(serve(*working))
            assert end(workers[1]) == -signal.SIGKILL
        if number == batches // 2:
            assert end(dispatcher) == -signal.SIGKILL
            dispatcher = serve(*dispatching)
            assert dispatcher.address.endswith(f":{port}")
        got = next(served)
        assert_same(got, expected, number)
        records += records_of(got)
    total = source.num_records
    epochs = [sorted(records[first : first + total]) for first in range(0, len(records) - total + 1, total)]
    assert (
        len(epochs) == 5 and all(epoch == epochs[0] for epoch in epochs) and records[:total] != records[total:][:total]
    )
    assert end(workers[2], signal.SIGTERM) == 0 and "stopped" in workers[2].said()
    assert end(dispatcher, signal.SIGINT) == 0 and "stopped" in dispatcher.said()


@pytest.mark.slow
def test_a_run_does_not_notice(serve, start, make_command, records, finished, tmp_path):
    """Weights of a run with the service, stopped and gone on without it, are those of one without."""
    dispatcher = serve("--role=dispatcher")
    serve("--role=worker", f"--dispatcher={dispatcher.address}")
    run = start(make_command(records, tmp_path / "run", data_service=dispatcher.address))
    assert run.code() == 0, run.said()
    first, second = (
        checkpoints.read_tensors(place / checkpoints.read_info(place)[1]) for place in (tmp_path / "run", finished[0])
    )
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-6, err_msg=name)
    run = start(make_command(records, tmp_path / "run", num_train_steps=8))
    assert run.code() == 0 and "resuming at step 6" in run.said()


def test_a_worker_killed(serve, stream, monkeypatch):
    """A dispatcher and two workers as processes, one of them killed: the batches stay what they are."""
    monkeypatch.setattr(dataset, "WINDOW", 128)
    source, batching = stream
    dispatcher = serve("--role=dispatcher")
    workers = [serve("--role=worker", f"--dispatcher={dispatcher.address}") for _ in range(2)]
    served = iter(served_dataset(source, batching, service=dispatcher.address))
    for number, expected in enumerate(dataset.pretraining_dataset(source, batching).take(60)):
        if number == 20:
            assert end(workers[0]) == -signal.SIGKILL
        assert_same(next(served), expected, number)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--role"),
        (["--role=worker"], "--dispatcher is none"),
        (["--role=dispatcher", "--dispatcher=grpc://a:1"], "a worker has one, a dispatcher none"),
        (["--role=worker", "--dispatcher=a:1"], "expected grpc://host:port"),
        (["--role=worker", "--dispatcher=grpc://a:1", "--work_dir=x"], "is for --role=dispatcher"),
        (
            ["--role=worker", "--dispatcher=grpc://localhost:9", "--wait_seconds=1"],
            "no data service at grpc://localhost:9",
        ),
    ],
)
def test_refusals(capsys, flags, words):
    assert main(["albert_tf", "data_service", *flags]) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[-1] and said[-1].startswith("albert_tf data_service: ")


def test_a_port_that_is_taken(capsys):
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert main(["albert_tf", "data_service", "--role=dispatcher", f"--port={port}"]) == 2
    assert "cannot start" in capsys.readouterr().err


def test_pretrain_says_that_nobody_is_there(refused, records, tmp_path):
    port = free_port()
    words = [f"no data service at grpc://localhost:{port}", "leave --data_service out"]
    refused(records, tmp_path / "run", data_service=f"grpc://localhost:{port}", words=words)
    refused(records, tmp_path / "run", data_service="localhost:1", words=["expected grpc://host:port"])
    assert not os.path.exists(tmp_path / "run")
