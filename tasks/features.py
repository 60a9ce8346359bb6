"""All features of a data set as a few flat arrays: small in memory, quick to cache, read one by one."""

import hashlib
import itertools
import json
import os
import pathlib
import sys
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization import Tokenizer, warn_of_unknown
from tasks import archives
from tasks.task import Feature, Field, Task

MOST_UNKNOWN = 0.2  # share of the training text's tokens that the vocabulary may not know


class Column(NamedTuple):
    """One array of every feature: values one after the other, shapes [n, rank], and where each begins [n + 1]."""

    values: np.ndarray
    shapes: np.ndarray
    starts: np.ndarray


class Features(Sequence):
    """A sequence of features; `example_index` int32 [n] tells whose each is, `lengths` int32 [n] its rows' tokens.

    Where a feature has several rows (one a choice), its length is that of the padded rows.
    """

    def __init__(self, columns: dict[str, Column], example_index: np.ndarray, fields: dict[str, Field]) -> None:
        self.columns, self.example_index = columns, example_index
        self.fields = {name: field for name, field in fields.items() if name in columns}
        self.lengths = columns["input_ids"].shapes[:, -1]

    def __len__(self) -> int:
        return len(self.example_index)

    def __getitem__(self, number: int) -> Feature:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        return {name: self.array(name, number) for name in self.columns}

    def array(self, name: str, number: int) -> np.ndarray:
        """One array of one feature."""
        column = self.columns[name]
        number %= len(self)
        return column.values[column.starts[number] : column.starts[number + 1]].reshape(column.shapes[number])


def make_features(task: Task, examples: Sequence[Any], tokenizer: Tokenizer) -> Features:
    """Featurises every example; labels are left out where not every example has one.

    Raises UserError where there is nothing.
    """
    made = [task.featurise(example, tokenizer) for example in examples]
    example_index = np.repeat(np.arange(len(made), dtype=np.int32), [len(some) for some in made])
    features = list(itertools.chain.from_iterable(made))
    if not features:
        raise UserError(f"{task.name}: no features from {len(examples)} examples; expected at least one example")
    names = [name for name in task.fields if all(name in feature for feature in features)]
    columns = {name: _column([feature[name] for feature in features], task.fields[name]) for name in names}
    return Features(columns, example_index, task.fields)


def unknown_share(features: Features, tokenizer: Tokenizer) -> float:
    """Share of the text's tokens that the vocabulary does not know; [CLS], [SEP] and padding are no text."""
    ids = features.columns["input_ids"].values
    text = np.count_nonzero(~np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)))
    return np.count_nonzero(ids == tokenizer.unk_id) / max(text, 1)


def tell_unknown(features: Features, tokenizer: Tokenizer, source: str | os.PathLike) -> None:
    """Warns on standard error where the vocabulary does not know much of the text of `source`."""
    warn_of_unknown(unknown_share(features, tokenizer), tokenizer, source)


def check_segments(features: Features, num_segments: int, source: str | os.PathLike) -> None:
    """Raises UserError where a segment id has no row in the model's table (type_vocab_size), as with pairs of texts."""
    if "segment_ids" in features.columns and features.columns["segment_ids"].values.max(initial=0) >= num_segments:
        raise UserError(
            f"{source} gives pairs of segments but the model knows {num_segments} (type_vocab_size); use a model with 2"
        )


class FeatureCache:
    """Features that an earlier run kept in a folder, or that this one makes.

    The key is the content of the source file, the tokeniser with its casing, the task with its version, lengths,
    options and labels, the number of examples taken and whether all have labels. A damaged file is made anew.
    """

    def __init__(self, folder: str | os.PathLike | None) -> None:
        self._folder = None if folder is None else pathlib.Path(folder)
        self._made: dict[pathlib.Path, Features] = {}

    def features(
        self, task: Task, examples: Sequence[Any], tokenizer: Tokenizer, source: str | os.PathLike
    ) -> Features:
        """The features of examples that were read from `source`."""
        if self._folder is None:
            return make_features(task, examples, tokenizer)
        path = self._folder / f"{task.name}-{_key(task, examples, tokenizer, source)[:24]}.npz"
        features = _read(path, task)
        if features is None:
            features = self._made[path] = make_features(task, examples, tokenizer)
        return features

    def keep(self) -> None:
        """Writes what was made; apart from making it, so that a run that is refused leaves nothing behind."""
        for path, features in self._made.items():
            _write(path, features)
        self._made.clear()


def content_hash(path: str | os.PathLike) -> str:
    """SHA-256 of a file, of a folder's file names and contents, or of an archive and the part of it that is meant."""
    path, inner = archives.located(path)
    if not path.is_dir():
        whole = files.sha256(path)
        return hashlib.sha256(f"{whole}\0{inner}".encode()).hexdigest() if inner else whole
    inside = sorted(entry for entry in path.rglob("*") if entry.is_file())
    listing = "".join(f"{entry.relative_to(path)}\0{files.sha256(entry)}\n" for entry in inside)
    return hashlib.sha256(listing.encode()).hexdigest()


def _column(arrays: list[np.ndarray], field: Field) -> Column:
    shapes = np.array([np.shape(array) for array in arrays], np.int32).reshape(len(arrays), len(field.axes))
    sizes = shapes.prod(axis=1, dtype=np.int64)
    values = np.concatenate([np.asarray(array, field.dtype).reshape(-1) for array in arrays])
    return Column(values, shapes, np.concatenate([[0], np.cumsum(sizes)]))


def _key(task: Task, examples: Sequence[Any], tokenizer: Tokenizer, source: str | os.PathLike) -> str:
    facts = {
        "source": content_hash(source),
        "tokenizer": [tokenizer.hash, tokenizer.do_lower_case, tokenizer.keep_accents],
        "task": [task.name, task.version, task.max_seq_length, task.labels, sorted(task.options.items())],
        "fields": sorted((name, field.axes, field.dtype) for name, field in task.fields.items()),
        "examples": [len(examples), all(example.label is not None for example in examples)],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _write(path: pathlib.Path, features: Features) -> None:
    arrays = {"example_index": features.example_index}
    for name, column in features.columns.items():
        arrays |= {f"{name}/values": column.values, f"{name}/shapes": column.shapes}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.writing(path) as file:
            np.savez(file, **arrays)
    except (OSError, UserError) as error:
        print(f"NOTICE: features are not kept: {error}", file=sys.stderr)


def _read(path: pathlib.Path, task: Task) -> Features | None:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        columns = {}
        for name in (name.removesuffix("/values") for name in arrays if name.endswith("/values")):
            shapes = arrays[f"{name}/shapes"]
            starts = np.concatenate([[0], np.cumsum(shapes.prod(axis=1, dtype=np.int64))])
            columns[name] = Column(arrays[f"{name}/values"], shapes, starts)
        return Features(columns, arrays["example_index"], task.fields)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
