"""A fine-tuned model folder and a file -> predictions, of one model or of several together."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf import checkpoints
from albert_tf.checkpoints import Model
from albert_tf.errors import UserError
from tasks.catalog import canonical_name, make_task, task_of
from tasks.evaluation import DEFAULT_BATCH_SIZE, Predictor, single_machine_strategy
from tasks.features import FeatureCache, check_segments, tell_unknown
from tasks.task import Task

_SAME_HEAD = {"ax": "mnli"}  # tasks that are answered by the model of another


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computing:
    """How predictions are computed."""

    batch_size: int = DEFAULT_BATCH_SIZE
    mixed_precision: str = "float32"
    distribution: str = "auto"
    tpu_name: str | None = None
    cache_dir: str | None = None


class Ensemble:
    """Fine-tuned models that answer together; as a rule there is one."""

    def __init__(
        self,
        model_dirs: Sequence[str | os.PathLike] | str | os.PathLike,
        *,
        task_name: str | None = None,
        task_options: dict[str, Any] | None = None,
        computing: Computing | None = None,
    ) -> None:
        """Loads the models, or the one.

        Raises UserError where there is none, one has no head for the task, or their tasks or labels differ.
        """
        if isinstance(model_dirs, (str, os.PathLike)):
            model_dirs = [model_dirs]
        if not model_dirs:
            raise UserError("no model: expected the folder of at least one fine-tuned model")
        self._computing = computing or Computing()
        self._strategy = single_machine_strategy(self._computing.distribution, self._computing.tpu_name)
        with self._strategy.scope():
            loaded = [
                load_finetuned(one, task_name=task_name, dtype=self._computing.mixed_precision) for one in model_dirs
            ]
        self._models = [model for model, _ in loaded]
        self._tasks = [task.replace(options=task_options or {}) for _, task in loaded]
        self.task = self._tasks[0]
        for name, model, task in zip(model_dirs[1:], self._models[1:], self._tasks[1:], strict=True):
            if task.name != self.task.name or sorted(task.labels or ()) != sorted(self.task.labels or ()):
                raise UserError(
                    f"{name} is a model for {_described(task)}, {model_dirs[0]} is one for {_described(self.task)}; an "
                    "ensemble is made of models for one task"
                )
            if task.labels != self.task.labels:
                reorder_labels(model, task, self.task.labels)
        self._tasks = [task.replace(labels=self.task.labels) for task in self._tasks]

    def predictions(self, examples: Sequence[Any], source: str | os.PathLike) -> list[Any]:
        """One prediction an example; `source` is the file that they were read from."""
        cache = FeatureCache(self._computing.cache_dir)
        answers = []
        for model, task in zip(self._models, self._tasks, strict=True):
            features = cache.features(task, examples, model.tokenizer, source)
            tell_unknown(features, model.tokenizer, source)
            check_segments(features, model.config.type_vocab_size, source)
            predictor = Predictor(model, task, strategy=self._strategy, batch_size=self._computing.batch_size)
            answers.append(predictor.predictions(features, examples))
        cache.keep()
        return answers[0] if len(answers) == 1 else self.task.combined(answers)


def load_finetuned(
    model_dir: str | os.PathLike, *, task_name: str | None = None, dtype: Any = None
) -> tuple[Model, Task]:
    """A fine-tuned model and its task; `task_name`, if given, must be that task.

    Raises UserError where the model is not fine-tuned, is for another task, lacks head or tokeniser, or has fewer
    positions than the task's rows tokens.
    """
    model = checkpoints.load_model(model_dir, dtype=dtype)
    task = asked_task(task_of(model.info, model_dir), task_name, model_dir)
    check_head(model, task, model_dir)
    if task.max_seq_length > (positions := model.config.max_position_embeddings):
        raise UserError(
            f"{model_dir}: model.json says max_seq_length {task.max_seq_length}, albert_config.json has {positions} "
            "positions; put the files together that belong together, or lower the first"
        )
    if model.tokenizer is None:
        raise UserError(f"{model_dir} has no tokeniser file: expected spiece.model or vocab.txt; put it there")
    return model, task


def asked_task(task: Task, task_name: str | None, source: str | os.PathLike) -> Task:
    """The task of a model at `source` as it was asked for: itself, or another one that the same head answers.

    Raises UserError where the head is that of another task.
    """
    if task_name is None:
        return task
    asked = canonical_name(task_name)
    if asked == task.name or (asked == "squad" and task.name.startswith(asked)):  # squad: of either version
        return task
    if _SAME_HEAD.get(asked) != task.name:
        raise UserError(
            f"{source} has the head of task {task.name}, asked for is {asked}; give a model that was fine-tuned on it"
        )
    return make_task(asked, max_seq_length=task.max_seq_length, labels=task.labels)


def check_head(model: Model, task: Task, model_dir: str | os.PathLike) -> None:
    """Refuses a model without the task's head, or with one that was never trained."""
    if task.head not in model.heads:
        found = ", ".join(model.heads) or "none"
        raise UserError(f"{model_dir} has no head {task.head!r} for {task.name}, found {found}; fine-tune it again")
    untrained = [name for name in model.restored.new if name.startswith(f"{task.head}/")]
    if untrained:
        raise UserError(f"{model_dir} has no values for {', '.join(untrained)}; fine-tune it again")


def reorder_labels(model: Model, task: Task, labels: Sequence[str]) -> None:
    """Puts the columns of a classifier into another order of its labels, by name."""
    order = [task.labels.index(label) for label in labels]
    for variable in model.heads[task.head].named_variables().values():
        variable.assign(np.take(variable.numpy(), order, axis=-1))
    print(f"NOTICE: labels reordered from {', '.join(task.labels)} to {', '.join(labels)}", file=sys.stderr)


def _described(task: Task) -> str:
    return task.name if task.labels is None else f"{task.name} with labels {', '.join(task.labels)}"
