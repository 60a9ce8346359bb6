"""Token classification in CoNLL columns: a label for every word, scored by entities."""

import dataclasses
import os
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from tasks import tables, windows
from tasks.task import TEXT_FIELDS, Feature, Field, Recipe, Task, encoder_inputs, head_seed

if TYPE_CHECKING:
    import tensorflow as tf

    from albert_tf.checkpoints import Model
    from albert_tf.tokenization import Tokenizer

# The paper has no such task; rate and epochs are those usual for it.
RECIPE = Recipe(learning_rate=3e-5, train_batch_size=32, num_train_epochs=3, max_seq_length=256)
NO_LABEL = -100  # at pieces that carry no label
SPECIAL_TOKENS = 2  # [CLS], [SEP]
_NAMES = {  # the first that is there
    "train": ("train.txt", "train.conll", "train.tsv", "eng.train"),
    "dev": ("dev.txt", "dev.conll", "dev.tsv", "valid.txt", "eng.testa"),
    "test": ("test.txt", "test.conll", "test.tsv", "eng.testb"),
}
_DOCUMENT = "-DOCSTART-"
_SCHEMES = ("BI", "BIES", "BILU")  # L and U are other letters for E and S


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """Words and, where known, a label for each. `id` is the sentence's number in the file, from 0."""

    id: str
    tokens: tuple[str, ...]
    label: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class TokenLabels:
    """A label for each word of a sentence, with the probabilities of all, float64 [number of words, N]."""

    labels: tuple[str, ...]
    probabilities: np.ndarray


class Tokens(Task):
    """Cross-entropy at the first piece of each word; the others are context.

    A sentence too long for a row is read in windows that overlap by half; each word is labelled in the one that sees
    its first piece best, so n words always get n labels.
    """

    head = "token_classifier"
    primary = "f1"
    fields = {
        **TEXT_FIELDS,
        "label": Field(("S",), padding=NO_LABEL),
        "words": Field(("W", 2), for_model=False),  # (number of the word in the sentence, row position)
    }

    # ---- data -------------------------------------------------------------------------------------------------------

    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        found = {}
        for split, names in _NAMES.items():
            paths = [os.path.join(data_dir, name) for name in names]
            found[split] = next(filter(os.path.isfile, paths), paths[0])
        return found

    def read(self, path: str | os.PathLike, *, with_labels: bool = True) -> list[Sentence]:
        return read_conll(path, labels=self.labels, with_labels=with_labels)

    def learned_from(self, examples: Sequence[Sentence]) -> Task:
        """O, then every kind of entity with all prefixes of the scheme, also those that the examples do not show."""
        if self.labels is not None:
            return self
        found = {label for example in examples for label in example.label or ()}
        if not found - {"O"}:
            raise UserError("the training examples have no entity: every label is O; expected some such as B-PER")
        return self.replace(labels=complete_labels(found))

    def featurise(self, example: Sentence, tokenizer: "Tokenizer") -> list[Feature]:
        pieces = [ids or [tokenizer.unk_id] for ids in tokenizer.encode_batch(list(example.tokens))]
        flat = [piece for ids in pieces for piece in ids]
        first_pieces = np.cumsum([0, *map(len, pieces[:-1])])
        room = self.max_seq_length - SPECIAL_TOKENS
        features = []
        for window in windows.cut(len(flat), room=room, stride=-(-room // 2)):
            ids = [tokenizer.cls_id, *flat[window.first : window.stop], tokenizer.sep_id]
            owned = np.flatnonzero((window.owned_from <= first_pieces) & (first_pieces < window.owned_to))
            positions = first_pieces[owned] - window.first + 1
            feature = {
                "input_ids": np.array(ids, np.int32),
                "segment_ids": np.zeros(len(ids), np.int32),
                "words": np.stack([owned, positions], axis=1).astype(np.int32),
            }
            if example.label is not None:
                feature["label"] = np.full(len(ids), NO_LABEL, np.int32)
                feature["label"][positions] = [self.labels.index(example.label[word]) for word in owned]
            features.append(feature)
        return features

    # ---- model ------------------------------------------------------------------------------------------------------

    def forward(self, model: "Model", batch: dict[str, "tf.Tensor"], training: bool = False) -> dict[str, "tf.Tensor"]:
        """logits [B, S, N]."""
        hidden = model.encoder(encoder_inputs(batch), training=training)["sequence_output"]
        return {"logits": model.heads[self.head](hidden, training=training, seed=head_seed(batch))}

    def loss(self, outputs: dict[str, "tf.Tensor"], batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """Summed cross-entropy of a row's labelled pieces."""
        import tensorflow as tf

        labels = tf.convert_to_tensor(batch["label"])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), outputs["logits"])
        return tf.reduce_sum(tf.where(labels >= 0, losses, 0.0), axis=1)

    def loss_weights(self, batch: dict[str, "tf.Tensor"]) -> "tf.Tensor":
        """A row's labelled pieces."""
        import tensorflow as tf

        labelled = tf.reduce_sum(tf.cast(tf.convert_to_tensor(batch["label"]) >= 0, tf.float32), axis=1)
        return labelled * super().loss_weights(batch)

    # ---- results ----------------------------------------------------------------------------------------------------

    def predictions(
        self, outputs: Sequence[dict[str, np.ndarray]], features: Sequence[Feature], examples: Sequence[Sentence]
    ) -> list[TokenLabels]:
        logits = [np.full([len(example.tokens), len(self.labels)], np.nan) for example in examples]
        for number, output in enumerate(outputs):
            words, positions = features.array("words", number).T
            logits[features.example_index[number]][words] = output["logits"][positions]
        return [self._of_probabilities(_softmax(values)) for values in logits]

    def combined(self, predictions: Sequence[Sequence[TokenLabels]]) -> list[TokenLabels]:
        return [
            self._of_probabilities(np.mean([one.probabilities for one in models], axis=0))
            for models in zip(*predictions, strict=True)
        ]

    def metrics(self, predictions: Sequence[TokenLabels], examples: Sequence[Sentence]) -> dict[str, float]:
        """f1, precision and recall of entities (all of an entity's words and its kind must be right), and accuracy."""
        return entity_scores([example.label for example in examples], [one.labels for one in predictions])

    def degenerate(self, predictions: Sequence[TokenLabels], examples: Sequence[Sentence]) -> str | None:
        if all(label == "O" for example in examples for label in example.label):
            return None
        if all(label == "O" for one in predictions for label in one.labels):
            return "no word is part of an entity"
        return "no entity is right" if self.metrics(predictions, examples)["f1"] == 0 else None

    def write_predictions(
        self, path: str | os.PathLike, predictions: Sequence[TokenLabels], examples: Sequence[Sentence]
    ) -> list[str]:
        """CoNLL columns again: word, probability of its label, label; a blank line after each sentence."""
        lines = []
        for example, one in zip(examples, predictions, strict=True):
            best = one.probabilities.max(axis=1)
            rows = zip(example.tokens, best, one.labels, strict=True)
            lines += [f"{token}\t{value:.6f}\t{label}\n" for token, value, label in rows] + ["\n"]
        files.write_atomically(path, "".join(lines))
        return [str(path)]

    def _of_probabilities(self, probabilities: np.ndarray) -> TokenLabels:
        return TokenLabels(tuple(self.labels[best] for best in probabilities.argmax(axis=1)), probabilities)


def make(name: str, **settings: Any) -> Tokens:
    """The task "tokens"."""
    return Tokens(name, recipe=RECIPE, **settings)


def read_conll(
    path: str | os.PathLike, *, labels: Sequence[str] | None = None, with_labels: bool = True
) -> list[Sentence]:
    """Sentences of lines "word ... label", columns parted by spaces or tabs, ended by a blank line.

    With one column only, or without labels, they are unknown. -DOCSTART- lines part sentences and are no words.

    Raises UserError with file and line: another number of columns than before, a label that is none or not in `labels`.
    """
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    columns = None

    def finish() -> None:
        if rows:
            known = tuple(row[-1] for row in rows) if with_labels and columns > 1 else None
            sentences.append(Sentence(str(len(sentences)), tuple(row[0] for row in rows), known))
            rows.clear()

    for number, line in enumerate(tables.read_text(path).split("\n"), start=1):
        row = re.split("[ \t]+", line.strip(" \t\r"))
        if row[0] in ("", _DOCUMENT):
            finish()
            continue
        columns = columns or len(row)
        if len(row) != columns:
            raise UserError(
                f"{path}:{number}: {len(row)} columns, expected {columns} as in the lines before: the word first, its "
                "label last"
            )
        if with_labels and columns > 1:
            _check_label(row[-1], labels, f"{path}:{number}")
        rows.append(row)
    finish()
    if not sentences:
        raise UserError(
            f"{path} has no sentences: expected a word a line, its label last, blank lines between sentences"
        )
    return sentences


def complete_labels(found: set[str]) -> tuple[str, ...]:
    """The labels of the smallest scheme that has all of these: {"B-PER"} gives O, B-PER, I-PER.

    Raises UserError where no scheme has them all.
    """
    prefixes = {label[0] for label in found - {"O"}}
    scheme = next((scheme for scheme in _SCHEMES if prefixes <= set(scheme)), None)
    if scheme is None:
        raise UserError(
            f"the labels begin with {', '.join(sorted(prefixes))}: expected B and I, or B, I, E, S, or B, I, L, U; use "
            "one scheme"
        )
    kinds = sorted({label[2:] for label in found - {"O"}})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in scheme))


def entity_scores(labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """f1, precision, recall and accuracy, 0..1, by seqeval; entities are read as the CoNLL script reads them."""
    from seqeval import metrics

    both = (
        [[_as_bies(label) for label in row] for row in labels],
        [[_as_bies(label) for label in row] for row in predictions],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no entity at all: 0, and said by `degenerate`
        return {
            "f1": float(metrics.f1_score(*both, zero_division=0)),
            "precision": float(metrics.precision_score(*both, zero_division=0)),
            "recall": float(metrics.recall_score(*both, zero_division=0)),
            "accuracy": float(metrics.accuracy_score(*both)),
        }


def _check_label(label: str, labels: Sequence[str] | None, place: str) -> None:
    if labels is not None and label not in labels:
        raise UserError(f"{place}: unknown label {label!r}, expected one of {', '.join(labels)}")
    if label != "O" and not re.fullmatch("[BIESLU]-.+", label):
        raise UserError(f"{place}: the label is {label!r}, expected O or one such as B-PER or I-PER in the last column")


def _as_bies(label: str) -> str:
    """seqeval knows E and S, not L and U."""
    return {"L": "E", "U": "S"}.get(label[0], label[0]) + label[1:]


def _softmax(logits: np.ndarray) -> np.ndarray:
    assert not np.isnan(logits).any(), "a word without a window"
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)
