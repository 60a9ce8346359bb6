"""AlbertEncoder: embeddings, then layers that reuse a few blocks, then the pooler."""

from typing import Any

import tensorflow as tf
import tf_keras

from albert_tf import blocks, layers
from albert_tf.config import AlbertConfig, block_plan

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
_OPTIONAL_NAMES = ("position_ids", "sequence_ids", "output_positions", "dropout_seed")
_PER_TOKEN = ("input_mask", "segment_ids", "position_ids", "sequence_ids")


@tf_keras.saving.register_keras_serializable("albert_tf")
class AlbertEncoder(layers.AlbertLayer):
    """ALBERT's encoder (paper, section 3): one block reused by every layer, or the paper's other ways of sharing.

    >>> encoder = AlbertEncoder(AlbertConfig())
    >>> outputs = encoder({"input_ids": [[2, 51, 7, 3]]})
    >>> outputs["sequence_output"].shape, outputs["pooled_output"].shape
    (TensorShape([1, 4, 768]), TensorShape([1, 768]))

    With `recompute`, training keeps each layer's input only and runs the layer again in the backward pass: much less
    memory, about a third more time, the same gradients. It may be switched at any time before the first step.
    """

    def __init__(
        self,
        config: AlbertConfig | dict[str, Any],
        name: str = "albert_encoder",
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        _check_name(name)
        self.recompute = recompute
        self.config = config if isinstance(config, AlbertConfig) else AlbertConfig.from_dict(config)
        kwargs["initializer_range"] = self.config.initializer_range
        super().__init__(name=name, **kwargs)
        part = {"initializer_range": self.initializer_range, "dtype": self._dtype_policy}
        self.embeddings = _embeddings(self.config, part)
        self.attentions, self.feed_forwards = _sub_layers(self.config, part)
        self.blocks = [  # the same object wherever a layer is shared
            blocks.AlbertBlock(self.attentions[attention], self.feed_forwards[feed_forward], name=f"block_{i}", **part)
            for i, (attention, feed_forward) in enumerate(block_plan(self.config)[0])
        ]
        self.layer_blocks = block_plan(self.config)[1]
        self.pooler = layers.Dense(self.config.hidden_size, self.config.hidden_size, name="pooler", **part)

    def build(self, _: Any) -> None:
        for child in (self.embeddings, *self.attentions, *self.feed_forwards, *self.blocks, self.pooler):
            self.build_child(child)
        self.built = True

    def call(
        self,
        inputs: dict[str, tf.Tensor] | tf.Tensor,
        training: bool | None = None,
        return_attention_probs: bool = False,
        return_word_embeddings: bool = False,
    ) -> dict[str, Any]:
        """Encodes token ids.

        Args:
          inputs: a dict, or input_ids alone.
            input_ids: int [B, S], S at most max_position_embeddings.
            input_mask: int [B, S], 1 for tokens and 0 for padding; all ones where left out.
            segment_ids: int [B, S]; all zeros where left out.
            position_ids: int [B, S], optional: places in the position table, where they do not count from 0 in a row.
            sequence_ids: int [B, S], optional: several sequences share a row; a token attends to those of its number.
            output_positions: int [B, K], optional: the last layer then runs only there (and at the first token), as
              no head reads anything else; `sequence_output` and the last of `encoder_outputs` become [B, K, H], the
              same numbers that a gather from the full output would give.
            dropout_seed: int32 [2], optional: makes dropout a pure function of it; drawn at random where left out.
          training: whether dropout is on.
          return_attention_probs: adds `attention_probs`.
          return_word_embeddings: adds `word_embeddings` float32 [V, E], by which Keras can save and clone a functional
            model with the masked LM head: it cannot where the head is given the variable.

        Returns:
          sequence_output [B, S, H], pooled_output [B, H], encoder_outputs (a list, one [B, S, H] per layer and inner
          group) in the compute dtype, and, where asked for, attention_probs (a list of float32 [B, A, S, S]).
        """
        inputs = _checked(inputs, self.config.max_position_embeddings)
        seed = self._dropout_seed(inputs, training)
        tokens = [inputs.get(name) for name in ("input_ids", "segment_ids", "position_ids")]
        hidden = self.embeddings(*tokens, seed=_fold(seed, 0))
        score_bias = self._score_bias(inputs)
        weights = self.read_weights()
        positions = inputs.get("output_positions")
        queries = None if positions is None else tf.pad(positions, [[0, 0], [1, 0]])  # the first token in front
        outputs, probabilities = [], []
        for i, block in enumerate(self.layer_blocks):
            last = i == len(self.layer_blocks) - 1
            if last and queries is not None and "sequence_ids" in inputs:
                score_bias = tf.gather(score_bias[:, 0], queries, batch_dims=1)[:, None]  # [B, 1, K, S]
            here, recomputed = weights[block], self.recompute and training and not return_attention_probs
            if recomputed and block in self.layer_blocks[i + 1 :]:
                hidden, here, weights[block] = self.blocks[block].share_out(hidden, here)
            arguments = (hidden, score_bias, here, queries if last else None, _fold(seed, i + 1))
            if recomputed:
                hidden = self.blocks[block].call_recomputed(*arguments)
            else:
                hidden, attention = self.blocks[block](*arguments)
                probabilities.append(attention)
            outputs.append(hidden)
        pooled = tf.math.tanh(self.pooler(hidden[:, 0]))
        if positions is not None:
            outputs[-1] = hidden[:, 1:]
        result = {"sequence_output": outputs[-1], "pooled_output": pooled, "encoder_outputs": outputs}
        if return_word_embeddings:
            result["word_embeddings"] = tf.convert_to_tensor(self.embeddings.word_embeddings)
        return {**result, "attention_probs": probabilities} if return_attention_probs else result

    def _score_bias(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """float32 [B, 1, 1, S], [B, 1, S, S] where sequences share rows, or 0 where every position is a token."""
        mask, sequences = inputs.get("input_mask"), inputs.get("sequence_ids")
        bias = tf.zeros([], tf.float32)
        if mask is not None:
            bias = (1.0 - tf.cast(mask, tf.float32)) * blocks.MASKED_SCORE
            bias = tf.expand_dims(tf.expand_dims(bias, 1), 1)  # TensorFlow Lite has no slice that adds an axis
        if sequences is not None:
            if "output_positions" in inputs:  # the last layer then picks from the result row by row
                sequences = tf.broadcast_to(sequences, tf.shape(inputs["input_ids"]))
            others = sequences[:, None, :, None] != sequences[:, None, None, :]
            bias = tf.maximum(bias + tf.cast(others, tf.float32) * blocks.MASKED_SCORE, blocks.MASKED_SCORE)
        return bias

    def read_weights(self) -> list[blocks.BlockWeights]:
        """Reads every sub-layer once, also those that several blocks share; a list by block."""
        attentions = {id(part): part.read_weights() for part in self.attentions}
        feed_forwards = {id(part): part.read_weights() for part in self.feed_forwards}
        return [
            blocks.BlockWeights(attentions[id(block.attention)], feed_forwards[id(block.feed_forward)])
            for block in self.blocks
        ]

    def _dropout_seed(self, inputs: dict[str, tf.Tensor], training: Any) -> tf.Tensor | None:
        if tf.is_tensor(training) and (training.shape.rank != 0 or not tf.executing_eagerly()):
            raise TypeError(
                "training is a tensor: expected True or False, which make different graphs; a mask goes into a dict, "
                "{'input_ids': ..., 'input_mask': ...}"
            )
        if not training or not (self.config.hidden_dropout_prob or self.config.attention_probs_dropout_prob):
            return None
        if "dropout_seed" in inputs:
            return inputs["dropout_seed"]
        return tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)

    def named_variables(self) -> dict[str, tf.Variable]:
        """Every variable once, under the name that it has in a model folder."""
        named = layers.prefixed("embeddings", self.embeddings.named_variables())
        for part in (*self.attentions, *self.feed_forwards, self.pooler):
            named.update(layers.prefixed(part.name, part.named_variables()))
        return named

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["initializer_range"]
        return {**config, "config": self.config.to_dict(), "recompute": self.recompute}


def _embeddings(config: AlbertConfig, part: dict[str, Any]) -> layers.FactorisedEmbedding:
    return layers.FactorisedEmbedding(
        vocab_size=config.vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        num_segments=config.type_vocab_size,
        dropout_rate=config.hidden_dropout_prob,
        epsilon=config.layer_norm_epsilon,
        name="embeddings",
        **part,
    )


def _sub_layers(
    config: AlbertConfig, part: dict[str, Any]
) -> tuple[list[blocks.AttentionSubLayer], list[blocks.FeedForwardSubLayer]]:
    plan, _ = block_plan(config)
    shared = {
        "hidden_size": config.hidden_size,
        "hidden_dropout": config.hidden_dropout_prob,
        "epsilon": config.layer_norm_epsilon,
        **part,
    }
    attentions = [
        blocks.AttentionSubLayer(
            num_heads=config.num_attention_heads,
            attention_dropout=config.attention_probs_dropout_prob,
            name=f"attention_{i}",
            **shared,
        )
        for i in range(1 + max(attention for attention, _ in plan))
    ]
    feed_forwards = [
        blocks.FeedForwardSubLayer(
            intermediate_size=config.intermediate_size, hidden_act=config.hidden_act, name=f"feed_forward_{i}", **shared
        )
        for i in range(1 + max(feed_forward for _, feed_forward in plan))
    ]
    return attentions, feed_forwards


def _fold(seed: tf.Tensor | None, step: int) -> tf.Tensor | None:
    return None if seed is None else tf.random.experimental.stateless_fold_in(seed, step)


def _check_name(name: str | None) -> None:
    """Refuses a name by which our optimisers would take every variable for one of LayerNorm, or a bias."""
    if found := [part for part in layers.LAYER_NORM_AND_BIAS if part in (name or "")]:
        raise ValueError(
            f"name is {name!r}: variables with {found[0]!r} in their names are left out of weight decay and layer "
            "adaptation, and that would be all of them; choose another name"
        )


def _checked(inputs: dict[str, tf.Tensor] | tf.Tensor, max_positions: int) -> dict[str, tf.Tensor]:
    """The inputs as tensors. What is wrong with them is told as far as it can be seen without running the graph."""
    if not isinstance(inputs, dict):
        inputs = {"input_ids": inputs}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    unknown = sorted(set(inputs) - set(INPUT_NAMES) - set(_OPTIONAL_NAMES))
    if unknown or "input_ids" not in inputs:
        found = ", ".join(sorted(inputs)) or "nothing"
        raise ValueError(
            f"AlbertEncoder was called with {found}: expected input_ids and, optionally, "
            f"{', '.join(INPUT_NAMES[1:] + _OPTIONAL_NAMES)}; rename or drop the others"
        )
    inputs = {name: _tensor(name, value) for name, value in inputs.items()}
    shape = inputs["input_ids"].shape
    if shape.rank is not None and shape.rank != 2:
        raise ValueError(
            f"input_ids has rank {shape.rank}: expected [batch, sequence]; reshape it, or, where that "
            "is a list of several inputs, give a dict of them by name"
        )
    for name in _PER_TOKEN:
        if name in inputs and not _fits(inputs[name].shape, shape):
            raise ValueError(f"{name} has shape {inputs[name].shape}: expected that of input_ids, {shape}; reshape it")
    if shape.rank and (shape[1] or 0) > max_positions and "position_ids" not in inputs:
        raise ValueError(
            f"input_ids has {shape[1]} tokens a row, the model has {max_positions} positions: shorten the rows"
        )
    return inputs


def _tensor(name: str, value: Any) -> tf.Tensor:
    if type(value).__module__.split(".")[0] == "keras":  # would be told to go into a Keras layer, which this is
        raise TypeError(f"{name} is a {type(value).__name__} of Keras 3: take tf_keras.Input (import tf_keras)")
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}: expected a dense tensor; pad the rows, and give input_mask, 0 there")
    tensor = tf.convert_to_tensor(value)
    if name == "input_mask" or tensor.dtype in (tf.int32, tf.int64):
        return tensor
    if not tensor.dtype.is_integer:
        raise ValueError(
            f"{name} holds {tensor.dtype.name}: expected whole numbers, int32; tf_keras.Input takes dtype=tf.int32"
        )
    return tf.cast(tensor, tf.int32)  # records and NumPy may have shorter ones, which TensorFlow does not look up


def _fits(shape: tf.TensorShape, ids_shape: tf.TensorShape) -> bool:
    """Whether there is a value a token, or one row for all. Broadcasting would take others too, and mean other axes."""
    rows, length = shape[:1], shape[1:]
    same_rows = rows.is_compatible_with(ids_shape[:1]) or rows == [1]
    return shape.rank is None or (shape.rank == 2 and same_rows and length.is_compatible_with(ids_shape[1:]))
