"""The same run on one device, on several, and on several workers: real processes, the same losses and weights."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.errors import UserError
from albert_tf.pretraining.records import RecordsInfo
from tpu import cluster
from tpu.progress import read_metrics

FLAGS = {"train_batch_size": 12, "eval_batch_size": 24, "num_train_steps": 4, "save_checkpoints_steps": 1}


def weights_of(folder):
    return checkpoints.read_tensors(folder / checkpoints.read_info(folder)[1])


def state_of(folder):
    """Every number in the last checkpoint, optimiser slots and step included."""
    tensors = checkpoints.read_tensors(folder / "checkpoints" / "ckpt-4")
    return {name: value for name, value in tensors.items() if getattr(value, "dtype", np.dtype("O")).kind in "fi"}


def assert_same_run(folder, expected):
    """Losses and norms of each step and of each evaluation, and all that was saved at the end."""
    found, wanted = (read_metrics(one / "metrics.jsonl") for one in (folder, expected))
    assert [(line["kind"], line["step"]) for line in found] == [(line["kind"], line["step"]) for line in wanted]
    for line, other in zip(found, wanted, strict=True):
        assert line.get("records") == other.get("records")
        for name in set(other) - {"kind", "step", "data", "records", "steps_per_second", "tokens_per_second"}:
            if name != "input_waiting_share":
                assert line[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), (line["step"], name)
    for read in (weights_of, state_of):
        values, others = read(folder), read(expected)
        assert values.keys() == others.keys()
        for name, value in values.items():
            np.testing.assert_allclose(value, others[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def one_shard(make_records):
    return make_records(num_shards=1)


@pytest.fixture(scope="module")
def one_device(pretrain, one_shard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_device") / "run"
    code, said = pretrain(one_shard, folder, **FLAGS)
    assert code == 0, said
    return folder


def finish(programs):
    codes = [program.code() for program in programs]
    assert codes == [0] * len(codes), "\n".join(program.said()[-2000:] for program in programs)


def own_lines(program):
    """What it said, without TensorFlow's own words on its server, and how long it waited for the others."""
    words = r"[IWE]\d{4} |WARNING: All log|still waiting after "
    return [line for line in program.said().splitlines() if not re.match(words, line)]


def run_workers(start_workers, make_command, records, folder, count, *, devices=1, **flags):
    """The programs of a finished run over `count` workers."""
    arguments = make_command(records, folder, distribution="multi_worker", **FLAGS, **flags)
    programs = start_workers(arguments, count, devices=devices)
    finish(programs)
    return programs


def test_two_workers_equal_one_device(start_workers, make_command, one_shard, one_device, tmp_path):
    """With accumulation, fewer files than workers, and a chief that alone writes and tells."""
    assert len(RecordsInfo.read(one_shard).shards) == 1
    chief, worker = run_workers(start_workers, make_command, one_shard, tmp_path / "run", 2, grad_accum_steps=2)
    assert_same_run(tmp_path / "run", one_device)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("program-")) == ["run"]
    kept, expected = ({path.name for path in one.rglob("*.*")} for one in (tmp_path / "run", one_device))
    assert {name for name in kept ^ expected if not name.startswith("events.")} == set()
    lines = own_lines(chief)
    assert lines[0] == f"worker 0 ({chief.addresses[0]}, the chief) of 2: waiting for all to come, 600 seconds at most"
    assert lines[1] == "all 2 have come"
    assert lines[2].startswith("MultiWorkerMirroredStrategy: 2 replica(s) on 2 worker(s), devices ")
    assert own_lines(worker) == [
        f"worker 1 ({worker.addresses[1]}) of 2: waiting for all to come, 600 seconds at most",
        "all 2 have come",
        f"model: {tmp_path / 'run'}",
    ]


@pytest.mark.slow
def test_three_workers_equal_one_device(start_workers, make_command, one_shard, one_device, tmp_path):
    run_workers(start_workers, make_command, one_shard, tmp_path / "run", 3, grad_accum_steps=2)
    assert_same_run(tmp_path / "run", one_device)


@pytest.mark.slow
def test_workers_with_two_devices_each_equal_one_device(start_workers, make_command, one_shard, one_device, tmp_path):
    run_workers(start_workers, make_command, one_shard, tmp_path / "run", 2, devices=2)
    assert_same_run(tmp_path / "run", one_device)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "accumulation"), [(2, 1), (2, 3), (4, 1), (4, 3)])
def test_mirrored_equals_one_device(start, make_command, one_shard, one_device, tmp_path, devices, accumulation):
    """The quick twin is test_replicas_give_the_same in test_trainer.py."""
    flags = {"distribution": "mirrored", "grad_accum_steps": accumulation, **FLAGS}
    program = start(make_command(one_shard, tmp_path / "run", **flags), devices=devices)
    finish([program])
    assert f"MirroredStrategy: {devices} replica(s) on 1 worker(s)" in program.said()
    assert_same_run(tmp_path / "run", one_device)


@pytest.mark.slow
def test_workers_start_from_the_weights_that_the_chief_reads(
    start_workers, make_command, pretrain, one_shard, one_device, tmp_path
):
    flags = {**FLAGS, "init_checkpoint": one_device, "learning_rate": 0.001}
    code, said = pretrain(one_shard, tmp_path / "alone", **flags)
    assert code == 0, said
    arguments = make_command(one_shard, tmp_path / "run", distribution="multi_worker", **flags)
    programs = start_workers(arguments, 2)
    finish(programs)
    assert f"variables from {one_device}" in programs[0].said() and one_device.name not in own_lines(programs[1])[0]
    assert_same_run(tmp_path / "run", tmp_path / "alone")


# What workers tell each other


def test_a_worker_with_other_flags_is_named(start_workers, make_command, one_shard, tmp_path):
    def arguments(index):
        rate = 0.02 if index else 0.01
        return make_command(
            one_shard, tmp_path / "run", distribution="multi_worker", **{**FLAGS, "learning_rate": rate}
        )

    programs = start_workers(arguments, 2)
    assert [program.code() for program in programs] == [2, 2]
    for program in programs:
        last = program.said().splitlines()[-1]
        assert f"worker 1 ({program.addresses[1]}) has other flags or records than worker 0" in last
    assert not (tmp_path / "run").exists()


def test_one_process_is_its_own_chief():
    workers = cluster.Workers(tf.distribute.OneDeviceStrategy("/cpu:0"))
    assert workers.is_chief and workers.count == 1
    assert workers.exchange(3, 4).tolist() == [[3, 4]]
    workers.check_same("f" * 64)
    with pytest.raises(tf.errors.UnavailableError), workers.losing_none():
        raise tf.errors.UnavailableError(None, None, "a disk, not a worker")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"cluster": {}}', '{"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}}'),
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 2}}',
        '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "ps", "index": 0}}',
        '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a", "b:2"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:65536", "b:2"]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": [1, 2]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "chief": ["b:2"]}, "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_wrong_tf_config_is_refused(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="expected the like of"):
        cluster.read_tf_config()


def test_the_cluster_is_read_and_probed(monkeypatch):
    import socket

    with socket.socket() as server, socket.socket() as closed:
        server.bind(("127.0.0.1", 0))
        server.listen()
        closed.bind(("127.0.0.1", 0))
        addresses = ["127.0.0.1:1", *(f"127.0.0.1:{one.getsockname()[1]}" for one in (server, closed))]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        found = cluster.read_tf_config()
        assert found == cluster.Cluster(tuple(addresses), 0)
        assert found.unreachable() == [f"worker 2 ({addresses[2]})"]
