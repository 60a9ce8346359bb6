"""The work that benchmarks/peers times for this project is the project's own training step and inference."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.pretraining import objective
from benchmarks.peers import natural, work
from benchmarks.peers.contract import STEP
from benchmarks.peers.systems import ours


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Every preset is a small one; models are made anew."""
    small = ours.config.preset("albert_tiny").replace(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    monkeypatch.setattr(ours.config, "preset", lambda name: small)
    ours.build_model.cache_clear()
    yield
    ours.build_model.cache_clear()


@pytest.mark.parametrize("variant", ["", "recompute", "accumulate"])
def test_the_first_training_step_has_the_loss_of_the_objective(variant):
    case = work.Case(kind="train", precision="float32", batch=8, length=16)
    run = ours.prepare(case, variant)[STEP].run
    batch = {name: tf.constant(x) for name, x in ours.features(case).items()}
    model = ours.build_model(case.preset, case.precision)
    expected = float(
        objective.loss(objective.forward_sums(model, batch, training=False), objective.batch_weights(batch))
    )
    before = [variable.numpy() for variable in model.named_variables().values()]
    assert run() == pytest.approx(expected, rel=1e-5)
    assert all((a != b.numpy()).any() for a, b in zip(before, model.named_variables().values(), strict=True))
    assert run() < expected  # the step was an update on this very batch


def test_inference_is_the_pooled_output():
    case = work.Case(kind="infer", precision="float32", batch=2, length=16)
    run = ours.prepare(case, "")[STEP].run
    batch = {
        name: tf.constant(x)
        for name, x in work.inputs(case).items()
        if name in ("input_ids", "input_mask", "segment_ids")
    }
    expected = ours.build_model(case.preset, case.precision).encoder(batch)["pooled_output"].numpy().sum()
    assert run() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", work.KINDS)
def test_natural_parts_run_on_a_sample(kind, monkeypatch):
    monkeypatch.setattr(natural, "STEPS", 6)
    parts = ours.prepare(work.Case(kind=kind, precision="float32", sample_tokens=1), "")
    assert list(parts) == ["mrpc/own", "cola/own", "sst-2/own"]
    part = parts["cola/own"]
    assert part.scale > 1.5 and np.isfinite(part.warm_up()) and np.isfinite(part.run())
