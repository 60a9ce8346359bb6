"""SQuAD scores by the official scripts, which tf-models-official carries."""

import random
from collections.abc import Iterable, Mapping, Sequence

from tasks.squad_data import Question


def score_v1(texts: Mapping[str, str], questions: Sequence[Question]) -> dict[str, float]:
    """exact_match and f1, both 0..100, of the official v1.1 script for {question id: answer}; a missing id scores 0."""
    from official.nlp.tools import squad_evaluate_v1_1

    result = squad_evaluate_v1_1.evaluate(official_dataset(questions), texts)
    return {"exact_match": 100.0 * result["exact_match"], "f1": 100.0 * result["final_f1"]}


def score_v2(
    texts: Mapping[str, str],
    null_probabilities: Mapping[str, float],
    questions: Sequence[Question],
    threshold: float | None,
) -> dict[str, float]:
    """Scores 0..100 of the official v2.0 script.

    Args:
      texts: {question id: best answer}, before any threshold.
      null_probabilities: {question id: probability of "no answer"}; above the threshold the answer becomes "".
      threshold: None takes one that gives the best F1 on these questions: half way from the one that the script finds,
        which is the highest probability of a question that is answered, to the lowest of one that is not.

    Returns exact and f1 at the threshold, HasAns_* and NoAns_* where there are such questions, best_exact and best_f1
    at the best thresholds for these questions, and null_threshold, the one used. Questions without an answer in `texts`
    are left out, as the script does.
    """
    from official.nlp.tools import squad_evaluate_v2_0

    dataset = official_dataset(questions)
    best = squad_evaluate_v2_0.evaluate(dataset, texts, null_probabilities)
    if threshold is None:
        threshold = _half_way(best["final_f1_thresh"], null_probabilities.values())
    given = {name: "" if null_probabilities[name] > threshold else text for name, text in texts.items()}
    result = squad_evaluate_v2_0.evaluate(dataset, given)
    names = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
    return {
        **{name: float(result[name]) for name in names if name in result},
        "best_exact": float(best["final_exact"]),
        "best_f1": float(best["final_f1"]),
        "null_threshold": float(threshold),
    }


def _half_way(edge: float, values: Iterable[float]) -> float:
    above = [value for value in values if value > edge]
    return (edge + min(above)) / 2 if above else edge


def official_dataset(questions: Sequence[Question]) -> list[dict]:
    """The "data" list of the official functions, with what they look at and nothing else."""
    qas = [
        {"id": question.id, "answers": [{"text": answer.text} for answer in question.answers or ()]}
        for question in questions
    ]
    return [{"paragraphs": [{"qas": qas}]}]


def random_spans(texts: Sequence[str], questions: Sequence[Question]) -> list[str]:
    """For each answer as many words from a random place of the passage, the same ones on every call."""
    generator = random.Random(0)
    spans = []
    for text, question in zip(texts, questions, strict=True):
        words = question.context.split()
        count = min(max(len(text.split()), 1), len(words))
        first = generator.randrange(len(words) - count + 1)
        spans.append(" ".join(words[first : first + count]))
    return spans
