"""What an encoder repeats: attention sub-layer, feed-forward sub-layer, and the block of both.

Axes: B batch, S sequence, K query positions, H hidden, A heads, D head size.

A block is reused by many layers, so what a pass derives from its variables (casts to the compute dtype, the fused
query/key/value kernel) is read once per pass with `read_weights` and handed to every call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from albert_tf.layers import AlbertLayer, Dense, LayerNorm, dense, dropout, layer_norm, prefixed, shape_of

# Added to the scores of masked positions. The release's number: a row without any token keeps its unmasked softmax,
# and it fits in float16.
MASKED_SCORE = -10_000.0


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
        inner = dense(hidden, weights.kernel, weights.bias, act=self.hidden_act)
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

    @staticmethod
    def share_out(hidden: tf.Tensor, weights: BlockWeights) -> tuple[tf.Tensor, BlockWeights, BlockWeights]:
        """The same hidden states, weights for the next layer, and weights for all the layers after that one.

        The gradients of the two are added before the backward pass goes on behind `hidden`: otherwise every layer's
        wait for the last one's, and TensorFlow makes one sum of all of them.
        """
        flat = tf.nest.flatten(weights)
        same, *both = _share_out(hidden, *flat)
        here, later = both[: len(flat)], both[len(flat) :]
        return same, tf.nest.pack_sequence_as(weights, here), tf.nest.pack_sequence_as(weights, later)

    def get_config(self) -> dict[str, Any]:
        parts = {"attention": self.attention, "feed_forward": self.feed_forward}
        serialised = {name: tf_keras.saving.serialize_keras_object(part) for name, part in parts.items()}
        return {**super().get_config(), **serialised}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AlbertBlock":
        parts = {name: tf_keras.saving.deserialize_keras_object(config[name]) for name in ("attention", "feed_forward")}
        return cls(**{**config, **parts})


@tf.custom_gradient
def _share_out(hidden: tf.Tensor, *weights: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
    def gradient(upstream: tf.Tensor, *of_both: tf.Tensor) -> tuple[tf.Tensor, ...]:
        sums = [here + later for here, later in zip(of_both[: len(weights)], of_both[len(weights) :], strict=True)]
        with tf.control_dependencies(sums):
            return (tf.identity(upstream), *sums)

    return tuple(tf.identity(x) for x in (hidden, *weights, *weights)), gradient
