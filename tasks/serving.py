"""What a fine-tuned model answers when it is served: outputs by name, on token ids and on raw text.

Each task has a `Serving` here or, for spans and words, in serving_spans.py and serving_words.py. It says the same thing
three times: as a graph on ids, as a graph on text, and as the task's own Python path, which every export is checked
against. Axes: B batch, S sequence, N labels, C choices.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import Model
from albert_tf.errors import UserError
from albert_tf.export.signatures import (
    SAMPLE_TEXTS,
    Arrays,
    Signature,
    Tensors,
    ids_signature,
    string_array,
)
from albert_tf.tokenization.in_graph import GraphTokenizer, beginning, joined, packed
from tasks.classification import Classification, ClassPrediction, Regression
from tasks.evaluation import Predictor
from tasks.features import make_features
from tasks.race import SPECIAL_TOKENS, Choice, Race, RaceExample
from tasks.task import Task
from tasks.text import TextExample


class Serving(abc.ABC):
    """The served form of one task and its model."""

    choices: ClassVar[bool] = False  # whether ids have an axis of choices

    def __init__(self, task: Task, model: Model) -> None:
        self.task, self.model = task, model

    @property
    @abc.abstractmethod
    def text_inputs(self) -> dict[str, list[int | None]]:
        """Names of the text inputs and their shapes."""

    @abc.abstractmethod
    def answer_ids(self, inputs: Tensors) -> Tensors:
        """input_ids, input_mask, segment_ids int32 [B, S] or [B, C, S] -> outputs."""

    @abc.abstractmethod
    def answer_text(self, inputs: Tensors, tokenizer: GraphTokenizer) -> Tensors:
        """string [B] or [B, C] -> outputs."""

    @abc.abstractmethod
    def examples(self, texts: dict[str, list[Any]]) -> list[Any]:
        """The task's examples for the same texts, by input name."""

    @abc.abstractmethod
    def answers(self, predictions: Sequence[Any]) -> Arrays:
        """The task's own predictions as (some of) the outputs of `answer_text`."""

    @property
    @abc.abstractmethod
    def sample(self) -> dict[str, list[Any]]:
        """Texts that an export is tried with."""

    def ids_signature(self, *, checks: bool = True) -> Signature:
        """The signature on token ids."""
        return ids_signature(self.model.config, self.answer_ids, choices=self.choices, checks=checks)

    def text_signature(self, tokenizer: GraphTokenizer) -> Signature:
        """The signature on raw text."""
        return Signature(
            inputs={name: tf.TensorSpec(shape, tf.string, name) for name, shape in self.text_inputs.items()},
            call=lambda inputs: self.answer_text(inputs, tokenizer),
            request={name: string_array(texts) for name, texts in self.sample.items()},
            expected=self.python_answers(self.sample),
        )

    def python_answers(self, texts: dict[str, list[Any]]) -> Arrays:
        """What the task's Python path says to these texts."""
        examples = self.examples(texts)
        features = make_features(self.task, examples, self.model.tokenizer)
        return self.answers(Predictor(self.model, self.task).predictions(features, examples))


class _TextServing(Serving):
    """One or two texts, and a head on the first token."""

    @property
    def text_inputs(self) -> dict[str, list[int | None]]:
        names = ("text", "text_pair")[: len(self.task.layout.texts)]
        return {name: [None] for name in names}

    @property
    def sample(self) -> dict[str, list[str]]:
        return dict(zip(self.text_inputs, (list(SAMPLE_TEXTS), list(reversed(SAMPLE_TEXTS))), strict=False))

    def answer_text(self, inputs: Tensors, tokenizer: GraphTokenizer) -> Tensors:
        segments = [tokenizer.encode(inputs[name]) for name in self.text_inputs]
        return self.answer_ids(packed(segments, tokenizer, self.task.max_seq_length))

    def examples(self, texts: dict[str, list[str]]) -> list[TextExample]:
        rows = zip(*(texts[name] for name in self.text_inputs), strict=True)
        return [TextExample(str(number), row) for number, row in enumerate(rows)]


class ClassificationServing(_TextServing):
    """logits and probabilities float32 [B, N], classes string [B, N] (their names), label string [B]."""

    def answer_ids(self, inputs: Tensors) -> Tensors:
        logits = self.task.forward(self.model, inputs)["logits"]
        return {"logits": logits, **labelled(logits, self.task.labels)}

    def answers(self, predictions: Sequence[ClassPrediction]) -> Arrays:
        return {
            "label": string_array([one.label for one in predictions]),
            "probabilities": np.array([one.probabilities for one in predictions]),
            "classes": string_array([self.task.labels] * len(predictions)),
        }


class RegressionServing(_TextServing):
    """prediction float32 [B]; logits float32 [B, 1], the same number."""

    def answer_ids(self, inputs: Tensors) -> Tensors:
        logits = self.task.forward(self.model, inputs)["logits"]
        return {"logits": logits, "prediction": logits[:, 0]}

    def answers(self, predictions: Sequence[float]) -> Arrays:
        return {"prediction": np.array(predictions)}


class RaceServing(Serving):
    """logits and probabilities float32 [B, C], choice int32 [B]. An option whose input_mask is all 0 does not exist."""

    choices = True

    @property
    def text_inputs(self) -> dict[str, list[int | None]]:
        return {"passage": [None], "question": [None], "options": [None, None]}

    @property
    def sample(self) -> dict[str, list[Any]]:
        options = [["by the river", ""], ["1,000 _ stones", "caf\u00e9"], ["never", "always [MASK]"]]
        questions = ["Where is the __ and _?", "How many?", "_"]
        return {"passage": list(SAMPLE_TEXTS), "question": questions, "options": options}

    def answer_ids(self, inputs: Tensors) -> Tensors:
        lengths = tf.reduce_sum(inputs["input_mask"], axis=-1)
        return self._answers({**inputs, "choice_lengths": lengths})

    def answer_text(self, inputs: Tensors, tokenizer: GraphTokenizer) -> Tensors:
        rows, choices = tf.unstack(tf.shape(inputs["options"]))
        filled = tf.reshape(_filled(inputs["question"], inputs["options"]), [-1])
        asked = tokenizer.encode(filled)
        lengths = tf.cast(asked.row_lengths(), tf.int32)
        most = self.task.options["max_qa_length"]
        places = tf.ragged.range(lengths)
        asked = tf.ragged.boolean_mask(asked, places >= (lengths - most)[:, None])
        room = self.task.max_seq_length - SPECIAL_TOKENS - tf.minimum(lengths, most)
        passage = tf.gather(tokenizer.encode(inputs["passage"]), tf.repeat(tf.range(rows), choices))
        made = joined([beginning(passage, room), asked], tokenizer)
        length = tf.shape(made["input_ids"])[1]
        batch = {name: tf.reshape(value, [rows, choices, length]) for name, value in made.items()}
        return self.answer_ids(batch)

    def examples(self, texts: dict[str, list[Any]]) -> list[RaceExample]:
        rows = zip(*(texts[name] for name in self.text_inputs), strict=True)
        return [
            RaceExample(str(number), passage, question, tuple(options), None, None)
            for number, (passage, question, options) in enumerate(rows)
        ]

    def answers(self, predictions: Sequence[Choice]) -> Arrays:
        return {
            "choice": np.array([one.option for one in predictions], np.int32),
            "probabilities": np.array([one.probabilities for one in predictions]),
        }

    def _answers(self, batch: Tensors) -> Tensors:
        logits = self.task.forward(self.model, batch)["logits"]
        choice = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), "choice": choice}


def labelled(logits: tf.Tensor, labels: Sequence[str]) -> Tensors:
    """Logits [B, N] -> probabilities, the names of the N classes for each row, and the likeliest of them."""
    names = tf.constant(list(labels))
    return {
        "probabilities": tf.nn.softmax(logits),
        "label": tf.gather(names, tf.argmax(logits, axis=-1)),
        "classes": tf.broadcast_to(names, tf.shape(logits)),
    }


def serving_of(task: Task, model: Model) -> Serving:
    """The served form of a task.

    Raises UserError for a task that has none.
    """
    from tasks.serving_spans import SpanServing
    from tasks.serving_words import WordServing
    from tasks.squad import SquadTask
    from tasks.tokens import Tokens

    kinds = {
        Classification: ClassificationServing,
        Regression: RegressionServing,
        Race: RaceServing,
        SquadTask: SpanServing,
        Tokens: WordServing,
    }
    for kind, serving in kinds.items():
        if isinstance(task, kind):
            return serving(task, model)
    raise UserError(f"task {task.name} has no served form; export the encoder of the model it was made from")


def _filled(questions: tf.Tensor, options: tf.Tensor) -> tf.Tensor:
    """Questions [B] and options [B, C] -> string [B, C]; the graph of tasks.race.filled."""
    with_blank = tf.strings.regex_full_match(questions, "(?s).*_.*")
    blank = tf.where(with_blank, questions, questions + " _")
    single = tf.strings.regex_replace(blank, "_+", "_")
    parts = tf.strings.split(single, "_")  # [B, (blanks + 1)]
    rows = tf.repeat(tf.range(tf.shape(options)[0]), tf.shape(options)[1])
    parts = tf.gather(parts, rows)
    flat = tf.reshape(options, [-1])
    is_last = tf.ragged.range(parts.row_lengths()) == parts.row_lengths()[:, None] - 1
    inserted = tf.where(is_last.values, "", tf.gather(flat, parts.value_rowids()))
    whole = parts.with_values(tf.strings.join([parts.values, inserted]))
    return tf.reshape(tf.strings.reduce_join(whole, axis=1), tf.shape(options))
