"""From scores of start and end positions to answers that are slices of the passage."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

_CHUNK = 256  # windows at a time: 256 x 40 x 30 float32 scores are 1.2 MB


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """One candidate: context[start:end] == text. `probability` is a softmax over the candidates of the question."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """What a model says to one question.

    `proposals` have different texts, best first; none where no token may be an answer. `null_probability` is the chance
    that the passage has no answer (v2.0; None for v1.1 models). `reachable` says whether any gold answer lies in one
    window and within the length limit; None where there is no gold answer.
    """

    proposals: tuple[Proposal, ...]
    null_probability: float | None = None
    reachable: bool | None = None

    @property
    def best_text(self) -> str:
        """The best answer, "" where there is none; no threshold is applied."""
        return self.proposals[0].text if self.proposals else ""

    def text(self, null_threshold: float) -> str:
        """The answer to give: "" where "no answer" is likelier than the threshold."""
        refused = self.null_probability is not None and self.null_probability > null_threshold
        return "" if refused else self.best_text

    def as_json(self) -> list[dict[str, Any]]:
        """The entries of nbest_predictions.json; one empty answer where there is no proposal."""
        entries = [
            {
                "text": proposal.text,
                "probability": proposal.probability,
                "score": proposal.score,
                "start_char": proposal.start,
                "end_char": proposal.end,
            }
            for proposal in self.proposals
        ]
        return entries or [{"text": "", "probability": 1.0, "score": None, "start_char": None, "end_char": None}]


@dataclasses.dataclass(frozen=True)
class Spans:
    """Candidates as columns: window int [N], start and end (row positions, both inclusive) int [N], score float [N]."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    score: np.ndarray


def spans_from_logits(
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    windows: Sequence[dict[str, np.ndarray]],
    *,
    max_answer_length: int,
    per_window: int,
) -> Spans:
    """The `per_window` best spans of each window, found among all (not only among the best starts and best ends).

    A span starts at a token that the window owns, ends within the window, has 1..max_answer_length tokens, and scores
    start logit + end logit. Logits are one float32 row a window, at least as long as the window's tokens.
    """
    parts = []
    for begin in range(0, len(windows), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        starts, ends = _masked(start_logits[chunk], end_logits[chunk], windows[chunk])
        most = min(max_answer_length, ends.shape[1])  # "no limit" may be any large number
        padded = np.pad(ends, [(0, 0), (0, most - 1)], constant_values=-np.inf)
        reach = np.lib.stride_tricks.sliding_window_view(padded, most, axis=1)  # [W, S, L]: ends from s on
        # No span beyond the `per_window` starts with the best span of their own can be among the best.
        likely = _greatest(starts + reach.max(axis=2), per_window)  # [W, K]
        rows = np.arange(len(starts))[:, None]
        scores = starts[rows, likely][:, :, None] + reach[rows, likely]  # [W, K, L]
        scores = scores.reshape(len(starts), -1)
        best = _greatest(scores, per_window)
        start = np.take_along_axis(likely, best // most, axis=1)
        end = start + best % most
        found = scores[rows, best]
        allowed = np.isfinite(found)
        window = np.broadcast_to(rows + begin, best.shape)
        parts.append(Spans(window[allowed], start[allowed], end[allowed], found[allowed]))
    return _joined(parts)


def spans_from_beams(
    outputs: Sequence[dict[str, np.ndarray]], windows: Sequence[dict[str, np.ndarray]], *, max_answer_length: int
) -> Spans:
    """The allowed pairs of ConditionalSpanHead.beams; a span scores log P(start) + log P(end | start).

    Each output has start_top_index, start_top_log_probs [K1] and end_top_index, end_top_log_probs [K1 * K2].
    """
    parts = []
    for number, (output, window) in enumerate(zip(outputs, windows, strict=True)):
        repeats = len(output["end_top_index"]) // len(output["start_top_index"])
        start = np.repeat(output["start_top_index"], repeats)
        end = output["end_top_index"]
        score = np.repeat(output["start_top_log_probs"], repeats) + output["end_top_log_probs"]
        owned_from, owned_to = window["owned"]
        allowed = (owned_from <= start) & (start < owned_to) & (start <= end) & (end - start < max_answer_length)
        allowed &= end < window["context_start"] + len(window["offsets"])
        kept = int(allowed.sum())
        parts.append(Spans(np.full(kept, number), start[allowed], end[allowed], score[allowed]))
    return _joined(parts)


def answers_from_spans(
    spans: Spans,
    windows: Sequence[dict[str, np.ndarray]],
    question_of_window: np.ndarray,
    contexts: Sequence[str],
    *,
    n_best_size: int,
) -> list[tuple[Proposal, ...]]:
    """The n best different texts of each question, over all its windows.

    Args:
      question_of_window: int [number of windows].
      contexts: the passage of each question.
    """
    question = question_of_window[spans.window]
    order = np.lexsort((spans.end, spans.start, -spans.score.astype(np.float64), question))
    first, last = _characters(spans, windows)
    texts: list[dict[str, tuple[int, int, float]]] = [{} for _ in contexts]
    columns = (column[order].tolist() for column in (question, first, last, spans.score))
    for q, start, end, score in zip(*columns, strict=True):
        if len(texts[q]) == n_best_size:
            continue
        text = contexts[q][start:end]
        if stripped := text.strip():  # a piece without a visible character may stand at an edge
            start += len(text) - len(text.lstrip())
            texts[q].setdefault(stripped, (start, start + len(stripped), score))
    return [_proposals(candidates) for candidates in texts]


def combined_answers(members: Sequence[Answers]) -> Answers:
    """The ensemble of several models on one question (paper, section 4.9).

    A text that several models propose gets the mean of their probabilities, one that a single model proposes keeps its
    own; the chance of "no answer" is the mean over the models.
    """
    found: dict[str, list[Proposal]] = {}
    for member in members:
        for proposal in member.proposals:
            found.setdefault(proposal.text, []).append(proposal)
    merged = [
        dataclasses.replace(
            same[0],
            score=float(np.mean([proposal.score for proposal in same])),
            probability=float(np.mean([proposal.probability for proposal in same])),
        )
        for same in found.values()
    ]
    merged.sort(key=lambda proposal: -proposal.probability)
    nulls = [member.null_probability for member in members]
    return Answers(
        proposals=tuple(merged[: max(len(member.proposals) for member in members)]),
        null_probability=None if None in nulls else float(np.mean(nulls)),
        reachable=None if members[0].reachable is None else any(member.reachable for member in members),
    )


def probability(odds: np.ndarray | float) -> np.ndarray:
    """Sigmoid in float64, without overflow: log odds of "no answer" -> its probability."""
    odds = np.asarray(odds, np.float64)
    small = np.exp(-np.abs(odds))
    return np.where(odds >= 0, 1.0, small) / (1.0 + small)


def _proposals(candidates: dict[str, tuple[int, int, float]]) -> tuple[Proposal, ...]:
    if not candidates:
        return ()
    scores = np.array([score for _, _, score in candidates.values()], np.float64)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return tuple(
        Proposal(text, start, end, score, float(weight))
        for (text, (start, end, score)), weight in zip(candidates.items(), weights, strict=True)
    )


def _characters(spans: Spans, windows: Sequence[dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The half-open range of characters of each span."""
    offsets = np.concatenate([window["offsets"] for window in windows])  # [all tokens, 2]
    begins = np.cumsum([0, *(len(window["offsets"]) for window in windows[:-1])])
    shift = begins - np.array([window["context_start"] for window in windows])
    return offsets[spans.start + shift[spans.window], 0], offsets[spans.end + shift[spans.window], 1]


def _greatest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` greatest of each row, in any order."""
    count = min(count, values.shape[1])
    return np.argpartition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count :]


def _masked(
    start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray], windows: Sequence[dict[str, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Two float32 [W, S], -inf where a span may not start or end."""
    width = max(len(window["input_ids"]) for window in windows)
    starts = np.full((len(windows), width), -np.inf, np.float32)
    ends = np.full((len(windows), width), -np.inf, np.float32)
    for row, window in enumerate(windows):
        owned = slice(*window["owned"])
        context = slice(window["context_start"], window["context_start"] + len(window["offsets"]))
        starts[row, owned] = start_logits[row][owned]
        ends[row, context] = end_logits[row][context]
    return starts, ends


def _joined(parts: Sequence[Spans]) -> Spans:
    columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(Spans)]
    return Spans(*columns)
