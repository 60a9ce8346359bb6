"""The functions behind `hidden_act`.

GELU's gradients are written out. TensorFlow's own keep five tensors of the inner width a layer, a third of all that a
training step needs: the first steps of the derivative are taken as soon as their input is there, long before they are
read. These keep the input alone, and begin when the gradient from above has come.
"""

import math
from collections.abc import Callable

import tensorflow as tf

_SQRT_2_OVER_PI, _CUBIC = math.sqrt(2 / math.pi), 0.044715


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the release's form; x [...] of any float type."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        z = _after(upstream, x)
        square = tf.square(z)
        t = tf.tanh(z * (_SQRT_2_OVER_PI + _SQRT_2_OVER_PI * _CUBIC * square))
        inner_slope = _SQRT_2_OVER_PI + 3 * _SQRT_2_OVER_PI * _CUBIC * square
        # In this order a large negative x gives 0, also in float16: tanh's slope is 0 before it meets large numbers.
        return upstream * (0.5 * (1 + t + (1 - tf.square(t)) * z * inner_slope))

    return tf.nn.gelu(x, approximate=True), gradient


@tf.custom_gradient
def gelu_erf(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """x times the standard normal distribution function of x, the exact form; x [...] of any float type."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        z = _after(upstream, x)
        density = tf.exp(-0.5 * tf.square(z)) / math.sqrt(2 * math.pi)
        return upstream * (0.5 * (1 + tf.math.erf(z * math.sqrt(0.5))) + z * density)

    return tf.nn.gelu(x, approximate=False), gradient


BY_NAME: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}


def _after(upstream: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """x, for those who must not begin before `upstream` is there."""
    with tf.control_dependencies([upstream]):
        return tf.identity(x)
