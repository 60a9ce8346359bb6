"""What the TensorFlow peers have in common: losses, a training step, and parts made of compiled functions."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.peers import natural, work
from benchmarks.peers.contract import STEP, Part

Batch = dict[str, tf.Tensor]
Function = Callable[[Batch], tf.Tensor]  # a batch -> the loss, or a number of the result


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The mean over all labels, in float32."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def training_step(
    loss_of: Function, optimizer: Any, variables: Sequence[Any], values: Sequence[tf.Variable]
) -> Function:
    """Gradients, clipping at global norm 1, update. `values` are TensorFlow's variables behind Keras 3's."""
    optimizer.build(variables)

    def step(batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, values), 1.0)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step


def full_parts(case: work.Case, function: Function, *, jit_compile: bool) -> dict[str, Part]:
    """The part STEP: a function on the case's batch."""
    batch = full_batch(case)
    compiled = tf.function(function, jit_compile=jit_compile or None)
    return {STEP: Part(lambda: float(compiled(batch)))}


def full_batch(case: work.Case) -> Batch:
    """The case's batch as tensors."""
    return {name: tf.constant(x) for name, x in work.inputs(case).items()}


def natural_parts(case: work.Case, function: Function) -> dict[str, Part]:
    """A function on the batches of the natural parts, traced once for all shapes."""
    rows = tf.TensorSpec([None, None], tf.int32)
    signature = {"input_ids": rows, "input_mask": rows, "segment_ids": rows, "label": tf.TensorSpec([None], tf.int32)}
    compiled = tf.function(function, input_signature=[signature])

    def run(batches: list[Batch]) -> float:
        for batch in batches:
            value = float(compiled(batch))
        return value

    parts = {}
    for name, plan in natural.peer_plans(case).items():
        arrays = [natural.arrays(*one) for one in zip(plan.batches, plan.widths, strict=True)]
        batches = [{name: tf.constant(x) for name, x in batch.items()} for batch in arrays]
        parts[name] = Part(lambda batches=batches: run(batches), plan.scale, lambda batches=batches: run(batches[:1]))
    return parts
