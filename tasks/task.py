"""What a task is: the one contract between data, model and scores. Training and prediction know nothing else.

The life of a task in a run:

    task = make_task(name, ...)            catalog.py; a model folder gives the same task back, see `describe`
    examples = task.read(path)             one object a question, sentence pair, ...; `label` is None where unknown
    task = task.learned_from(examples)     label names that only the data can tell
    features = task.featurise(example)     one or more dictionaries of arrays, shaped as `task.fields` says
    outputs = task.forward(model, batch)   TensorFlow: logits, one row a feature
    losses = task.loss(outputs, batch)     TensorFlow: one number a feature
    predictions = task.predictions(...)    NumPy: one object an example
    scores = task.metrics(...)             plain numbers; `task.primary` names the one that counts

Axes: B batch of features, S sequence, N labels, C choices, P positions.
"""

import abc
import copy
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from albert_tf.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from albert_tf.checkpoints import Model
    from albert_tf.config import AlbertConfig
    from albert_tf.tokenization import Tokenizer

Feature = dict[str, "np.ndarray"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a task is fine-tuned unless flags say otherwise (paper, table 14)."""

    learning_rate: float  # peak; linear warm-up, then linear decay to 0
    train_batch_size: int  # features an optimiser step, over all devices
    encoder_dropout: float = 0.0  # hidden and attention dropout of the encoder
    classifier_dropout: float = 0.1
    num_train_steps: int | None = None  # None: num_train_epochs decides
    num_train_epochs: float | None = None
    num_warmup_steps: int | None = None  # at num_train_steps; scaled with the steps where those are changed
    max_seq_length: int = 512  # tokens a row, special tokens included

    @property
    def warmup_share(self) -> float:
        """Share of the steps that are warm-up; a tenth where the paper says nothing."""
        if self.num_warmup_steps is None or self.num_train_steps is None:
            return 0.1
        return self.num_warmup_steps / self.num_train_steps


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a feature: its axes, and how a batch of them is padded.

    `axes` are letters or numbers: ("S",) is one value a token, () a scalar, ("C", "S") a row of tokens a choice,
    ("S", 2) a pair a token. Axes with the same letter get the same length throughout a batch; only "S" is rounded up.
    """

    axes: tuple[str | int, ...] = ()
    dtype: str = "int32"
    padding: int | float = 0
    for_model: bool = True  # False: kept beside the features for `predictions`, never sent to the model


# Nearly every task has these two. A batch also has, made by batching.py: `input_mask` int32, shaped like input_ids,
# 1 for tokens; and `feature_index` int32 [B], the feature's number, or -1 for a row that only fills the batch. In
# training there is `dropout_seed` int32 [2] as well: see encoder_inputs and head_seed.
TEXT_FIELDS = {"input_ids": Field(("S",)), "segment_ids": Field(("S",))}


class Task(abc.ABC):
    """A fine-tuning task. Immutable after construction; methods are pure functions of their arguments.

    Class attributes say what the task is; `options` are the task's own settings (flags such as doc_stride). Options,
    labels and max_seq_length travel in model.json, so a model folder alone gives the task back.
    """

    version: ClassVar[int] = 1  # raise when features change; it is part of the key of the feature cache
    head: ClassVar[str] = "classifier"  # name in albert_tf.heads.HEADS
    primary: str  # the metric that chooses the best checkpoint
    greater_is_better: bool = True
    fields: dict[str, Field] = TEXT_FIELDS  # arrays of a feature, labels included
    packable: ClassVar[bool] = False  # on TPUs, several features may share a row: `forward` and scalar labels allow it
    label_fields: ClassVar[tuple[str, ...]] = ("label",)  # those that a feature lacks where the label is unknown
    default_options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        name: str,
        *,
        recipe: Recipe,
        max_seq_length: int | None = None,
        labels: Sequence[str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Raises UserError on an unknown option or an impossible length."""
        self.name = name
        self.recipe = recipe
        self.max_seq_length = recipe.max_seq_length if max_seq_length is None else max_seq_length
        self.labels = None if labels is None else tuple(labels)  # in the order of the logits
        self.options = self._options(self.default_options, options or {})
        self.check()

    # ---- data -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        """Where the official files of the task are: {"train": path, "dev": path, ...}, whether they exist or not.

        "train" is for training; every key that begins with "dev" is evaluated, the first of them chooses the best
        checkpoint; keys that begin with "test" are for prediction.
        """

    @abc.abstractmethod
    def read(self, path: str | os.PathLike, *, with_labels: bool = True) -> list[Any]:
        """Reads a file (or folder, or archive) into examples; each has `id` (str, unique) and `label` (None: unknown).

        Without labels, those in the file are neither looked at nor checked: prediction takes any placeholder.

        Raises UserError with file and line number, what was found and what was expected.
        """

    @abc.abstractmethod
    def featurise(self, example: Any, tokenizer: "Tokenizer") -> list[Feature]:
        """One example -> its features: as a rule one; windows of a long text several.

        Each is {name: array} for `fields`, unpadded, of at most max_seq_length tokens; without `label_fields` where
        the label is unknown.
        """

    def learned_from(self, examples: Sequence[Any]) -> "Task":
        """This task with what only the training data can tell, such as label names."""
        return self

    # ---- model ------------------------------------------------------------------------------------------------------

    def head_options(self, classifier_dropout: float) -> dict[str, Any]:
        """Keyword arguments of albert_tf.heads.make_head for `head`."""
        return {"num_labels": len(self.labels), "dropout_rate": classifier_dropout}

    def forward(self, model: "Model", batch: dict[str, "tf.Tensor"], training: bool = False) -> dict[str, "tf.Tensor"]:
        """Encoder and head: batch -> {"logits": float32 [B, ...], ...}, the first axis being the features.

        Here: a head on the first token. The last layer then runs on that token alone.
        """
        import tensorflow as tf

        inputs = encoder_inputs(batch)
        if "first_positions" in batch:  # packed rows [R, S] with K places each: B is R * K
            inputs["output_positions"] = batch["first_positions"]
            first = model.encoder(inputs, training=training)["sequence_output"]
            pooled = tf.math.tanh(model.encoder.pooler(tf.reshape(first, [-1, first.shape[-1]])))
        else:
            inputs["output_positions"] = tf.zeros([tf.shape(batch["input_ids"])[0], 0], tf.int32)
            pooled = model.encoder(inputs, training=training)["pooled_output"]
        return {"logits": model.heads[self.head](pooled, training=training, seed=head_seed(batch))}

    @abc.abstractmethod
    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """float32 [B]: each feature's loss. The loss of a step is sum(loss) / sum(loss_weights), over all devices."""

    def loss_weights(self, batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """float32 [B]: what each feature counts for; 0 for rows that fill a batch (their loss is not counted either).

        A task that averages over tokens gives the number of labelled tokens here and their summed loss in `loss`.
        """
        import tensorflow as tf

        return tf.cast(batch["feature_index"] >= 0, tf.float32)

    # ---- results ----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def predictions(
        self, outputs: Sequence[dict[str, "np.ndarray"]], features: Sequence[Feature], examples: Sequence[Any]
    ) -> list[Any]:
        """Outputs of `forward`, one dictionary of rows a feature -> one prediction an example, in order.

        `features` is a features.Features: features.example_index [number of features] tells whose each one is. A row
        of an output that runs over S is as long as the batch was padded; cut it to the feature's own length.
        """

    @abc.abstractmethod
    def combined(self, predictions: Sequence[Sequence[Any]]) -> list[Any]:
        """The ensemble of several models' predictions: averaged probabilities or values (paper, section 4.9)."""

    @abc.abstractmethod
    def metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """{metric: value}, `primary` among them; NaN where a metric is not defined. All examples have labels."""

    def degenerate(self, predictions: Sequence[Any], examples: Sequence[Any]) -> str | None:
        """Why these predictions are no result ("one class for every example"), or None."""
        return None

    def remarks(self, features: Sequence[Feature], examples: Sequence[Any]) -> list[str]:
        """What the user should know of the training features, such as answers that no window holds."""
        return []

    def calibrated(self, predictions: Sequence[Any], examples: Sequence[Any]) -> "Task":
        """This task with what is tuned on the development set after training, such as a no-answer threshold."""
        return self

    @abc.abstractmethod
    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[Any], examples: Sequence[Any]
    ) -> list[str]:
        """Writes the predictions (whole or not at all: albert_tf.files) and returns the paths written."""

    # ---- settings ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises UserError where max_seq_length or options cannot work; tasks add their own rules."""
        if self.max_seq_length < 4:
            raise UserError(
                f"max_seq_length is {self.max_seq_length}: expected at least 4, room for two special tokens and text"
            )

    def recipe_for(self, config: "AlbertConfig", preset: str | None) -> Recipe:
        """The recipe for one pretrained model; only RACE has more than one."""
        return self.recipe

    def replace(self, **changes: Any) -> "Task":
        """A copy with other `labels`, `max_seq_length`, or `options` (merged with those of this task)."""
        unknown = set(changes) - {"labels", "max_seq_length", "options"}
        assert not unknown, unknown
        task = copy.copy(self)
        for name, value in changes.items():
            setattr(task, name, self._options(self.options, value) if name == "options" else value)
        task.check()
        return task

    def _options(self, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(changes) - set(self.default_options))
        if unknown:
            known = ", ".join(self.default_options) or "none"
            raise UserError(
                f"task {self.name} has no setting {', '.join(unknown)}: it takes {known}; leave the others out"
            )
        return {**options, **changes}

    def describe(self) -> dict[str, Any]:
        """The values of ModelInfo that give this task back: catalog.task_of(info)."""
        return {
            "task": self.name,
            "labels": self.labels,
            "max_seq_length": self.max_seq_length,
            "task_options": dict(self.options),
        }


def encoder_inputs(batch: dict[str, "tf.Tensor"]) -> dict[str, "tf.Tensor"]:
    """The part of a batch that an encoder takes; a task with rows of another shape makes these itself."""
    names = ("input_ids", "input_mask", "segment_ids", "position_ids", "sequence_ids", "dropout_seed")
    return {name: batch[name] for name in names if name in batch}


def head_seed(batch: dict[str, "tf.Tensor"]) -> "tf.Tensor | None":
    """The seed for a head's dropout, int32 [2], so that a resumed run draws the same masks; None outside training."""
    import tensorflow as tf

    if "dropout_seed" not in batch:
        return None
    return tf.random.experimental.stateless_fold_in(batch["dropout_seed"], 1 << 20)  # beyond any layer's number
