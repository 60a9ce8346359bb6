"""The served form of extractive question answering: question and passage in, the answer and its place out.

The graph does what squad_windows and squad_answers do in Python. Axes: B questions, W windows, S row positions, L
answer lengths, K candidates.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.export.signatures import SAMPLE_TEXTS, Arrays, Tensors, string_array
from albert_tf.tokenization.in_graph import GraphEncoding, GraphTokenizer, beginning, joined, narrowed
from tasks import serving_windows
from tasks.serving import Serving
from tasks.serving_windows import Windows
from tasks.squad import forbidden_positions
from tasks.squad_answers import Answers
from tasks.squad_data import Question
from tasks.squad_windows import SPECIAL_TOKENS
from tasks.task import encoder_inputs

NO_PLACE = -1  # start_char and end_char of an answer that is not given
_NONE = tf.float32.min  # score where there is no candidate: finite, as JSON wants it


class _Rows(NamedTuple):
    """Windows as rows of tokens, and for each row position of the passage the token that stands there."""

    batch: Tensors
    windows: Windows
    context_start: tf.Tensor  # int32 [W], row position of the window's first token
    token: tf.Tensor  # int32 [W, S], flat number of the token; anything outside the passage
    in_window: tf.Tensor  # bool [W, S]
    owned: tf.Tensor  # bool [W, S]


class _Candidates(NamedTuple):
    """[W, K] each: row positions, score (-inf where not allowed), and whether the answer has a visible character."""

    start: tf.Tensor
    end: tf.Tensor
    score: tf.Tensor


class SpanServing(Serving):
    """On ids: start_logits and end_logits float32 [B, S], and what the head says besides.

    On text: answer string [B], score float32 [B], start_char and end_char int32 [B] (characters of the context, half
    open; -1 where there is no answer), and null_probability float32 [B] for v2.0.
    """

    @property
    def text_inputs(self) -> dict[str, list[int | None]]:
        return {"question": [None], "context": [None]}

    @property
    def sample(self) -> dict[str, list[str]]:
        long = f"{SAMPLE_TEXTS[0]} \u00bd " * (self.task.max_seq_length // 4)  # several windows
        return {"question": ["Where?", "", *SAMPLE_TEXTS], "context": [long, *SAMPLE_TEXTS, "  "]}

    @property
    def _is_conditional(self) -> bool:
        return self.task.head == "conditional_span"

    @property
    def _most_tokens(self) -> int:
        """Of an answer, which a window holds whole."""
        return min(self.task.options["max_answer_length"], self.task.max_seq_length)

    def answer_ids(self, inputs: Tensors) -> Tensors:
        """The conditional head gives its best starts and ends, best first, and end_logits given the best start."""
        if not self._is_conditional:
            return self.task.forward(self.model, inputs)
        hidden = self.model.encoder(encoder_inputs(inputs))["sequence_output"]
        length = tf.shape(hidden)[1]
        tops = {name: tf.minimum(self.task.options[name], length) for name in ("start_n_top", "end_n_top")}
        forbidden = forbidden_positions(inputs["segment_ids"], inputs["input_mask"])
        outputs = self.model.heads[self.task.head].beams(hidden, forbidden, **tops)
        return {**outputs, "end_logits": outputs["end_logits"][:, 0]}

    def answer_text(self, inputs: Tensors, tokenizer: GraphTokenizer) -> Tensors:
        context = tokenizer.encode_with_offsets(inputs["context"])
        query = tokenizer.encode_with_offsets(inputs["question"]).ids  # the same op, so that there are but two
        query = beginning(query, tf.fill([query.nrows()], self.task.options["max_query_length"]))
        rows = self._rows(query, context.ids, tokenizer)
        outputs = self.task.forward(self.model, rows.batch)
        candidates = self._from_beams(outputs, rows) if self._is_conditional else self._from_logits(outputs, rows)
        result = _best_answer(candidates, rows, context)
        if not self.task.has_null:
            return result
        null = tf.sigmoid(self._null_odds(outputs, candidates, rows, tf.cast(query.nrows(), tf.int32)))
        threshold = self.task.options["null_threshold"]
        refused = null > (0.5 if threshold is None else threshold)
        return {
            "answer": tf.where(refused, "", result["answer"]),
            "start_char": tf.where(refused, NO_PLACE, result["start_char"]),
            "end_char": tf.where(refused, NO_PLACE, result["end_char"]),
            "score": result["score"],
            "null_probability": null,
        }

    def examples(self, texts: dict[str, list[str]]) -> list[Question]:
        rows = zip(texts["question"], texts["context"], strict=True)
        return [question_of(str(number), *row) for number, row in enumerate(rows)]

    def answers(self, predictions: Sequence[Answers]) -> Arrays:
        texts = self.task.answer_texts(predictions)
        best = [one.proposals[0] if text else None for one, text in zip(predictions, texts, strict=True)]
        scores = [one.proposals[0].score if one.proposals else _NONE for one in predictions]
        result = {
            "answer": string_array(texts),
            "start_char": np.array([NO_PLACE if one is None else one.start for one in best], np.int32),
            "end_char": np.array([NO_PLACE if one is None else one.end for one in best], np.int32),
            "score": np.array(scores, np.float32),
        }
        if self.task.has_null:
            result["null_probability"] = np.array([one.null_probability for one in predictions])
        return result

    def _rows(self, query: tf.RaggedTensor, context: tf.RaggedTensor, tokenizer: GraphTokenizer) -> _Rows:
        query_lengths = tf.cast(query.row_lengths(), tf.int32)
        room = self.task.max_seq_length - query_lengths - SPECIAL_TOKENS
        lengths = tf.cast(context.row_lengths(), tf.int32)
        windows = serving_windows.cut(lengths, room, tf.minimum(self.task.options["doc_stride"], room))
        parts = [tf.gather(query, windows.text), serving_windows.window_values(context, windows)]
        batch = joined(parts, tokenizer)
        context_start = tf.gather(query_lengths, windows.text) + 2
        positions = tf.range(tf.shape(batch["input_ids"])[1])[None, :]
        local = positions - context_start[:, None] + windows.first[:, None]
        base = tf.cast(tf.gather(context.row_splits, windows.text), tf.int32)[:, None]
        in_window = (local >= windows.first[:, None]) & (local < windows.stop[:, None])
        return _Rows(
            batch=batch,
            windows=windows,
            context_start=context_start,
            token=tf.where(in_window, base + local, 0),
            in_window=in_window,
            owned=in_window & (local >= windows.owned_from[:, None]) & (local < windows.owned_to[:, None]),
        )

    def _from_logits(self, outputs: Tensors, rows: _Rows) -> _Candidates:
        """Every span of at most max_answer_length tokens: K = S * L."""
        most = self._most_tokens
        starts = tf.where(rows.owned, outputs["start_logits"], -np.inf)
        ends = tf.pad(
            tf.where(rows.in_window, outputs["end_logits"], -np.inf), [[0, 0], [0, most - 1]], constant_values=-np.inf
        )
        length = tf.shape(starts)[1]
        reach = tf.range(length)[:, None] + tf.range(most)[None, :]  # [S, L]
        score = starts[:, :, None] + tf.gather(ends, reach, axis=1)
        count, flat = tf.shape(starts)[0], [tf.shape(starts)[0], length * most]
        start = tf.broadcast_to(tf.range(length)[:, None], [length, most])
        return _Candidates(
            start=tf.broadcast_to(tf.reshape(start, [1, -1]), flat),
            end=tf.broadcast_to(tf.reshape(tf.minimum(reach, length - 1), [1, -1]), flat),
            score=tf.reshape(score, [count, length * most]),
        )

    def _from_beams(self, outputs: Tensors, rows: _Rows) -> _Candidates:
        """The pairs of the conditional head."""
        end = outputs["end_top_index"]
        repeats = tf.shape(end)[1] // tf.shape(outputs["start_top_index"])[1]
        start = tf.repeat(outputs["start_top_index"], repeats, axis=1)
        score = tf.repeat(outputs["start_top_log_probs"], repeats, axis=1) + outputs["end_top_log_probs"]
        allowed = tf.gather(rows.owned, start, batch_dims=1) & tf.gather(rows.in_window, end, batch_dims=1)
        allowed &= (start <= end) & (end - start < self._most_tokens)
        return _Candidates(start, end, tf.where(allowed, score, -np.inf))

    def _null_odds(self, outputs: Tensors, candidates: _Candidates, rows: _Rows, count: tf.Tensor) -> tf.Tensor:
        """float32 [B]; the graph of Squad2.null_odds and PlainSquad2.null_odds."""
        text = rows.windows.text
        if self._is_conditional:
            return tf.math.unsorted_segment_min(outputs["answer_logits"], text, count)
        null = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        best = tf.reduce_max(candidates.score, axis=1)
        return tf.math.unsorted_segment_min(null, text, count) - tf.math.unsorted_segment_max(best, text, count)


def question_of(identity: str, question: str, context: str) -> Question:
    """A question without gold answers."""
    return Question(id=identity, question=question, context=context, answers=None, version=None)


def _best_answer(candidates: _Candidates, rows: _Rows, context: GraphEncoding) -> Tensors:
    """The best candidate of each question's windows that is more than white space."""
    token_row = context.ids.value_rowids()
    base = tf.cast(tf.gather(context.characters.row_splits, token_row), tf.int32)
    first = tf.concat([context.starts.values + base, [0]], axis=0)  # flat characters; one more for empty batches
    last = tf.concat([context.ends.values + base, [0]], axis=0)
    is_word = ~context.is_space.values
    before = tf.concat([[0], tf.cumsum(tf.cast(is_word, tf.int32))], axis=0)
    visible = tf.gather(before, tf.gather(last, rows.token))  # [W, S]: visible characters before the token's end
    hidden = tf.gather(before, tf.gather(first, rows.token))
    has_word = tf.gather(visible, candidates.end, batch_dims=1) > tf.gather(hidden, candidates.start, batch_dims=1)
    score = tf.where(has_word, candidates.score, -np.inf)

    best = tf.argmax(score, axis=1, output_type=tf.int32)  # [W]
    of_window = tf.maximum(tf.gather(score, best, batch_dims=1), _NONE)  # -inf is below where segment_max begins
    text, count = rows.windows.text, tf.cast(context.ids.nrows(), tf.int32)
    of_question = tf.math.unsorted_segment_max(of_window, text, count)
    numbers = tf.range(tf.size(text))
    winner = tf.where(of_window == tf.gather(of_question, text), numbers, tf.int32.max)
    window = tf.math.unsorted_segment_min(winner, text, count)  # [B]
    start, end = (
        tf.gather(tf.gather(place, best, batch_dims=1), window) for place in (candidates.start, candidates.end)
    )
    token = tf.gather(rows.token, window)
    begin = tf.gather(first, tf.gather(token, start, batch_dims=1))
    stop = tf.gather(last, tf.gather(token, end, batch_dims=1))
    found = of_question > _NONE
    begin, stop = narrowed(is_word, tf.where(found, begin, 0), tf.where(found, stop, 0))
    stop = tf.where(found, stop, begin)
    places = tf.ragged.range(begin, stop)
    answer = tf.strings.unicode_encode(places.with_values(tf.gather(context.characters.values, places.values)), "UTF-8")
    row_start = tf.cast(context.characters.row_starts(), tf.int32)
    return {
        "answer": answer,
        "start_char": tf.where(found, begin - row_start, NO_PLACE),
        "end_char": tf.where(found, stop - row_start, NO_PLACE),
        "score": of_question,
    }
