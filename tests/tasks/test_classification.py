"""Heads, losses and predictions of classification and regression, against recorded outputs and by hand."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from tasks.catalog import make_task
from tasks.classification import ClassPrediction
from tasks.text import TextExample


def _golden(shared, folder, head):
    place = shared / "golden/tf1/heads" / folder
    stored = dict(np.load(place / "io.npz"))
    batch = {name: tf.constant(stored[name]) for name in ("input_ids", "input_mask", "segment_ids")}
    batch |= {"label": tf.constant(stored["label_ids"]), "feature_index": tf.range(len(stored["label_ids"]))}
    return checkpoints.load_model(place, heads=[head]), batch, stored


def test_classifier_gives_the_golden_logits_and_losses(shared):
    model, batch, stored = _golden(shared, "classifier_mnli3", "classifier")
    task = make_task("mnli")
    outputs = task.forward(model, batch)
    np.testing.assert_allclose(outputs["logits"], stored["logits"], atol=2e-5)
    losses = task.loss(outputs, batch)
    np.testing.assert_allclose(losses, stored["per_example_loss"], atol=2e-5)
    np.testing.assert_allclose(
        tf.reduce_sum(losses) / tf.reduce_sum(task.loss_weights(batch)), stored["loss"], atol=2e-5
    )
    rows = [{"logits": row} for row in outputs["logits"].numpy()]
    predictions = task.predictions(rows, [], [])
    np.testing.assert_allclose([one.probabilities for one in predictions], stored["probabilities"], atol=2e-5)
    assert [task.labels.index(one.label) for one in predictions] == stored["predictions"].tolist()


def test_regression_gives_the_golden_logits_and_losses(shared):
    model, batch, stored = _golden(shared, "regression_stsb", "regression")
    task = make_task("sts-b")
    outputs = task.forward(model, batch)
    np.testing.assert_allclose(outputs["logits"][:, 0], stored["logits"], atol=2e-5)
    losses = task.loss(outputs, batch)
    np.testing.assert_allclose(losses, stored["per_example_loss"], atol=2e-5, rtol=2e-5)
    np.testing.assert_allclose(tf.reduce_mean(losses), stored["loss"], atol=2e-5)
    predictions = task.predictions([{"logits": row} for row in outputs["logits"].numpy()], [], [])
    np.testing.assert_allclose(predictions, stored["predictions"], atol=2e-5)


def _examples(labels):
    return [TextExample(str(i), ("a", "b"), label) for i, label in enumerate(labels)]


def _class_predictions(task, labels):
    return [ClassPrediction(label, np.eye(len(task.labels))[task.labels.index(label)]) for label in labels]


def test_ensembles_average_probabilities():
    task = make_task("rte")
    first = [ClassPrediction("entailment", np.array([0.6, 0.4]))]
    second = [ClassPrediction("not_entailment", np.array([0.1, 0.9]))]
    together = task.combined([first, second])
    np.testing.assert_allclose(together[0].probabilities, [0.35, 0.65])
    assert together[0].label == "not_entailment"
    assert make_task("sts-b").combined([[1.0, 2.0], [2.0, 5.0]]) == [1.5, 3.5]


def test_metrics_take_class_one_as_positive():
    task = make_task("rte")  # class 1 is not_entailment
    labels = ["entailment", "not_entailment", "not_entailment", "entailment"]
    scores = task.metrics(
        _class_predictions(task, ["entailment", "not_entailment", "entailment", "entailment"]), _examples(labels)
    )
    assert scores["accuracy"] == 0.75 and scores["f1"] == pytest.approx(2 / 3)
    assert "f1" not in make_task("mnli").metrics(
        _class_predictions(make_task("mnli"), ["neutral", "neutral"]), _examples(["neutral", "entailment"])
    )


def test_degenerate_classifiers_are_named():
    task = make_task("sst-2")
    labels = ["0", "1"] * 50
    constant = _class_predictions(task, ["1"] * 100)
    assert "all 100 predictions are '1'" in task.degenerate(constant, _examples(labels))
    guessing = _class_predictions(task, (["0"] * 2 + ["1"] * 2) * 25)
    assert "is that of guessing" in task.degenerate(guessing, _examples(labels))
    assert task.degenerate(_class_predictions(task, labels), _examples(labels)) is None
    assert task.degenerate(constant, _examples(["1"] * 100)) is None  # one class is the right answer


def test_degenerate_regressions_are_named():
    task = make_task("sts-b")
    labels = [0.0, 1.0, 2.0, 5.0] * 10
    assert "a constant" in task.degenerate([2.5 + 1e-4 * (i % 2) for i in range(40)], _examples(labels))
    assert "is that of guessing" in task.degenerate([float(i // 4) for i in range(40)], _examples(labels))
    assert task.degenerate([label + 0.1 for label in labels], _examples(labels)) is None


def test_prediction_rows(tmp_path):
    task = make_task("classification", labels=("bad\tone", "good"))
    examples = _examples([None, None])
    predictions = [ClassPrediction("good", np.array([0.25, 0.75])), ClassPrediction("bad\tone", np.array([0.9, 0.1]))]
    assert task.write_predictions(tmp_path / "p.tsv", predictions, examples) == [str(tmp_path / "p.tsv")]
    assert (tmp_path / "p.tsv").read_text().splitlines() == [
        "id\tprediction\tprobability_bad one\tprobability_good",
        "0\tgood\t0.250000\t0.750000",
        "1\tbad one\t0.900000\t0.100000",
    ]
    make_task("regression").write_predictions(tmp_path / "p.csv", [1.5, 2.0], examples)
    assert (tmp_path / "p.csv").read_text() == "id,prediction\n0,1.500000\n1,2.000000\n"
    (example,) = _examples([None])
    make_task("regression").write_predictions(tmp_path / "p.tsv", [1.5], [dataclasses.replace(example, id="a\ud83d")])
    assert (tmp_path / "p.tsv").read_text() == "id\tprediction\na\\ud83d\t1.500000\n"
