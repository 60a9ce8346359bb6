"""Datasets of batches for a strategy: padded to the longest row as a rule, packed where shapes must be static."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from tasks import batching, packing
from tasks.batching import Batch, Shapes
from tasks.features import Features
from tasks.task import Task


class Form(Protocol):
    """How features become a batch."""

    def batch(self, features: Features, numbers: Sequence[int]) -> Batch:
        """The arrays of some features."""

    def signature(self, features: Features) -> dict[str, tuple[tuple[int | None, ...], str]]:
        """Shape and dtype of each array, None where it changes from batch to batch."""

    def real_token_share(self, features: Features, batches: Sequence[Sequence[int]]) -> float:
        """Share of the computed tokens that are real."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """A row a feature, as long as the longest of the batch; `rows` fixes the number of features."""

    shapes: Shapes
    rows: int | None = None

    def batch(self, features: Features, numbers: Sequence[int]) -> Batch:
        return batching.padded_batch(features, numbers, self.shapes, rows=self.rows)

    def signature(self, features: Features) -> dict[str, tuple[tuple[int | None, ...], str]]:
        fields = {name: field for name, field in features.fields.items() if field.for_model}
        signature = {
            name: ((self.rows, *(axis if isinstance(axis, int) else None for axis in field.axes)), field.dtype)
            for name, field in fields.items()
        }
        return {**signature, "input_mask": signature["input_ids"], "feature_index": ((self.rows,), "int32")}

    def real_token_share(self, features: Features, batches: Sequence[Sequence[int]]) -> float:
        return batching.real_token_share(features, batches, self.shapes)


@dataclasses.dataclass(frozen=True)
class Feed:
    """The batches of a data set on a strategy, and the form they take."""

    features: Features
    form: Form
    batches: Iterable[np.ndarray]

    def dataset(self) -> tf.data.Dataset:
        """One pass over `batches`."""
        signature = {name: tf.TensorSpec(*spec) for name, spec in self.form.signature(self.features).items()}

        def generate() -> Iterator[Batch]:
            for numbers in self.batches:
                yield self.form.batch(self.features, numbers)

        # There is nothing to tune; and a tuned iterator cannot end before the tuner's next turn, up to a minute away.
        options = tf.data.Options()
        options.autotune.enabled = False
        return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(4).with_options(options)


def training_feed(
    task: Task,
    features: Features,
    strategy: tf.distribute.Strategy,
    *,
    batch_size: int,
    num_steps: int,
    seed: int,
    start: int = 0,
    slices: int = 1,
) -> tuple[Feed, float]:
    """The endless training data from step `start` on, and its share of real tokens (of the first 200 steps).

    slices: into how many a replica cuts its share of a batch (gradient accumulation).
    """
    packed = _is_static(strategy) and task.packable

    def batches(start: int) -> Iterator[np.ndarray]:
        return batching.training_batches(features.lengths, batch_size, seed=seed, start=start, even=packed)

    form: Form = Padded(_shapes(task, strategy), batch_size)
    if packed:
        form = _packing(task, features, list(itertools.islice(batches(0), num_steps)), strategy, slices)
    share = form.real_token_share(features, list(itertools.islice(batches(0), min(num_steps, 200))))
    return Feed(features, form, batches(start)), share


def evaluation_feed(
    task: Task, features: Features, strategy: tf.distribute.Strategy, *, batch_size: int
) -> tuple[Feed, int]:
    """Every feature once, and the number of batches."""
    replicas = strategy.num_replicas_in_sync
    size = -(-batch_size // replicas) * replicas
    if _is_static(strategy) and task.packable:
        order = batching.epoch_order(features.lengths, size, 0, seed=0, even=True)
        batches = [order[place : place + size] for place in range(0, len(order), size)]
        return Feed(features, _packing(task, features, batches, strategy), batches), len(batches)
    batches = batching.evaluation_batches(features.lengths, size)
    rows = size if replicas > 1 or _is_static(strategy) else None
    return Feed(features, Padded(_shapes(task, strategy), rows), batches), len(batches)


def _packing(
    task: Task,
    features: Features,
    batches: Sequence[Sequence[int]],
    strategy: tf.distribute.Strategy,
    slices: int = 1,
) -> packing.Packing:
    parts = strategy.num_replicas_in_sync * slices
    return packing.plan(features.lengths, batches, max_seq_length=task.max_seq_length, parts=parts)


def _is_static(strategy: tf.distribute.Strategy) -> bool:
    """TPUs run programs of fixed shapes."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def _shapes(task: Task, strategy: tf.distribute.Strategy) -> Shapes:
    """Multiples of 4 on GPUs, for their tensor cores; exact lengths on processors."""
    on_gpu = any("GPU" in device for device in strategy.extended.worker_devices)
    return Shapes(max_seq_length=task.max_seq_length, multiple=4 if on_gpu else 1, static=_is_static(strategy))
