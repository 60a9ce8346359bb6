"""The limit: nothing but the products of matrices of a step, in TensorFlow's own kernels.

The same products one after another, all layers, forwards and in training backwards as well. What a system's step takes
longer than this is spent on everything else.
"""

from collections.abc import Iterator

import tensorflow as tf

from benchmarks.peers import work
from benchmarks.peers.contract import STEP, Part

PACKAGES = ("tensorflow",)


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """The part STEP; its number is a sum of outputs and means nothing."""
    groups: dict[int, list] = {}
    for product in work.products(case):
        groups.setdefault(product.count, []).extend(_operands(product, case))

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        total = tf.zeros([])
        for count, some in groups.items():

            def once(i: tf.Tensor, total: tf.Tensor, some: list = some) -> tuple[tf.Tensor, tf.Tensor]:
                for left, right, flips in some:
                    with tf.control_dependencies([total]):  # one after another: each has all cores
                        total += _corner(tf.matmul(left, right, **flips))
                return i + 1, total

            _, total = tf.while_loop(lambda i, _, count=count: i < count, once, (0, total), parallel_iterations=1)
        return total

    return {STEP: Part(lambda: float(step()))}


def _operands(product: work.Product, case: work.Case) -> Iterator[tuple[tf.Tensor, tf.Tensor, dict[str, bool]]]:
    """Pairs of random matrices for a product and, in training, for the gradients of both its sides."""
    lead = [] if product.batch == 1 else [product.batch]
    left, right, out = (
        tf.cast(tf.random.stateless_normal([*lead, *shape], [0, 0]), case.precision)
        for shape in ((product.m, product.k), (product.k, product.n), (product.m, product.n))
    )
    yield left, right, {}
    if case.kind == "train":
        yield out, right, {"transpose_b": True}
        yield left, out, {"transpose_a": True}


def _corner(x: tf.Tensor) -> tf.Tensor:
    """One number of an output, so that the product is not optimised away."""
    return tf.cast(tf.reshape(x, [-1])[0], tf.float32)
