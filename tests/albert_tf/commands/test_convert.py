"""`albert_tf convert` as a user runs it."""

import json

import numpy as np
import pytest

from albert_tf import checkpoints, heads
from albert_tf.__main__ import main
from albert_tf.commands import convert
from albert_tf.config import AlbertConfig
from albert_tf.conversion import release

CONFIG = AlbertConfig(
    vocab_size=50, embedding_size=8, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


def test_every_head_can_be_named():
    assert set(convert.HEADS) == set(heads.HEADS)


@pytest.fixture
def source(tmp_path):
    """A release checkpoint of a classifier with three labels and optimiser slots."""
    model = checkpoints.new_model(CONFIG, {"classifier": {"num_labels": 3}})
    folder = tmp_path / "release"
    folder.mkdir()
    release.write(folder, model)
    tensors = checkpoints.read_tensors(folder / release.CHECKPOINT)
    slots = {f"{name}/adam_{kind}": np.zeros_like(value) for name, value in tensors.items() for kind in "mv"}
    checkpoints.write_tensors(folder / release.CHECKPOINT, {**tensors, **slots, "global_step": np.int64(7)})
    return folder


def run(capsys, *arguments):
    code = main(["albert_tf", "convert", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_says_what_it_did_and_by_how_much_it_differs(tmp_path, source, capsys):
    output = tmp_path / "face"
    code, out, err = run(
        capsys, f"--model_dir={source}", f"--output_dir={output}", "--to=huggingface", "--label_names=no, maybe,yes"
    )
    assert code == 0, err
    assert f"release -> huggingface: {output}" in out and "heads: classifier" in out
    assert "filled: 27 variables" in out
    assert "skipped by rule: 55:" in out and "global_step" in out
    assert "model and source (NumPy): largest difference" in out
    assert "written huggingface folder and source (NumPy): largest difference" in out
    assert "notice: no tokeniser" in err
    theirs = json.loads((output / "config.json").read_text())
    assert theirs["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}


def test_head_none_takes_the_encoder_alone(tmp_path, source, capsys):
    code, out, _ = run(capsys, f"--model_dir={source}", f"--output_dir={tmp_path / 'n'}", "--to=native", "--head=none")
    assert code == 0
    assert "heads: none" in out and "left out: 2: output_bias, output_weights" in out
    assert not checkpoints.load_model(tmp_path / "n").heads


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to=native"], "--output_dir"),
        (["--to=tensorflow", "--output_dir=x"], "one of native, huggingface, release"),
        (["--to=native", "--output_dir=x", "--hidden_act=swish"], "gelu_erf"),
        (["--to=native", "--output_dir=x", "--head=none,classifier"], "none goes with no other head"),
    ],
)
def test_wrong_flags(source, capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, f"--model_dir={source}", *arguments)
    assert (code, out) == (2, "") and words in err and len(err.strip().splitlines()) == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["release"]


def test_configuration_can_be_named(tmp_path, source, capsys):
    (source / "albert_config.json").rename(tmp_path / "tiny.json")
    arguments = [f"--model_dir={source}", f"--output_dir={tmp_path / 'native'}", "--to=native"]
    assert run(capsys, *arguments)[0] == 2
    assert run(capsys, *arguments, f"--albert_config_file={tmp_path / 'tiny.json'}")[0] == 0
