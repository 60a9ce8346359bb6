"""A task's model for `Model.fit`: one optimiser step of the task's loss on any strategy and precision."""

from typing import Any

import tensorflow as tf
import tf_keras

from albert_tf.checkpoints import Model
from tasks.task import Task

Batch = dict[str, tf.Tensor]


class TaskModel(tf_keras.Model):
    """Encoder and head of a task.

    The loss of a step is sum(loss) / sum(loss_weights) over all replicas and accumulation steps. Dropout depends on
    (seed, step, replica) alone, so a resumed run equals an uninterrupted one.
    """

    def __init__(self, model: Model, task: Task, *, seed: int = 0, grad_accum_steps: int = 1) -> None:
        super().__init__(name="task_model")
        self.encoder, self.task_head = model.encoder, model.heads[task.head]
        self._model, self._task = model, task
        self._seed, self._grad_accum_steps = seed, grad_accum_steps
        self.loss_tracker = tf_keras.metrics.Mean(name="loss")
        self.global_step = tf.Variable(
            0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def compile(self, optimizer: Any = "rmsprop", **kwargs: Any) -> None:
        """Takes a tf_keras optimiser and makes its slots, so that a checkpoint can fill them and one trace is enough.

        Raises TypeError for an optimiser of Keras 3.
        """
        _refuse_keras_3(optimizer, "tf_keras.optimizers")
        super().compile(optimizer=optimizer, **kwargs)
        make_slots = getattr(self.optimizer, "_create_all_weights", None) or self.optimizer.build
        make_slots(self.trainable_variables)

    def fit(self, *args: Any, callbacks: Any = None, **kwargs: Any) -> tf_keras.callbacks.History:
        """Model.fit.

        Raises TypeError for a callback of Keras 3.
        """
        for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
            _refuse_keras_3(callback, "tf_keras.callbacks")
        return super().fit(*args, callbacks=callbacks, **kwargs)

    @property
    def metrics(self) -> list[tf_keras.metrics.Metric]:
        return [self.loss_tracker]

    def call(self, batch: Batch, training: bool = False) -> dict[str, tf.Tensor]:
        """A batch of tasks.batching -> outputs of the task's head."""
        return self._task.forward(self._model, batch, training=training)

    @tf.autograph.experimental.do_not_convert  # nothing here to convert, and looking takes longer than tracing
    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """One optimiser step."""
        weights = tf.reduce_sum(self._task.loss_weights(batch))
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, weights)
        total = tf.maximum(total, 1e-6)  # a batch without any label gives 0, not NaN
        loss, gradients = self._accumulated(batch, total)
        pairs = [pair for pair in zip(gradients, self.trainable_variables, strict=True) if pair[0] is not None]
        self.optimizer.apply_gradients(pairs)
        self.global_step.assign_add(1)
        self.loss_tracker.update_state(loss / tf.maximum(weights, 1e-6), sample_weight=weights)
        return {"loss": self.loss_tracker.result()}

    def _accumulated(self, batch: Batch, total: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        """Sum of losses, and gradients of the step's loss, taken one slice of the batch after another."""
        count = self._grad_accum_steps
        parts = {name: _slices(value, count) for name, value in batch.items()} if count > 1 else {}

        def slice_of(i: int | tf.Tensor) -> Batch:
            part = {name: value[i] for name, value in parts.items()} if count > 1 else batch
            return {**part, "dropout_seed": self._dropout_seed(i)}

        loss, gradients = self._gradients(slice_of(0), total)
        if count == 1:
            return loss, gradients
        used = [gradient is not None for gradient in gradients]

        def add(i: tf.Tensor, loss: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            more, new = self._gradients(slice_of(i), total)
            new = [gradient for gradient in new if gradient is not None]
            return (i + 1, loss + more, *(a + b for a, b in zip(sums, new, strict=True)))

        start = (1, loss, *(gradient for gradient in gradients if gradient is not None))
        # One slice at a time is the point: several at once would need the memory of all.
        _, loss, *sums = tf.while_loop(lambda i, *_: i < count, add, start, parallel_iterations=1)
        remaining = iter(sums)
        return loss, [next(remaining) if there else None for there in used]

    def _gradients(self, batch: Batch, total: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
        with tf.GradientTape() as tape:
            losses = self._task.loss(self(batch, training=True), batch)
            counted = tf.reduce_sum(tf.where(batch["feature_index"] >= 0, losses, 0.0))
            loss = counted / total
            scaled = self.optimizer.get_scaled_loss(loss) if self._scales_loss else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        return counted, self.optimizer.get_unscaled_gradients(gradients) if self._scales_loss else gradients

    @property
    def _scales_loss(self) -> bool:
        return isinstance(self.optimizer, tf_keras.mixed_precision.LossScaleOptimizer)

    def _dropout_seed(self, part: int | tf.Tensor) -> tf.Tensor:
        fold = tf.random.experimental.stateless_fold_in
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = fold(tf.constant([self._seed, 0], tf.int32), self.global_step)
        return fold(fold(seed, replica), part)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("a task model is kept as a model folder: albert_tf.checkpoints.save_model")


def _slices(value: tf.Tensor, count: int) -> tf.Tensor:
    """[n, ...] -> [count, n / count, ...]. Packed batches have arrays of n rows and of n times the places of a row."""
    return tf.reshape(value, tf.concat([[count, -1], tf.shape(value)[1:]], axis=0))


def _refuse_keras_3(value: Any, module: str) -> None:
    kinds = type(value).__mro__
    if any(kind.__module__.split(".")[0] == "keras" for kind in kinds):
        raise TypeError(
            f"{type(value).__name__} is an object of Keras 3 ({type(value).__module__}), which does not work with "
            f"albert_tf, built on Keras 2: take it from {module} (import tf_keras)"
        )
