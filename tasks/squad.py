"""SQuAD v1.1 and v2.0: data, heads and scores of extractive question answering.

Reading order: squad_data (files), squad_windows (rows of tokens), this file, squad_answers (scores -> answers),
squad_scores (the official scripts).
"""

import abc
import json
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from tasks import squad_answers, squad_scores
from tasks.squad_answers import Answers, Spans
from tasks.squad_data import V1, V2, Question, official_files, read_questions
from tasks.squad_windows import SPECIAL_TOKENS, question_features
from tasks.task import TEXT_FIELDS, Feature, Field, Recipe, Task, encoder_inputs, head_seed

if TYPE_CHECKING:
    import tensorflow as tf

    from albert_tf.checkpoints import Model
    from albert_tf.tokenization import Tokenizer

RECIPES = {  # paper, table 14
    V1: Recipe(learning_rate=5e-5, train_batch_size=48, num_train_steps=3649, num_warmup_steps=365, max_seq_length=384),
    V2: Recipe(learning_rate=3e-5, train_batch_size=48, num_train_steps=8144, num_warmup_steps=814, max_seq_length=512),
}
_DEFAULT_THRESHOLD = 0.5  # "no answer" where it is likelier than not, for a model without a tuned threshold
_NULL_OPTIONS = {"span_head": "conditional", "start_n_top": 5, "end_n_top": 5, "null_threshold": None}


class SquadTask(Task):
    """What the versions and heads share."""

    data_version: str | None  # of the files that it takes; None for any
    has_null: bool  # whether "no answer" is an answer
    primary = "f1"
    fields = {
        **TEXT_FIELDS,
        "start_position": Field(),
        "end_position": Field(),
        "context_start": Field(for_model=False),
        "owned": Field((2,), for_model=False),
        "offsets": Field(("T", 2), for_model=False),
        "gold_spans": Field(("G", 2), for_model=False),
    }
    label_fields = ("start_position", "end_position")
    default_options = {"doc_stride": 128, "max_query_length": 64, "max_answer_length": 30, "n_best_size": 20}

    # ---- data -------------------------------------------------------------------------------------------------------

    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        return official_files(data_dir, self.data_version)

    def read(self, path: str | os.PathLike, *, with_labels: bool = True) -> list[Question]:
        questions = read_questions(path, with_labels=with_labels)
        found = questions[0].version
        if None not in (found, self.data_version) and found != self.data_version:
            raise UserError(
                f"{path} is SQuAD v{found}: task {self.name} takes v{self.data_version}; do not mix versions, or use "
                f"task squad{found}"
            )
        return questions

    def featurise(self, example: Question, tokenizer: "Tokenizer") -> list[Feature]:
        lengths = {name: self.options[name] for name in ("max_query_length", "doc_stride")}
        return question_features(example, tokenizer, max_seq_length=self.max_seq_length, **lengths)

    def check(self) -> None:
        counts = [name for name, value in self.default_options.items() if isinstance(value, int)]
        for name in counts:
            if not isinstance(self.options[name], int) or self.options[name] < 1:
                raise UserError(f"{name} is {self.options[name]}: expected a whole number of at least 1")
        query, stride = self.options["max_query_length"], self.options["doc_stride"]
        room = self.max_seq_length - query - SPECIAL_TOKENS
        if room < 1:
            raise UserError(
                f"max_seq_length {self.max_seq_length} leaves no room for the passage beside {query} tokens of "
                f"question (max_query_length) and {SPECIAL_TOKENS} special ones: raise the first or lower the second"
            )
        if stride > room:
            raise UserError(
                f"doc_stride is {stride}, but a window may have as few as {room} tokens of the passage (max_seq_length "
                f"{self.max_seq_length} - max_query_length {query} - {SPECIAL_TOKENS}) and the tokens between would be "
                "lost: lower doc_stride or max_query_length, or raise max_seq_length"
            )

    def remarks(self, features: Sequence[Feature], examples: Sequence[Question]) -> list[str]:
        held = {int(features.example_index[i]) for i in range(len(features)) if features.array("start_position", i)}
        lost = sum(bool(question.answers) and number not in held for number, question in enumerate(examples))
        if not lost:
            return []
        return [f"{lost} of {len(examples)} questions have an answer that no window holds; they train as unanswerable"]

    # ---- results ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def spans(self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature]) -> Spans:
        """The candidates of every window."""

    def null_odds(
        self, outputs: Sequence[dict[str, np.ndarray]], spans: Spans, question_of_window: np.ndarray
    ) -> np.ndarray:
        """float64 [number of questions]: log odds of "no answer"."""
        raise NotImplementedError

    def predictions(
        self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature], examples: Sequence[Question]
    ) -> list[Answers]:
        question_of_window = np.asarray(features.example_index)
        windows = list(features)
        spans = self.spans(outputs, windows)
        proposals = squad_answers.answers_from_spans(
            spans,
            windows,
            question_of_window,
            [question.context for question in examples],
            n_best_size=self.options["n_best_size"],
        )
        nulls: Sequence[float | None] = [None] * len(examples)
        if self.has_null:
            nulls = squad_answers.probability(self.null_odds(outputs, spans, question_of_window)).tolist()
        reachable = self._reachable(windows, question_of_window, examples)
        return [Answers(*answer) for answer in zip(proposals, nulls, reachable, strict=True)]

    def combined(self, predictions: Sequence[Sequence[Answers]]) -> list[Answers]:
        return [squad_answers.combined_answers(members) for members in zip(*predictions, strict=True)]

    def metrics(self, predictions: Sequence[Answers], examples: Sequence[Question]) -> dict[str, float]:
        """Scores 0..100 by the official script of the version, and how many questions have no gold answer in reach."""
        unreachable = sum(answers.reachable is False for answers in predictions)
        return {**self._scores(predictions, examples), "unreachable": float(unreachable)}

    def answer_texts(self, predictions: Sequence[Answers]) -> list[str]:
        """The answer to each question, "" for none."""
        return [answers.best_text for answers in predictions]

    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[Answers], examples: Sequence[Question]
    ) -> list[str]:
        """predictions.json, nbest_predictions.json and, for v2.0, null_odds.json.

        `path` names the first (or a folder for all); the others lie beside it. null_odds.json holds the probability of
        "no answer": the official v2.0 script then gives the same scores with and without it.
        """
        path = pathlib.Path(path)
        path = path / "predictions.json" if path.is_dir() else path
        ids = [question.id for question in examples]
        texts = self.answer_texts(predictions)
        contents: dict[str, Any] = {
            path.name: dict(zip(ids, texts, strict=True)),
            f"nbest_{path.name}": {name: answers.as_json() for name, answers in zip(ids, predictions, strict=True)},
        }
        if self.has_null:
            name = "null_odds.json" if path.name == "predictions.json" else f"null_odds_{path.name}"
            contents[name] = {i: answers.null_probability for i, answers in zip(ids, predictions, strict=True)}
        for name, content in contents.items():
            lines = (f"{json.dumps(i)}: {json.dumps(value, ensure_ascii=False)}" for i, value in content.items())
            files.write_atomically(path.with_name(name), "{\n" + ",\n".join(lines) + "\n}\n")
        return [str(path.with_name(name)) for name in contents]

    def _scores(self, predictions: Sequence[Answers], examples: Sequence[Question]) -> dict[str, float]:
        return squad_scores.score_v1(_by_id(self.answer_texts(predictions), examples), examples)

    def degenerate(self, predictions: Sequence[Answers], examples: Sequence[Question]) -> str | None:
        texts = self.answer_texts(predictions)
        if len(set(texts)) == 1 and len(texts) > 1:
            return f"the same answer {texts[0]!r} to every question"
        if self.has_null:
            nothing = 100.0 * sum(not question.answers for question in examples) / len(examples)
            reached, what = self._scores(predictions, examples)["f1"], 'answering "no answer" always'
        else:
            guesses = _by_id(squad_scores.random_spans(texts, examples), examples)
            nothing = squad_scores.score_v1(guesses, examples)["f1"]
            reached, what = self._scores(predictions, examples)["f1"], "a random span of the passage"
        return f"F1 {reached:.2f} is not above {nothing:.2f}, that of {what}" if reached <= nothing else None

    def _reachable(
        self, windows: Sequence[Feature], question_of_window: np.ndarray, examples: Sequence[Question]
    ) -> list[bool | None]:
        reachable: list[bool | None] = [False if question.answers else None for question in examples]
        for window, question in zip(windows, question_of_window.tolist(), strict=True):
            lengths = window["gold_spans"][:, 1] - window["gold_spans"][:, 0] + 1
            if reachable[question] is False and (lengths <= self.options["max_answer_length"]).any():
                reachable[question] = True
        return reachable


class Squad1(SquadTask):
    """v1.1: a start and an end score for each token."""

    head = "span"
    data_version: str | None = V1
    has_null = False

    def head_options(self, classifier_dropout: float) -> dict[str, Any]:
        return {}  # the release has no dropout on this head

    def forward(self, model: "Model", batch: dict[str, "tf.Tensor"], training: bool = False) -> dict[str, "tf.Tensor"]:
        start, end = model.heads[self.head](_encoded(model, batch, training))
        return {"start_logits": start, "end_logits": end}

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Mean of the cross entropies of start and end over the tokens of the row.

        The release lets padding take part, so that its loss depends on how far a row is padded; with an input_mask of
        ones this is its number.
        """
        import tensorflow as tf

        padding = (1.0 - tf.cast(batch["input_mask"], tf.float32)) * -1e30
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                batch[f"{edge}_position"], outputs[f"{edge}_logits"] + padding
            )
            for edge in ("start", "end")
        ]
        return 0.5 * (losses[0] + losses[1])

    def spans(self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature]) -> Spans:
        return squad_answers.spans_from_logits(
            [row["start_logits"] for row in outputs],
            [row["end_logits"] for row in outputs],
            features,
            max_answer_length=self.options["max_answer_length"],
            per_window=2 * self.options["n_best_size"],  # some spans of tokens are the same text
        )


class _WithNull(SquadTask):
    """v2.0: questions may have no answer."""

    data_version: str | None = V2
    has_null = True
    span_heads: tuple[str, ...]
    default_options = {**SquadTask.default_options, **_NULL_OPTIONS}

    def check(self) -> None:
        super().check()
        if self.options["span_head"] not in self.span_heads:
            found, has = self.options["span_head"], " or ".join(self.span_heads)
            raise UserError(f"span_head is {found!r}: this model's is {has}; leave it out, or train another model")
        threshold = self.options["null_threshold"]
        if threshold is not None and not 0 <= threshold <= 1:
            raise UserError(f"null_threshold is {threshold}: expected a probability from 0 to 1")

    def answer_texts(self, predictions: Sequence[Answers]) -> list[str]:
        threshold = self.options["null_threshold"]
        threshold = _DEFAULT_THRESHOLD if threshold is None else threshold
        return [answers.text(threshold) for answers in predictions]

    def calibrated(self, predictions: Sequence[Answers], examples: Sequence[Question]) -> "SquadTask":
        """With the threshold for "no answer" that gives the best F1 on these questions, unless one was given."""
        return self.replace(options={"null_threshold": self._scores(predictions, examples)["null_threshold"]})

    def _scores(self, predictions: Sequence[Answers], examples: Sequence[Question]) -> dict[str, float]:
        texts = _by_id([answers.best_text for answers in predictions], examples)
        nulls = _by_id([answers.null_probability for answers in predictions], examples)
        return squad_scores.score_v2(texts, nulls, examples, self.options["null_threshold"])


class PlainSquad2(_WithNull, Squad1):
    """v2.0 with the head of v1.1: "no answer" is the span from the first token to itself."""

    span_heads = ("plain",)

    def null_odds(
        self, outputs: Sequence[dict[str, np.ndarray]], spans: Spans, question_of_window: np.ndarray
    ) -> np.ndarray:
        """Least score of "no answer" in any window, minus the best score of a span."""
        null = np.array([row["start_logits"][0] + row["end_logits"][0] for row in outputs], np.float64)
        best = np.full(len(null), -np.inf)
        np.maximum.at(best, spans.window, spans.score)
        return _of_questions(np.minimum, null, question_of_window) - _of_questions(np.maximum, best, question_of_window)


class Squad2(_WithNull):
    """v2.0 as in the release: the end is conditioned on the start, and a class says whether there is an answer."""

    head = "conditional_span"
    span_heads = ("conditional",)

    def head_options(self, classifier_dropout: float) -> dict[str, Any]:
        return {"dropout_rate": classifier_dropout}

    def forward(self, model: "Model", batch: dict[str, "tf.Tensor"], training: bool = False) -> dict[str, "tf.Tensor"]:
        """Where labels are there, what the loss needs; outside training, the beams."""
        import tensorflow as tf

        hidden = _encoded(model, batch, training)
        forbidden = forbidden_positions(batch["segment_ids"], batch["input_mask"])
        head = model.heads[self.head]
        outputs = {}
        if "start_position" in batch:
            labelled = head(hidden, forbidden, batch["start_position"], training=training, seed=head_seed(batch))
            outputs = {name: labelled[name] for name in ("start_log_probs", "end_log_probs", "answer_logits")}
        if not training:
            length = hidden.shape[1] or tf.shape(hidden)[1]
            smaller = min if isinstance(length, int) else tf.minimum
            tops = {name: smaller(self.options[name], length) for name in ("start_n_top", "end_n_top")}
            beams = head.beams(hidden, forbidden, **tops)
            del beams["start_logits"], beams["end_logits"]  # large, and nobody reads them
            outputs.update(beams)
        return outputs

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Half of the start's and the end's cross entropies each, and half of the answer class's."""
        import tensorflow as tf

        start, end = (
            -tf.gather(outputs[f"{edge}_log_probs"], batch[f"{edge}_position"], batch_dims=1)
            for edge in ("start", "end")
        )
        impossible = tf.cast(batch["start_position"] == 0, tf.float32)
        answer = tf.nn.sigmoid_cross_entropy_with_logits(labels=impossible, logits=outputs["answer_logits"])
        return 0.5 * (start + end) + 0.5 * answer

    def spans(self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature]) -> Spans:
        return squad_answers.spans_from_beams(outputs, features, max_answer_length=self.options["max_answer_length"])

    def null_odds(
        self, outputs: Sequence[dict[str, np.ndarray]], spans: Spans, question_of_window: np.ndarray
    ) -> np.ndarray:
        """The least answer logit of any window: one window with an answer is enough."""
        logits = np.array([row["answer_logits"] for row in outputs], np.float64)
        return _of_questions(np.minimum, logits, question_of_window)


SPAN_HEADS = {"conditional": Squad2, "plain": PlainSquad2}


class AnySquad(PlainSquad2):
    """Task "squad" until the training data tell the version."""

    data_version = None
    span_heads = tuple(SPAN_HEADS)

    def __init__(self, name: str, *, max_seq_length: int | None = None, **settings: Any) -> None:
        super().__init__(name, max_seq_length=max_seq_length, **settings)
        self._asked_length = max_seq_length

    def learned_from(self, examples: Sequence[Question]) -> Task:
        found = examples[0].version or V1
        options = {name: value for name, value in self.options.items() if value != self.default_options[name]}
        return make(f"squad{found}", max_seq_length=self._asked_length, options=options)


def make(name: str, *, options: dict[str, Any] | None = None, **settings: Any) -> Task:
    """The task "squad1.1", "squad2.0", or "squad": the one of the data."""
    span_head = (options or {}).get("span_head", "conditional")
    if span_head not in SPAN_HEADS:
        raise UserError(f"span_head is {span_head!r}: expected {' or '.join(SPAN_HEADS)}")
    kinds = {"squad": AnySquad, f"squad{V1}": Squad1, f"squad{V2}": SPAN_HEADS[span_head]}
    recipe = RECIPES[V2 if name == f"squad{V2}" else V1]
    return kinds[name](name, recipe=recipe, options=options, **settings)


def forbidden_positions(segment_ids: "tf.Tensor", input_mask: "tf.Tensor") -> "tf.Tensor":
    """float32 [B, S]: 1 where no answer may be, 0 at the passage (segment 1 without its [SEP]) and the first token."""
    import tensorflow as tf

    followed = tf.pad(input_mask[:, 1:], [[0, 0], [0, 1]])  # 0 at the last token, which is [SEP]
    passage = tf.cast(segment_ids * input_mask * followed, tf.float32)
    first = tf.one_hot(tf.zeros_like(segment_ids[:, 0]), tf.shape(segment_ids)[1])
    return 1.0 - tf.maximum(passage, first)


def _encoded(model: "Model", batch: dict[str, "tf.Tensor"], training: bool) -> "tf.Tensor":
    return model.encoder(encoder_inputs(batch), training=training)["sequence_output"]


def _of_questions(reduce: np.ufunc, values: np.ndarray, question_of_window: np.ndarray) -> np.ndarray:
    """The least or greatest value of each question's windows; every question has one."""
    start = np.inf if reduce is np.minimum else -np.inf
    result = np.full(question_of_window.max(initial=-1) + 1, start)
    reduce.at(result, question_of_window, values)
    return result


def _by_id(values: Sequence[Any], questions: Sequence[Question]) -> dict[str, Any]:
    return {question.id: value for question, value in zip(questions, values, strict=True)}
