"""Every text task trains, evaluates and predicts through the command line."""

import json

import numpy as np
import pytest

from albert_tf.__main__ import main

TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")


def command(name, **flags):
    """Runs a command in this process and returns its exit code."""
    return main(["albert_tf", name, *(f"--{flag}={value}" for flag, value in flags.items())])


def finetune(**flags):
    settings = {"num_train_steps": 4, "train_batch_size": 8, "max_seq_length": 32, "learning_rate": 1e-3, **flags}
    return command("finetune", **settings)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_evaluates_predicts(name, glue_root, tiny_model, tmp_path, capfd):
    run = tmp_path / "run"
    assert finetune(task_name=name.upper(), data_dir=glue_root, model_dir=tiny_model, output_dir=run) == 0
    result = json.loads((run / "results.json").read_text())
    splits = ["dev_matched", "dev_mismatched"] if name == "mnli" else ["dev"]
    assert list(result["metrics"]) == splits and result["last_step"] == 4
    folder = glue_root / {"cola": "CoLA"}.get(name, name.upper())
    capfd.readouterr()
    assert command("evaluate", model_dir=run, data_dir=folder) == 0
    shown = capfd.readouterr().out.splitlines()
    for split, line in zip(splits, shown, strict=False):
        expected = result["metrics"][split]
        assert line.startswith(f"{split}: 8 examples: ") and f"{next(iter(expected.values())):.4f}" in line
    test_file = folder / ("test_matched.tsv" if name == "mnli" else "test.tsv")
    assert command("predict", model_dir=run, input_file=test_file, output_file=tmp_path / "predictions.tsv") == 0
    header, *lines = [line.split("\t") for line in (tmp_path / "predictions.tsv").read_text().splitlines()]
    assert header[:2] == ["id", "prediction"] and [line[0] for line in lines] == ["0", "1", "2", "3", "4"]
    if name != "sts-b":
        labels = [column.removeprefix("probability_") for column in header[2:]]
        for _, label, *probabilities in lines:
            values = np.array(probabilities, float)
            np.testing.assert_allclose(values.sum(), 1, atol=2e-6)
            assert label == labels[values.argmax()]
