"""Classification and regression on one or two texts: heads, losses, predictions, scores."""

import csv
import dataclasses
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert_tf import files
from albert_tf.errors import UserError
from tasks import metrics
from tasks.task import TEXT_FIELDS, Feature, Field, Task
from tasks.text import TextExample, TextTask, number_of

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class ClassPrediction:
    """What a classifier says of an example."""

    label: str
    probabilities: "np.ndarray"  # float64 [N], in the order of the task's labels


class Classification(TextTask):
    """One of N labels: softmax cross-entropy on the pooled first token."""

    head = "classifier"
    fields = {**TEXT_FIELDS, "label": Field()}

    def __init__(self, name: str, *, primary: str = "accuracy", **settings: Any) -> None:
        self.primary = primary
        super().__init__(name, **settings)

    def learned_from(self, examples: Sequence[TextExample]) -> Task:
        """Label names in numeric order where all are numbers, otherwise in alphabetical order."""
        if self.labels is not None:
            return self
        found = sorted({example.label for example in examples} - {None})
        if len(found) < 2:
            raise UserError(
                f"the training examples have {len(found)} different labels ({', '.join(map(repr, found))}): expected "
                "at least 2; check --label_column"
            )
        try:
            return self.replace(labels=tuple(sorted(found, key=float)))  # "1" and "1.0": as the alphabet has them
        except ValueError:
            return self.replace(labels=tuple(found))

    def label_array(self, label: str | float) -> "np.ndarray":
        import numpy as np

        return np.array(self.labels.index(label), np.int32)

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Cross-entropy in nats."""
        import tensorflow as tf

        return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], outputs["logits"])

    def predictions(
        self, outputs: Sequence[dict[str, "np.ndarray"]], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[ClassPrediction]:
        """Softmax of the logits."""
        import numpy as np

        logits = np.array([output["logits"] for output in outputs], np.float64)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return self._of_probabilities(odds / odds.sum(axis=1, keepdims=True))

    def combined(self, predictions: Sequence[Sequence[ClassPrediction]]) -> list[ClassPrediction]:
        """Averages the class probabilities (paper, section 4.9)."""
        import numpy as np

        return self._of_probabilities(np.mean([[one.probabilities for one in model] for model in predictions], axis=0))

    def metrics(self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]) -> dict[str, float]:
        labels, predicted = self._numbers(predictions, examples)
        return metrics.classification_metrics(labels, predicted, binary=len(self.labels) == 2)

    def degenerate(self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]) -> str | None:
        """One class for all, or agreement with the labels that guessing would also give."""
        labels, predicted = self._numbers(predictions, examples)
        commonest = max(labels.count(label) for label in set(labels)) / len(labels)
        baseline = f"always answering the commonest label gives an accuracy of {commonest:.4f}"
        if len(set(labels)) == 1:
            return None  # every answer is the same by right
        if len(set(predicted)) == 1:
            return f"all {len(predicted)} predictions are {predictions[0].label!r}; {baseline}"
        matthews = metrics.classification_metrics(labels, predicted, binary=False)["matthews"]
        if metrics.is_chance(matthews, len(labels)):
            return (
                f"the Matthews correlation {matthews:.4f} over {len(labels)} examples is that of guessing; {baseline}"
            )
        return None

    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]
    ) -> list[str]:
        """TSV: id, prediction, and a column of probabilities for each label."""
        header = ["id", "prediction", *(f"probability_{label}" for label in self.labels)]
        rows = [
            [example.id, prediction.label, *(f"{value:.6f}" for value in prediction.probabilities)]
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return write_rows(path, header, rows)

    def _of_probabilities(self, probabilities: "np.ndarray") -> list[ClassPrediction]:
        return [ClassPrediction(self.labels[row.argmax()], row) for row in probabilities]

    def _numbers(
        self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]
    ) -> tuple[list[int], list[int]]:
        labels = [self.labels.index(example.label) for example in examples]
        return labels, [self.labels.index(prediction.label) for prediction in predictions]


class Regression(TextTask):
    """A number: squared error on the pooled first token; a prediction is a float."""

    head = "regression"
    fields = {**TEXT_FIELDS, "label": Field(dtype="float32")}

    def __init__(
        self, name: str, *, primary: str = "pearson", bounds: tuple[float, float] | None = None, **settings: Any
    ) -> None:
        self.primary, self.bounds = primary, bounds
        super().__init__(name, **settings)

    def label_of(self, text: str, place: str) -> float:
        value = number_of(text, place)
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:
            raise UserError(f"{place}: the label is {text}, expected {self.bounds[0]:g} to {self.bounds[1]:g}")
        return value

    def label_array(self, label: str | float) -> "np.ndarray":
        import numpy as np

        return np.array(label, np.float32)

    def head_options(self, classifier_dropout: float) -> dict[str, Any]:
        return {"dropout_rate": classifier_dropout}

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Squared error."""
        return (outputs["logits"][:, 0] - batch["label"]) ** 2

    def predictions(
        self, outputs: Sequence[dict[str, "np.ndarray"]], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[float]:
        """The logits as they are."""
        return [float(output["logits"][0]) for output in outputs]

    def combined(self, predictions: Sequence[Sequence[float]]) -> list[float]:
        """The mean of the models' values."""
        return [sum(values) / len(values) for values in zip(*predictions, strict=True)]

    def metrics(self, predictions: Sequence[float], examples: Sequence[TextExample]) -> dict[str, float]:
        return metrics.regression_metrics([example.label for example in examples], predictions)

    def degenerate(self, predictions: Sequence[float], examples: Sequence[TextExample]) -> str | None:
        """The same number for all (to a thousandth of the labels' spread), or no correlation with the labels."""
        labels = [example.label for example in examples]
        spread = max(labels) - min(labels)
        if not spread:
            return None
        if max(predictions) - min(predictions) < 1e-3 * spread:
            return f"all {len(predictions)} predictions are {predictions[0]:.4f}, a constant"
        pearson = metrics.regression_metrics(labels, predictions)["pearson"]
        if metrics.is_chance(pearson, len(labels)):
            return f"the Pearson correlation {pearson:.4f} over {len(labels)} examples is that of guessing"
        return None

    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[float], examples: Sequence[TextExample]
    ) -> list[str]:
        """TSV: id, prediction."""
        rows = [[example.id, f"{value:.6f}"] for example, value in zip(examples, predictions, strict=True)]
        return write_rows(path, ["id", "prediction"], rows)


def write_rows(path: str | os.PathLike, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Writes a header and rows as TSV without quoting, or as CSV where the path says so; returns [path].

    Tabs and newlines inside values become spaces in TSV, so that a row stays a line.
    """
    lines = [header, *rows]
    if str(path).lower().endswith(".csv"):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(lines)
        text = buffer.getvalue()
    else:
        text = "".join("\t".join(" ".join(value.split()) for value in line) + "\n" for line in lines)
    files.write_atomically(path, text.encode("utf-8", "backslashreplace"))  # half a character, which JSON can bring in
    return [str(path)]
