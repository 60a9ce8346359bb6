"""--task_name=classification and --task_name=regression: tables of one's own."""

from collections.abc import Sequence
from typing import Any

from albert_tf.errors import UserError
from tasks.classification import Classification, Regression
from tasks.task import Recipe, Task
from tasks.text import Layout

# Three passes at a rate that suits the small tasks of the paper's table 14.
RECIPE = Recipe(learning_rate=2e-5, train_batch_size=32, num_train_epochs=3)
DEFAULT_OPTIONS = {"text_columns": ("text",), "label_column": "label"}


class _OwnColumns:
    default_options = DEFAULT_OPTIONS

    def check(self) -> None:
        """One or two text columns, none of them the label."""
        super().check()
        texts, label = self.options["text_columns"], self.options["label_column"]
        if len(texts) not in (1, 2) or len({*texts, label}) != len(texts) + 1:
            raise UserError(
                f"text_columns is {', '.join(texts)} and label_column {label}: expected one or two text columns and "
                "another one for the label"
            )

    def replace(self, **changes: Any) -> Task:
        """A copy with other labels, length or options; it reads the columns that its options name."""
        task = super().replace(**changes)
        task.layout = _layout(task.options)
        return task


class OwnClassification(_OwnColumns, Classification):
    """Labels are learned from the training file."""


class OwnRegression(_OwnColumns, Regression):
    """Any finite number is a label."""


def make(name: str, *, options: dict[str, Any] | None, labels: Sequence[str] | None, **settings: Any) -> Task:
    """The task `classification` or `regression` for the columns that the options name."""
    options = {**DEFAULT_OPTIONS, **(options or {})}
    texts, label = options["text_columns"], options["label_column"]
    if not isinstance(texts, (list, tuple)) or not all(isinstance(column, str) for column in (*texts, label)):
        raise UserError(f"text_columns is {texts!r} and label_column {label!r}: expected names of columns")
    options["text_columns"] = tuple(texts)
    kind = OwnClassification if name == "classification" else OwnRegression
    return kind(name, layout=_layout(options), recipe=RECIPE, options=options, labels=labels, **settings)


def _layout(options: dict[str, Any]) -> Layout:
    return Layout(texts=tuple(options["text_columns"]), label=options["label_column"], id="id")
