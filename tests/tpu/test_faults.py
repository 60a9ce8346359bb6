"""What happens to a pretraining run on the way: signals, kills, numbers that are none, full disks, broken records."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.pretraining import objective
from tpu import pretraining
from tpu.progress import Progress, read_metrics

ROOT = pathlib.Path(__file__).resolve().parents[2]


def weights_of(folder):
    """Name -> array of the model at the root of a run."""
    return checkpoints.read_tensors(folder / checkpoints.read_info(folder)[1])


def assert_close_weights(first, second, atol=0.0):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("moment", ["training", "evaluation"])
def test_a_signal_saves_and_the_same_command_goes_on(pretrain, finished, records, tmp_path, monkeypatch, moment):
    """SIGTERM at step 3, between two checkpoints, or during the evaluation of step 4."""
    flags = {"eval_every_steps": 4, "save_checkpoints_steps": 4}
    tell, evaluate = Progress.training, pretraining.evaluation.PretrainingEvaluator.evaluate

    def training(self, step, *arguments):
        tell(self, step, *arguments)
        if moment == "training" and step >= 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluating(self, stopped):
        if moment == "evaluation" and self.calls:
            os.kill(os.getpid(), signal.SIGTERM)
        self.calls = True
        return evaluate(self, stopped)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "training", training)
        patch.setattr(pretraining.evaluation.PretrainingEvaluator, "evaluate", evaluating)
        patch.setattr(pretraining.evaluation.PretrainingEvaluator, "calls", False, raising=False)
        before = signal.getsignal(signal.SIGTERM)
        code, said = pretrain(records, tmp_path / "run", **flags)
        assert signal.getsignal(signal.SIGTERM) is before
    assert code == 143
    stopped_at = checkpoints.read_info(tmp_path / "run")[0].made_by["step"]
    assert f"stopped by signal 15 at step {stopped_at}, saved; the same command goes on" in said
    assert stopped_at == 4 if moment == "evaluation" else 2 <= stopped_at < 6
    code, said = pretrain(records, tmp_path / "run", **flags)
    assert code == 0 and f"resuming at step {stopped_at}" in said
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [0, 4, 6]
    assert_close_weights(weights_of(tmp_path / "run"), weights_of(finished[0]), atol=1e-6)


def test_a_loss_that_is_no_number_stops_and_spoils_nothing(pretrain, refused, finished, records, tmp_path, monkeypatch):
    """At step 5, after the checkpoint of step 4; without the cause the same command then goes on from there."""
    forward_sums = objective.forward_sums
    trainers = []
    make = pretraining.PretrainingTrainer.__init__
    folder = tmp_path / "run"

    def spoilt(*arguments, training, **options):
        sums = forward_sums(*arguments, training=training, **options)
        if not training:
            return sums
        bad = tf.where(trainers[0].global_step == 4, np.float32(np.nan), 0.0)
        return sums._replace(masked_lm_loss=sums.masked_lm_loss + bad)

    with monkeypatch.context() as patch:
        patch.setattr(
            pretraining.PretrainingTrainer,
            "__init__",
            lambda self, **options: (trainers.append(self), make(self, **options))[1],
        )
        patch.setattr(objective, "forward_sums", spoilt)
        refused(records, folder, words=["not finite at step 5", "keeps the last good checkpoint"])
    assert checkpoints.read_info(folder)[0].made_by["step"] == 4
    assert sorted(path.name for path in (folder / "checkpoints").glob("*.index")) == ["ckpt-2.index", "ckpt-4.index"]
    code, said = pretrain(records, folder)
    assert code == 0 and "resuming at step 4" in said
    assert_close_weights(weights_of(folder), weights_of(finished[0]), atol=1e-6)


def test_weights_that_are_no_numbers_are_never_saved(refused, records, tmp_path):
    """A rate beyond all reason: the loss of step 1 is fine, the weights after it are not."""
    refused(
        records,
        tmp_path / "run",
        learning_rate=3e38,
        num_warmup_steps=0,
        save_checkpoints_steps=1,
        optimizer="adamw",
        words=["weights are not finite after step 1"],
    )
    assert not list(tmp_path.glob("run/weights*")) and not list(tmp_path.glob("run/checkpoints/*.index"))


def test_a_full_disk_keeps_what_was_saved(pretrain, refused, copy, records):
    """Files of this process may not grow beyond 100,000 bytes: a checkpoint has 300,000."""
    before = weights_of(copy)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        said = refused(
            records, copy, num_train_steps=8, words=["cannot save step 8 to", "the checkpoints before it are whole"]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "resuming at step 6" in said
    assert_close_weights(weights_of(copy), before)
    code, said = pretrain(records, copy, num_train_steps=8)
    assert code == 0 and "resuming at step 6" in said
    assert checkpoints.read_info(copy)[0].made_by["step"] == 8


def test_a_record_that_broke_is_named_and_may_be_left_out(pretrain, refused, records, tmp_path):
    data = shutil.copytree(records, tmp_path / "data")
    shard = data / "records-00001-of-00003.tfrecord"
    content = bytearray(shard.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    shard.write_bytes(bytes(content))
    flags = {"num_train_steps": 40, "num_warmup_steps": 0, "train_batch_size": 64}
    said = refused(data, tmp_path / "run", **flags, words=[f"{shard} is damaged: the record at byte offset "])
    offset = int(said.split("byte offset ")[-1].split()[0])
    assert 0 <= middle - offset < 200
    code, said = pretrain(data, tmp_path / "run", **flags, skip_corrupt_records="true")
    assert code == 0 and "WARNING: 1 damaged records are left out" in said, said


def test_a_shard_replaced_under_a_run_is_one_line(refused, records, tmp_path, monkeypatch):
    """An empty file takes the place of a shard while the run goes through the records again and again."""
    data = shutil.copytree(records, tmp_path / "data")
    tell = Progress.training

    def training(self, step, *arguments):
        tell(self, step, *arguments)
        (tmp_path / "empty").write_bytes(b"")
        os.replace(tmp_path / "empty", data / "records-00001-of-00003.tfrecord")

    monkeypatch.setattr(Progress, "training", training)
    flags = {"num_train_steps": 10_000, "num_warmup_steps": 0, "train_batch_size": 64, "save_checkpoints_steps": 10_000}
    refused(data, tmp_path / "run", **flags, words=[f"{data / 'records-00001-of-00003.tfrecord'} holds 0 of "])


# Kills


def start(arguments):
    """The command as a program of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(arguments):
    process = start(arguments)
    said = process.communicate()[1]
    assert process.returncode == 0, said[-3000:]
    return said


def kill_at_random(arguments, random):
    """Starts the command and kills it after one of its first lines of progress or, seldom, before; its exit code."""
    process = start(arguments)
    lines = int(random.integers(0, 6))  # a line comes at least with every checkpoint
    for line in process.stderr if lines else ():
        lines -= " | loss " in line
        if not lines:
            break
    else:
        time.sleep(random.random() * 4)  # somewhere in the start
    time.sleep(random.random() / 10)
    process.kill()
    process.communicate()
    return process.returncode


def check_kills(records, make_command, folder, *, kills, steps, dropout):
    """A run with so many kills ends with the weights, slots and metrics of one that was left alone, to the bit."""
    flags = {"num_train_steps": steps, "save_checkpoints_steps": 7, "eval_every_steps": 50, "deterministic": "true"}
    flags |= {"hidden_dropout": dropout, "attention_dropout": dropout, "num_warmup_steps": 20}
    random = np.random.default_rng()
    finish(make_command(records, folder / "alone", **flags))
    killed = make_command(records, folder / "killed", **flags)
    codes = [kill_at_random(killed, random) for _ in range(kills)]
    finish(killed)
    assert codes == [-signal.SIGKILL] * kills
    assert_close_weights(weights_of(folder / "killed"), weights_of(folder / "alone"))
    last = [checkpoints.read_tensors(folder / name / "checkpoints" / f"ckpt-{steps}") for name in ("killed", "alone")]
    for name in last[0]:
        if "SAVE_COUNTER" not in name.upper() and "_CHECKPOINTABLE" not in name:
            np.testing.assert_array_equal(last[0][name], last[1][name], err_msg=name)
    metrics = [
        [line for line in read_metrics(folder / name / "metrics.jsonl") if line["kind"] == "evaluation"]
        for name in ("killed", "alone")
    ]
    assert [line["step"] for line in metrics[1]] == [*range(0, steps + 1, 50)] and metrics[0] == metrics[1]


def test_a_kill_loses_nothing(records, make_command, tmp_path):
    check_kills(records, make_command, tmp_path, kills=1, steps=100, dropout=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_ten_kills_lose_nothing(records, make_command, tmp_path, dropout):
    check_kills(records, make_command, tmp_path, kills=10, steps=400, dropout=dropout)
