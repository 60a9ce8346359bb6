"""The dense product: its hand-written bias gradient, and what TensorFlow fuses with it."""

import platform

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from albert_tf import layers


def arguments(dtype, *shapes):
    rng = np.random.default_rng(1)
    return [tf.cast(rng.normal(size=shape), dtype) for shape in shapes]


# bfloat16 keeps 8 bits; the sum over the rows is made in float32 and rounded once.
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_of_a_dense_product(dtype, bound, in_graph):
    values = arguments(dtype, (3, 50, 16), (16, 24), (24,))
    (upstream,) = arguments(dtype, (3, 50, 24))

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = layers.dense(*values)
        return tape.gradient(y, values, output_gradients=upstream)

    found = (tf.function(compute, autograph=False) if in_graph else compute)()
    x, kernel, _, d = (np.float64(tf.cast(value, tf.float64)) for value in (*values, upstream))
    expected = [d @ kernel.T, np.einsum("bsn,bsm->nm", x, d), d.sum(axis=(0, 1))]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert np.linalg.norm(tf.cast(one, tf.float64) - other) < bound * np.linalg.norm(other)


def test_the_gradient_of_a_bias_has_a_gradient():
    x, bias = arguments("float32", (5, 4), (4,))
    with tf.GradientTape() as outer:
        outer.watch(bias)
        with tf.GradientTape() as inner:
            inner.watch(bias)
            y = tf.reduce_sum(layers.add_bias(x, bias) ** 3)
        slope = inner.gradient(y, bias)
    np.testing.assert_allclose(outer.gradient(slope, bias), 6 * np.sum(x + bias, axis=0), rtol=1e-5)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="TensorFlow has oneDNN on x86 alone")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_and_gelu_are_fused_with_the_product_where_nobody_asks_for_gradients(dtype):
    function = tf.function(lambda x, kernel, bias: layers.dense(x, kernel, bias, act="gelu"))
    context.context().enable_run_metadata()
    try:
        function(*arguments(dtype, (2, 8, 64), (64, 128), (128,)))
        graphs = context.context().export_run_metadata().partition_graphs
    finally:
        context.context().disable_run_metadata()
    fused = [list(node.attr["fused_ops"].list.s) for graph in graphs for node in graph.node if "MatMul" in node.op]
    assert fused == [[b"BiasAdd", b"GeluApproximate"]]
