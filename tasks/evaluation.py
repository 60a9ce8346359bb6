"""From features to predictions and scores, on any strategy."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import Model
from albert_tf.errors import UserError
from tasks.features import Features
from tasks.feeding import evaluation_feed
from tasks.task import Task
from tpu import strategy as strategies

DEFAULT_BATCH_SIZE = 64


class Predictor:
    """Runs a task's model over features as often as asked; the graph is traced once."""

    def __init__(
        self,
        model: Model,
        task: Task,
        *,
        strategy: tf.distribute.Strategy | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        self._model, self._task = model, task
        self._strategy = strategy or _first_device()
        self._batch_size = batch_size
        self._step = tf.function(self._global_step, autograph=False)

    def outputs(self, features: Features) -> list[dict[str, np.ndarray]]:
        """What the task's forward gives, one dictionary of rows a feature, in their order."""
        feed, count = evaluation_feed(self._task, features, self._strategy, batch_size=self._batch_size)
        iterator = iter(self._strategy.experimental_distribute_dataset(feed.dataset()))
        collected: list[dict[str, np.ndarray] | None] = [None] * len(features)
        for _ in range(count):
            indices, outputs = self._step(iterator)
            values = {name: value.numpy() for name, value in outputs.items()}
            check_finite(values)
            for row, index in enumerate(indices.numpy()):
                if index >= 0:
                    collected[index] = {name: value[row] for name, value in values.items()}
        return collected

    def predictions(self, features: Features, examples: Sequence[Any]) -> list[Any]:
        """One prediction an example."""
        return self._task.predictions(self.outputs(features), features, examples)

    def _global_step(self, iterator: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        indices, outputs = self._strategy.run(self._replica_step, args=(next(iterator),))
        joined = lambda value: tf.concat(self._strategy.experimental_local_results(value), axis=0)  # noqa: E731
        return joined(indices), {name: joined(value) for name, value in outputs.items()}

    def _replica_step(self, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return batch["feature_index"], self._task.forward(self._model, batch, training=False)


def check_finite(outputs: dict[str, np.ndarray]) -> None:
    """Raises UserError where a model's outputs are no numbers: whatever is made of them would look like an answer."""
    broken = [name for name, value in outputs.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if broken:
        raise UserError(
            f"the model's {', '.join(broken)} are not finite numbers: its weights are damaged, or training had "
            "diverged; take another model"
        )


def single_machine_strategy(distribution: str, tpu_name: str | None) -> tf.distribute.Strategy:
    """one_process_strategy for tasks, whose batches are made by Python in this process.

    Raises UserError also for a TPU of other machines, which cannot call it.
    """
    if strategies.is_remote_tpu(tpu_name):
        raise UserError(
            f"tpu_name is {tpu_name!r}, a TPU of other machines, but the batches of a task are made in this process: "
            "run on the TPU VM with --tpu_name=local"
        )
    return strategies.one_process_strategy(distribution, tpu_name=tpu_name)


def _first_device() -> tf.distribute.Strategy:
    return strategies.OneDevice("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")


def labelled(examples: Sequence[Any], source: Any) -> list[Any]:
    """The examples that have a label.

    Raises UserError where none has.
    """
    kept = [example for example in examples if example.label is not None]
    if not kept:
        raise UserError(f"{source} has no labels: expected a file with labels for training or evaluation")
    if len(kept) < len(examples):
        missing = len(examples) - len(kept)
        print(
            f"NOTICE: {source}: {missing} of {len(examples)} examples have no label and are left out", file=sys.stderr
        )
    return kept


def shown(metrics: dict[str, float]) -> str:
    """Metrics as one line: "accuracy 0.9106 | f1 0.9120"."""
    return " | ".join(f"{name} {value:.4f}" for name, value in metrics.items())
