"""What travels to and from Hugging Face folders beside the tensors."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from albert_tf import checkpoints
from albert_tf.conversion import sources
from albert_tf.conversion.convert import convert
from albert_tf.tokenization import load_tokenizer


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def change_config(folder, **change):
    values = {**config_of(folder), **change}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def test_label_names_travel_both_ways(tmp_path, write, random_model):
    labels = ("contradiction", "entailment", "neutral")
    info = checkpoints.ModelInfo(labels=labels)
    source = write("native", random_model({"classifier": {"num_labels": 3, "dropout_rate": 0.3}}, info=info))
    convert(source, tmp_path / "face", "huggingface")
    theirs = config_of(tmp_path / "face")
    assert theirs["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}
    assert theirs["label2id"] == {"contradiction": 0, "entailment": 1, "neutral": 2}
    assert theirs["architectures"] == ["AlbertForSequenceClassification"]
    assert theirs["classifier_dropout_prob"] == 0.3
    report = convert(tmp_path / "face", tmp_path / "back", "native")
    back = checkpoints.load_model(tmp_path / "back")
    assert back.info.labels == labels and back.info.heads == {"classifier": {"num_labels": 3, "dropout_rate": 0.3}}
    assert not any("--label_names" in notice for notice in report.notices)


def test_label_names_can_be_given(tmp_path, write, random_model):
    source = write("release", random_model({"classifier": {"num_labels": 2}}))
    convert(source, tmp_path / "face", "huggingface", label_names=("bad", "good"))
    assert config_of(tmp_path / "face")["id2label"] == {"0": "bad", "1": "good"}
    convert(source, tmp_path / "nameless", "huggingface")
    report = convert(tmp_path / "nameless", tmp_path / "native", "native")
    assert any("no names but LABEL_0, LABEL_1" in notice and "--label_names" in notice for notice in report.notices)


def test_labels_are_read_in_the_order_of_their_numbers(write, random_model):
    folder = write("huggingface", random_model({"token_classifier": {"num_labels": 11}}))
    names = {str(i): f"tag-{i}" for i in (10, 3, 0, 1, 2, 4, 5, 6, 7, 8, 9)}
    change_config(folder, id2label=names, label2id=...)
    assert checkpoints.load_model(folder).info.labels == tuple(f"tag-{i}" for i in range(11))


@pytest.mark.parametrize(
    ("heads", "architecture"),
    [
        ({}, "AlbertModel"),
        ({"masked_lm": {}, "sentence_order": {}}, "AlbertForPreTraining"),
        ({"masked_lm": {}}, "AlbertForMaskedLM"),
        ({"classifier": {"num_labels": 2}}, "AlbertForSequenceClassification"),
        ({"regression": {}}, "AlbertForSequenceClassification"),
        ({"span": {}}, "AlbertForQuestionAnswering"),
        ({"multiple_choice": {}}, "AlbertForMultipleChoice"),
        ({"token_classifier": {"num_labels": 2}}, "AlbertForTokenClassification"),
    ],
)
def test_class_is_named_and_found_again(write, random_model, heads, architecture):
    folder = write("huggingface", random_model(heads))
    assert config_of(folder)["architectures"] == [architecture]
    model = checkpoints.load_model(folder)
    assert tuple(model.heads) == tuple(heads)
    assert not model.restored.new and not model.restored.unused


@pytest.mark.parametrize(
    ("theirs", "ours", "notice"),
    [
        ("gelu_new", "gelu", False),
        ("gelu_pytorch_tanh", "gelu", False),
        ("gelu_fast", "gelu", False),
        ("gelu", "gelu_erf", True),
        ("gelu_python", "gelu_erf", False),
        ("relu", "relu", False),
    ],
)
def test_activation_names(write, random_model, theirs, ours, notice):
    folder = write("huggingface", random_model())
    change_config(folder, hidden_act=theirs)
    with sources.opened(folder) as source:
        assert source.config.hidden_act == ours
        assert any("--hidden_act=gelu" in text for text in source.notices) == notice


def test_activation_can_be_overridden(tmp_path, write, random_model):
    folder = write("huggingface", random_model())
    change_config(folder, hidden_act="gelu")
    convert(folder, tmp_path / "native", "native", hidden_act="gelu")
    assert checkpoints.load_model(tmp_path / "native").config.hidden_act == "gelu"


def test_projection_is_an_exact_identity_where_sizes_are_equal(write, random_model):
    folder = write("huggingface", random_model(embedding_size=16))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(tensors["albert.encoder.embedding_hidden_mapping_in.weight"], np.eye(16))
    assert not tensors["albert.encoder.embedding_hidden_mapping_in.bias"].any()
    model = checkpoints.load_model(folder)
    assert "albert.encoder.embedding_hidden_mapping_in.weight" in model.restored.skipped
    assert model.encoder.embeddings.projection is None


def test_a_trained_pooler_is_kept_though_the_class_has_none(tmp_path, write, random_model):
    model = random_model({"span": {}})
    convert(write("native", model), tmp_path / "face", "huggingface")
    assert "albert.pooler.weight" in safetensors.numpy.load_file(tmp_path / "face" / "model.safetensors")
    assert not checkpoints.load_model(tmp_path / "face").restored.new


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_other_float_types_become_float32_with_a_notice(tmp_path, write, random_model, dtype):
    folder = write("huggingface", random_model())
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    if dtype == "BF16":  # NumPy has no such type: the file by hand
        header, data, offset = {}, b"", 0
        for name, value in tensors.items():
            raw = (value.view("<u4") >> 16).astype("<u2").tobytes()
            header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [offset, offset + len(raw)]}
            data, offset = data + raw, offset + len(raw)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        expected = {name: (value.view("<u4") >> 16 << 16).view("<f4") for name, value in tensors.items()}
    else:
        numpy_type = {"F16": np.float16, "F64": np.float64}[dtype]
        expected = {name: value.astype(numpy_type) for name, value in tensors.items()}
        safetensors.numpy.save_file(expected, folder / "model.safetensors")
    with sources.opened(folder) as source:
        assert any("kept as float32" in notice for notice in source.notices)
        for name, value in expected.items():
            np.testing.assert_array_equal(source.stored[name], value.astype(np.float32), err_msg=name)


def test_weights_in_several_files(write, random_model):
    folder = write("huggingface", random_model())
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, index = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        safetensors.numpy.save_file({name: tensors[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with sources.opened(folder) as source:
        np.testing.assert_equal(source.stored, tensors)
        assert source.model().restored.filled


def test_old_names_and_buffers(write, random_model):
    """Folders of the first years: gamma and beta, position_ids, the tied copies."""
    folder = write("huggingface", random_model())
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
        if name != "predictions.bias"
    }
    old["albert.embeddings.position_ids"] = np.arange(20)[None]
    old["predictions.decoder.bias"] = tensors["predictions.bias"]
    old["predictions.decoder.weight"] = tensors["albert.embeddings.word_embeddings.weight"]
    safetensors.numpy.save_file(old, folder / "model.safetensors")
    model = checkpoints.load_model(folder)
    assert not model.restored.new and not model.restored.unused
    np.testing.assert_array_equal(model.heads["masked_lm"].output_bias, tensors["predictions.bias"])


def test_tokeniser_and_casing_travel(tmp_path, write, random_model, tiny_spm):
    tokenizer = load_tokenizer(tiny_spm, do_lower_case=False, keep_accents=True)
    source = write("native", random_model(vocab_size=800, tokenizer=tokenizer))
    for target in ("huggingface", "release"):
        convert(source, tmp_path / target, target)
        found = checkpoints.load_model(tmp_path / target).tokenizer
        assert (found.hash, found.do_lower_case, found.keep_accents) == (tokenizer.hash, False, True)
    names = {file.name for file in (tmp_path / "release").iterdir()}
    assert {"30k-clean.model", "30k-clean.vocab"} <= names and "spiece.vocab" not in names
    settings = json.loads((tmp_path / "huggingface" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "AlbertTokenizer" and settings["cls_token"] == "[CLS]"
    assert config_of(tmp_path / "huggingface")["bos_token_id"] == tokenizer.cls_id


def test_tokenizer_json_alone_is_told(tmp_path, write, random_model):
    folder = write("huggingface", random_model())
    (folder / "tokenizer.json").write_text("{}")
    report = convert(folder, tmp_path / "native", "native")
    assert any("spiece.model" in notice for notice in report.notices)
    assert any("no tokeniser" in notice for notice in report.notices)


def test_missing_pooler_stops_where_it_is_needed(tmp_path, write, random_model):
    from albert_tf.errors import UserError

    folder = write("huggingface", random_model({}))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    safetensors.numpy.save_file({n: v for n, v in tensors.items() if "pooler" not in n}, folder / "model.safetensors")
    with pytest.raises(UserError, match="encoder/pooler/kernel"):
        checkpoints.load_model(folder)
    masked = write("huggingface", random_model({"masked_lm": {}}), "masked")
    tensors = safetensors.numpy.load_file(masked / "model.safetensors")
    safetensors.numpy.save_file({n: v for n, v in tensors.items() if "pooler" not in n}, masked / "model.safetensors")
    convert(masked, tmp_path / "native", "native")
    with pytest.raises(UserError, match="no trained values, and AlbertModel needs them"):
        convert(tmp_path / "native", tmp_path / "bare", "huggingface", heads=())
    shutil.rmtree(tmp_path / "native")
    first, second = (checkpoints.load_model(masked).encoder.pooler.kernel.numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)  # the start of what is new can be repeated


@pytest.mark.parametrize(("inner", "told"), [(1, False), (2, True)])
def test_inner_groups_that_transformers_cannot_run_are_told(tmp_path, write, random_model, inner, told):
    source = write("release", random_model(num_hidden_groups=2, inner_group_num=inner))
    report = convert(source, tmp_path / "face", "huggingface")
    assert any("IndexError" in notice for notice in report.notices) == told


def test_wordpiece_vocabulary_of_the_chinese_releases_travels(tmp_path, write, random_model):
    folder = write("release", random_model(vocab_size=8))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]
    (folder / "vocab_chinese.txt").write_text("\n".join(pieces) + "\n")
    convert(folder, tmp_path / "face", "huggingface")
    assert (tmp_path / "face" / "vocab.txt").read_text().split() == pieces
    settings = json.loads((tmp_path / "face" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "BertTokenizer" and settings["strip_accents"] is True
    convert(tmp_path / "face", tmp_path / "back", "release")
    assert checkpoints.load_model(tmp_path / "back").tokenizer.encode("ab b") == [5, 7, 6]


def test_accents_of_wordpiece_are_worded_as_transformers_reads_them(tmp_path, write, random_model):
    """There strip_accents=true drops accents whatever the case; here accents go only where the case does."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "e", "\u00e9", "\u00c9"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    for lower, keep, strips, ids in ((True, False, True, 5), (True, True, False, 6), (False, False, False, 7)):
        tokenizer = load_tokenizer(tmp_path / "vocab.txt", do_lower_case=lower, keep_accents=keep)
        folder = write("huggingface", random_model(vocab_size=8, tokenizer=tokenizer), f"{lower}-{keep}")
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert (settings["do_lower_case"], settings["strip_accents"]) == (lower, strips)
        assert tokenizer.encode("\u00c9") == [ids]
        theirs = {name: settings[name] for name in ("tokenizer_class", "do_lower_case", "strip_accents")}
        (folder / "tokenizer_config.json").write_text(json.dumps(theirs))  # as transformers writes it
        assert load_tokenizer(folder).encode("\u00c9") == [ids]
