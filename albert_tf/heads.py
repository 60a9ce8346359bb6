"""What is put on an encoder: pretraining heads and task heads. Logits are float32 under every policy.

Axes: B batch, S sequence, P predictions, H hidden, E embedding, V vocabulary, N labels, C choices, K beam.
"""

from typing import Any

import tensorflow as tf
import tf_keras

from albert_tf import activations, layers
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError

_register = tf_keras.saving.register_keras_serializable("albert_tf")


@_register
class MaskedLMHead(layers.AlbertLayer):
    """Dense [H, E], activation, LayerNorm, then the tied word-embedding matrix and a bias (paper, section 3.1)."""

    config_names = ("hidden_size", "embedding_size", "vocab_size", "hidden_act", "epsilon")

    def __init__(
        self,
        *,
        hidden_size: int,
        embedding_size: int,
        vocab_size: int,
        hidden_act: str = "gelu",
        epsilon: float = 1e-12,
        name: str = "masked_lm",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.hidden_size, self.embedding_size, self.vocab_size = hidden_size, embedding_size, vocab_size
        self.hidden_act, self.epsilon = hidden_act, epsilon
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.dense = layers.Dense(hidden_size, embedding_size, name="dense", **part)
        self.layer_norm = layers.LayerNorm(embedding_size, epsilon=epsilon, name="layer_norm", **part)

    def build(self, _: Any) -> None:
        self.build_child(self.dense)
        self.build_child(self.layer_norm)
        self.output_bias = self.add_vector("output_bias", self.vocab_size)
        self.built = True

    def call(self, hidden: tf.Tensor, word_embeddings: tf.Variable | tf.Tensor) -> tf.Tensor:
        """Hidden states [B, P, H] at the predicted positions, table [V, E] -> logits float32 [B, P, V].

        In a functional model the table comes from the encoder's return_word_embeddings, else Keras cannot save it.
        """
        x = self.layer_norm(activations.BY_NAME[self.hidden_act](self.dense(hidden)))
        flat = tf.reshape(x, [-1, self.embedding_size])
        logits = tf.matmul(flat, self.compute(tf.convert_to_tensor(word_embeddings)), transpose_b=True)
        logits = tf.cast(logits, tf.float32) + self.output_bias
        return tf.reshape(logits, [*layers.shape_of(hidden)[:-1], self.vocab_size])

    def named_variables(self) -> dict[str, tf.Variable]:
        named = layers.prefixed("dense", self.dense.named_variables())
        named.update(layers.prefixed("layer_norm", self.layer_norm.named_variables()))
        return {**named, "output_bias": self.output_bias}


@_register
class ClassificationHead(layers.AlbertLayer):
    """Dropout, then dense [H, N]: sentence order, classes, a regression value (N = 1), or a label per token."""

    config_names = ("hidden_size", "num_labels", "dropout_rate")

    def __init__(
        self,
        *,
        hidden_size: int,
        num_labels: int,
        dropout_rate: float = 0.0,
        name: str = "classifier",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.hidden_size, self.num_labels, self.dropout_rate = hidden_size, num_labels, dropout_rate
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.dense = layers.Dense(hidden_size, num_labels, name="dense", **part)
        self.dropout = tf_keras.layers.Dropout(dropout_rate)

    def build(self, _: Any) -> None:
        self.build_child(self.dense)
        self.built = True

    def call(self, hidden: tf.Tensor, training: bool | None = None, seed: tf.Tensor | None = None) -> tf.Tensor:
        """pooled_output [B, H] or sequence_output [B, S, H] -> logits float32 [B, N] or [B, S, N].

        seed int32 [2] makes dropout a function of it; without, it is drawn at random.
        """
        return tf.cast(self.dense(_dropout(self.dropout, hidden, training, seed)), tf.float32)

    def named_variables(self) -> dict[str, tf.Variable]:
        return self.dense.named_variables()


@_register
class MultipleChoiceHead(ClassificationHead):
    """One score an option (RACE): dense [H, 1] on the pooled output of [CLS] passage [SEP] question option [SEP]."""

    config_names = ("hidden_size", "dropout_rate")

    def __init__(
        self, *, hidden_size: int, dropout_rate: float = 0.0, name: str = "multiple_choice", **kwargs: Any
    ) -> None:
        super().__init__(hidden_size=hidden_size, num_labels=1, dropout_rate=dropout_rate, name=name, **kwargs)

    def call(
        self,
        hidden: tf.Tensor,
        num_choices: int | tf.Tensor,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """pooled_output [B * C, H], options of one question beside each other -> logits float32 [B, C]."""
        return tf.reshape(super().call(hidden, training=training, seed=seed), [-1, num_choices])


@_register
class SpanHead(layers.AlbertLayer):
    """Dense [H, 2]: a start and an end score for each position, independent of each other (SQuAD v1.1)."""

    config_names = ("hidden_size",)

    def __init__(self, *, hidden_size: int, name: str = "span", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.hidden_size = hidden_size
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.dense = layers.Dense(hidden_size, 2, name="dense", **part)

    def build(self, _: Any) -> None:
        self.build_child(self.dense)
        self.built = True

    def call(self, sequence_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """[B, S, H] -> start logits, end logits, float32 [B, S] each; padding is not masked."""
        start, end = tf.unstack(tf.cast(self.dense(sequence_output), tf.float32), axis=-1)
        return start, end

    def named_variables(self) -> dict[str, tf.Variable]:
        return self.dense.named_variables()


@_register
class ConditionalSpanHead(layers.AlbertLayer):
    """The release's SQuAD v2.0 head: start, end given the start, and whether there is an answer at all.

    start: dense [H, 1]. end: dense [2H, H] of (token, start token), tanh, LayerNorm, dense [H, 1]. answer class: dense
    [2H, H] of (token weighted by start probability, first token), tanh, dropout, dense [H, 1] without bias; a
    positive logit means "no answer".
    """

    config_names = ("hidden_size", "dropout_rate", "epsilon")

    def __init__(
        self,
        *,
        hidden_size: int,
        dropout_rate: float = 0.0,
        epsilon: float = 1e-12,
        name: str = "conditional_span",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.hidden_size, self.dropout_rate, self.epsilon = hidden_size, dropout_rate, epsilon
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.start = layers.Dense(hidden_size, 1, name="start", **part)
        self.end_dense = layers.Dense(2 * hidden_size, hidden_size, name="end_dense", **part)
        self.end_layer_norm = layers.LayerNorm(hidden_size, epsilon=epsilon, name="end_layer_norm", **part)
        self.end = layers.Dense(hidden_size, 1, name="end", **part)
        self.answer_dense = layers.Dense(2 * hidden_size, hidden_size, name="answer_dense", **part)
        self.answer = layers.Dense(hidden_size, 1, use_bias=False, name="answer", **part)
        self.dropout = tf_keras.layers.Dropout(dropout_rate)

    @property
    def _parts(self) -> tuple[layers.AlbertLayer, ...]:
        return self.start, self.end_dense, self.end_layer_norm, self.end, self.answer_dense, self.answer

    def build(self, _: Any) -> None:
        for part in self._parts:
            self.build_child(part)
        self.built = True

    def call(
        self,
        sequence_output: tf.Tensor,
        forbidden: tf.Tensor,
        start_positions: tf.Tensor,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Training: the end is conditioned on the true start.

        sequence_output [B, S, H]; forbidden [B, S], 1 where an answer may not be (the first token, meaning "no
        answer", is allowed); start_positions int32 [B]. Returns float32 start_logits [B, S], end_logits [B, S] (both
        unmasked), their masked log probabilities start_log_probs, end_log_probs, and answer_logits [B].
        """
        start_logits = self.start_logits(sequence_output)
        starts = tf.gather(sequence_output, start_positions[:, None], batch_dims=1)  # [B, 1, H]
        end_logits = self.end_logits(sequence_output, starts)[:, 0]
        return {
            "start_logits": start_logits,
            "end_logits": end_logits,
            "start_log_probs": masked_log_softmax(start_logits, forbidden),
            "end_log_probs": masked_log_softmax(end_logits, forbidden),
            "answer_logits": self.answer_logits(sequence_output, start_logits, forbidden, training=training, seed=seed),
        }

    def beams(
        self, sequence_output: tf.Tensor, forbidden: tf.Tensor, *, start_n_top: int, end_n_top: int
    ) -> dict[str, tf.Tensor]:
        """Prediction: the best starts, and the best ends for each of them.

        Returns start_top_log_probs, start_top_index [B, K1]; end_top_log_probs, end_top_index [B, K1 * K2], the ends
        of start i at i * K2 onwards; answer_logits [B]; start_logits [B, S]; end_logits [B, K1, S].
        """
        start_logits = self.start_logits(sequence_output)
        start_log_probs, start_index = tf.math.top_k(masked_log_softmax(start_logits, forbidden), start_n_top)
        end_logits = self.end_logits(sequence_output, tf.gather(sequence_output, start_index, batch_dims=1))
        end_log_probs = masked_log_softmax(end_logits, tf.expand_dims(forbidden, 1))
        end_log_probs, end_index = tf.math.top_k(end_log_probs, end_n_top)  # [B, K1, K2]
        return {
            "start_top_log_probs": start_log_probs,
            "start_top_index": start_index,
            "end_top_log_probs": tf.reshape(end_log_probs, [-1, start_n_top * end_n_top]),
            "end_top_index": tf.reshape(end_index, [-1, start_n_top * end_n_top]),
            "answer_logits": self.answer_logits(sequence_output, start_logits, forbidden),
            "start_logits": start_logits,
            "end_logits": end_logits,
        }

    def start_logits(self, sequence_output: tf.Tensor) -> tf.Tensor:
        """[B, S, H] -> float32 [B, S]."""
        return tf.cast(self.start(sequence_output)[..., 0], tf.float32)

    def end_logits(self, sequence_output: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        """[B, S, H] and start tokens [B, K, H] -> float32 [B, K, S]."""
        # dense([token; start]) = token @ upper half + start @ lower half: nothing of size K * S * 2H is made.
        upper, lower = tf.split(self.compute(self.end_dense.kernel), 2, axis=0)
        tokens = layers.dense(sequence_output, upper, self.compute(self.end_dense.bias))
        starts = layers.dense(starts, lower, None)
        inner = tf.expand_dims(tokens, 1) + tf.expand_dims(starts, 2)  # [B, K, S, H]
        return tf.cast(self.end(self.end_layer_norm(tf.math.tanh(inner)))[..., 0], tf.float32)

    def answer_logits(
        self,
        sequence_output: tf.Tensor,
        start_logits: tf.Tensor,
        forbidden: tf.Tensor,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """-> float32 [B]; positive means "no answer"."""
        start = tf.exp(masked_log_softmax(start_logits, forbidden))
        expected = tf.einsum("bs,bsh->bh", tf.cast(start, sequence_output.dtype), sequence_output)
        inner = tf.math.tanh(self.answer_dense(tf.concat([expected, sequence_output[:, 0]], axis=-1)))
        return tf.cast(self.answer(_dropout(self.dropout, inner, training, seed))[..., 0], tf.float32)

    def named_variables(self) -> dict[str, tf.Variable]:
        return {
            name: v for part in self._parts for name, v in layers.prefixed(part.name, part.named_variables()).items()
        }


def masked_log_softmax(logits: tf.Tensor, forbidden: tf.Tensor) -> tf.Tensor:
    """Log probabilities over the allowed positions of the last axis; forbidden ones fall to about -1e30.

    float32 [..., S] and 1 where forbidden, 0 elsewhere, broadcast to [..., S] -> float32 [..., S].
    """
    forbidden = tf.cast(forbidden, tf.float32)
    return tf.nn.log_softmax(logits * (1.0 - forbidden) - 1e30 * forbidden)


def _dropout(layer: tf_keras.layers.Dropout, x: tf.Tensor, training: bool | None, seed: tf.Tensor | None) -> tf.Tensor:
    if seed is None:
        return layer(x, training=training)
    return layers.dropout(x, layer.rate, seed if training else None, purpose=0)


def make_head(
    name: str, config: AlbertConfig, options: dict[str, Any], *, dtype: Any = None, layer_name: str | None = None
) -> layers.AlbertLayer:
    """The head `name` for an encoder of this configuration; options as `model.json` keeps them (num_labels, ...).

    Raises UserError where there is no such head, or an option is not possible.
    """
    if name not in HEADS:
        raise UserError(f"no head is named {name!r}: expected one of {', '.join(HEADS)}")
    labels = options.get("num_labels", 1)
    if not isinstance(labels, int) or labels < 1:
        raise UserError(f"the {name} head has num_labels {labels!r}: expected a whole number of at least 1")
    rate = options.get("dropout_rate", 0.0)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise UserError(f"the {name} head has dropout_rate {rate!r}: expected at least 0 and less than 1")
    ours = {
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "name": layer_name or name,
        "dtype": dtype,
    }
    if taken := sorted(ours.keys() & options):
        raise UserError(f"the {name} head has its own {', '.join(taken)}: expected only options of the head; remove it")
    try:
        return HEADS[name](config, {**ours, **options})
    except (TypeError, ValueError) as error:
        raise UserError(f"the {name} head cannot be made with {options}: {error}; correct the options") from error


def _masked_lm(config: AlbertConfig, options: dict[str, Any]) -> MaskedLMHead:
    return MaskedLMHead(
        embedding_size=config.embedding_size,
        vocab_size=config.vocab_size,
        hidden_act=config.hidden_act,
        epsilon=config.layer_norm_epsilon,
        **options,
    )


# Training any other head leaves the pooler as it is.
READ_POOLER = ("sentence_order", "classifier", "regression", "multiple_choice")

# Name in a model folder -> how to build it. Options beyond the configuration are the keyword arguments of the class.
HEADS = {
    "masked_lm": _masked_lm,
    "sentence_order": lambda config, options: ClassificationHead(num_labels=2, **options),
    "classifier": lambda config, options: ClassificationHead(**options),
    "regression": lambda config, options: ClassificationHead(num_labels=1, **options),
    "token_classifier": lambda config, options: ClassificationHead(**options),
    "multiple_choice": lambda config, options: MultipleChoiceHead(**options),
    "span": lambda config, options: SpanHead(**options),
    "conditional_span": lambda config, options: ConditionalSpanHead(epsilon=config.layer_norm_epsilon, **options),
}
