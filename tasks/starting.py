"""From a pretrained model folder to a model with a task's head, telling what came along and what is new."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from albert_tf import checkpoints
from albert_tf.checkpoints import Model, ModelInfo, Restored
from albert_tf.conversion.names import POOLER
from albert_tf.errors import UserError
from albert_tf.heads import READ_POOLER
from tasks.task import Recipe, Task

_PRETRAINING_HEADS = ("masked_lm", "sentence_order")


def load_source(model_dir: str | os.PathLike) -> Model:
    """The model to start from, with its tokeniser.

    Raises UserError where there is none or the tokeniser is missing.
    """
    source = checkpoints.load_model(model_dir, dtype="float32")
    if source.tokenizer is None:
        raise UserError(f"{model_dir} has no tokeniser file: expected spiece.model or vocab.txt; put it there")
    return source


def with_labels_of(task: Task, info: ModelInfo) -> Task:
    """The task with its labels in the order of a model that was trained on it, so that its head can stay."""
    if info.task == task.name and info.labels and task.labels and sorted(info.labels) == sorted(task.labels):
        return task.replace(labels=info.labels)
    return task


def start_model(
    source: Model,
    task: Task,
    recipe: Recipe,
    *,
    name: str | os.PathLike,
    dtype: Any = None,
    random_weights: bool = False,
) -> Model:
    """The encoder of `source` under the head of `task`; the head is new unless the model was trained on the task.

    `random_weights` takes only sizes and tokeniser. What happens to each part goes to standard error; `name` is what
    the source is called there.

    The model's `restored.new` is what will never be trained.

    Raises UserError where the task's rows are longer than the model's positions.
    """
    if task.max_seq_length > source.config.max_position_embeddings:
        most = source.config.max_position_embeddings
        raise UserError(
            f"max_seq_length is {task.max_seq_length}, the model has {most} positions; give --max_seq_length={most} or "
            "less"
        )
    rate, info = recipe.encoder_dropout, source.info
    config = source.config.replace(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    heads = {task.head: task.head_options(recipe.classifier_dropout)}
    started = ModelInfo(preset=info.preset, sentence_objective=info.sentence_objective, **task.describe())
    model = checkpoints.new_model(config, heads, source.tokenizer, info=started, dtype=dtype)
    if random_weights:
        print(f"NOTICE: every weight is new; from {name} come only sizes and tokeniser", file=sys.stderr)
        model.restored = Restored(new=_never_trained(POOLER, task))
        return model
    dropped = [head for head in source.heads if not _keeps(head, info, task)]
    values = {
        variable_name: variable.numpy()
        for variable_name, variable in source.named_variables().items()
        if variable_name.split("/")[0] not in dropped
    }
    restored = checkpoints.assign(model, values, source=str(name), new_heads=True)
    new = (*restored.new, *(one for one in source.restored.new if one in restored.filled))
    text = f"; NEW, not restored: {', '.join(new)}" if new else ""
    print(f"{len(restored.filled)} variables from {name}{text}", file=sys.stderr)
    _tell_dropped([head for head in dropped if head not in _PRETRAINING_HEADS], info, task, name)
    model.restored = dataclasses.replace(restored, new=_never_trained(new, task))
    return model


def _never_trained(new: Sequence[str], task: Task) -> tuple[str, ...]:
    """Variables without values that training on the task does not reach: a pooler that its head passes by."""
    return () if task.head in READ_POOLER else tuple(name for name in new if name in POOLER)


def _keeps(head: str, info: ModelInfo, task: Task) -> bool:
    """Whether a source's head goes on: same task, same labels in the same order."""
    return head == task.head and info.task == task.name and info.labels == task.labels


def _tell_dropped(heads: list[str], info: ModelInfo, task: Task, name: str | os.PathLike) -> None:
    if heads:
        labels = f" with labels {', '.join(info.labels)}" if info.labels else ""
        print(
            f"NOTICE: the head {', '.join(heads)} of task {info.task or 'unknown'}{labels} in {name} is DROPPED: "
            f"{task.name} starts with a new head on that encoder",
            file=sys.stderr,
        )
