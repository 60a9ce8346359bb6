"""The served form of token classification: a label for every word of a text."""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.export.signatures import SAMPLE_TEXTS, Arrays, Tensors, string_array
from albert_tf.tokenization.in_graph import GraphTokenizer, joined
from tasks import serving_windows
from tasks.serving import Serving
from tasks.tokens import SPECIAL_TOKENS, Sentence, TokenLabels

_WHITE_SPACE = re.compile("[ \t\n\v\f\r]+")  # what parts words in the graph


class WordServing(Serving):
    """On ids: logits, probabilities float32 [B, S, N], labels string [B, S], one a piece.

    On text (words parted by white space): words and labels string [B, W] ("" beyond a text's last word), probabilities
    float32 [B, W, N] (0 there).
    """

    @property
    def text_inputs(self) -> dict[str, list[int | None]]:
        return {"text": [None]}

    @property
    def sample(self) -> dict[str, list[str]]:
        return {"text": [*SAMPLE_TEXTS, "river \u0301 stone " * self.task.max_seq_length]}  # also a word without pieces

    def answer_ids(self, inputs: Tensors) -> Tensors:
        logits = self.task.forward(self.model, inputs)["logits"]
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "labels": tf.gather(list(self.task.labels), tf.argmax(logits, axis=-1)),
        }

    def answer_text(self, inputs: Tensors, tokenizer: GraphTokenizer) -> Tensors:
        words = tf.strings.split(inputs["text"])  # [B, (W)]
        pieces = _at_least_one(tokenizer.encode(words.values), tokenizer.unk_id)  # a row a word
        word_starts = tf.cast(pieces.row_starts(), tf.int32)
        sentence_splits = tf.gather(pieces.row_splits, words.row_splits)
        sentences = tf.RaggedTensor.from_row_splits(pieces.values, sentence_splits, validate=False)
        room = self.task.max_seq_length - SPECIAL_TOKENS
        lengths = tf.cast(sentences.row_lengths(), tf.int32)
        windows = serving_windows.cut(lengths, tf.ones_like(lengths) * room, tf.ones_like(lengths) * -(-room // 2))
        rows = joined([serving_windows.window_values(sentences, windows)], tokenizer)
        probabilities = tf.nn.softmax(self.task.forward(self.model, rows)["logits"])

        base = tf.cast(tf.gather(sentence_splits, windows.text), tf.int32)
        window = tf.searchsorted(base + windows.owned_from, word_starts, side="right") - 1
        position = word_starts - tf.gather(base + windows.first, window) + 1
        of_words = tf.gather_nd(probabilities, tf.stack([window, position], axis=1))
        labels = tf.gather(list(self.task.labels), tf.argmax(of_words, axis=-1))
        return {
            "words": words.to_tensor(""),
            "labels": words.with_values(labels).to_tensor(""),
            "probabilities": words.with_values(of_words).to_tensor(0.0),
        }

    def examples(self, texts: dict[str, list[str]]) -> list[Sentence]:
        words = (tuple(filter(None, _WHITE_SPACE.split(text))) for text in texts["text"])
        return [Sentence(str(number), row, None) for number, row in enumerate(words)]

    def answers(self, predictions: Sequence[TokenLabels]) -> Arrays:
        widest = max((len(one.labels) for one in predictions), default=0)
        probabilities = np.zeros([len(predictions), widest, len(self.task.labels)])
        labels = [[*one.labels, *[""] * (widest - len(one.labels))] for one in predictions]
        for row, one in enumerate(predictions):
            probabilities[row, : len(one.labels)] = one.probabilities
        return {"labels": string_array(labels), "probabilities": probabilities}


def _at_least_one(pieces: tf.RaggedTensor, piece: int) -> tf.RaggedTensor:
    """Rows without a value get `piece`."""
    missing = tf.cast(pieces.row_lengths() == 0, tf.int64)
    fill = tf.fill([tf.reduce_sum(missing)], piece)
    return tf.concat([pieces, tf.RaggedTensor.from_row_lengths(fill, missing, validate=False)], axis=1)
