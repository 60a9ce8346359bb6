"""Real processes and real kills: workers that die, freeze, never come or are told to stop; a run that is stuck."""

import contextlib
import functools
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.errors import UserError
from tpu.cluster import TRY_AGAIN, Cluster
from tpu.meeting import meet
from tpu.run_folder import RunFolder

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, SAVE = 240, 16
FLAGS = {"train_batch_size": 12, "num_train_steps": STEPS, "num_warmup_steps": 16, "save_checkpoints_steps": SAVE}
FLAGS |= {"eval_batch_size": 48, "distribution": "multi_worker", "deterministic": "true", "hidden_dropout": 0.1}
LOST_WITHIN = 45  # seconds; TensorFlow takes a worker for lost after 10 without a heartbeat, and machines may be busy


@pytest.fixture(scope="module")
def weights_of_whole_run(starter, make_command, records, tmp_path_factory):
    """count -> weights of the run over so many workers that nothing happens to."""

    @functools.cache
    def of(count):
        folder = tmp_path_factory.mktemp("whole")
        with starter(folder) as (_, start_workers):
            finish(start_workers(make_command(records, folder / "run", **FLAGS), count))
        return weights_of(folder / "run")

    return of


@pytest.fixture
def workers(start_workers, make_command, records, tmp_path):
    """workers(count, **flags) starts the same run each time."""

    def start(count=2, *, only=None, **flags):
        arguments = make_command(records, tmp_path / "run", **{**FLAGS, **flags})
        return start_workers(arguments, count, only=only)

    return start


def weights_of(folder):
    return checkpoints.read_tensors(folder / checkpoints.read_info(folder)[1])


def step_of(folder):
    return checkpoints.read_info(folder)[0].made_by["step"]


def assert_same_weights(folder, expected):
    assert step_of(folder) == STEPS
    for name, value in weights_of(folder).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def finish(programs):
    codes = [program.code() for program in programs]
    assert codes == [0] * len(codes), "\n".join(program.said()[-2000:] for program in programs)


def in_the_midst(programs, *, saved=None):
    """Waits until the run has saved and gone on: there is a line after the first step, and before each save."""
    if saved is None:
        programs[0].wait_for("| loss ", times=3)
    else:
        programs[0].wait_for(f"step {saved + SAVE}/{STEPS} | loss ")


def kill_one(programs, victim, *, saved=None):
    """Kills one worker in the midst of the run; every other one must end, soon, with its name."""
    in_the_midst(programs, saved=saved)
    programs[victim].send(signal.SIGKILL)
    assert programs[victim].code() == -signal.SIGKILL
    for program in programs:
        if program is not programs[victim]:
            assert program.code(LOST_WITHIN) == TRY_AGAIN, program.said()[-3000:]
            last = program.said().splitlines()[-1]
            assert f"worker {victim} ({program.addresses[victim]}" in last and " is gone: " in last, last
            assert "Traceback" not in program.said()


def stop_all(programs, told, run):
    """Tells some workers to stop in the midst of the run: all must, at one step, which is saved and given back."""
    in_the_midst(programs)
    for index in told:
        programs[index].send(signal.SIGTERM)
    codes = [program.code() for program in programs]
    assert codes == [128 + signal.SIGTERM] * len(programs), programs[0].said()[-3000:]
    step = step_of(run)
    for program in programs:
        assert program.said().splitlines()[-1] == (
            f"stopped by signal 15 at step {step}, saved; the same command goes on"
        )
    return step


def test_workers_that_are_lost_or_told_to_stop_go_on_to_the_same_weights(workers, tmp_path):
    """A lost worker, then a checkpoint that is cut off, then a lost chief, then SIGTERM to both.

    The first two starts save after the same step, and the second of them begins before it. The slow tests, from a whole
    run's weights, do all of this one by one.
    """
    newest = tmp_path / "run" / "checkpoints" / "ckpt-32.data-00000-of-00001"
    kept = {"keep_checkpoints": 100}
    kill_one(workers(**kept), 1, saved=32)
    before = checkpoints.read_tensors(newest.with_name("ckpt-32"))
    for path in newest.parent.glob("ckpt-*"):
        if int(re.search(r"ckpt-(\d+)", path.name)[1]) > 32:
            path.unlink()
    newest.write_bytes(newest.read_bytes()[:-1000])
    again = workers(**kept)
    kill_one(again, 0, saved=32)
    assert "ckpt-32 cannot be read" in again[0].said() and "resuming at step 16\n" in again[0].said()
    for name, value in checkpoints.read_tensors(newest.with_name("ckpt-32")).items():
        if "SAVE_COUNTER" not in name.upper() and "_CHECKPOINTABLE" not in name:
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    stop_all(workers(**kept), [0, 1], tmp_path / "run")


@pytest.mark.slow
def test_a_lost_worker_and_a_lost_chief_end_the_others_and_cost_nothing(workers, weights_of_whole_run, tmp_path):
    for victim in (1, 0):
        kill_one(workers(), victim)
    finish(workers())
    assert_same_weights(tmp_path / "run", weights_of_whole_run(2))


@pytest.mark.slow
def test_three_workers_lose_each_in_turn(workers, weights_of_whole_run, tmp_path):
    for victim in (2, 1, 0):
        kill_one(workers(3), victim)
    finish(workers(3))
    assert_same_weights(tmp_path / "run", weights_of_whole_run(3))


@pytest.mark.slow
def test_a_frozen_worker_is_named(workers, weights_of_whole_run, tmp_path):
    """It still takes connections, as a machine that hangs: TensorFlow misses its heartbeats."""
    programs = workers()
    in_the_midst(programs)
    programs[1].send(signal.SIGSTOP)
    assert programs[0].code(LOST_WITHIN) == TRY_AGAIN
    assert f"worker 1 ({programs[0].addresses[1]}) is gone" in programs[0].said().splitlines()[-1]
    programs[1].send(signal.SIGKILL)
    finish(workers())
    assert_same_weights(tmp_path / "run", weights_of_whole_run(2))


@pytest.mark.slow
@pytest.mark.parametrize("told", [[1], [0, 1]])
def test_sigterm_stops_all_workers_at_one_step_and_they_go_on(workers, weights_of_whole_run, tmp_path, told):
    step = stop_all(workers(), told, tmp_path / "run")
    again = workers()
    finish(again)
    assert f"resuming at step {step}" in again[0].said()
    assert_same_weights(tmp_path / "run", weights_of_whole_run(2))


@pytest.mark.parametrize("present", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_never_comes_is_named(workers, tmp_path, present):
    """More of this in test_meeting.py."""
    (program,) = workers(only=[present], cluster_timeout=2)
    assert program.code(60) == TRY_AGAIN, program.said()
    missing = program.addresses[1 - present]
    last = program.said().splitlines()[-1]
    assert f"worker {1 - present} ({missing}" in last and "did not come within 2 seconds" in last, last
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken_is_one_line(start, make_command, records, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1"]
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        program = start(make_command(records, tmp_path / "run", distribution="auto"), {"TF_CONFIG": json.dumps(task)})
        assert program.code(60) == 2, program.said()
    last = program.said().splitlines()[-1]
    assert f"worker 0 ({addresses[0]}, the chief) cannot join the cluster of TF_CONFIG" in last
    assert "(Address already in use)" in last


def test_a_worker_lost_between_the_meeting_and_the_start_of_tensorflow_keeps_nobody_for_ever(workers, tmp_path):
    """This test comes to the meeting in the place of worker 1, and leaves."""
    (program,) = workers(only=[0], cluster_timeout=3)
    assert meet(Cluster(tuple(program.addresses), 1), 60) == {}
    assert program.code(60) == -signal.SIGALRM, program.said()
    assert "all 2 have come\n" in program.said() and not (tmp_path / "run").exists()


# One process


def test_a_folder_is_locked_by_a_process_that_lives_and_free_after_its_death(tmp_path):
    """The slow twin has whole runs instead of processes that do no more than open the folder."""

    def opened():
        return RunFolder(tmp_path / "run", command="pretrain", settings={"seed": 1}, adjustable={})

    come, gone = os.pipe()
    process = os.fork()
    if not process:
        folder = opened()
        os.write(gone, b"open")
        time.sleep(600)
        os._exit(folder.resumed)
    try:
        assert os.read(come, 4) == b"open"
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(UserError, match=rf"is in use by another run \(process {process} on "):
            opened()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(come)
        os.close(gone)
    with contextlib.closing(opened()) as folder:
        assert folder.resumed


def wait_for_a_checkpoint(run):
    deadline = time.monotonic() + 120
    while not (run / "model.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_folder_is_locked_by_a_living_run_and_free_after_its_death(start, make_command, refused, records, tmp_path):
    arguments = make_command(records, tmp_path / "run", num_train_steps=5000, save_checkpoints_steps=4)
    first = start(arguments)
    first.wait_for("| loss ")
    wait_for_a_checkpoint(tmp_path / "run")
    first.send(signal.SIGSTOP)
    flags = {"num_train_steps": 5000, "save_checkpoints_steps": 4}
    refused(records, tmp_path / "run", **flags, words=["is in use by another run", f"process {first.pid} on "])
    first.send(signal.SIGKILL)
    first.code()
    second = start(arguments)
    second.wait_for("| loss ")
    second.send(signal.SIGTERM)
    assert second.code() == 128 + signal.SIGTERM and "resuming at step" in second.said()


@pytest.mark.slow
def test_a_read_that_never_ends_ends_the_run(start, make_command, records, tmp_path):
    """A shard becomes a pipe that nobody writes to: opening it blocks, as on a network disk that is gone.

    The quick twin is test_watchdog.py; here the limit must be longer than a busy machine takes to build a model.
    """
    data = shutil.copytree(records, tmp_path / "data")
    flags = {"num_train_steps": 100_000, "num_warmup_steps": 0, "stall_timeout": 30, "eval_every_steps": 100_000}
    program = start(make_command(data, tmp_path / "run", train_batch_size=64, **flags))
    program.wait_for("| loss ")
    os.mkfifo(tmp_path / "pipe")
    os.replace(tmp_path / "pipe", data / "records-00001-of-00003.tfrecord")
    assert program.code(90) == TRY_AGAIN, program.said()[-3000:]
    last = program.said().splitlines()[-1]
    assert "nothing has gone on for 30 seconds while waiting for a batch of training records" in last
    assert "Traceback" not in program.said()


@pytest.mark.slow
def test_a_shard_replaced_under_a_process_of_its_own(start, make_command, records, tmp_path):
    """The quick twin is in test_faults.py."""
    data = shutil.copytree(records, tmp_path / "data")
    flags = {"num_train_steps": 100_000, "num_warmup_steps": 0, "eval_every_steps": 100_000}
    program = start(make_command(data, tmp_path / "run", train_batch_size=64, **flags))
    program.wait_for("| loss ")
    (tmp_path / "empty").write_bytes(b"")
    os.replace(tmp_path / "empty", data / "records-00001-of-00003.tfrecord")
    assert program.code(90) == 2
    assert f"{data / 'records-00001-of-00003.tfrecord'} holds 0 of " in program.said().splitlines()[-1]
    assert "Traceback" not in program.said()


@pytest.mark.slow
def test_a_full_disk_in_a_process_of_its_own(start, make_command, records, tmp_path):
    """The limit of the file size stands for a full disk: the write fails within TensorFlow, as there.

    The quick twin is test_a_full_disk_keeps_what_was_saved in test_faults.py.
    """
    arguments = make_command(records, tmp_path / "run", num_train_steps=5000, save_checkpoints_steps=4)
    program = start(arguments)
    program.wait_for("| loss ")
    wait_for_a_checkpoint(tmp_path / "run")
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    assert program.code(120) == 2, program.said()[-3000:]
    last = program.said().splitlines()[-1]  # the limit may have come between a checkpoint and its model folder
    assert "the checkpoints before it are whole" in last or "cannot write " in last
    assert "Traceback" not in program.said()
    newest = max(int(path.stem.removeprefix("ckpt-")) for path in tmp_path.glob("run/checkpoints/*.index"))
    assert step_of(tmp_path / "run") in (newest, newest - 4)
    again = start(arguments)
    again.wait_for("resuming at step ")
    assert f"resuming at step {newest}\n" in again.said() and "cannot be read" not in again.said()
    again.send(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):
        again.code()


@pytest.mark.slow
def test_a_disk_that_is_really_full(make_command, records, tmp_path):
    """A disk of 1.5 MB in memory, in a name space of its own; it is enlarged before the same command is given again.

    The quick twin is test_a_full_disk_keeps_what_was_saved in test_faults.py.
    """
    run = tmp_path / "run"
    run.mkdir()
    arguments = make_command(records, run, num_train_steps=40, save_checkpoints_steps=2, keep_checkpoints=30)
    command = shlex.join([sys.executable, "-m", *map(str, arguments)])
    script = f"mount -t tmpfs -o size=1500k tmpfs {run} || exit 99\n{command}; echo FIRST $? >&2\n"
    script += f"mount -o remount,size=100m {run}\n{command}; echo SECOND $? >&2"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True)
    if "SECOND" not in done.stderr:
        pytest.skip(f"no name space to mount a small disk in: {done.stderr[-200:]}")
    first, second = done.stderr.split("FIRST ")
    assert second.startswith("2\n") and second.endswith("SECOND 0\n"), done.stderr
    last = first.splitlines()[-1]
    assert "No space left on device" in last and "Traceback" not in done.stderr, last
    saved = [int(step) for step in re.findall(r"step (\d+)/40", first)]
    resumed = int(re.search(r"resuming at step (\d+)", second)[1])
    assert 0 < resumed <= saved[-1] and "cannot be read" not in second


@pytest.mark.slow
def test_a_corrupt_shard_ends_all_workers_and_one_names_it(start_workers, make_command, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "data")
    shard = data / "records-00001-of-00003.tfrecord"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    flags = {**FLAGS, "num_train_steps": 4000}
    programs = start_workers(make_command(data, tmp_path / "run", **flags), 2)
    codes = [program.code() for program in programs]
    assert set(codes) <= {2, TRY_AGAIN} and 2 in codes
    for code, program in zip(codes, programs, strict=True):
        words = f"{shard} is damaged: the record at byte offset " if code == 2 else "is gone"
        assert words in program.said().splitlines()[-1] and "Traceback" not in program.said()
    programs = start_workers(make_command(data, tmp_path / "run", **flags, skip_corrupt_records="true"), 2)
    programs[0].wait_for("| loss ")
    assert "WARNING: 1 damaged records are left out" in programs[0].said()
    programs[0].send(signal.SIGTERM)
    assert [program.code() for program in programs] == [128 + signal.SIGTERM] * 2


# Fine-tuning


@pytest.fixture
def finetune(finished, tmp_path):
    """The arguments of a fine-tuning run that takes some seconds."""
    words = ["river", "stone", "bird", "music", "winter", "garden", "letter", "market"]
    rows = [f"{words[i % 8]} {words[i // 3 % 8]} {'bright' * (i % 2)}\t{i % 2}" for i in range(64)]
    table = tmp_path / "table.tsv"
    table.write_text("\n".join(["text\tlabel", *rows]) + "\n")

    def arguments(folder):
        flags = {"task_name": "classification", "train_file": table, "eval_file": table, "model_dir": finished[0]}
        flags |= {"output_dir": tmp_path / folder, "num_train_steps": 600, "eval_every_steps": 100}
        flags |= {"train_batch_size": 8, "max_seq_length": 16, "learning_rate": 1e-3, "distribution": "cpu"}
        return ["albert_tf", "finetune", *(f"--{name}={value}" for name, value in flags.items())]

    return arguments


@pytest.mark.slow
def test_fine_tuning_survives_sigterm_and_a_kill(start, finetune, tmp_path):
    """The quick twins are in tests/tasks/test_finetune.py."""
    whole = start(finetune("whole"))
    assert whole.code() == 0, whole.said()[-3000:]
    told = start(finetune("run"))
    told.wait_for("step 100/600")
    told.send(signal.SIGTERM)
    assert told.code() == 128 + signal.SIGTERM, told.said()[-3000:]
    assert "stopped by a signal at step " in told.said() and "Traceback" not in told.said()
    killed = start(finetune("run"))
    killed.wait_for("step 300/600")
    killed.send(signal.SIGKILL)
    assert killed.code() == -signal.SIGKILL
    assert "going on from step " in killed.said()
    last = start(finetune("run"))
    assert last.code() == 0 and re.search("going on from step [23]00", last.said()), last.said()[-3000:]
    newest = tmp_path / "run" / "checkpoints" / "ckpt-600.data-00000-of-00001"
    content = newest.read_bytes()
    newest.write_bytes(content[:-1000])
    again = start(finetune("run"))
    assert again.code() == 0, again.said()[-3000:]
    assert "ckpt-600 cannot be read" in again.said() and "going on from step 500" in again.said()
    ends = [checkpoints.read_tensors(tmp_path / name / "checkpoints" / "ckpt-600") for name in ("whole", "run")]
    for name, value in ends[0].items():
        if getattr(value, "dtype", np.dtype("O")).kind == "f":
            np.testing.assert_allclose(ends[1][name], value, rtol=0, atol=1e-5, err_msg=name)
