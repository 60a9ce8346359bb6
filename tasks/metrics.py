"""Scores of classification and regression, from scikit-learn and SciPy, with their undefined cases settled."""

import math
import warnings
from collections.abc import Sequence


def classification_metrics(
    labels: Sequence[int], predictions: Sequence[int], *, binary: bool = True
) -> dict[str, float]:
    """accuracy and matthews; for two classes also f1 of class 1 and acc_and_f1, their mean.

    F1 is 0 where nothing is class 1 in labels and predictions alike; Matthews is 0 where one side is constant.
    """
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A single label was found")  # an answer here, not a mistake
        scores = {
            "accuracy": float(metrics.accuracy_score(labels, predictions)),
            "matthews": float(metrics.matthews_corrcoef(labels, predictions)),
        }
        if binary:
            scores["f1"] = float(metrics.f1_score(labels, predictions, zero_division=0))
            scores["acc_and_f1"] = (scores["accuracy"] + scores["f1"]) / 2
    return scores


def regression_metrics(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """pearson, spearman, corr (their mean) and mse; correlations are NaN where either side is constant."""
    from scipy import stats

    errors = [(label - prediction) ** 2 for label, prediction in zip(labels, predictions, strict=True)]
    scores = {"pearson": math.nan, "spearman": math.nan}
    if len(set(labels)) > 1 and len(set(predictions)) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)  # said by `degenerate` in words
            scores["pearson"] = float(stats.pearsonr(labels, predictions)[0])
            scores["spearman"] = float(stats.spearmanr(labels, predictions)[0])
    scores["corr"] = (scores["pearson"] + scores["spearman"]) / 2
    scores["mse"] = sum(errors) / len(errors)
    return scores


def is_chance(correlation: float, count: int) -> bool:
    """Whether a correlation (Matthews, Pearson) over `count` examples is within what guessing gives.

    Under independence it has a standard deviation of about 1 / sqrt(count); up to twice that is called chance.
    """
    return not correlation > 2 / math.sqrt(count)
