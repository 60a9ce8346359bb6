"""GLUE: a table of files, columns, labels, metrics and recipes; the code is that of classification and regression."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from tasks.classification import Classification, Regression
from tasks.task import Recipe, Task
from tasks.text import Layout

_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_ENTAILMENT_LABELS = ("entailment", "not_entailment")
_BINARY_LABELS = ("0", "1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTable:
    """What tells one GLUE task from another."""

    folder: str  # below the GLUE folder, and the name of the submission file
    layout: Layout
    labels: tuple[str, ...] | None  # None: a regression from 0 to 5
    primary: str = "accuracy"
    files: dict[str, str] | None = None
    test_rows: dict[str, int]  # rows of the benchmark's file, by name of the submission file
    recipe: Recipe | None


def _recipe(learning_rate: float, batch: int, encoder_dropout: float, steps: int, warmup: int) -> Recipe:
    return Recipe(
        learning_rate=learning_rate,
        train_batch_size=batch,
        encoder_dropout=encoder_dropout,
        num_train_steps=steps,
        num_warmup_steps=warmup,
    )


def _pair(first: str, second: str, label: str = "label", **more: Any) -> Layout:
    return Layout(texts=(first, second), label=label, id="index", **more)


_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
    "train": "train.tsv",
    "dev_matched": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}

# Recipes: paper, table 14.
GLUE = {
    "cola": GlueTable(
        folder="CoLA",
        layout=Layout(
            texts=("sentence",), label="label", id="index", header=("source", "label", "marking", "sentence")
        ),
        labels=_BINARY_LABELS,
        primary="matthews",
        test_rows={"CoLA": 1063},
        recipe=_recipe(1e-5, 16, 0, 5336, 320),
    ),
    "sst-2": GlueTable(
        folder="SST-2",
        layout=Layout(texts=("sentence",), label="label", id="index"),
        labels=_BINARY_LABELS,
        test_rows={"SST-2": 1821},
        recipe=_recipe(1e-5, 32, 0, 20935, 1256),
    ),
    "mrpc": GlueTable(
        folder="MRPC",
        layout=_pair("#1 String", "#2 String", "Quality"),
        labels=_BINARY_LABELS,
        test_rows={"MRPC": 1725},
        recipe=_recipe(2e-5, 32, 0, 800, 200),
    ),
    "sts-b": GlueTable(
        folder="STS-B",
        layout=_pair("sentence1", "sentence2", "score"),
        labels=None,
        primary="pearson",
        test_rows={"STS-B": 1379},
        recipe=_recipe(2e-5, 16, 0, 3598, 214),
    ),
    "qqp": GlueTable(
        folder="QQP",
        layout=Layout(
            texts=("question1", "question2"),
            label="is_duplicate",
            id="id",
            skip_short_rows=True,  # the official training file has a few
        ),
        labels=_BINARY_LABELS,
        test_rows={"QQP": 390965},
        recipe=_recipe(5e-5, 128, 0.1, 14000, 1000),
    ),
    "mnli": GlueTable(
        folder="MNLI",
        layout=_pair("sentence1", "sentence2", "gold_label", unlabelled="-"),
        labels=_MNLI_LABELS,
        files=_MNLI_FILES,
        test_rows={"MNLI-m": 9796, "MNLI-mm": 9847},
        recipe=_recipe(3e-5, 128, 0, 10000, 1000),
    ),
    "qnli": GlueTable(
        folder="QNLI",
        layout=_pair("question", "sentence"),
        labels=_ENTAILMENT_LABELS,
        test_rows={"QNLI": 5463},
        recipe=_recipe(1e-5, 32, 0, 33112, 1986),
    ),
    "rte": GlueTable(
        folder="RTE",
        layout=_pair("sentence1", "sentence2"),
        labels=_ENTAILMENT_LABELS,
        test_rows={"RTE": 3000},
        recipe=_recipe(3e-5, 32, 0.1, 800, 200),
    ),
    "wnli": GlueTable(
        folder="WNLI",
        layout=_pair("sentence1", "sentence2"),
        labels=_BINARY_LABELS,
        test_rows={"WNLI": 146},
        recipe=_recipe(2e-5, 16, 0.1, 2000, 250),
    ),
    "ax": GlueTable(  # the diagnostic set: only for a model trained on MNLI
        folder="AX",
        layout=_pair("sentence1", "sentence2"),
        labels=_MNLI_LABELS,
        primary="matthews",
        files={"test": "diagnostic.tsv"},
        test_rows={"AX": 1104},
        recipe=_recipe(3e-5, 128, 0, 10000, 1000),
    ),
}


class _GlueFiles:
    """Where GLUE's files are, and what the benchmark takes."""

    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        """The official names in `data_dir`, or in the task's folder below it."""
        table = GLUE[self.name]
        below = os.path.join(data_dir, table.folder)
        folder = below if os.path.isdir(below) else data_dir
        return {split: os.path.join(folder, name) for split, name in (table.files or _FILES).items()}

    def submission_name(self, input_file: str | os.PathLike) -> str:
        """The benchmark's name for the predictions on a test file: "SST-2", "MNLI-mm", ..."""
        if self.name == "mnli":
            stem = pathlib.Path(input_file).stem.lower()
            if "diagnostic" in stem:
                return "AX"
            return "MNLI-mm" if "mismatched" in stem else "MNLI-m"
        return GLUE[self.name].folder

    def check_submission(self, input_file: str | os.PathLike, rows: int) -> None:
        """Refuses a file that has not the number of rows of the benchmark's test file."""
        name = self.submission_name(input_file)
        expected = (GLUE["ax"] if name == "AX" else GLUE[self.name]).test_rows[name]
        if rows != expected:
            raise UserError(
                f"{input_file} has {rows} rows, the benchmark's test file for {name} has {expected}; give the official "
                "test file, or leave out --glue_submission"
            )

    def write_submission(
        self, folder: str | os.PathLike, input_file: str | os.PathLike, predictions: Sequence[Any]
    ) -> str:
        """Writes NAME.tsv (columns index, prediction) as the benchmark takes it, and returns its path."""
        self.check_submission(input_file, len(predictions))
        values = [self.submission_value(prediction) for prediction in predictions]
        lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in enumerate(values))]
        path = pathlib.Path(folder) / f"{self.submission_name(input_file)}.tsv"
        files.write_atomically(path, "\n".join(lines) + "\n")
        return str(path)


class GlueClassification(_GlueFiles, Classification):
    """Every GLUE task but STS-B."""

    def submission_value(self, prediction: Any) -> str:
        """The label."""
        return prediction.label


class GlueRegression(_GlueFiles, Regression):
    """STS-B: similarity from 0 to 5."""

    def submission_value(self, prediction: float) -> str:
        """The value, within the scale."""
        return f"{min(max(prediction, self.bounds[0]), self.bounds[1]):.3f}"


def make(name: str, *, labels: Sequence[str] | None, **settings: Any) -> Task:
    """The GLUE task `name`; `labels` may come in the order of a model's logits.

    Raises UserError where the labels are not those of the task.
    """
    table = GLUE[name]
    settings = {"layout": table.layout, "recipe": table.recipe, "primary": table.primary, **settings}
    if table.labels is None:
        return GlueRegression(name, bounds=(0.0, 5.0), **settings)
    if labels is not None and sorted(labels) != sorted(table.labels):
        raise UserError(
            f"the labels of {name} are {', '.join(table.labels)}, those of the model are {', '.join(labels)}; "
            "check its model.json"
        )
    return GlueClassification(name, labels=labels or table.labels, **settings)
