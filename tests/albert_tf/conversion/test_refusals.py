"""Wrong inputs: one line, exit code 2, nothing written."""

import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

import albert_tf
from albert_tf import checkpoints
from albert_tf.__main__ import main


def test_truncated_data(released, refused):
    data = released / "model.ckpt-best.data-00000-of-00001"
    os.truncate(data, data.stat().st_size - 100)
    assert "truncated or damaged" in refused(released)


def test_truncated_index(released, refused):
    index = released / "model.ckpt-best.index"
    os.truncate(index, index.stat().st_size // 2)
    assert "truncated or damaged" in refused(released)


def test_flipped_bit_in_the_data(released, refused):
    data = released / "model.ckpt-best.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[1000] ^= 1
    data.write_bytes(content)
    assert "truncated or damaged" in refused(released)


@pytest.mark.parametrize(
    "given", ["", "model.ckpt-best", "model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001"]
)
def test_missing_index(released, refused, given):
    (released / "model.ckpt-best.index").unlink()
    message = refused(released / given)
    assert "index" in message and "copy" in message


def test_missing_data(released, refused):
    (released / "model.ckpt-best.data-00000-of-00001").unlink()
    assert "has no model.ckpt-best.data-* file" in refused(released)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 32}, "has shape"),
        ({"vocab_size": 61}, "word_embeddings has shape [60, 8], the configuration asks for [61, 8]"),
        ({"num_hidden_groups": 2}, "no values for"),
        ({"hidden_size": 18}, "not a multiple"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"wings": 2}, "unknown key 'wings'"),
        ({"vocab_size": 9_000_000, "hidden_size": 40_000}, "has shape [60, 8]"),  # said before any memory is taken
        ({"intermediate_size": 10**7}, "the configuration asks for [16, 10000000]"),
        ({"num_hidden_layers": 10**30}, "expected a whole number from 1 to 1000"),
        ({"inner_group_num": 10**9}, "expected a whole number from 1 to 100"),
    ],
)
def test_wrong_configuration(released, refused, change, words):
    path = released / "albert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert words in refused(released)


def test_missing_configuration(released, refused):
    (released / "albert_config.json").unlink()
    assert "--albert_config_file" in refused(released)


def rename(folder, old, new):
    prefix = folder / "model.ckpt-best"
    tensors = checkpoints.read_tensors(prefix)
    checkpoints.write_tensors(prefix, {new if name == old else name: value for name, value in tensors.items()})


def test_renamed_variable_of_the_encoder(released, refused):
    rename(released, "bert/pooler/dense/kernel", "bert/pooler/dense/weights")
    assert "encoder/pooler/kernel" in refused(released)


def test_renamed_variable_of_a_head(released, refused):
    rename(released, "cls/predictions/output_bias", "cls/predictions/bias")
    assert "masked_lm/output_bias" in refused(released)


def test_tensor_that_belongs_to_nothing(released, refused, tmp_path):
    prefix = released / "model.ckpt-best"
    tensors = {**checkpoints.read_tensors(prefix), "bert/extra": np.ones(3, np.float32)}
    checkpoints.write_tensors(prefix, tensors)
    assert "1 tensors that belong to nothing known: bert/extra" in refused(released)
    chosen = [f"--model_dir={released}", f"--output_dir={tmp_path / 'chosen'}", "--to=native", "--head=masked_lm"]
    assert main(["albert_tf", "convert", *chosen]) == 0


def test_vocabulary_of_another_size(write, refused, tiny_spm, random_model):
    folder = write("release", random_model())
    shutil.copy(tiny_spm, folder / "30k-clean.model")
    message = refused(folder)
    assert "800 pieces" in message and "vocab_size 60" in message


def test_output_folder_that_holds_something(released, tmp_path, capsys):
    output = tmp_path / "full"
    output.mkdir()
    (output / "mine").touch()
    assert main(["albert_tf", "convert", f"--model_dir={released}", f"--output_dir={output}", "--to=native"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [file.name for file in output.iterdir()] == ["mine"]


# Archives


def archive(folder, path, change=None, extra=None):
    with tarfile.open(path, "w:gz") as tar:
        for file in sorted(folder.iterdir()):
            member = tar.gettarinfo(file, f"albert/{file.name}")
            tar.addfile(change(member) if change else member, io.BytesIO(file.read_bytes()))
        if extra:
            tar.addfile(extra, io.BytesIO(b"x" * extra.size))
    return path


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (member("../outside"), "outside its folder: '../outside'"),
        (member("albert/../../outside"), "outside its folder"),
        (member("/tmp/outside"), "outside its folder: '/tmp/outside'"),
        (member("albert/link", tarfile.SYMTYPE, "/etc/passwd"), "a link or a device: 'albert/link'"),
        (member("albert/hard", tarfile.LNKTYPE, "albert/albert_config.json"), "a link or a device"),
        (member("albert/pipe", tarfile.FIFOTYPE), "a link or a device"),
    ],
)
def test_archive_that_reaches_outside(released, refused, tmp_path, extra, words):
    assert words in refused(archive(released, tmp_path / "model.tar.gz", extra=extra))


def test_truncated_archive(released, refused, tmp_path):
    path = archive(released, tmp_path / "model.tar.gz")
    os.truncate(path, path.stat().st_size // 2)
    assert "truncated or no tar archive" in refused(path)


def test_archive_under_a_python_without_extraction_filters(released, tmp_path, monkeypatch):
    """Python 3.10.0 to 3.10.11 and 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) do not know the word."""
    extract_all = tarfile.TarFile.extractall
    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda tar, path, members=None: extract_all(tar, path, members))
    assert albert_tf.load_model(archive(released, tmp_path / "model.tar.gz")).restored.new == ()


def test_archive_without_a_model(refused, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "readme.txt").write_text("no weights")
    assert "found readme.txt" in refused(archive(tmp_path / "docs", tmp_path / "docs.tgz"))


# Hugging Face


class Code:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("archived", [True, False])
def test_pickle_with_code_inside(face, refused, tmp_path, archived):
    (face / "model.safetensors").unlink()
    proof = tmp_path / "it-ran"
    payload = pickle.dumps({"weight": Code(f"touch {proof}")}, protocol=2)
    path = face / "pytorch_model.bin"
    if archived:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", payload)
    else:
        path.write_bytes(payload)
    assert "holds code: its pickle asks for" in refused(face)
    assert not proof.exists()


def test_truncated_safetensors(face, refused):
    path = face / "model.safetensors"
    os.truncate(path, path.stat().st_size - 8)
    assert "truncated or damaged" in refused(face)


def change_config(folder, **change):
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"model_type": "bert"}, "'bert' model"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_size": 32}, "has shape"),
        ({"hidden_size": ...}, "has shape"),  # transformers takes 4096 then
    ],
)
def test_wrong_huggingface_configuration(face, refused, change, words):
    change_config(face, **change)
    assert words in refused(face)


def test_weights_of_other_libraries_only(face, refused):
    (face / "model.safetensors").rename(face / "tf_model.h5")
    assert "tf_model.h5" in refused(face)


def test_untied_masked_lm(face, refused):
    import safetensors.numpy

    path = face / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"] + 1
    safetensors.numpy.save_file(tensors, path)
    assert "untied" in refused(face)


def test_two_kinds_in_one_folder(face, released, refused):
    shutil.copy(face / "model.safetensors", released)
    assert "cannot tell which is meant" in refused(released)


# What a target cannot express


@pytest.mark.parametrize(
    ("settings", "heads", "to", "words"),
    [
        ({"sharing": "attention"}, {}, "release", "sharing is 'attention'"),
        ({"sharing": "none"}, {}, "huggingface", "sharing is 'none'"),
        ({"layer_norm_epsilon": 1e-6}, {}, "release", "layer_norm_epsilon is 1e-06"),
        ({"hidden_act": "gelu_erf"}, {}, "release", "hidden_act is 'gelu_erf'"),
        ({}, {"token_classifier": {"num_labels": 3}}, "release", "token_classifier"),
        ({}, {"conditional_span": {}}, "huggingface", "conditional_span"),
        ({"num_hidden_layers": 18, "num_hidden_groups": 14}, {}, "huggingface", "runs group 6 in layer 9"),
        ({}, {"sentence_order": {}}, "huggingface", "sentence_order"),
        ({}, {"classifier": {"num_labels": 2}, "multiple_choice": {}}, "release", "same names"),
    ],
)
def test_what_the_target_cannot_express_is_named(write, refused, settings, heads, to, words, random_model):
    assert words in refused(write("native", random_model(heads, **settings)), to=to)


# Heads and labels


def test_one_row_of_output_weights_has_to_be_named(write, refused, random_model):
    folder = write("release", random_model({"regression": {}}))
    message = refused(folder)
    assert "regression" in message and "multiple_choice" in message and "--head" in message
    assert "choose regression or multiple_choice" in refused(folder, "--head=classifier")


def test_one_head_may_be_given_by_its_name_alone(write, random_model):
    for kind in ("native", "release", "huggingface"):
        folder = write(kind, random_model(), name=kind)
        assert list(albert_tf.load_model(folder, heads="masked_lm").heads) == ["masked_lm"]
        with pytest.raises(albert_tf.UserError, match="no span head"):
            albert_tf.load_model(folder, heads="span")


def test_wrong_heads_and_labels(write, refused, random_model):
    folder = write("native", random_model({"classifier": {"num_labels": 3}}))
    assert "no span head: its heads are classifier" in refused(folder, "--head=span")
    assert "'wings' is no head" in refused(folder, "--head=wings")
    assert "2 names" in refused(folder, "--label_names=a,b")
    assert "expected 3 different ones" in refused(folder, "--label_names=a,b,a")
    assert "no head with labels" in refused(folder, "--label_names=a,b,c", "--head=none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "the head has 3"),
        ({"label2id": {"a": 1, "b": 0, "c": 2}, "id2label": {"0": "a", "1": "b", "2": "c"}}, "contradict"),
        ({"problem_type": "multi_label_classification"}, "multi-label"),
        ({"architectures": ...}, "--head"),
    ],
)
def test_wrong_labels_of_a_huggingface_classifier(write, refused, change, words, random_model):
    folder = write("huggingface", random_model({"classifier": {"num_labels": 3}}))
    change_config(folder, **change)
    assert words in refused(folder)


def test_trained_projection_where_sizes_are_equal(write, refused, random_model):
    import safetensors.numpy

    model = random_model(embedding_size=16)
    path = write("huggingface", model) / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["albert.encoder.embedding_hidden_mapping_in.weight"][0, 1] = 1e-3
    safetensors.numpy.save_file(tensors, path)
    assert "projects embeddings" in refused(path.parent)


def test_no_model_at_all(refused, tmp_path):
    assert "no model at" in refused(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refused(tmp_path / "empty")
