"""transformers itself on what we write, and we on what it writes. Slow, and an extra: pip install -e .[hf]."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.conversion import verify
from albert_tf.conversion.convert import convert

pytestmark = pytest.mark.slow

# Runs where transformers is: loads a folder by its own class, computes, saves it again as safetensors and .bin.
SCRIPT = """
import sys, numpy as np, torch, transformers
folder, inputs, outputs, again = sys.argv[1:]
name = transformers.AlbertConfig.from_pretrained(folder).architectures[0]
model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
assert not report["missing_keys"] and not report["mismatched_keys"], report
given = {k: torch.tensor(v, dtype=torch.long) for k, v in np.load(inputs).items()}
if name.endswith("MultipleChoice"):
    given = {k: v[:, None] for k, v in given.items()}
with torch.no_grad():
    encoded = getattr(model.eval(), "albert", model)(**{k: v.flatten(0, -2) for k, v in given.items()})
    found = model(**given)
values = {k: v.numpy() for k, v in found.items() if hasattr(v, "numpy")}
np.savez(outputs, sequence_output=encoded.last_hidden_state.numpy(), **values)
model.save_pretrained(again)
torch.save(model.state_dict(), again + "/pytorch_model.bin")
torch.save(model.state_dict(), again + "/old.bin", _use_new_zipfile_serialization=False)
"""
THEIR_OUTPUTS = {
    "masked_lm": ("prediction_logits", "logits"),
    "sentence_order": ("sop_logits",),
    "pooled_output": ("pooler_output",),
    "sequence_output": ("sequence_output",),
}


@pytest.fixture(scope="module")
def python():
    """A Python with transformers: the one of ALBERT_TF_HF_PYTHON, or this one."""
    chosen = os.environ.get("ALBERT_TF_HF_PYTHON")
    if chosen is None:
        pytest.importorskip("transformers", reason="no transformers here, and ALBERT_TF_HF_PYTHON is not set")
    return chosen or sys.executable


CASES = {
    "base": ({}, {}),
    "pretraining, groups": (
        {"masked_lm": {}, "sentence_order": {}},
        {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "masked LM, E = H": ({"masked_lm": {}}, {"embedding_size": 16}),
    "classifier, erf": ({"classifier": {"num_labels": 3}}, {"hidden_act": "gelu_erf", "layer_norm_epsilon": 1e-6}),
    "regression": ({"regression": {}}, {"hidden_act": "relu"}),
    "span": ({"span": {}}, {}),
    "multiple choice": ({"multiple_choice": {}}, {}),
    "tokens": ({"token_classifier": {"num_labels": 5}}, {"num_hidden_layers": 5, "num_hidden_groups": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_the_same(tmp_path, write, random_model, python, case):
    heads, settings = CASES[case]
    model = random_model(heads, **settings)
    folder = tmp_path / "face"
    convert(write("native", model), folder, "huggingface")
    inputs = verify.sample_inputs(model.config)
    inputs["masked_lm_positions"] = np.broadcast_to(np.arange(16, dtype=np.int32), (3, 16))
    theirs = {"attention_mask": "input_mask", "token_type_ids": "segment_ids", "input_ids": "input_ids"}
    np.savez(tmp_path / "inputs.npz", **{name: inputs[ours] for name, ours in theirs.items()})
    again = tmp_path / "again"
    arguments = [folder, tmp_path / "inputs.npz", tmp_path / "outputs.npz", again]
    subprocess.run([python, "-c", SCRIPT, *map(str, arguments)], check=True)
    found = dict(np.load(tmp_path / "outputs.npz"))
    if "span" in heads:
        found["span"] = np.stack([found["start_logits"], found["end_logits"]], axis=-1)
    expected = {
        name: value
        for name, value in verify.model_outputs(model, inputs).items()
        if name != "pooled_output" or "pooler_output" in found
    }
    for name, value in expected.items():
        key = next(key for key in (name, *THEIR_OUTPUTS.get(name, ("logits",))) if key in found)
        difference = np.max(np.abs(found[key].reshape(value.shape) - value))
        print(f"{case}: {name} differs by up to {difference:.1e}")
        assert difference < 2e-5, (case, name)
    _check_written_by_transformers(again, tmp_path, model)


def _check_written_by_transformers(again: pathlib.Path, tmp_path: pathlib.Path, model: checkpoints.Model) -> None:
    """Its safetensors, its .bin and the .bin of before version 1.6 are the same model to us."""
    pooler_lost = {"masked_lm", "span", "token_classifier"} >= set(model.heads) and model.heads
    for file in ("model.safetensors", "pytorch_model.bin", "old.bin"):
        report = convert(again / file, tmp_path / file.replace(".", "-"), "native")
        back = checkpoints.load_model(tmp_path / file.replace(".", "-"))
        assert bool(report.restored.new) == bool(pooler_lost)
        for name, variable in model.named_variables().items():
            if name not in report.restored.new:
                np.testing.assert_array_equal(back.named_variables()[name], variable, err_msg=f"{file} {name}")
