"""Measuring a model on records: the numbers against NumPy, the other sentence objective, refusals."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.conversion.names import POOLER
from albert_tf.pretraining import dataset, record_source
from albert_tf.pretraining.records import RecordsInfo
from tpu import strategy


@pytest.fixture
def evaluate(capsys):
    """Runs the command; returns exit code, standard output and standard error."""

    def run(model_dir, data_dir, **flags):
        flags = {"model_dir": model_dir, "data_dir": data_dir, "distribution": "cpu", **flags}
        code = main(["albert_tf", "evaluate_pretraining", *(f"--{name}={value}" for name, value in flags.items())])
        return code, *capsys.readouterr()

    return run


def test_a_pooler_that_no_objective_trains_is_reported_as_new(pretrain, finished, make_records, tmp_path):
    code, said = pretrain(make_records(objective="none"), tmp_path / "run", num_train_steps=1, num_warmup_steps=0)
    assert code == 0, said
    assert checkpoints.load_model(tmp_path / "run").restored.new == POOLER
    assert checkpoints.load_model(tmp_path / "run/checkpoints/ckpt-1").restored.new == POOLER
    assert checkpoints.load_model(finished[0]).restored.new == ()


def test_a_pooler_that_no_run_has_trained_stays_new_in_the_run_after_it(pretrain, finished, make_records, tmp_path):
    """As where most steps are at 128 tokens, and a second run goes on at 512."""
    records, flags = make_records(objective="none"), {"num_train_steps": 1, "num_warmup_steps": 0}
    assert pretrain(records, tmp_path / "first", **flags)[0] == 0
    for name, start, expected in (("second", tmp_path / "first", POOLER), ("trained", finished[0], ())):
        code, said = pretrain(records, tmp_path / name, init_checkpoint=start, **flags)
        assert code == 0, said
        assert checkpoints.load_model(tmp_path / name).restored.new == expected
    more = {**flags, "num_train_steps": 2, "init_checkpoint": tmp_path / "first"}
    assert pretrain(records, tmp_path / "second", **more)[0] == 0  # the same run goes on
    model = checkpoints.load_model(tmp_path / "second")
    assert model.restored.new == POOLER and model.info.made_by["step"] == 2


def numpy_metrics(model, features):
    """The measurements of one batch, from logits, straight from their definitions."""
    inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = model.encoder(inputs, training=False)
    hidden = np.take_along_axis(outputs["sequence_output"].numpy(), features["masked_lm_positions"][..., None], axis=1)
    masked = model.heads["masked_lm"](tf.constant(hidden), model.encoder.embeddings.word_embeddings).numpy()
    pairs = model.heads["sentence_order"](outputs["pooled_output"]).numpy()

    def losses(logits, labels):
        logits = logits.astype(np.float64)
        picked = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return np.log(np.exp(logits).sum(-1)) - picked, logits.argmax(-1) == labels

    real = features["masked_lm_weights"] > 0
    loss, hits = losses(masked, features["masked_lm_ids"])
    order_loss, order_hits = losses(pairs, features["sentence_labels"])
    known = features["sentence_weights"] > 0
    accuracy = order_hits[known].mean()
    return {
        "masked_lm_loss": loss[real].mean(),
        "masked_lm_accuracy": hits[real].mean(),
        "masked_lm_baseline_accuracy": np.bincount(features["masked_lm_ids"][real]).max() / real.sum(),
        "masked_lm_predictions": real.sum(),
        "sentence_order_loss": order_loss[known].mean(),
        "sentence_order_accuracy": accuracy,
        "sentence_order_pairs": known.sum(),
        "sentence_order_error": math.sqrt(accuracy * (1 - accuracy) / known.sum()),
    }


def test_a_remote_tpu_refuses_local_paths_before_it_is_asked(evaluate, records, tmp_path, monkeypatch):
    monkeypatch.setattr(strategy, "make_strategy", lambda *_, **__: pytest.fail("the TPU was asked"))
    code, _, errors = evaluate(tmp_path, records, distribution="tpu", tpu_name="grpc://10.0.0.2:8470")
    assert code == 2 and f"data_dir is {records}, which the TPU 'grpc://10.0.0.2:8470' cannot read" in errors


@pytest.mark.parametrize("objective", ["as_trained", "nsp"])
def test_measurements_equal_numpy(finished, records, evaluate, tmp_path, objective):
    """50 records in batches of 16, the last one filled up with rows that must not count."""
    file = tmp_path / "metrics.json"
    flags = {"sentence_objective": objective, "num_records": 50, "eval_batch_size": 16, "output_file": file}
    code, output, errors = evaluate(finished[0], records / "heldout", **flags)
    assert code == 0, errors
    model = checkpoints.load_model(finished[0])
    batches = dataset.evaluation_dataset(
        record_source.open_records(records / "heldout"),
        dataset.Batching(tokenizer=model.tokenizer, global_batch_size=50),
        num_records=50,
        sentence_objective=None if objective == "as_trained" else objective,
    )
    expected = numpy_metrics(model, next(iter(batches.as_numpy_iterator())))
    found = json.loads(file.read_text())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    assert found["sentence_objective"] == {"as_trained": "sop", "nsp": "nsp"}[objective]
    assert found["sequences"] == 50 and found["made_by"]["step"] == 6
    table = output.splitlines()
    assert table[0] == "50 sequences of 32 tokens"
    assert table[2].split()[2:5] == [
        f"{found[f'masked_lm_{name}']:.4f}" for name in ("loss", "accuracy", "baseline_accuracy")
    ]
    title = {"as_trained": "sentence order", "nsp": "next sentence"}[objective]
    assert table[3].startswith(
        f"{title}  {found['sentence_order_loss']:.4f}  {found['sentence_order_accuracy']:.4f} ± "
    )


def test_it_equals_the_evaluation_within_the_run(finished, records, evaluate, tmp_path):
    assert evaluate(finished[0], records / "heldout", output_file=tmp_path / "metrics.json")[0] == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    last = json.loads((finished[0] / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("loss", "masked_lm_accuracy", "masked_lm_baseline_accuracy", "sentence_order_accuracy"):
        assert found[name] == pytest.approx(last[name], rel=1e-5), name


def test_a_model_without_sentence_order_is_measured_on_what_it_has(finished, records, make_records, evaluate, tmp_path):
    model = checkpoints.load_model(finished[0], heads=["masked_lm"])
    options = {"masked_lm": {}}
    checkpoints.save_model(
        tmp_path / "model", dataclasses.replace(model, info=dataclasses.replace(model.info, heads=options))
    )
    code, output, _ = evaluate(tmp_path / "model", records / "heldout", num_records=8)
    assert code == 0 and "masked LM" in output and "sentence" not in output
    code, output, errors = evaluate(tmp_path / "model", records / "heldout", sentence_objective="sop")
    assert code == 2 and "has no trained sentence-order head (heads: masked_lm)" in errors
    code, output, errors = evaluate(finished[0], make_records(objective="none"), num_records=8)
    assert code == 0 and "masked LM" in output and "sentence" not in output
    code, output, errors = evaluate(finished[0], make_records(objective="none"), sentence_objective="nsp")
    assert code == 2 and "cannot measure nsp on records made with the objective none" in errors


def test_what_cannot_be_measured_is_refused_in_one_line(finished, records, evaluate, tmp_path, tiny_spm):
    model = checkpoints.load_model(finished[0], heads=["sentence_order"])
    headless = dataclasses.replace(model, info=dataclasses.replace(model.info, heads={"sentence_order": {}}))
    checkpoints.save_model(tmp_path / "headless", headless)
    other = shutil.copytree(records / "heldout", tmp_path / "other")
    info = RecordsInfo.read(other)
    dataclasses.replace(info, vocabulary_hash="0" * 64).write(other)
    broken = shutil.copytree(records / "heldout", tmp_path / "broken")
    shard = next(broken.glob("*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(bytes(content))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    heldout = records / "heldout"
    cases = [
        ((tmp_path / "none", heldout, {}), "none"),
        ((finished[0], tmp_path / "none", {}), "no records at"),
        ((tmp_path / "headless", heldout, {}), "has no trained masked LM head (heads: sentence_order)"),
        ((finished[0], other, {}), "another vocabulary"),
        ((finished[0], broken, {}), f"{shard} is damaged: the record at byte offset 0 is wrong"),
        ((finished[0], heldout, {"vocab_file": tmp_path / "vocab.txt"}), "the model was made with"),
        ((finished[0], heldout, {"vocab_file": "a", "spm_model_file": "b"}), "are both given"),
        ((finished[0], heldout, {"sentence_objective": "mlm"}), "expected one of as_trained, sop, nsp"),
        ((finished[0], heldout, {"output_file": tmp_path / "none" / "m.json", "num_records": 4}), "there is no folder"),
    ]
    for (model_dir, data_dir, flags), words in cases:
        code, _, errors = evaluate(model_dir, data_dir, **flags)
        last = errors.splitlines()[-1]
        assert code == 2 and words in last and last.startswith("albert_tf evaluate_pretraining: "), errors


def test_the_release_and_its_records(shared, evaluate):
    """Records that the release wrote, with a tokeniser named by flag, measured by a model of that vocabulary."""
    spm = shared / "data" / "sentencepiece" / "30k-clean.model"
    if not spm.exists():
        pytest.skip(f"no {spm}")
    model = shared / "golden" / "tf1" / "tiny_shared"
    code, _, errors = evaluate(model, shared / "golden" / "data" / "seq128_pred20.first20.tfrecord", spm_model_file=spm)
    assert code == 2 and "30000 pieces, the embedding table 120 rows" in errors
