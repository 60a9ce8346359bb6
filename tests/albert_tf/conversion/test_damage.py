"""Weights and descriptions that are damaged, odd or in odd places."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.conversion import sources
from albert_tf.conversion.convert import convert
from albert_tf.errors import UserError


@pytest.mark.parametrize("kind", ["release", "huggingface", "native"])
@pytest.mark.parametrize(("variable", "value"), [("pooler/bias", np.inf), ("embeddings/word_embeddings", np.nan)])
def test_not_finite_weights(write, refused, random_model, kind, variable, value):
    """Also where the check by numbers would not see it: saturated, or in one row of a large table."""
    model = random_model(vocab_size=5000)
    weights = model.named_variables()[f"encoder/{variable}"]
    weights.assign(np.concatenate([weights.numpy()[:-1], np.full_like(weights[-1:], value)]))
    message = refused(write(kind, model), to="release" if kind == "native" else "native")
    assert "not finite numbers" in message and variable.split("/")[0] in message


@pytest.mark.parametrize("dtype", [np.int32, np.int8, bool])
def test_quantised_weights(released, face, refused, dtype):
    prefix = released / "model.ckpt-best"
    tensors = checkpoints.read_tensors(prefix)
    tensors["bert/pooler/dense/bias"] = tensors["bert/pooler/dense/bias"].astype(dtype)
    checkpoints.write_tensors(prefix, tensors)
    assert f"encoder/pooler/bias holds {np.dtype(dtype)} values" in refused(released)
    weights = face / "model.safetensors"
    tensors = safetensors.numpy.load_file(weights)
    tensors["albert.pooler.bias"] = tensors["albert.pooler.bias"].astype(dtype)
    safetensors.numpy.save_file(tensors, weights)
    reason = "the type 'I8'" if dtype == np.int8 else f"encoder/pooler/bias holds {np.dtype(dtype)} values"
    assert reason in refused(face)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floating_point_numbers(released, tmp_path, dtype):
    prefix = released / "model.ckpt-best"
    tensors = checkpoints.read_tensors(prefix)
    checkpoints.write_tensors(prefix, {name: value.astype(dtype) for name, value in tensors.items()})
    convert(released, tmp_path / "out", "native")
    kernel = checkpoints.load_model(tmp_path / "out").encoder.pooler.kernel
    np.testing.assert_array_equal(kernel, tensors["bert/pooler/dense/kernel"].astype(dtype).astype(np.float32))


def test_text_in_place_of_weights(write, random_model, refused):
    folder = write("native", random_model())
    prefix = folder / "weights-0"
    for odd in (np.array("x"), np.array(["x"])):
        checkpoints.write_tensors(prefix, {**checkpoints.read_tensors(prefix), "encoder/pooler/bias": odd})
        assert "encoder/pooler/bias has shape" in refused(folder, to="huggingface")


def test_head_of_one_number(released, refused):
    prefix = released / "model.ckpt-best"
    checkpoints.write_tensors(prefix, {**checkpoints.read_tensors(prefix), "output_weights": np.float32(1)})
    assert "say which with --head" in refused(released)


def test_exact_gelu_of_a_release_checkpoint(released, tmp_path):
    """As the user asks for it, by flag or in the configuration beside the checkpoint."""
    convert(released, tmp_path / "by_flag", "native", hidden_act="gelu_erf")
    path = released / "albert_config.json"
    config = {**json.loads(path.read_text()), "hidden_act": "gelu_erf", "layer_norm_epsilon": 1e-3}
    path.write_text(json.dumps(config))
    convert(released, tmp_path / "by_file", "huggingface")
    assert checkpoints.load_model(tmp_path / "by_flag").config.hidden_act == "gelu_erf"
    assert checkpoints.load_model(tmp_path / "by_file").config.layer_norm_epsilon == 1e-3


def test_configuration_file_that_would_not_be_read(face, write, random_model, refused):
    for folder in (face, write("native", random_model(), "native")):
        assert "leave --albert_config_file out" in refused(folder, "--albert_config_file=nowhere")
    assert "--head is empty" in refused(face, "--head=")


@pytest.mark.parametrize("to", ["native", "huggingface", "release"])
def test_disk_that_is_full(released, tmp_path, capsys, to):
    """A limit on the size of files stands for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        code = main(
            ["albert_tf", "convert", f"--model_dir={released}", f"--output_dir={tmp_path / 'out'}", f"--to={to}"]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    output, said = capsys.readouterr()
    assert code == 2 and output == ""
    assert said.count("\n") == 1 and "File too large" in said and "{{" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("to", ["native", "huggingface", "release"])
def test_names_that_tensorflow_takes_for_patterns(released, tmp_path, to):
    name = "model [1] of *"
    released.rename(tmp_path / name)
    convert(tmp_path / name, tmp_path / f"out {name}", to)
    assert checkpoints.load_model(tmp_path / f"out {name}").config == checkpoints.load_model(tmp_path / name).config


def test_names_that_are_not_utf8(released, tmp_path):
    """In a process of its own: reports of tests cannot carry such names."""
    name = os.fsdecode(b"mod\xe8le")
    released.rename(tmp_path / name)
    flags = [f"--model_dir={name}", f"--output_dir=out {name}", "--to=native"]
    done = subprocess.run([sys.executable, "-m", "albert_tf", "convert", *flags], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, ascii(done.stderr)
    assert os.path.isfile(os.path.join(os.fsencode(tmp_path), b"out mod\xe8le", b"model.json"))


ODD = [None, 5, -1, 3.5, True, "x", [], [1], {}, {"a": 1}, 10**30, float("nan")]


@pytest.mark.parametrize(
    "key", ["architectures", "hidden_act", "id2label", "label2id", "problem_type", "classifier_dropout_prob", "zzz"]
)
def test_odd_values_in_a_huggingface_configuration(write, random_model, key):
    """Whatever stands there: a model, or one sentence."""
    folder = write("huggingface", random_model({"classifier": {"num_labels": 3}}))
    check_odd_values(folder / "config.json", key)


@pytest.mark.parametrize("key", [*checkpoints.ModelInfo.__dataclass_fields__, "weights", "format_version"])
def test_odd_values_in_a_model_description(write, random_model, key):
    folder = write("native", random_model({"classifier": {"num_labels": 3}}))
    check_odd_values(folder / "model.json", key)


def check_odd_values(path, key):
    values = json.loads(path.read_text())
    for odd in ODD:
        path.write_text(json.dumps({**values, key: odd}))
        try:
            with sources.opened(path.parent) as source:
                source.model()
        except UserError as error:
            assert path.parent.name in str(error) or "head" in str(error)


def test_head_options_that_are_not_possible(write, random_model):
    folder = write("native", random_model({"classifier": {"num_labels": 3}}))
    values = json.loads((folder / "model.json").read_text())
    for heads, words in (
        ({"classifier": {"num_labels": "x"}}, "the classifier head has num_labels 'x'"),
        ({"classifier": {"num_labels": 3, "dropout_rate": 1.0}}, "the classifier head has dropout_rate 1.0: expected"),
        ({"classifier": {"num_labels": 3, "dropout_rate": "x"}}, "the classifier head has dropout_rate 'x': expected"),
        ({"classifier": {"num_labels": 3, "dropout_rate": 7}}, "the classifier head has dropout_rate 7: expected"),
        ({"classifier": {"num_labels": 3, "wings": 2}}, "'wings'"),
        ({"classifier": {"num_labels": 3, "name": "mine"}}, "the classifier head has its own name: expected only"),
        ({"classifier": {"num_labels": 3, "dtype": "int8"}}, "the classifier head has its own dtype: expected only"),
        ({"tail": {}}, "no head is named 'tail'"),
    ):
        (folder / "model.json").write_text(json.dumps({**values, "heads": heads}))
        with pytest.raises(UserError, match=words):
            checkpoints.load_model(folder)
