"""`albert_tf data_service` as processes: the stream stays what it is whoever dies, and a run does not notice."""

import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.pretraining.dataset import pretraining_dataset
from albert_tf.pretraining.record_source import open_records
from albert_tf.pretraining.served_dataset import served_dataset
from albert_tf.tokenization import load_tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Process:
    """One `albert_tf data_service` and the lines that it prints."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "albert_tf", "data_service", *flags]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._address = None

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    @property
    def address(self):
        if self._address is None:
            self._address = self.line().split()[-1]
        return self._address

    def line(self):
        return self._lines.get(timeout=120)

    def end(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def start():
    """A function that starts such a process; all are killed in the end."""
    started = []

    def start(*flags):
        started.append(Process(*flags))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end()
        each.process.stdout.close()
        each.process.stderr.close()


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.fixture
def stream(records):
    """(source, arguments of the stream) of batches of 16."""
    return open_records(records), dict(tokenizer=load_tokenizer(records), global_batch_size=16, seed=5)


def rows_of(element):
    return [tuple(row) for row in np.concatenate([element[name] for name in ("input_ids", "segment_ids")], 1).tolist()]


def assert_same(got, expected, number):
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} of batch {number}")


@pytest.mark.slow
def test_workers_killed_and_replaced(start, stream, tmp_path):
    """Six epochs. Two workers are killed as they work and one comes anew; the dispatcher is killed and comes again."""
    source, options = stream
    port = free_port()
    dispatching = ["--role=dispatcher", f"--port={port}", f"--work_dir={tmp_path / 'state'}"]
    dispatcher = start(*dispatching)
    working = ["--role=worker", f"--dispatcher={dispatcher.address}"]
    workers = [start(*working) for _ in range(2)]
    assert all(worker.address.startswith("grpc://localhost:") for worker in workers)
    batches = 6 * source.num_records // 16
    served = iter(served_dataset(source, service=dispatcher.address, **options))
    epochs: list[list] = []
    for number, expected in enumerate(pretraining_dataset(source, **options).take(batches)):
        if number == batches // 6:
            assert workers[0].end() == -signal.SIGKILL
        if number == batches // 3:
            workers.append(start(*working))
            assert workers[1].end() == -signal.SIGKILL  # nobody is there until the new one has started
        if number == batches // 2:
            assert dispatcher.end() == -signal.SIGKILL
            dispatcher = start(*dispatching)
            assert dispatcher.address.endswith(str(port))
        got = next(served)
        assert_same(got, expected, number)
        epochs += rows_of(got)
    assert len(epochs) == batches * 16
    assert workers[2].end(signal.SIGTERM) == 0 and "stopped" in [workers[2].line(), workers[2].line()][-1]
    assert dispatcher.end(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_run_does_not_notice(start, records, finished, pretrain, tmp_path):
    """Weights and losses of a run with the service, stopped and gone on without it, are those of one without."""
    dispatcher = start("--role=dispatcher")
    worker = start("--role=worker", f"--dispatcher={dispatcher.address}")
    assert worker.address
    code, said = pretrain(records, tmp_path / "run", data_service=dispatcher.address, num_train_steps=6)
    assert code == 0, said
    first, second = (
        checkpoints.read_tensors(place / checkpoints.read_info(place)[1]) for place in (tmp_path / "run", finished[0])
    )
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-6, err_msg=name)
    code, said = pretrain(records, tmp_path / "run", num_train_steps=8)
    assert code == 0 and "resuming at step 6" in said


def test_one_process_each(start, stream):
    """A dispatcher and a worker as processes give the first batches."""
    source, options = stream
    dispatcher = start("--role=dispatcher")
    assert start("--role=worker", f"--dispatcher={dispatcher.address}").address
    served = served_dataset(source, service=dispatcher.address, **options)
    pairs = zip(served.take(5), pretraining_dataset(source, **options).take(5), strict=True)
    for number, (got, expected) in enumerate(pairs):
        assert_same(got, expected, number)


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
