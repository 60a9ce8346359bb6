"""The functions behind `hidden_act`."""

from collections.abc import Callable

import tensorflow as tf

Activation = Callable[[tf.Tensor], tf.Tensor]


# Elements from which on a tensor leaves the processor's cache between the steps of a derivative.
_MANY = 2**18


def _lean(function: Activation) -> Activation:
    """The same values and gradients; of all steps of `function`, the input alone is kept for the backward pass.

    By itself GELU keeps five tensors of the inner width a layer, a third of all that a training step needs: the first
    steps of its derivative are taken as soon as their input is there, long before they are read. Here they begin when
    the gradient from above has come. On CPU XLA makes one loop of them where tensors are large and float32: they are
    bound by memory, and take a fifth of the time (four fifths in bfloat16, at the price of memory).
    """

    def derivative(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, upstream)

    in_one_loop = tf.function(derivative, jit_compile=True, autograph=False, reduce_retracing=True)

    @tf.custom_gradient
    def lean(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if x.dtype == tf.float32 and _is_large(x) and _is_cpu():
                return in_one_loop(x, upstream)
            with tf.control_dependencies([upstream]):
                again = tf.identity(x)
            return derivative(again, upstream)

        return function(x), gradient

    return lean


def _is_large(x: tf.Tensor) -> bool:
    """Whether x surely has many elements; XLA compiles anew for each size, so sizes that change are not for it."""
    return x.shape.is_fully_defined() and x.shape.num_elements() >= _MANY


def _is_cpu() -> bool:
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


BY_NAME: dict[str, Activation] = {
    "gelu": _lean(lambda x: tf.nn.gelu(x, approximate=True)),  # the release's tanh form
    "gelu_erf": _lean(lambda x: tf.nn.gelu(x, approximate=False)),  # the exact one
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}
