"""RACE: multiple choice about a passage, from schools' English exams (middle and high)."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_tf.errors import UserError
from tasks import archives
from tasks.classification import write_rows
from tasks.task import Feature, Field, Recipe, Task, encoder_inputs, head_seed

if TYPE_CHECKING:
    import tensorflow as tf

    from albert_tf.checkpoints import Model
    from albert_tf.config import AlbertConfig
    from albert_tf.tokenization import Tokenizer

# Paper, table 14, for v1 models. Models of version 2 diverge with it; the release trains them with half the rate and
# without dropout.
RECIPE = Recipe(
    learning_rate=2e-5, train_batch_size=32, encoder_dropout=0.1, num_train_steps=12000, num_warmup_steps=1000
)
RECIPE_V2 = dataclasses.replace(RECIPE, learning_rate=1e-5, encoder_dropout=0.0)
LEVELS = ("middle", "high")
SPECIAL_TOKENS = 3  # [CLS], [SEP], [SEP]
_NO_CHOICE = -1e9  # logit of an option that a question does not have; finite, so that a row without any stays so


@dataclasses.dataclass(frozen=True, slots=True)
class RaceExample:
    """One question on a passage; `label` is the number of the right option, None where unknown."""

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    level: str | None  # "middle" or "high"; None where neither the path nor the id tells


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """What a model says of a question."""

    option: int
    probabilities: np.ndarray  # float64 [number of the question's options]


class Race(Task):
    """One score an option; softmax over the options of a question."""

    head = "multiple_choice"
    primary = "accuracy"
    fields = {
        "input_ids": Field(("C", "S")),
        "segment_ids": Field(("C", "S")),
        "choice_lengths": Field(("C",)),  # tokens of each option's row; 0: there is no such option
        "label": Field(),
    }
    default_options = {"max_qa_length": 128}

    # ---- data -------------------------------------------------------------------------------------------------------

    @property
    def level(self) -> str | None:
        """ "middle", "high", or None for both."""
        return self.name.removeprefix("race").removeprefix("-") or None

    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        """The official folders, found in data_dir, its folder RACE, its RACE.tar.gz, or data_dir being an archive."""
        places = [pathlib.Path(data_dir), pathlib.Path(data_dir, "RACE"), pathlib.Path(data_dir, "RACE.tar.gz")]
        there = (place for place in places if archives.is_archive(place) or any(map(os.path.isdir, _splits(place))))
        base = next(there, places[0])
        return {split.name: str(split / (self.level or "")) for split in _splits(base)}

    def read(self, path: str | os.PathLike, *, with_labels: bool = True) -> list[RaceExample]:
        examples, seen = [], {}
        for name, place, text in archives.texts(path, ".txt"):
            if self.level not in (None, level_of(place)):
                continue
            for example in read_passage(text, place, default_id=name, with_labels=with_labels):
                if example.id in seen:
                    raise UserError(f"{place}: question {example.id} is also in {seen[example.id]}; rename one id")
                seen[example.id] = place
                examples.append(example)
        if not examples:
            wanted = f" of level {self.level}" if self.level else ""
            raise UserError(
                f"{path} has no questions{wanted}: expected .txt files in the layout of RACE; check the path"
            )
        return examples

    def featurise(self, example: RaceExample, tokenizer: "Tokenizer") -> list[Feature]:
        """A row an option: [CLS] passage [SEP] question and option [SEP]; the second part has segment id 1.

        Question and option keep their last max_qa_length tokens, the passage its first that still fit.
        """
        most = self.options["max_qa_length"]
        asked = [tokenizer.encode(filled(example.question, option))[-most:] for option in example.options]
        rooms = [self.max_seq_length - SPECIAL_TOKENS - len(part) for part in asked]
        passage = _passage(tokenizer, example.passage)
        firsts = [[tokenizer.cls_id, *passage[:room], tokenizer.sep_id] for room in rooms]
        lengths = [len(first) + len(part) + 1 for first, part in zip(firsts, asked, strict=True)]
        ids = np.full([len(asked), max(lengths)], tokenizer.pad_id, np.int32)
        segments = np.zeros_like(ids)
        for row, (first, part) in enumerate(zip(firsts, asked, strict=True)):
            ids[row, : lengths[row]] = [*first, *part, tokenizer.sep_id]
            segments[row, len(first) : lengths[row]] = 1
        feature = {"input_ids": ids, "segment_ids": segments, "choice_lengths": np.array(lengths, np.int32)}
        if example.label is not None:
            feature["label"] = np.array(example.label, np.int32)
        return [feature]

    def check(self) -> None:
        most = self.options["max_qa_length"]
        if not isinstance(most, int) or most < 1:
            raise UserError(f"max_qa_length is {most}: expected a whole number of at least 1")
        if self.max_seq_length - SPECIAL_TOKENS - most < 1:
            raise UserError(
                f"max_seq_length {self.max_seq_length} leaves no room for the passage beside {most} tokens of question "
                f"and option (max_qa_length) and {SPECIAL_TOKENS} special ones: raise the first or lower the second"
            )

    def recipe_for(self, config: "AlbertConfig", preset: str | None) -> Recipe:
        """That of version 2 for its presets, and for others without dropout in their configuration."""
        if preset is None or not preset.endswith(("_v1", "_v2")):
            return RECIPE if config.hidden_dropout_prob else RECIPE_V2
        return RECIPE if preset.endswith("_v1") else RECIPE_V2

    # ---- model ------------------------------------------------------------------------------------------------------

    def head_options(self, classifier_dropout: float) -> dict[str, Any]:
        return {"dropout_rate": classifier_dropout}

    def forward(self, model: "Model", batch: dict[str, "tf.Tensor"], training: bool = False) -> dict[str, "tf.Tensor"]:
        """Every option as a row of its own, so that no option sees another: logits [B, C]."""
        import tensorflow as tf

        lengths = tf.convert_to_tensor(batch["choice_lengths"])
        rows, choices, width = tf.unstack(tf.shape(batch["input_ids"]))
        mask = tf.sequence_mask(lengths, width, tf.int32)  # [B, C, S]; the batch's own mask also covers shorter options
        inputs = {
            name: tf.reshape(value, [rows * choices, width]) if name != "dropout_seed" else value
            for name, value in encoder_inputs({**batch, "input_mask": mask}).items()
        }
        inputs["output_positions"] = tf.zeros([rows * choices, 0], tf.int32)
        pooled = model.encoder(inputs, training=training)["pooled_output"]
        logits = model.heads[self.head](pooled, choices, training=training, seed=head_seed(batch))
        return {"logits": tf.where(lengths > 0, logits, _NO_CHOICE)}

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Cross-entropy over the options that there are."""
        import tensorflow as tf

        return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], outputs["logits"])

    # ---- results ----------------------------------------------------------------------------------------------------

    def predictions(
        self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature], examples: Sequence[RaceExample]
    ) -> list[Choice]:
        return [
            _choice(_softmax(output["logits"][: len(example.options)].astype(np.float64)))
            for output, example in zip(outputs, examples, strict=True)
        ]

    def combined(self, predictions: Sequence[Sequence[Choice]]) -> list[Choice]:
        return [
            _choice(np.mean([one.probabilities for one in models], axis=0)) for models in zip(*predictions, strict=True)
        ]

    def metrics(self, predictions: Sequence[Choice], examples: Sequence[RaceExample]) -> dict[str, float]:
        """accuracy of all, and accuracy_middle and accuracy_high where there are such questions."""
        right = np.array([one.option == example.label for one, example in zip(predictions, examples, strict=True)])
        scores = {"accuracy": float(right.mean())}
        for level in LEVELS:
            of_level = np.array([example.level == level for example in examples])
            if of_level.any():
                scores[f"accuracy_{level}"] = float(right[of_level].mean())
        return scores

    def degenerate(self, predictions: Sequence[Choice], examples: Sequence[RaceExample]) -> str | None:
        """The same option for all, or an accuracy that guessing reaches (one-sided, two standard deviations)."""
        count = len(examples)
        chance = sum(1 / len(example.options) for example in examples) / count
        accuracy = self.metrics(predictions, examples)["accuracy"]
        if len({one.option for one in predictions}) == 1 and len({example.label for example in examples}) > 1:
            return f"all {count} answers are {letter(predictions[0].option)}; guessing gives {chance:.4f}"
        if accuracy <= chance + 2 * math.sqrt(chance * (1 - chance) / count) and accuracy < 1:
            return f"the accuracy {accuracy:.4f} over {count} questions is that of guessing, {chance:.4f}"
        return None

    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[Choice], examples: Sequence[RaceExample]
    ) -> list[str]:
        """TSV: id, letter, text of the option, and a column of probabilities for each letter, empty where none."""
        most = max(len(example.options) for example in examples)
        header = ["id", "prediction", "option", *(f"probability_{letter(option)}" for option in range(most))]
        rows = []
        for example, one in zip(examples, predictions, strict=True):
            values = [f"{value:.6f}" for value in one.probabilities] + [""] * (most - len(example.options))
            rows.append([example.id, letter(one.option), example.options[one.option], *values])
        return write_rows(path, header, rows)


def make(name: str, **settings: Any) -> Race:
    """The task "race", "race-middle" or "race-high"."""
    return Race(name, recipe=RECIPE, **settings)


def read_passage(text: str, place: str, *, default_id: str, with_labels: bool = True) -> Iterator[RaceExample]:
    """The questions of one official file: {"article", "questions", "options", "answers" (not for prediction), "id"}.

    Ids are the passage's with "-0", "-1", ... after it.

    Raises UserError naming the place.
    """
    try:
        passage = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not valid JSON: {error}; expected one object") from error
    if not isinstance(passage, dict):
        raise UserError(f"{place} holds a {type(passage).__name__}; expected one object")
    article = _checked(passage.get("article"), str, f"{place}: article")
    questions = _checked(passage.get("questions"), list, f"{place}: questions")
    options = _checked(passage.get("options"), list, f"{place}: options")
    answers = passage.get("answers") if with_labels else None
    for name, values in (("options", options), ("answers", answers)):
        if values is not None and len(_checked(values, list, f"{place}: {name}")) != len(questions):
            raise UserError(f"{place}: {len(values)} {name} for {len(questions)} questions; expected as many")
    identity = _checked(passage.get("id", default_id), str, f"{place}: id")
    for i, question in enumerate(questions):
        question = _checked(question, str, f"{place}: questions[{i}]")
        choices = _checked(options[i], list, f"{place}: options[{i}]")
        choices = tuple(_checked(choice, str, f"{place}: options[{i}][{k}]") for k, choice in enumerate(choices))
        if not 2 <= len(choices) <= 26:
            raise UserError(f"{place}: options[{i}] has {len(choices)} options, expected 2 to 26")
        label = None if answers is None else _label(answers[i], len(choices), f"{place}: answers[{i}]")
        yield RaceExample(f"{identity}-{i}", article, question, choices, label, level_of(place) or level_of(identity))


def filled(question: str, option: str) -> str:
    """The option in the blank of the question (a run of "_"), or after a question without one."""
    if "_" in question:
        return re.sub("_+", lambda _: option, question)
    return f"{question} {option}"


def level_of(place: str) -> str | None:
    """The level that a path or a passage's id ("high14073.txt") names."""
    parts = pathlib.PurePath(place).parts
    named = [part for part in parts if part in LEVELS] or re.findall(rf"^({'|'.join(LEVELS)})\d", place)
    return named[-1] if named else None


def letter(option: int) -> str:
    """0 is "A"."""
    return chr(ord("A") + option)


def _splits(base: pathlib.Path) -> list[pathlib.Path]:
    return [base / split for split in ("train", "dev", "test")]


def _label(answer: Any, count: int, place: str) -> int:
    letters = [letter(option) for option in range(count)]
    if answer not in letters:
        raise UserError(f"{place} is {answer!r}, expected one of {', '.join(letters)}")
    return letters.index(answer)


def _checked(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{place} is {found}, expected a {'text' if kind is str else 'list'}")
    return value


@functools.lru_cache(maxsize=4)  # the questions on a passage follow each other
def _passage(tokenizer: "Tokenizer", passage: str) -> list[int]:
    return tokenizer.encode(passage)


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()


def _choice(probabilities: np.ndarray) -> Choice:
    return Choice(int(probabilities.argmax()), probabilities)
