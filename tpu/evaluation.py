"""Measuring a pretraining model on records: sums over all of them, on any strategy."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import Model
from albert_tf.pretraining import dataset as datasets
from albert_tf.pretraining import objective
from albert_tf.pretraining.record_source import RecordSource
from tpu.strategy import share_out


def batches(
    source: RecordSource, batching: datasets.Batching, strategy: tf.distribute.Strategy, **options: Any
) -> Iterable[dict[str, tf.Tensor]]:
    """dataset.evaluation_dataset with these options, shared out over the strategy's replicas."""
    make = tf.autograph.experimental.do_not_convert(datasets.evaluation_dataset)  # as for training
    return share_out(lambda context: make(source, batching.share(context), **options), strategy)


class PretrainingEvaluator:
    """Evaluates a model as often as asked; the graph is traced once."""

    def __init__(self, model: Model, dataset: Iterable[dict[str, tf.Tensor]], strategy: tf.distribute.Strategy) -> None:
        self._model, self._dataset, self._strategy = model, dataset, strategy
        self._step = tf.function(tf.autograph.experimental.do_not_convert(self._global_step))

    def evaluate(self, stop_wanted: Callable[[], int] = lambda: 0) -> dict[str, float]:
        """One pass; it ends early, with an empty answer, once `stop_wanted` gives something (a signal's number).

        Returns the losses (nats) and accuracies (shares) of objective.metrics, the numbers masked_lm_predictions and
        sentence_order_pairs that they are means of, masked_lm_baseline_accuracy, which always guessing the commonest
        masked piece would reach, and sentence_order_error, the binomial standard error of the sentence-order accuracy.
        """
        totals = np.zeros(len(objective.Sums._fields))  # float64: the sums of many batches
        pieces = np.zeros(self._model.config.vocab_size)
        for features in self._dataset:
            if stop_wanted():
                return {}
            sums, counts = self._step(features)
            totals += [float(value) for value in sums]
            pieces += counts.numpy()
        sums = objective.Sums(*totals)
        metrics = objective.metrics(sums, sentence="sentence_order" in self._model.heads)
        metrics["masked_lm_baseline_accuracy"] = float(pieces.max() / max(pieces.sum(), 1.0))
        metrics["masked_lm_predictions"] = int(sums.masked_lm_weight)
        if "sentence_order_accuracy" in metrics:
            share = metrics["sentence_order_accuracy"]
            metrics["sentence_order_pairs"] = int(sums.sentence_weight)
            metrics["sentence_order_error"] = math.sqrt(share * (1 - share) / sums.sentence_weight)
        return metrics

    def _global_step(self, features: dict[str, tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        replica_sums, replica_counts = self._strategy.run(self._replica_step, args=(features,))
        total = lambda value: self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)  # noqa: E731
        return [total(value) for value in replica_sums], total(replica_counts)

    def _replica_step(self, features: dict[str, tf.Tensor]) -> tuple[objective.Sums, tf.Tensor]:
        weights, ids = features["masked_lm_weights"], features["masked_lm_ids"]
        counts = tf.math.unsorted_segment_sum(weights, ids, self._model.config.vocab_size)
        return objective.forward_sums(self._model, features, training=False), counts
