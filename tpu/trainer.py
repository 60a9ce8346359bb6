"""One optimiser step over a global batch, on any strategy, and the loop around it (orbit.StandardTrainer)."""

import time
from collections.abc import Iterator
from typing import Any

import orbit
import tensorflow as tf
import tf_keras

from albert_tf import optimization
from albert_tf.checkpoints import Model
from albert_tf.pretraining import objective

_NEVER = tf.int64.max  # `first_bad_step` while there is none


class PretrainingTrainer(orbit.StandardTrainer):
    """Trains for some steps; what was seen meanwhile comes back from `train`.

    With `loop_on_device` (TPU) the steps of one call run as one graph; otherwise Python asks for each batch and can
    tell how long it waited for it.
    """

    def __init__(
        self,
        *,
        strategy: tf.distribute.Strategy,
        model: Model,
        optimizer: tf_keras.optimizers.legacy.Optimizer,
        dataset: tf.data.Dataset,
        global_step: tf.Variable,
        grad_accum_steps: int = 1,
        seed: int = 0,
        jit_compile: bool = False,
        loop_on_device: bool = False,
    ) -> None:
        options = orbit.StandardTrainerOptions(use_tf_function=loop_on_device, use_tf_while_loop=loop_on_device)
        super().__init__(dataset, options)
        self.strategy, self.model, self.optimizer = strategy, model, optimizer
        self._scales_loss = isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
        self.global_step, self.seed, self.grad_accum_steps = global_step, seed, grad_accum_steps
        self._weights = list(model.named_variables().values())
        # No function here needs AutoGraph, which takes seconds at each start; orbit's own loop (loop_on_device) does.
        unconverted = tf.autograph.experimental.do_not_convert
        self._gradients = tf.function(unconverted(self._micro_gradients), jit_compile=jit_compile or None)
        self._step = self._replicated_step if loop_on_device else tf.function(unconverted(self._replicated_step))
        self._loop_on_device = loop_on_device
        self._waited = 0.0  # seconds
        with strategy.scope():
            optimizer._create_all_weights(self._weights)  # replicas cannot make them within the step
            self._sums = _tracker(tf.zeros([len(objective.Sums._fields)]))
            self._norm = _tracker(tf.zeros([]))
            self._updates = _tracker(tf.zeros([]))
            self._skipped = _tracker(tf.zeros([]))
            self._rate = _tracker(tf.zeros([]))
            self.first_bad_step = _tracker(tf.constant(_NEVER, tf.int64))

    def train_loop_begin(self) -> None:
        self._waited = 0.0
        for variable in (self._sums, self._norm, self._updates, self._skipped):
            variable.assign(tf.zeros_like(variable))

    def train_step(self, iterator: Iterator[dict[str, tf.Tensor]]) -> None:
        start = time.perf_counter()
        features = next(iterator)
        self._waited += time.perf_counter() - start
        self._step(features)

    def train_loop_end(self) -> dict[str, Any]:
        """What was seen since train_loop_begin.

        sums (objective.Sums), gradient_norm (mean before clipping, over the steps that updated the weights; None where
        none did), skipped_steps (gradients beyond float16's range), learning_rate (the last), seconds_waiting (for
        batches), first_bad_step (counted from 1, or None).
        """
        updates = float(self._updates.numpy())
        return {
            "sums": self._sums.numpy(),
            "gradient_norm": float(self._norm.numpy()) / updates if updates else None,
            "skipped_steps": int(self._skipped.numpy()),
            "learning_rate": float(self._rate.numpy()),
            "seconds_waiting": None if self._loop_on_device else self._waited,
            "first_bad_step": None if self.first_bad_step.numpy() == _NEVER else int(self.first_bad_step.numpy()),
        }

    def _replicated_step(self, features: dict[str, tf.Tensor]) -> None:
        self.strategy.run(self._replica_step, args=(features,))
        self.global_step.assign_add(1)

    def _replica_step(self, features: dict[str, tf.Tensor]) -> None:
        context = tf.distribute.get_replica_context()
        weights = objective.batch_weights(features)
        weights = objective.Weights(*_all_reduce(context, list(weights)))
        gradients, sums = self._accumulated(features, weights, self._replica_seed(context))
        reduced = _all_reduce(context, [*gradients, *sums])
        gradients, sums = reduced[: len(gradients)], objective.Sums(*reduced[len(gradients) :])
        if self._scales_loss:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        clipped, norm = optimization.clip_by_global_norm(gradients)
        self._rate.assign(optimization.current_learning_rate(self.optimizer))
        self._note(objective.loss(sums, weights), sums, norm)
        pairs = zip(clipped, self._weights, strict=True)
        # Else the optimiser's own products, three times the parameters, are made at the start of the step, and wait.
        with tf.control_dependencies([norm]):
            self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

    def _note(self, loss: tf.Tensor, sums: objective.Sums, norm: tf.Tensor) -> None:
        """Keeps what the log shows, and the first step (counted from 1) that cannot be gone on from.

        A gradient beyond the range is expected now and then under loss scaling: the optimiser then skips the step.
        """
        finite = tf.math.is_finite(norm)
        good = tf.math.is_finite(loss) & (finite | self._scales_loss)
        bad_step = tf.where(good, tf.constant(_NEVER, tf.int64), self.global_step + 1)
        self.first_bad_step.assign(tf.minimum(self.first_bad_step, bad_step))
        self._sums.assign_add(tf.stack(list(sums)))
        self._norm.assign_add(tf.where(finite, norm, 0.0))
        self._updates.assign_add(tf.cast(finite, tf.float32))
        self._skipped.assign_add(tf.cast(~finite, tf.float32))

    def _accumulated(
        self, features: dict[str, tf.Tensor], weights: objective.Weights, seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], objective.Sums]:
        """Gradients and sums of this replica's batch, one micro-batch after the other."""
        steps = self.grad_accum_steps
        if steps == 1:
            return self._gradients(features, weights, seed)
        parts = {name: tf.reshape(x, [steps, x.shape[0] // steps, *x.shape[1:]]) for name, x in features.items()}

        def add(step: tf.Tensor, gradients: list[tf.Tensor], sums: objective.Sums):
            micro = {name: part[step] for name, part in parts.items()}
            more = self._gradients(micro, weights, tf.random.experimental.stateless_fold_in(seed, step))
            return (step + 1, *tf.nest.map_structure(tf.add, (gradients, sums), more))

        zeros = [tf.zeros(variable.shape) for variable in self._weights]
        start = (tf.constant(0), zeros, objective.Sums(*[tf.zeros([])] * len(objective.Sums._fields)))
        _, gradients, sums = tf.while_loop(lambda step, *_: step < steps, add, start)
        return gradients, sums

    def _micro_gradients(
        self, features: dict[str, tf.Tensor], weights: objective.Weights, seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], objective.Sums]:
        with tf.GradientTape() as tape:
            sums = objective.forward_sums(self.model, features, training=True, dropout_seed=seed)
            loss = objective.loss(sums, weights)
            if self._scales_loss:
                loss = self.optimizer.get_scaled_loss(loss)
        return tape.gradient(loss, self._weights, unconnected_gradients=tf.UnconnectedGradients.ZERO), sums

    def _replica_seed(self, context: tf.distribute.ReplicaContext) -> tf.Tensor:
        """int32 [2], another one for each step and replica, the same after a resume."""
        seed = tf.stack([tf.constant(self.seed & 0x7FFFFFFF), tf.cast(self.global_step, tf.int32)])
        return tf.random.experimental.stateless_fold_in(seed, context.replica_id_in_sync_group)


def _tracker(value: tf.Tensor) -> tf.Variable:
    """A variable that every replica updates alike, with values that are already global."""
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def _all_reduce(context: tf.distribute.ReplicaContext, values: list[tf.Tensor]) -> list[tf.Tensor]:
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
