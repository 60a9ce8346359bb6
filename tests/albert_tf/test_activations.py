"""The activations against formulas in float64, their slopes against differences, and what they keep in memory."""

import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import activations, config

X = np.concatenate([np.linspace(-12, 12, 241), [-100.0, -1e-3, 1e-3, 100.0]])
FORMULAS = {
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
}


def slope(name, x, upstream=None):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = activations.BY_NAME[name](x)
    return y, tape.gradient(y, x, upstream)


def test_every_name_of_the_configuration_has_a_function():
    assert set(activations.BY_NAME) == set(config.ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_slopes(name):
    formula = np.vectorize(FORMULAS[name])
    upstream = np.linspace(-2, 3, len(X))
    y, gradient = slope(name, tf.constant(X), tf.constant(upstream))
    np.testing.assert_allclose(y, formula(X), rtol=0, atol=1e-8)
    differences = (formula(X + 1e-5) - formula(X - 1e-5)) / 2e-5
    np.testing.assert_allclose(gradient, upstream * differences, rtol=0, atol=2e-8)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("bfloat16", 0.04), ("float16", 3e-3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_slopes_in_shorter_types(name, dtype, bound):
    x = tf.cast(tf.constant(X), dtype)
    exact = slope(name, tf.cast(x, tf.float64))[1]
    gradient = slope(name, x)[1]
    assert gradient.dtype == dtype
    np.testing.assert_allclose(tf.cast(gradient, tf.float64), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_derivative_waits_for_the_gradient_from_above(name):
    """Else its first steps run in the forward pass, and five tensors a layer wait for the backward one."""

    @tf.function(autograph=False)
    def backward(x, upstream):
        return slope(name, x, upstream)[1]

    graph = backward.get_concrete_function(*[tf.TensorSpec([4], tf.float32)] * 2).graph
    x, upstream = graph.inputs
    late = [op for op in x.consumers() if upstream.op in op.control_inputs]
    assert [op.type for op in late] == ["Identity"], "the derivative reads x through one op that waits"


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("bfloat16", 0.04), ("float16", 3e-3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_slopes_of_large_tensors(name, dtype, bound):
    """Those that XLA makes in one loop."""
    x = tf.tile(tf.cast(tf.constant(X), dtype)[tf.newaxis], [1100, 1])
    exact = slope(name, tf.cast(x[:1], tf.float64))[1]
    gradient = slope(name, x, tf.fill(x.shape, tf.cast(0.5, dtype)))[1]
    assert gradient.dtype == dtype and tf.reduce_all(gradient == gradient[:1])
    np.testing.assert_allclose(tf.cast(gradient[:1], tf.float64), 0.5 * exact, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("shape", "dtype", "devices", "compiled"),
    [
        ([1024, 256], "float32", ["CPU"], True),
        ([1024, 255], "float32", ["CPU"], False),
        ([None, 1024], "float32", ["CPU"], False),  # a compilation for each size would cost more than it saves
        ([1024, 256], "bfloat16", ["CPU"], False),
        ([1024, 256], "float32", ["CPU", "GPU"], False),
        ([1024, 256], "float32", ["CPU", "TPU"], False),
    ],
)
def test_large_tensors_of_a_fixed_size_are_left_to_xla_on_cpu(monkeypatch, shape, dtype, devices, compiled):
    logical = [tf.config.LogicalDevice(f"/device:{kind}:0", kind) for kind in devices]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: logical)
    backward = tf.function(lambda x: slope("gelu", x)[1], autograph=False)
    graph = backward.get_concrete_function(tf.TensorSpec(shape, dtype)).graph
    calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert [call.get_attr("_XlaMustCompile") for call in calls] == [True] * compiled
