"""Where a run computes: strategies from flags, what they say at the start, and what is refused before any work."""

import dataclasses
import json
import types

import pytest
import tensorflow as tf

from albert_tf.__main__ import main
from albert_tf.errors import UserError
from tpu import preflight, strategy


def test_one_device_says_so():
    for name in ("auto", "cpu"):
        where = strategy.make_strategy(name)
        assert isinstance(where, tf.distribute.OneDeviceStrategy)
        assert strategy.describe(where) == "OneDevice: 1 replica(s) on 1 worker(s), devices device:CPU:0"
    where = strategy.make_strategy("mirrored")
    assert strategy.describe(where) == "MirroredStrategy: 1 replica(s) on 1 worker(s), devices device:CPU:0"


def test_one_device_reads_the_data_set_as_it_is():
    """Seen: TensorFlow's iterator between held 5 of 11 predictions for 4 to 5 s at their end (its auto-tuner)."""
    where, dataset = strategy.make_strategy("cpu"), tf.data.Dataset.range(3)
    assert where.experimental_distribute_dataset(dataset) is dataset
    contexts = []
    assert where.distribute_datasets_from_function(lambda context: contexts.append(context) or dataset) is dataset
    [context] = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)


@pytest.mark.parametrize(
    ("distribution", "tpu_name", "words"),
    [
        ("cluster", None, "distribution is 'cluster': expected one of auto, cpu, gpu, mirrored, multi_worker, tpu"),
        ("gpu", None, "TensorFlow sees no GPU"),
        ("mirrored", "local", "tpu_name is 'local' with distribution mirrored"),
        ("multi_worker", None, "TF_CONFIG is not set: expected the like of"),
        ("tpu", None, "no TPU 'local' could be reached"),
        ("auto", "local", "no TPU 'local' could be reached"),
        ("auto", "grpc://127.0.0.1:1", "no TPU 'grpc://127.0.0.1:1' could be reached .*Connection refused"),
        ("tpu", "grpc://nowhere", "no TPU 'grpc://nowhere' could be reached .expected grpc://host:port"),
    ],
)
def test_what_is_not_there_is_refused(monkeypatch, distribution, tpu_name, words):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UserError, match=words):
        strategy.make_strategy(distribution, tpu_name=tpu_name)


def test_auto_takes_the_cluster_of_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "chief"}}))
    with pytest.raises(UserError, match="TF_CONFIG is .* expected the like of"):
        strategy.make_strategy("auto")


def test_what_runs_in_one_process_waits_for_no_cluster(monkeypatch, capsys, tmp_path):
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setattr(strategy, "meet", lambda *_: pytest.fail("the others were waited for"))
    for distribution in ("auto", "multi_worker"):
        with pytest.raises(UserError, match="runs in one process, but TF_CONFIG names a cluster"):
            strategy.one_process_strategy(distribution)
    assert strategy.one_process_strategy("cpu").num_replicas_in_sync == 1
    for command in (
        ["benchmark", "--preset=albert_tiny"],
        ["evaluate_pretraining", f"--model_dir={tmp_path}", f"--data_dir={tmp_path}"],
        ["evaluate", f"--model_dir={tmp_path}", f"--input_file={tmp_path}"],
    ):
        assert main(["albert_tf", *command]) == 2
        assert "TF_CONFIG names a cluster" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["data_dir", "eval_data_dir"])
def test_a_remote_tpu_refuses_local_paths_before_it_is_asked(refused, records, tmp_path, monkeypatch, flag):
    monkeypatch.setattr(strategy, "make_strategy", lambda *_, **__: pytest.fail("the TPU was asked"))
    places = {"data_dir": "gs://bucket/records", "eval_data_dir": "gs://bucket/heldout", flag: records}
    flags = {"distribution": "tpu", "tpu_name": "grpc://10.0.0.2:8470", **places}
    words = [f"{flag} is {records}, which the TPU 'grpc://10.0.0.2:8470' cannot read: expected gs://"]
    refused(output_dir=tmp_path / "run", **flags, words=words)
    assert not (tmp_path / "run").exists()


def test_a_tpu_that_is_local_or_none_takes_local_paths():
    for name in (None, "local"):
        assert not strategy.is_remote_tpu(name)
        preflight.check_places(name, data_dir="/records", eval_data_dir=None)


class EightCores:
    """What the pre-flight check asks of a TPU's strategy."""

    num_replicas_in_sync = 8
    extended = types.SimpleNamespace(worker_devices=["/job:worker/replica:0/task:0/device:TPU:0"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_batch_size": 12}, "train_batch_size is 12: expected a multiple of 8 replica.s. x 1 accumulation"),
        ({"train_batch_size": 24, "grad_accum_steps": 2}, "x 2 accumulation step.s. = 16"),
        ({"eval_batch_size": 12}, "eval_batch_size is 12: expected a multiple of the 8 replicas"),
        ({"train_batch_size": 80_000}, "fewer than one batch"),
        ({"mixed_precision": "mixed_float16"}, "mixed_float16 on a TPU, which has no float16: give mixed_bfloat16"),
    ],
)
def test_what_eight_cores_cannot_share_is_refused(records, config_file, changes, words):
    from albert_tf.config import AlbertConfig

    names = {field.name: None for field in dataclasses.fields(preflight.PretrainingSettings)}
    given = {"data_dir": str(records), "skip_corrupt_records": False, "train_batch_size": 16, "eval_batch_size": 16}
    given |= {"grad_accum_steps": 1, "num_warmup_steps": 0, "num_train_steps": 1, "mixed_precision": "mixed_bfloat16"}
    config = AlbertConfig.from_json(config_file)
    settings = preflight.PretrainingSettings(**{**names, **given, "model": config})
    data = preflight.open_data(settings)
    preflight.check(settings, config, data, EightCores())
    with pytest.raises(UserError, match=words):
        preflight.check(dataclasses.replace(settings, **changes), config, data, EightCores())
