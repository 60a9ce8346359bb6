"""SQuAD questions as rows of tokens: [CLS] question [SEP] a window of the passage [SEP]."""

import functools
from typing import TYPE_CHECKING

import numpy as np

from tasks.squad_data import Question
from tasks.windows import Window, cut

if TYPE_CHECKING:
    from albert_tf.tokenization import Tokenizer

SPECIAL_TOKENS = 3  # [CLS], [SEP], [SEP]


def question_features(
    question: Question, tokenizer: "Tokenizer", *, max_seq_length: int, max_query_length: int, doc_stride: int
) -> list[dict[str, np.ndarray]]:
    """One feature a window of the passage; the question is cut to max_query_length tokens, the passage never.

    Each has
      input_ids, segment_ids: int32 [S]; segment 0 is [CLS] question [SEP], segment 1 the window and its [SEP];
      start_position, end_position: int32 [], the first gold answer as row positions; 0 and 0, the first token, where
        the window does not hold all of it. Only where answers are known.
      context_start: int32 [], the row position of the window's first token;
      owned: int32 [2], half-open range of row positions that have most context in this window;
      offsets: int32 [T, 2], half-open range of characters of the passage for each token of the window;
      gold_spans: int32 [G, 2], first and last row position of every gold answer held whole by this window and owned
        by it: what a prediction could get right.
    """
    query = tokenizer.encode(question.question)[:max_query_length]
    ids, offsets = _passage(tokenizer, question.context)
    gold = [token_span(offsets, answer.start, answer.start + len(answer.text)) for answer in question.answers or ()]
    room = max_seq_length - len(query) - SPECIAL_TOKENS
    features = []
    for window in cut(len(ids), room=room, stride=min(doc_stride, room)):
        shift = len(query) + 2 - window.first  # token of the passage -> position in the row
        row = [tokenizer.cls_id, *query, tokenizer.sep_id, *ids[window.first : window.stop], tokenizer.sep_id]
        held = [(start + shift, end + shift) for start, end in gold if _owns(window, start, end)]
        feature = {
            "input_ids": np.array(row, np.int32),
            "segment_ids": (np.arange(len(row)) >= len(query) + 2).astype(np.int32),
            "context_start": np.int32(len(query) + 2),
            "owned": np.array([window.owned_from + shift, window.owned_to + shift], np.int32),
            "offsets": offsets[window.first : window.stop],
            "gold_spans": np.array(held, np.int32).reshape(-1, 2),
        }
        if question.answers is not None:
            start, end = gold[0] if gold else (1, 0)
            whole = window.first <= start <= end < window.stop
            feature["start_position"], feature["end_position"] = (
                np.int32(start + shift if whole else 0),
                np.int32(end + shift if whole else 0),
            )
        features.append(feature)
    return features


def token_span(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """First and last token that stand for characters start..end-1; (1, 0) where no token does.

    Args:
      offsets: int32 [T, 2], ranges of characters, never going backwards.
    """
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))  # the first that ends behind `start`
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1  # the last that begins before `end`
    while first <= last and offsets[first, 0] == offsets[first, 1]:  # pieces without a visible character
        first += 1
    while first <= last and offsets[last, 0] == offsets[last, 1]:
        last -= 1
    return (first, last) if first <= last else (1, 0)


def _owns(window: Window, start: int, end: int) -> bool:
    return window.owned_from <= start <= end < window.stop and start < window.owned_to


@functools.lru_cache(maxsize=4)  # the questions on a passage follow each other
def _passage(tokenizer: "Tokenizer", context: str) -> tuple[list[int], np.ndarray]:
    encoding = tokenizer.encode_with_offsets(context)
    return encoding.ids, np.array(encoding.offsets, np.int32).reshape(-1, 2)
