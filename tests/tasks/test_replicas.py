"""Two replicas train and predict as one device does."""

import json
import subprocess
import sys

import numpy as np

_TWO_DEVICES = """
import json, sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from albert_tf.__main__ import main

for arguments in json.loads(sys.argv[1]):
    assert main(["albert_tf", *arguments]) == 0
"""


def test_mirrored_equals_one_device(glue_root, tiny_model, tmp_path, weights):
    def arguments(command, name, **flags):
        flags["distribution"] = "mirrored" if name == "two" else "cpu"
        return [command, *(f"--{flag}={value}" for flag, value in flags.items())]

    commands = []
    for name in ("one", "two"):
        commands.append(
            arguments(
                "finetune",
                name,
                task_name="rte",
                data_dir=glue_root,
                model_dir=tiny_model,
                output_dir=tmp_path / name,
                train_batch_size=8,
                grad_accum_steps=2,
                num_train_steps=6,
                num_warmup_steps=0,
                eval_every_steps=6,
                max_seq_length=32,
                learning_rate=1e-3,
                encoder_dropout=0.0,
                classifier_dropout=0.0,
            )
        )
        test = {"input_file": glue_root / "RTE/test.tsv", "output_file": tmp_path / f"{name}.tsv"}
        commands.append(arguments("predict", name, model_dir=tmp_path / name, eval_batch_size=3, **test))
    done = subprocess.run([sys.executable, "-c", _TWO_DEVICES, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 replica(s)" in done.stderr
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    start = weights(tiny_model)
    assert max(np.abs(one[name] - start[name]).max() for name in start if name in one) > 1e-3
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=2e-5, err_msg=name)
    rows = [(tmp_path / f"{name}.tsv").read_text().splitlines() for name in ("one", "two")]
    assert len(rows[0]) == len(rows[1]) == 6  # n rows in, n rows out, also where the last batch is filled up
    for first, second in zip(rows[0][1:], rows[1][1:], strict=True):
        np.testing.assert_allclose(
            np.array(first.split("\t")[2:], float), np.array(second.split("\t")[2:], float), atol=1e-4
        )
