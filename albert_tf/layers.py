"""The small parts: dense, LayerNorm, dropout, table lookup, factorised embedding. What is made of them: blocks.py.

Axes: B batch, S sequence, K query positions, H hidden, E embedding, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from albert_tf import activations

# Regular expressions, searched anywhere in a variable's name: what optimisers leave out of weight decay and adaptation.
LAYER_NORM_AND_BIAS = ("layer_norm", "LayerNorm", "bias")


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None, act: str = "linear") -> tf.Tensor:
    """act(x [..., N] @ kernel [N, M] + bias [M]) in the kernel's dtype: one product of two matrices, whatever x's rank.

    Bias and activation come before the result is reshaped, so that TensorFlow fuses them with the product.
    """
    product = tf.matmul(tf.reshape(tf.cast(x, kernel.dtype), [-1, kernel.shape[0]]), kernel)
    if bias is not None:
        product = add_bias(product, bias)
    return tf.reshape(activations.BY_NAME[act](product), [*shape_of(x)[:-1], kernel.shape[1]])


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """x [R, M] + bias [M]; its gradient takes half the time of BiasAddGrad in bfloat16."""
    return tf.nn.bias_add(x, bias), lambda upstream: (upstream, tf.reduce_sum(upstream, axis=0))


def shape_of(x: tf.Tensor) -> list[int | tf.Tensor]:
    """The shape with whole numbers where they are known (XLA and TPU need them) and tensors elsewhere."""
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(x.shape)]


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises the last axis of x [..., N] in float32, by gamma and beta float32 [N]; the result has x's dtype."""
    with tf.name_scope("layer_norm"):
        y = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(y, axes=[-1], keepdims=True)
        return tf.cast((y - mean) * (tf.math.rsqrt(variance + epsilon) * gamma) + beta, x.dtype)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None, purpose: int) -> tf.Tensor:
    """Dropout that is a pure function of (seed, purpose), so a resumed or recomputed pass draws the same mask.

    seed is int32 [2], or None for inference; purpose tells the uses within one pass apart.
    """
    if seed is None or not rate:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate, tf.random.experimental.stateless_fold_in(seed, purpose))


@tf.custom_gradient
def lookup(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Rows of table [V, E] for ids [...]; the gradient is dense, as the tied masked-LM matrix and weight decay need."""
    rows, width = shape_of(table)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        flat = tf.reshape(upstream, [-1, width])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), rows), None

    return tf.gather(table, ids), gradient


class AlbertLayer(tf_keras.layers.Layer):
    """Base of the parts: variables in float32 whatever the policy, cast where they are used, and named by path."""

    config_names: tuple[str, ...] = ()  # constructor arguments that get_config gives back

    def __init__(self, *, initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.initializer_range = initializer_range

    def add_matrix(self, name: str, shape: tuple[int, ...]) -> tf.Variable:
        """A variable from a truncated normal."""
        # A fresh initialiser each time: an unseeded one that is used twice gives the same values twice.
        initializer = tf_keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return self.add_weight(name, shape, tf.float32, initializer, experimental_autocast=False)

    def add_vector(self, name: str, size: int, initializer: str = "zeros") -> tf.Variable:
        """A bias (zeros), or a LayerNorm scale (ones)."""
        return self.add_weight(name, (size,), tf.float32, initializer, experimental_autocast=False)

    def build_child(self, child: tf_keras.layers.Layer) -> None:
        """Builds a sub-layer under its own name, so that variable names tell where a variable belongs."""
        if not child.built:
            with tf.name_scope(child.name):
                child.build(None)

    def compute(self, variable: tf.Variable) -> tf.Tensor:
        """The value in the compute dtype of the policy."""
        return tf.cast(variable, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        names = (*self.config_names, "initializer_range")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def prefixed(prefix: str, named: dict[str, tf.Variable]) -> dict[str, tf.Variable]:
    """{"kernel": v} -> {"prefix/kernel": v}."""
    return {f"{prefix}/{name}": variable for name, variable in named.items()}


@tf_keras.saving.register_keras_serializable("albert_tf")
class Dense(AlbertLayer):
    """Kernel [N, M] and, unless left out, bias [M]."""

    config_names = ("input_size", "units", "use_bias")

    def __init__(self, input_size: int, units: int, *, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.input_size, self.units, self.use_bias = input_size, units, use_bias

    def build(self, _: Any) -> None:
        self.kernel = self.add_matrix("kernel", (self.input_size, self.units))
        self.bias = self.add_vector("bias", self.units) if self.use_bias else None
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., N] -> [..., M] in the compute dtype."""
        bias = None if self.bias is None else self.compute(self.bias)
        return dense(x, self.compute(self.kernel), bias)

    def named_variables(self) -> dict[str, tf.Variable]:
        return {"kernel": self.kernel} if self.bias is None else {"kernel": self.kernel, "bias": self.bias}


@tf_keras.saving.register_keras_serializable("albert_tf")
class LayerNorm(AlbertLayer):
    """LayerNorm over the last axis, in float32 inside."""

    config_names = ("size", "epsilon")

    def __init__(self, size: int, *, epsilon: float = 1e-12, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size, self.epsilon = size, epsilon

    def build(self, _: Any) -> None:
        self.gamma = self.add_vector("gamma", self.size, "ones")
        self.beta = self.add_vector("beta", self.size)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """[..., N] -> [..., N], dtype kept."""
        return layer_norm(x, self.gamma, self.beta, self.epsilon)

    def named_variables(self) -> dict[str, tf.Variable]:
        return {"gamma": self.gamma, "beta": self.beta}


@tf_keras.saving.register_keras_serializable("albert_tf")
class FactorisedEmbedding(AlbertLayer):
    """Word, position and segment embeddings of size E, LayerNorm, dropout, then one projection to H.

    Paper, section 3.1: O(V x E + E x H) parameters in place of O(V x H). Without a projection where E = H.
    """

    config_names = (
        "vocab_size",
        "embedding_size",
        "hidden_size",
        "max_positions",
        "num_segments",
        "dropout_rate",
        "epsilon",
    )

    def __init__(
        self,
        *,
        vocab_size: int,
        embedding_size: int,
        hidden_size: int,
        max_positions: int,
        num_segments: int,
        dropout_rate: float = 0.0,
        epsilon: float = 1e-12,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.max_positions, self.num_segments = max_positions, num_segments
        self.dropout_rate, self.epsilon = dropout_rate, epsilon
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.layer_norm = LayerNorm(embedding_size, epsilon=epsilon, name="layer_norm", **part)
        self.projection = None
        if embedding_size != hidden_size:
            self.projection = Dense(embedding_size, hidden_size, name="projection", **part)

    def build(self, _: Any) -> None:
        self.word_embeddings = self.add_matrix("word_embeddings", (self.vocab_size, self.embedding_size))
        self.position_embeddings = self.add_matrix("position_embeddings", (self.max_positions, self.embedding_size))
        self.segment_embeddings = self.add_matrix("segment_embeddings", (self.num_segments, self.embedding_size))
        self.build_child(self.layer_norm)
        if self.projection is not None:
            self.build_child(self.projection)
        self.built = True

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor | None = None,
        position_ids: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """int32 [B, S] -> [B, S, H] in the compute dtype. Positions count from 0 in each row unless given."""
        x = lookup(tf.convert_to_tensor(self.word_embeddings), input_ids)
        if position_ids is None:
            x += self.position_embeddings[: shape_of(input_ids)[1]]
        else:
            x += lookup(tf.convert_to_tensor(self.position_embeddings), position_ids)
        if segment_ids is None:
            x += self.segment_embeddings[0]
        else:
            x += lookup(tf.convert_to_tensor(self.segment_embeddings), segment_ids)
        x = dropout(self.layer_norm(x), self.dropout_rate, seed, purpose=0)
        return tf.cast(x, self.compute_dtype) if self.projection is None else self.projection(x)

    def named_variables(self) -> dict[str, tf.Variable]:
        names = ("word_embeddings", "position_embeddings", "segment_embeddings")
        named = {name: getattr(self, name) for name in names}
        named.update(prefixed("layer_norm", self.layer_norm.named_variables()))
        if self.projection is not None:
            named.update(prefixed("projection", self.projection.named_variables()))
        return named
