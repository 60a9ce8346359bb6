"""The parts of an encoder: embeddings, attention sub-layer, feed-forward sub-layer, block.

Axes: B batch, S sequence, K query positions, H hidden, E embedding, A heads, D head size, V vocabulary.

A block is reused by many layers, so what a pass derives from its variables (casts to the compute dtype, the fused
query/key/value kernel) is read once per pass with `read_weights` and handed to every call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

# Added to the scores of masked positions. The release's number: a row without any token keeps its unmasked softmax,
# and it fits in float16.
MASKED_SCORE = -10_000.0

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: tf.nn.gelu(x, approximate=False),
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function behind `hidden_act`."""
    return _ACTIVATIONS[name]


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
    """x [..., N] @ kernel [N, M] + bias [M] in the kernel's dtype: one product of two matrices, whatever x's rank."""
    product = tf.matmul(tf.reshape(tf.cast(x, kernel.dtype), [-1, kernel.shape[0]]), kernel)
    if bias is not None:
        product = tf.nn.bias_add(product, bias)
    return tf.reshape(product, [*shape_of(x)[:-1], kernel.shape[1]])


def shape_of(x: tf.Tensor) -> list[int | tf.Tensor]:
    """The shape with whole numbers where they are known (XLA and TPU need them) and tensors elsewhere."""
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(x.shape)]


def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises the last axis in float32 and gives back x's dtype."""
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


class AttentionWeights(NamedTuple):
    """An attention sub-layer's variables in the compute dtype; the query part is scaled by 1 / sqrt(D)."""

    kernel: tf.Tensor  # [H, 3H]: query, key, value
    bias: tf.Tensor  # [3H]
    output_kernel: tf.Tensor  # [H, H]
    output_bias: tf.Tensor  # [H]
    gamma: tf.Tensor  # [H], float32 in every policy, as beta
    beta: tf.Tensor


@tf_keras.saving.register_keras_serializable("albert_tf")
class AttentionSubLayer(AlbertLayer):
    """Multi-head self-attention, output projection, dropout, residual, LayerNorm (post-norm)."""

    config_names = ("hidden_size", "num_heads", "hidden_dropout", "attention_dropout", "epsilon")

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        hidden_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        epsilon: float = 1e-12,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.num_heads, self.head_size = hidden_size, num_heads, hidden_size // num_heads
        self.hidden_dropout, self.attention_dropout, self.epsilon = hidden_dropout, attention_dropout, epsilon
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        # Three variables, as in the release: LAMB adapts each by its own norm, and weights travel one to one.
        self.query = Dense(hidden_size, hidden_size, name="query", **part)
        self.key = Dense(hidden_size, hidden_size, name="key", **part)
        self.value = Dense(hidden_size, hidden_size, name="value", **part)
        self.projection = Dense(hidden_size, hidden_size, name="output", **part)
        self.layer_norm = LayerNorm(hidden_size, epsilon=epsilon, name="layer_norm", **part)

    def build(self, _: Any) -> None:
        for child in (self.query, self.key, self.value, self.projection, self.layer_norm):
            self.build_child(child)
        self.built = True

    def read_weights(self) -> AttentionWeights:
        """Fuses and casts the variables, once per pass."""
        scale = self.head_size**-0.5
        return AttentionWeights(
            kernel=self.compute(tf.concat([self.query.kernel * scale, self.key.kernel, self.value.kernel], axis=1)),
            bias=self.compute(tf.concat([self.query.bias * scale, self.key.bias, self.value.bias], axis=0)),
            output_kernel=self.compute(self.projection.kernel),
            output_bias=self.compute(self.projection.bias),
            gamma=tf.convert_to_tensor(self.layer_norm.gamma),
            beta=tf.convert_to_tensor(self.layer_norm.beta),
        )

    def call(
        self,
        hidden: tf.Tensor,
        score_bias: tf.Tensor,
        weights: AttentionWeights | None = None,
        query_positions: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attends from every position, or only from some.

        hidden [B, S, H]; score_bias float32, broadcast to [B, A, K, S]; query_positions int32 [B, K] or None for
        all. Returns ([B, K, H], attention probabilities float32 [B, A, K, S]), K = S where all positions ask.
        """
        weights = self.read_weights() if weights is None else weights
        if query_positions is None:
            query, key, value = tf.unstack(self._heads(dense(hidden, weights.kernel, weights.bias), 3))
        else:
            # Queries only where somebody reads the result; keys and values from everywhere.
            size = self.hidden_size
            key, value = tf.unstack(self._heads(dense(hidden, weights.kernel[:, size:], weights.bias[size:]), 2))
            hidden = tf.gather(hidden, query_positions, batch_dims=1)
            query = self._heads(dense(hidden, weights.kernel[:, :size], weights.bias[:size]), 1)[0]
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) + score_bias
        probabilities = tf.nn.softmax(scores)  # float32 in every policy
        kept = dropout(probabilities, self.attention_dropout, seed, purpose=0)
        context = tf.matmul(tf.cast(kept, value.dtype), value)  # [B, A, K, D]
        context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), shape_of(hidden))
        output = dense(context, weights.output_kernel, weights.output_bias)
        output = dropout(output, self.hidden_dropout, seed, purpose=1)
        return layer_norm(hidden + output, weights.gamma, weights.beta, self.epsilon), probabilities

    def _heads(self, x: tf.Tensor, parts: int) -> tf.Tensor:
        """[B, K, parts * H] -> [parts, B, A, K, D]."""
        batch, length = shape_of(x)[:2]
        x = tf.reshape(x, [batch, length, parts, self.num_heads, self.head_size])
        return tf.transpose(x, [2, 0, 3, 1, 4])

    def named_variables(self) -> dict[str, tf.Variable]:
        children = (self.query, self.key, self.value, self.projection, self.layer_norm)
        return {name: v for child in children for name, v in prefixed(child.name, child.named_variables()).items()}


class FeedForwardWeights(NamedTuple):
    """A feed-forward sub-layer's variables in the compute dtype."""

    kernel: tf.Tensor  # [H, intermediate]
    bias: tf.Tensor
    output_kernel: tf.Tensor  # [intermediate, H]
    output_bias: tf.Tensor
    gamma: tf.Tensor  # [H], float32 in every policy, as beta
    beta: tf.Tensor


@tf_keras.saving.register_keras_serializable("albert_tf")
class FeedForwardSubLayer(AlbertLayer):
    """Dense, activation, dense, dropout, residual, LayerNorm (post-norm)."""

    config_names = ("hidden_size", "intermediate_size", "hidden_act", "hidden_dropout", "epsilon")

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str = "gelu",
        hidden_dropout: float = 0.0,
        epsilon: float = 1e-12,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.intermediate_size, self.hidden_act = hidden_size, intermediate_size, hidden_act
        self.hidden_dropout, self.epsilon = hidden_dropout, epsilon
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.intermediate = Dense(hidden_size, intermediate_size, name="intermediate", **part)
        self.projection = Dense(intermediate_size, hidden_size, name="output", **part)
        self.layer_norm = LayerNorm(hidden_size, epsilon=epsilon, name="layer_norm", **part)

    def build(self, _: Any) -> None:
        for child in (self.intermediate, self.projection, self.layer_norm):
            self.build_child(child)
        self.built = True

    def read_weights(self) -> FeedForwardWeights:
        """Casts the variables, once per pass."""
        first, second, norm = self.intermediate, self.projection, self.layer_norm
        cast = [self.compute(v) for v in (first.kernel, first.bias, second.kernel, second.bias)]
        return FeedForwardWeights(*cast, tf.convert_to_tensor(norm.gamma), tf.convert_to_tensor(norm.beta))

    def call(
        self, hidden: tf.Tensor, weights: FeedForwardWeights | None = None, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """[B, K, H] -> [B, K, H]."""
        weights = self.read_weights() if weights is None else weights
        inner = activation(self.hidden_act)(dense(hidden, weights.kernel, weights.bias))
        output = dense(inner, weights.output_kernel, weights.output_bias)
        output = hidden + dropout(output, self.hidden_dropout, seed, purpose=2)
        return layer_norm(output, weights.gamma, weights.beta, self.epsilon)

    def named_variables(self) -> dict[str, tf.Variable]:
        children = (self.intermediate, self.projection, self.layer_norm)
        return {name: v for child in children for name, v in prefixed(child.name, child.named_variables()).items()}


class BlockWeights(NamedTuple):
    """What a block's calls share within one pass."""

    attention: AttentionWeights
    feed_forward: FeedForwardWeights


@tf_keras.saving.register_keras_serializable("albert_tf")
class AlbertBlock(AlbertLayer):
    """An attention sub-layer and a feed-forward sub-layer, each possibly shared with other blocks."""

    def __init__(self, attention: AttentionSubLayer, feed_forward: FeedForwardSubLayer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention, self.feed_forward = attention, feed_forward

    def build(self, _: Any) -> None:
        self.build_child(self.attention)
        self.build_child(self.feed_forward)
        self.built = True

    def read_weights(self) -> BlockWeights:
        """Reads both sub-layers' variables, once per pass."""
        return BlockWeights(self.attention.read_weights(), self.feed_forward.read_weights())

    def call(
        self,
        hidden: tf.Tensor,
        score_bias: tf.Tensor,
        weights: BlockWeights | None = None,
        query_positions: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """[B, S, H] -> ([B, K, H], attention probabilities [B, A, K, S]); see AttentionSubLayer."""
        weights = self.read_weights() if weights is None else weights
        hidden, probabilities = self.attention(hidden, score_bias, weights.attention, query_positions, seed)
        return self.feed_forward(hidden, weights.feed_forward, seed), probabilities

    def call_recomputed(
        self,
        hidden: tf.Tensor,
        score_bias: tf.Tensor,
        weights: BlockWeights,
        query_positions: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The hidden output of `call`; of all that lies between, nothing is kept for the backward pass.

        The backward pass runs the block again, dropout included, as that depends on the seed alone.
        """

        def forward(hidden: tf.Tensor, *flat: tf.Tensor) -> tf.Tensor:
            return self(hidden, score_bias, tf.nest.pack_sequence_as(weights, flat), query_positions, seed)[0]

        # Gradients reach arguments only, hence the weights as arguments.
        return tf.recompute_grad(forward)(hidden, *tf.nest.flatten(weights))

    def get_config(self) -> dict[str, Any]:
        parts = {"attention": self.attention, "feed_forward": self.feed_forward}
        serialised = {name: tf_keras.saving.serialize_keras_object(part) for name, part in parts.items()}
        return {**super().get_config(), **serialised}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AlbertBlock":
        parts = {name: tf_keras.saving.deserialize_keras_object(config[name]) for name in ("attention", "feed_forward")}
        return cls(**{**config, **parts})
