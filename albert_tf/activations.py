"""The functions behind `hidden_act`."""

from collections.abc import Callable

import tensorflow as tf

Activation = Callable[[tf.Tensor], tf.Tensor]


def _lean(function: Activation) -> Activation:
    """The same values and gradients; of all steps of `function`, the input alone is kept for the backward pass.

    By itself GELU keeps five tensors of the inner width a layer, a third of all that a training step needs: the first
    steps of its derivative are taken as soon as their input is there, long before they are read. Here they begin when
    the gradient from above has come.
    """

    @tf.custom_gradient
    def lean(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([upstream]):
                again = tf.identity(x)
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = function(again)
            return tape.gradient(y, again, upstream)

        return function(x), gradient

    return lean


BY_NAME: dict[str, Activation] = {
    "gelu": _lean(lambda x: tf.nn.gelu(x, approximate=True)),  # the release's tanh form
    "gelu_erf": _lean(lambda x: tf.nn.gelu(x, approximate=False)),  # the exact one
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}
