"""Every text task trains, goes on, evaluates and predicts through the command line."""

import concurrent.futures
import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError

# One with one file, one with two of each kind and pairs, one of numbers; test_glue.py reads the files of all.
QUICK = ("sst-2", "mnli", "sts-b")
SLOW = ("cola", "mrpc", "qqp", "qnli", "rte", "wnli")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_task(name, glue_root, tiny_model, tmp_path, capfd, command, finetune):
    run = tmp_path / "run"
    given = {"task_name": name.upper(), "data_dir": glue_root, "model_dir": tiny_model, "output_dir": run}
    assert finetune(**given, num_train_steps=2) == 0
    assert finetune(**given, num_train_steps=4) == 0
    assert "going on from step 2" in capfd.readouterr().err
    result = json.loads((run / "results.json").read_text())
    splits = ["dev_matched", "dev_mismatched"] if name == "mnli" else ["dev"]
    assert list(result["metrics"]) == splits and result["last_step"] == 4

    folder = glue_root / {"cola": "CoLA"}.get(name, name.upper())
    assert command("evaluate", model_dir=run, data_dir=folder) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("DEGENERATE")]
    assert len(lines) == len(splits)
    for split, line in zip(splits, lines, strict=True):
        expected = " | ".join(f"{metric} {value:.4f}" for metric, value in result["metrics"][split].items())
        assert line == f"{split}: 8 examples: {expected}"

    test_file = folder / ("test_matched.tsv" if name == "mnli" else "test.tsv")
    assert command("predict", model_dir=run, input_file=test_file, output_file=tmp_path / "predictions.tsv") == 0
    header, *lines = [line.split("\t") for line in (tmp_path / "predictions.tsv").read_text().splitlines()]
    assert header[:2] == ["id", "prediction"] and [line[0] for line in lines] == ["0", "1", "2", "3", "4"]
    labels = [column.removeprefix("probability_") for column in header[2:]]
    for _, label, *probabilities in lines:
        values = np.array(probabilities, float)
        assert name == "sts-b" or (label == labels[values.argmax()] and values.sum() == pytest.approx(1, abs=2e-6))


def test_from_python_with_paths_as_pathlib_has_them(glue_root, tiny_model, tmp_path):
    from tasks.finetuned import Ensemble
    from tasks.finetuning import Settings, run

    small = {"num_train_steps": 2, "train_batch_size": 8, "max_seq_length": 32}
    settings = Settings(task_name="rte", data_dir=glue_root, model_dir=tiny_model, output_dir=tmp_path / "run", **small)
    result = run(settings)
    assert run(settings) == result
    assert run(dataclasses.replace(settings, model_dir=str(tiny_model), output_dir=str(tmp_path / "run"))) == result
    dev = glue_root / "RTE" / "dev.tsv"
    for folders in (tmp_path / "run", str(tmp_path / "run"), [tmp_path / "run"]):
        rte = Ensemble(folders)
        examples = rte.task.read(dev)
        assert rte.task.metrics(rte.predictions(examples, dev), examples) == pytest.approx(result["metrics"]["dev"])
    with pytest.raises(UserError, match="no model"):
        Ensemble([])
    for name in ("max_train_examples", "max_eval_examples", "eval_batch_size", "eval_every_steps"):
        with pytest.raises(UserError, match=f"{name} is -1, expected more than 0"):
            dataclasses.replace(settings, **{name: -1})


def test_a_word_is_learned_and_the_best_model_kept(glue_root, tiny_model, tmp_path, capfd, finetune):
    run = tmp_path / "run"
    given = {"task_name": "sst-2", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": run}
    given |= {"eval_file": glue_root / "SST-2/train.tsv", "learning_rate": 3e-3, "classifier_dropout": 0.0}
    assert finetune(**given, num_train_steps=40, eval_every_steps=10, early_stop_patience=2) == 0
    result = json.loads((run / "results.json").read_text())
    assert result["score"] == 1.0 and result["degenerate"] is None
    out, err = capfd.readouterr()
    assert "dev at step" in out and "accuracy 1.0000" in out
    assert "of the computed tokens are real" in err and "40 steps" in err and "batch 8" in err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [line["score"] for line in lines if line["kind"] == "evaluation" and line["step"]]
    best = [line["step"] for line in lines if line["kind"] == "evaluation"][1 + scores.index(max(scores))]
    assert result["best_step"] == best  # the first of the best
    assert lines[0]["kind"] == "evaluation" and lines[0]["step"] == 0  # what it was worth before training
    model = json.loads((run / "model.json").read_text())
    assert model["task"] == "sst-2" and model["labels"] == ["0", "1"] and model["max_seq_length"] == 32
    assert model["made_by"]["step"] == best and model["weights"] == f"weights-{best}"
    assert list((run / "checkpoints").glob("ckpt-*.index")) and list((run / "tensorboard").iterdir())
    if result["last_step"] < 40:
        assert f"stopped early at step {result['last_step']}" in err


def test_a_killed_run_goes_on_to_the_same_end(glue_root, tiny_model, tmp_path, monkeypatch, capfd, finetune):
    given = {"task_name": "mrpc", "data_dir": glue_root, "model_dir": tiny_model}
    given |= {"num_train_steps": 9, "eval_every_steps": 3, "encoder_dropout": 0.2}
    assert finetune(**given, output_dir=tmp_path / "whole") == 0
    from albert_tf.checkpoints import read_tensors
    from tasks.training_loop import TrainingLoop

    class Killed(BaseException):
        pass

    def killed(self, step):
        """Dies after the model of step 6 was written, and before its checkpoint."""
        if step == 6:
            raise Killed
        save(self, step)

    save = TrainingLoop._save
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_save", killed)
        with pytest.raises(Killed):
            finetune(**given, output_dir=tmp_path / "cut")
    assert finetune(**given, output_dir=tmp_path / "cut") == 0
    assert "going on from step 3" in capfd.readouterr().err
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "cut")]
    assert results[0] == results[1]
    whole, cut = (read_tensors(tmp_path / name / "checkpoints/ckpt-9") for name in ("whole", "cut"))
    assert any("beta" in name or "slot" in name.lower() for name in whole)  # the optimiser's state too
    for name, value in whole.items():
        if np.asarray(value).dtype.kind != "S":  # the object graph
            np.testing.assert_allclose(cut[name], value, atol=1e-6, err_msg=name)
    steps = [json.loads(line)["step"] for line in (tmp_path / "cut/metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 3, 3, 6, 6, 9, 9]  # nothing twice


def test_sigterm_saves_and_stops(glue_root, tiny_model, tmp_path, monkeypatch, capfd, finetune):
    import os
    import signal

    from tasks.training_loop import TrainingLoop

    given = {"task_name": "rte", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    before = signal.getsignal(signal.SIGTERM)

    def report(self, step, loss):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_report_training", report)
        with pytest.raises(SystemExit) as stopped:
            finetune(**given, num_train_steps=4, eval_every_steps=2)
    assert stopped.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before
    assert finetune(**given, num_train_steps=4, eval_every_steps=2) == 0
    assert "going on from step 2" in capfd.readouterr().err


def test_a_run_in_a_thread_leaves_signals_alone(glue_root, tiny_model, tmp_path, finetune):
    """As in a program of one's own: only the main thread of Python may handle signals."""
    given = {"task_name": "rte", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert pool.submit(finetune, **given, num_train_steps=1).result() == 0


def test_a_full_disk_is_told_and_not_taken_for_the_end(glue_root, tiny_model, tmp_path, monkeypatch, capfd, finetune):
    """TensorBoard's writer says OutOfRangeError on a full disk, which Model.fit takes for the end of the data."""
    given = {"task_name": "rte", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}

    def full(*_, step, **__):
        if step == 2:
            raise tf.errors.OutOfRangeError(None, None, "events.out.tfevents; No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.summary, "scalar", full)
        assert finetune(**given, num_train_steps=4, eval_every_steps=1) == 2
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("albert_tf finetune: cannot write the metrics to") and "No space left on device" in error
    assert finetune(**given, num_train_steps=4, eval_every_steps=1) == 0
    assert "going on from step 1" in capfd.readouterr().err


def test_training_that_ends_before_its_last_step_is_no_result(
    glue_root, tiny_model, tmp_path, monkeypatch, capfd, finetune
):
    """Model.fit takes several errors, StopIteration among them, for the end of the data, and ends in silence."""
    from tasks.training_loop import TrainingLoop

    given = {"task_name": "rte", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}

    def report(self, step, loss):
        raise StopIteration

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_report_training", report)
        assert finetune(**given, num_train_steps=4, eval_every_steps=2) == 2
    assert "training ended at step 2 of 4" in capfd.readouterr().err
    assert not (tmp_path / "run" / "results.json").exists()


def test_another_run_is_refused_by_name(glue_root, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given, num_train_steps=1) == 0
    assert finetune(**given, num_train_steps=1, learning_rate=5e-4) == 2
    assert "learning_rate 0.001, now it is 0.0005" in capfd.readouterr().err
    assert finetune(**given, num_train_steps=1, seed=2, max_seq_length=16) == 2
    assert "max_seq_length 32, now it is 16 (and seed)" in capfd.readouterr().err


def test_seeds_are_reported_with_median_and_spread(glue_root, tiny_model, tmp_path, capfd, finetune, weights):
    given = {"task_name": "qnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "runs"}
    assert finetune(**given, num_train_steps=2, num_seeds=3, seed=4) == 0
    summary = json.loads((tmp_path / "runs/results.json").read_text())
    scores = [summary["seeds"][seed]["score"] for seed in ("4", "5", "6")]
    assert summary["median"] == sorted(scores)[1] and summary["spread"] == pytest.approx(max(scores) - min(scores))
    out = capfd.readouterr().out
    assert all(f"seed {seed}: accuracy" in out for seed in (4, 5, 6)) and "median" in out and "spread" in out
    best, root = weights(tmp_path / f"runs/seed-{summary['best_seed']}"), weights(tmp_path / "runs")
    assert all(np.array_equal(best[name], root[name]) for name in best)
    # a second run of the same command finds everything done; the features of all seeds were made once
    assert len(list((tmp_path / "runs/features").iterdir())) == 2


def test_seeds_never_write_over_another_model(glue_root, tiny_model, tmp_path, capfd, finetune):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": model, "output_dir": model, "num_seeds": 2}
    assert finetune(**given, num_train_steps=1) == 2
    assert "but no runs of seeds" in capfd.readouterr().err
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_weights_that_are_no_numbers_are_never_kept(glue_root, tiny_model, tmp_path, capfd, finetune):
    """A rate beyond all reason: the loss of step 1 is fine, the weights after it are not."""
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given, num_train_steps=1, num_warmup_steps=0, learning_rate=3e38) == 2
    assert "weights are not finite after step 1" in capfd.readouterr().err
    assert not list(tmp_path.glob("run/weights*")) and not list(tmp_path.glob("run/checkpoints/*.index"))


def test_a_run_whose_evaluations_are_lost_keeps_its_best_model(glue_root, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given, num_train_steps=1) == 0
    (tmp_path / "run/metrics.jsonl").write_text('5\n{"kind": "evaluation", "step": 0, "score"')
    model = (tmp_path / "run/model.json").read_bytes()
    assert finetune(**given, num_train_steps=2) == 2
    assert "metrics.jsonl lacks the evaluation of step 1" in capfd.readouterr().err
    assert (tmp_path / "run/model.json").read_bytes() == model


def test_heads_of_other_tasks(glue_root, tiny_model, tmp_path, capfd, command, finetune):
    start = {"data_dir": glue_root, "num_train_steps": 1}
    assert finetune(**start, task_name="mnli", model_dir=tiny_model, output_dir=tmp_path / "mnli") == 0
    capfd.readouterr()
    assert finetune(**start, task_name="rte", model_dir=tmp_path / "mnli", output_dir=tmp_path / "rte") == 0
    err = capfd.readouterr().err
    assert "the head classifier of task mnli" in err and "DROPPED" in err
    assert "NEW, not restored: classifier/kernel, classifier/bias" in err
    assert finetune(**start, task_name="mnli", model_dir=tmp_path / "mnli", output_dir=tmp_path / "again") == 0
    err = capfd.readouterr().err
    assert "DROPPED" not in err and "NEW" not in err  # the same task goes on with its head

    rte = glue_root / "RTE/dev.tsv"
    assert command("evaluate", model_dir=tmp_path / "mnli", input_file=rte, task_name="rte") == 2
    assert "has the head of task mnli, asked for is rte" in capfd.readouterr().err
    assert command("predict", model_dir=tiny_model, input_file=rte, output_file=tmp_path / "p.tsv") == 2
    assert "is not a fine-tuned model" in capfd.readouterr().err and not (tmp_path / "p.tsv").exists()

    ax = {"input_file": glue_root / "AX/diagnostic.tsv", "output_file": tmp_path / "ax.tsv", "task_name": "AX"}
    assert command("predict", model_dir=tmp_path / "mnli", **ax) == 0
    assert len((tmp_path / "ax.tsv").read_text().splitlines()) == 2


def test_random_weights_take_only_sizes_and_tokeniser(glue_root, tiny_model, tmp_path, capfd, finetune, weights):
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given, num_train_steps=1, learning_rate=0.0, random_weights=True) == 0
    assert "every weight is new" in capfd.readouterr().err
    name = "encoder/embeddings/word_embeddings"
    assert np.abs(weights(tmp_path / "run")[name] - weights(tiny_model)[name]).max() > 0.1
