"""The whole way, by the commands alone: text, vocabulary, records, pretraining, resuming, measuring, filling in."""

import json

import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main

CONFIG = {
    "vocab_size": 800,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.1,
}


@pytest.fixture
def albert_tf(capsys):
    """Runs a command that has to succeed; gives standard output and standard error."""

    def run(command, **flags):
        code = main(["albert_tf", command, *(f"--{name}={value}" for name, value in flags.items())])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, err

    return run


def test_from_text_to_a_filled_mask(albert_tf, prose, tmp_path):
    vocabulary, records, run = (tmp_path / name for name in ("vocabulary", "records", "run"))
    (tmp_path / "albert_config.json").write_text(json.dumps(CONFIG))
    albert_tf("train_vocab", input_file=prose, output_dir=vocabulary, vocab_size=800)
    out, _ = albert_tf(
        "create_pretraining_data",
        input_file=prose,
        output_dir=records,
        spm_model_file=vocabulary / "spiece.model",
        max_seq_length=32,
        heldout_fraction=0.1,
        num_workers=1,
    )
    assert f"records: {records}" in out
    pretraining = {
        "data_dir": records,
        "output_dir": run,
        "albert_config_file": tmp_path / "albert_config.json",
        "train_batch_size": 16,
        "learning_rate": 0.01,
        "num_warmup_steps": 2,
        "save_checkpoints_steps": 10,
        "distribution": "cpu",
    }
    out, first = albert_tf("pretrain", **pretraining, num_train_steps=10)
    assert f"model: {run}" in out and "step 0: evaluation on" in first and "step 10: evaluation on" in first
    _, second = albert_tf("pretrain", **pretraining, num_train_steps=20)
    assert "resuming at step 10" in second and "step 20: evaluation on" in second
    out, _ = albert_tf(
        "evaluate_pretraining", model_dir=run, data_dir=records / "heldout", output_file=tmp_path / "metrics.json"
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["masked_lm_loss"] == pytest.approx(last["masked_lm_loss"], rel=1e-5)
    assert 3 < metrics["masked_lm_loss"] < 6.4  # below the log of 800 that it began with
    assert f"{metrics['masked_lm_accuracy']:.4f}" in out and "sentence order" in out
    out, _ = albert_tf("fill_mask", model_dir=run, text="The [MASK] of a class is an [MASK].", top_k=3)
    lines = out.splitlines()
    assert len(lines) == 3 and lines[1].startswith("  [MASK] 1:  ") and lines[2].startswith("  [MASK] 2:  ")
    assert checkpoints.load_model(run).info.made_by["step"] == 20


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "missing --data_dir, --output_dir"),
        ({"data_dir": "x", "output_dir": "y"}, "give one of --preset=NAME and --albert_config_file=FILE"),
        (
            {"data_dir": "x", "output_dir": "y", "preset": "albert_bas"},
            "unknown preset 'albert_bas'; did you mean ",
        ),
        ({"data_dir": "x", "output_dir": "y", "preset": "albert_tiny"}, "no records at x"),
        (
            {"data_dir": "x", "output_dir": "y", "presett": "albert_tiny"},
            "unknown flag --presett, did you mean --preset?",
        ),
        ({"data_dir": "x", "output_dir": "y", "optimizer": "adam"}, "--optimizer=adam: expected one of lamb, adamw"),
        (
            {"data_dir": "x", "output_dir": "y", "num_train_steps": 0},
            "--num_train_steps=0: expected a positive integer",
        ),
        ({"data_dir": "x", "output_dir": "y", "learning_rate": "nan"}, "expected a finite number"),
        ({"data_dir": "x", "output_dir": "y", "learning_rate": -1}, "--learning_rate=-1"),
        (
            {"data_dir": "x", "output_dir": "y", "deterministic": "maybe"},
            "--deterministic=maybe: expected true or false",
        ),
        ({"data_dir": "x", "output_dir": "y", "seed": 2**31}, f"--seed={2**31}"),
        (
            {"data_dir": "x", "output_dir": "y", "preset": "albert_tiny", "init_from_group0": "true"},
            "--init_from_group0 is given without --init_checkpoint",
        ),
        ({"data_dir": "x", "output_dir": "y", "distribution": "two"}, "expected one of auto, cpu, gpu, mirrored"),
    ],
)
def test_wrong_use_of_pretrain_is_one_line(capsys, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    code = main(["albert_tf", "pretrain", *(f"--{name}={value}" for name, value in flags.items())])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err, err
    assert not list(tmp_path.iterdir())
