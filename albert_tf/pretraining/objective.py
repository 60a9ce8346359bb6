"""The pretraining objective as sums, so that means are always over the global batch.

Axes: B batch, S sequence, P predictions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.checkpoints import Model

# The release's guard against a batch without any prediction (paper's code, masked LM loss).
WEIGHT_EPSILON = 1e-5


class Sums(NamedTuple):
    """What a batch, part of a batch, or many batches add up to; every field a float32 scalar."""

    masked_lm_loss: tf.Tensor  # weighted cross-entropy, nats
    masked_lm_weight: tf.Tensor  # number of real predictions
    masked_lm_correct: tf.Tensor
    sentence_loss: tf.Tensor  # cross-entropy, nats
    sentence_weight: tf.Tensor  # number of real sequences with a sentence label
    sentence_correct: tf.Tensor


class Weights(NamedTuple):
    """The denominators over a whole global batch; float32 scalars."""

    masked_lm: tf.Tensor
    sentence: tf.Tensor


def batch_weights(features: dict[str, tf.Tensor]) -> Weights:
    """Counts the predictions and sentence labels of one device's batch, before any forward pass.

    features: masked_lm_weights float32 [B, P]; sentence_weights float32 [B].
    """
    return Weights(tf.reduce_sum(features["masked_lm_weights"]), tf.reduce_sum(features["sentence_weights"]))


def forward_sums(
    model: Model, features: dict[str, tf.Tensor], *, training: bool, dropout_seed: tf.Tensor | None = None
) -> Sums:
    """Runs encoder and heads on a batch and adds up losses and hits; the masked LM runs at the masked positions only.

    features: input_ids, input_mask, segment_ids int32 [B, S]; masked_lm_positions, masked_lm_ids int32 [B, P];
    masked_lm_weights float32 [B, P]; sentence_labels int32 [B]; sentence_weights float32 [B]. A model without a
    sentence_order head gets zeros for that part. dropout_seed int32 [2].
    """
    inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    inputs["output_positions"] = features["masked_lm_positions"]
    if dropout_seed is not None:
        inputs["dropout_seed"] = dropout_seed
    outputs = model.encoder(inputs, training=training)
    logits = model.heads["masked_lm"](outputs["sequence_output"], model.encoder.embeddings.word_embeddings)
    masked_lm = _weighted(logits, features["masked_lm_ids"], features["masked_lm_weights"])
    if "sentence_order" not in model.heads:
        return Sums(*masked_lm, *([tf.zeros([], tf.float32)] * 3))
    logits = model.heads["sentence_order"](outputs["pooled_output"], training=training)
    return Sums(*masked_lm, *_weighted(logits, features["sentence_labels"], features["sentence_weights"]))


def loss(sums: Sums, weights: Weights) -> tf.Tensor:
    """masked_lm_loss / (masked_lm weight + 1e-5) + sentence_loss / sentence weight: float32 scalar.

    With `weights` of the global batch, the losses of replicas and accumulation steps add up to the global loss.
    """
    return sums.masked_lm_loss / (weights.masked_lm + WEIGHT_EPSILON) + sums.sentence_loss / tf.maximum(
        weights.sentence, 1.0
    )


def metrics(sums: Sequence[float], *, sentence: bool = True) -> dict[str, float]:
    """Losses (nats) and accuracies (shares) from summed Sums; `sentence` False leaves the sentence part out."""
    masked_loss, masked_weight, masked_correct, sentence_loss, sentence_weight, sentence_correct = map(float, sums)
    masked = {
        "masked_lm_loss": masked_loss / (masked_weight + WEIGHT_EPSILON),
        "masked_lm_accuracy": masked_correct / max(masked_weight, 1.0),
    }
    if not sentence or not sentence_weight:
        return {"loss": masked["masked_lm_loss"], **masked}
    pair = {
        "sentence_order_loss": sentence_loss / sentence_weight,
        "sentence_order_accuracy": sentence_correct / sentence_weight,
    }
    return {"loss": masked["masked_lm_loss"] + pair["sentence_order_loss"], **masked, **pair}


def _weighted(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(sum of weighted cross-entropies, sum of weights, weighted number of hits) for logits [..., N]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    hits = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels), tf.float32)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(weights), tf.reduce_sum(hits * weights)
