"""The memory estimate: its arithmetic, and what a process really takes."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

from albert_tf import costs
from albert_tf.config import PRESETS, preset
from albert_tf.pretraining import objective
from tpu import memory

SHAPE = {"max_seq_length": 128, "num_predictions": 20}


def measured_and_estimated(case: str) -> tuple[int, int]:
    """Bytes of two steps on top of the start-up, in a process of their own."""
    from benchmarks.memory import parse

    command = [sys.executable, "-m", "benchmarks.memory", f"--measure={case}"]
    seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    arguments = parse(case)
    estimate = memory.training_bytes(preset(arguments.pop("preset")), **arguments)["total"]
    return seen["peak"] - seen["baseline"], estimate


@pytest.mark.parametrize("case", ["albert_tiny:32x128:float32", "albert_tiny:32x128:mixed_bfloat16:recompute"])
def test_estimate_is_what_a_small_step_takes(case):
    measured, estimate = measured_and_estimated(case)
    assert estimate == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["", ":recompute"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("shape", ["albert_base:4x128", "albert_base:8x128", "albert_base:2x512", "albert_large:2x512"])
def test_estimate_is_what_a_step_takes(shape, dtype, recompute):
    measured, estimate = measured_and_estimated(f"{shape}:{dtype}{recompute}")
    assert estimate == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("name", PRESETS)
def test_parts_and_their_order(name):
    config = PRESETS[name]
    one, eight = (memory.training_bytes(config, rows=rows, **SHAPE) for rows in (1, 8))
    again = memory.training_bytes(config, rows=8, **SHAPE, recompute=True)
    half = memory.training_bytes(config, rows=8, **SHAPE, mixed_precision="mixed_bfloat16")
    assert one["state"] == eight["state"] == 12 * sum(costs.parameters(config).values())
    assert eight["activations"] == 8 * one["activations"]
    assert again["activations"] < 0.4 * eight["activations"]
    # Otherwise the update, or the gradients of all uses of so large a block, need more than either.
    if config.sharing == "all" and config.hidden_size < 4096:
        assert again["total"] < eight["total"]
    assert half["activations"] < 0.85 * eight["activations"] and half["state"] == eight["state"]
    for needed in (one, eight, again, half):
        assert needed["total"] > needed["state"] + needed["program"]


def test_activations_by_hand():
    # One token of a row of one, two layers, the last of which asks at two positions: width 4, inner width 8, two heads.
    config = preset("albert_tiny").replace(
        hidden_size=4, intermediate_size=8, num_attention_heads=2, num_hidden_layers=2, embedding_size=3
    )
    layer = 4 * ((4 + 2 * 4) * 4 + 2 * 8 + 2 * 6)  # a query position, float32: of width 4, of width 8, probabilities
    expected = 6 * layer + (2 * layer + 2 * 6 * 4 * 4) + 5 * 6 * 3 * 4
    needed = memory.training_bytes(config, rows=1, max_seq_length=6, num_predictions=1)
    assert needed["activations"] == expected


def test_memory_that_is_not_there_is_told(pretrain, refused, records, tmp_path, monkeypatch):
    """The estimate is 93 MiB, nearly all of it for the program itself."""
    with monkeypatch.context() as patch:
        patch.setattr(costs, "machine_memory", lambda: 50 << 20)
        words = [
            "8 sequences of 32 tokens at a time take about 0.1 GiB, this machine has 0.0 GiB",
            "--train_batch_size",
        ]
        refused(records, tmp_path / "run", words=words)
        assert not (tmp_path / "run").exists()
        patch.setattr(costs, "machine_memory", lambda: 80 << 20)
        code, said = pretrain(records, tmp_path / "run", num_train_steps=1, num_warmup_steps=1)
        assert code == 0 and "WARNING: this machine has 0.1 GiB of memory, less than that: the system may end" in said

    def exhausted(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]\n in a node")

    monkeypatch.setattr(objective, "forward_sums", exhausted)
    words = ["the memory is exhausted (OOM when allocating tensor with shape[9]): what was saved", "--recompute"]
    refused(records, tmp_path / "other", words=words)
