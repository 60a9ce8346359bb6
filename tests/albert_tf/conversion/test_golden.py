"""Every golden folder, from every file format that is there, against the outputs of the code that made it."""

import pathlib
import shutil
import tarfile

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.conversion import reference, sources, verify
from albert_tf.conversion.convert import convert

PRETRAINING = ("tiny_shared", "tiny_groups", "tiny_nofactor", "tiny_shared_adamw_train", "tiny_shared_lamb_train")
TASKS = {
    "classifier_mnli3": None,  # None: found by itself
    "regression_stsb": ("regression",),
    "race": ("multiple_choice",),
    "squad_v1": None,
    "squad_v2": None,
}
HUGGINGFACE = (
    "base_model",
    "for_masked_lm",
    "for_multiple_choice",
    "for_pretraining",
    "for_question_answering",
    "for_sequence_classification",
    "for_sequence_regression",
    "for_token_classification",
    "gelu_erf_eps1e-6",
    "groups2_inner2",
)
TOLERANCE = 2e-5  # golden README: separates right from wrong


def release_cases():
    return [(f"tf1/{name}", None) for name in PRETRAINING] + [(f"tf1/heads/{n}", heads) for n, heads in TASKS.items()]


def inputs_of(golden, names=("input_ids", "input_mask", "segment_ids")):
    """The rows of the encoder, the options of a multiple choice side by side."""
    inputs = dict(zip(("input_ids", "input_mask", "segment_ids"), (golden[name] for name in names), strict=True))
    return {name: value.astype(np.int32).reshape(-1, value.shape[-1]) for name, value in inputs.items()}


def expected_outputs(golden):
    """Golden outputs of all sources under the names that `verify` uses."""
    shape = golden["input_ids"].shape
    renamed = {
        "last_hidden_state": "sequence_output",
        "sequence_output": "sequence_output",
        "pooler_output": "pooled_output",
        "pooled_output": "pooled_output",
        "sop_logits": "sentence_order",
        "logits": "logits",
        "predict_start_logits": "conditional_span.start",
        "train_end_logits": "conditional_span.end",
        "predict_cls_logits": "conditional_span.answer",
    }
    found = {ours: golden[theirs] for theirs, ours in renamed.items() if theirs in golden}
    if "mlm_logits" in golden:
        found["masked_lm"] = golden["mlm_logits"].reshape(*golden["masked_lm_positions"].shape, -1)
    if "prediction_logits" in golden:
        found["masked_lm"] = golden["prediction_logits"]
    for start, end in (("start_logits", "end_logits"), ("predict_start_log_prob", "predict_end_log_prob")):
        if start in golden:
            found["span"] = np.stack([golden[start], golden[end]], axis=-1)
    assert found, f"nothing to compare in a file with {list(golden)} and ids {shape}"
    return found


def check_against_golden(outputs, golden, heads):
    expected = expected_outputs(golden)
    if "logits" in expected:
        (head,) = heads
        expected[head] = expected.pop("logits")
    for name, right in expected.items():
        found = outputs[name].reshape(right.shape)
        np.testing.assert_allclose(found, right, rtol=0, atol=TOLERANCE, err_msg=name)


def all_inputs(golden, is_huggingface):
    if not is_huggingface:
        inputs = inputs_of(golden)
        if golden["input_ids"].shape[1] == 64:  # RACE: [B, 4 * T]
            inputs = {name: value.reshape(-1, 16) for name, value in inputs.items()}
    else:
        inputs = inputs_of(golden, ("input_ids", "attention_mask", "token_type_ids"))
    batch, length = inputs["input_ids"].shape
    everywhere = np.broadcast_to(np.arange(length, dtype=np.int32), (batch, length))
    inputs["masked_lm_positions"] = golden.get("masked_lm_positions", everywhere)
    inputs["start_positions"] = golden.get("start_positions", np.zeros(batch, np.int32))
    inputs["forbidden"] = golden.get("p_mask", np.zeros((batch, length)))
    return inputs


def load(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def formats(folder, tmp_path):
    """The golden release folder as a folder, prefix, .index file, archive, and archive around a folder."""
    index = next(folder.glob("*.index"))
    yield folder
    yield index.with_suffix("")
    yield index
    for name, inside in (("flat.tar.gz", "."), ("wrapped.tar.gz", "albert_tiny"), ("plain.tar", "albert_tiny")):
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as tar:
            for file in folder.iterdir():
                if file.suffix != ".npz":
                    tar.add(file, pathlib.PurePosixPath(inside, file.name))
        yield tmp_path / name


@pytest.mark.parametrize(("name", "heads"), release_cases())
def test_release_folder_gives_the_golden_outputs(shared, tmp_path, name, heads):
    folder = shared / "golden" / name
    report = convert(folder, tmp_path / "native", "native", heads=heads)
    model = checkpoints.load_model(tmp_path / "native")
    assert tuple(model.heads) == report.heads and not model.restored.new
    stored = {line.split("\t")[0] for line in (folder / "variables.tsv").read_text().splitlines()}
    assert len(report.restored.filled) + len(report.restored.skipped) == len(stored)
    for file in sorted(folder.glob("io*.npz")):
        if file.name == "io_allmasked_row.npz":
            continue  # a looser tolerance: see below
        golden = load(file)
        inputs = all_inputs(golden, is_huggingface=False)
        check_against_golden(verify.model_outputs(model, inputs), golden, report.heads)
        with sources.opened(folder, heads=heads) as source:
            check_against_golden(verify.source_outputs(source, inputs), golden, report.heads)


def test_row_without_any_token_keeps_the_softmax_of_the_release(shared):
    golden = load(shared / "golden/tf1/tiny_shared/io_allmasked_row.npz")
    model = checkpoints.load_model(shared / "golden/tf1/tiny_shared")
    outputs = verify.model_outputs(model, all_inputs(golden, is_huggingface=False))
    np.testing.assert_allclose(outputs["sequence_output"], golden["sequence_output"], rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", ["tiny_groups", "heads/squad_v1"])
def test_every_form_of_a_release_checkpoint_is_the_same_model(shared, tmp_path, name):
    folder = shared / "golden/tf1" / name
    expected = checkpoints.read_tensors(next(folder.glob("*.index")).with_suffix(""))
    for path in formats(folder, tmp_path):
        with sources.opened(path) as source:
            assert source.kind == "release"
            assert source.model().restored.filled
            np.testing.assert_equal(source.stored, expected)
        model = checkpoints.load_model(path)
        word = model.encoder.embeddings.word_embeddings.numpy()
        np.testing.assert_array_equal(word, expected["bert/embeddings/word_embeddings"])


@pytest.mark.parametrize("form", ["folder", "pytorch_model.bin"])  # the folder means its model.safetensors
@pytest.mark.parametrize("name", HUGGINGFACE)
def test_huggingface_folder_gives_the_golden_outputs(shared, tmp_path, name, form):
    folder = shared / "golden/hf" / name
    report = convert(folder if form == "folder" else folder / form, tmp_path / "native", "native")
    model = checkpoints.load_model(tmp_path / "native")
    golden = load(folder / "io.npz")
    inputs = all_inputs(golden, is_huggingface=True)
    check_against_golden(verify.model_outputs(model, inputs), golden, report.heads)
    has_pooler = "pooler" in (folder / "tensors.tsv").read_text()
    assert report.restored.new == (() if has_pooler else ("encoder/pooler/kernel", "encoder/pooler/bias"))
    assert model.restored.new == report.restored.new  # said again at every load
    if form == "folder":
        back = tmp_path / "back"
        convert(tmp_path / "native", back, "huggingface")
        assert (back / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_the_numpy_pass_over_huggingface_names_gives_the_golden_outputs(shared, name):
    folder = shared / "golden/hf" / name
    golden = load(folder / "io.npz")
    with sources.opened(folder) as source:
        network = reference.huggingface_network(source.stored, source.stored_config, source.heads)
        outputs = reference.forward(network, all_inputs(golden, is_huggingface=True))
    check_against_golden(outputs, golden, list(source.heads))


@pytest.mark.parametrize("target", ["release", "huggingface"])
@pytest.mark.parametrize(("name", "heads"), release_cases())
def test_release_to_native_to_others_and_back_is_bit_equal(shared, tmp_path, name, heads, target):
    if target == "huggingface" and name.endswith("squad_v2"):
        pytest.skip("transformers has no class for the conditional SQuAD head")
    folder = shared / "golden" / name
    stored = checkpoints.read_tensors(next(folder.glob("*.index")).with_suffix(""))
    first = convert(folder, tmp_path / "native", "native", heads=heads)
    convert(tmp_path / "native", tmp_path / "there", target)
    convert(tmp_path / "there", tmp_path / "back", "release", heads=first.heads)
    back = checkpoints.read_tensors(tmp_path / "back" / "model.ckpt-best")
    assert set(stored) - set(back) == set(first.restored.skipped)
    for tensor, value in back.items():
        np.testing.assert_array_equal(value, stored[tensor], err_msg=tensor)


def test_absolute_paths_in_a_checkpoint_file_are_not_followed(shared, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(shared / "golden/tf1/tiny_shared", folder)
    folder.chmod(0o755)
    state = folder / "checkpoint"
    state.chmod(0o644)
    state.write_text('model_checkpoint_path: "/home/somebody/model.ckpt-9"\n')
    assert checkpoints.load_model(folder).restored.filled
