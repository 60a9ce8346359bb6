"""Examples of one or two texts: reading them from tables, and turning them into rows of token ids."""

import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError
from tasks import tables
from tasks.task import Feature, Task

if TYPE_CHECKING:
    import numpy as np

    from albert_tf.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextExample:
    """One or two texts and, where known, the answer: a label name or a number."""

    id: str
    texts: tuple[str, ...]
    label: str | float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which columns of a table are what."""

    texts: tuple[str, ...]
    label: str
    id: str | None = None  # taken where the file has it; otherwise rows are numbered from 0
    header: tuple[str, ...] | None = None  # names for files that come without a header line
    unlabelled: str | None = None  # a label that means "none agreed upon"
    skip_short_rows: bool = False  # the official file has broken rows


class TextTask(Task):
    """A task on one or two texts. Subclasses say what a label is and what is predicted."""

    packable = True

    def __init__(self, name: str, *, layout: Layout, **settings: Any) -> None:
        self.layout = layout
        super().__init__(name, **settings)

    def files(self, data_dir: str | os.PathLike) -> dict[str, str]:
        """train, dev and test with the first known ending that is there (.tsv where none is)."""
        found = {}
        for split in ("train", "dev", "test"):
            paths = [os.path.join(data_dir, split + ending) for ending in tables.FORMATS]
            found[split] = next(filter(os.path.isfile, paths), paths[0])
        return found

    def read(self, path: str | os.PathLike, *, with_labels: bool = True) -> list[TextExample]:
        table = tables.read_table(path, columns=self._columns_of(path), skip_short_rows=self.layout.skip_short_rows)
        if table.broken:
            print(
                f"NOTICE: {path}: {len(table.broken)} rows with too few columns are left out, the first at line "
                f"{table.broken[0]}",
                file=sys.stderr,
            )
        self._check_columns(table)
        if not table.rows:
            raise UserError(f"{path} has no rows: expected at least one example")
        label = self.layout.label if with_labels and self.layout.label in table.columns else None
        return [self._example(table, number, row, label) for number, row in enumerate(table.rows)]

    def label_of(self, text: str, place: str) -> str | float:
        """The value of a label cell; `place` is file:line for the UserError."""
        if not text:  # would become a class of its own
            raise UserError(f"{place}: the label is empty; fill it in, or leave the row out")
        if self.labels is not None and text not in self.labels:
            raise UserError(f"{place}: unknown label {text!r}, expected one of {', '.join(self.labels)}")
        return text

    def label_array(self, label: str | float) -> "np.ndarray":
        """The label as the scalar array of a feature."""
        raise NotImplementedError

    def featurise(self, example: TextExample, tokenizer: "Tokenizer") -> list[Feature]:
        """[CLS] text [SEP], or [CLS] first [SEP] second [SEP] with segment ids 0 and 1."""
        feature = text_feature([tokenizer.encode(text) for text in example.texts], tokenizer, self.max_seq_length)
        if example.label is not None:
            feature["label"] = self.label_array(example.label)
        return [feature]

    def _columns_of(self, path: str | os.PathLike) -> tuple[str, ...] | None:
        """Names for a file without a header line, None for one that has it."""
        if self.layout.header is None:
            return None
        first = tables.read_text(path).split("\n", 1)[0].strip("\r").split("\t")
        return None if set(self.layout.texts) <= set(first) else self.layout.header

    def _check_columns(self, table: tables.Table) -> None:
        missing = [name for name in self.layout.texts if name not in table.columns]
        if missing:
            raise UserError(
                f"{table.path}:1: no column {missing[0]!r}, found {', '.join(table.columns) or 'none'}; {self.name} "
                f"reads {', '.join(self.layout.texts)}: check the file and the names"
            )

    def _example(self, table: tables.Table, number: int, row: tables.Row, label_column: str | None) -> TextExample:
        place = f"{table.path}:{row.line}"
        for name in filter(None, (*self.layout.texts, label_column)):  # only JSON lines can lack one
            if name not in row.values:
                raise UserError(f"{place}: the object has no {name!r}, found {', '.join(row.values)}; add it")
        label = None
        if label_column is not None and row.values[label_column] != self.layout.unlabelled:
            label = self.label_of(row.values[label_column].strip(), place)
        texts = tuple(row.values[name] for name in self.layout.texts)
        return TextExample(row.values.get(self.layout.id, str(number)), texts, label)


def number_of(text: str, place: str) -> float:
    """A finite number in a label cell.

    Raises UserError.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{place}: the label is {text!r}, expected a number")
    return value


def text_feature(texts: Sequence[Sequence[int]], tokenizer: "Tokenizer", max_seq_length: int) -> Feature:
    """Token ids of one or two texts -> input_ids and segment_ids, int32 [S], S at most max_seq_length.

    ids [7, 8] and [9] give [CLS] 7 8 [SEP] 9 [SEP] with segments 0 0 0 0 1 1.
    """
    import numpy as np

    kept = shortened(texts, max_seq_length - 1 - len(texts))
    ids, segments = [tokenizer.cls_id], [0]
    for segment, text in enumerate(kept):
        ids += [*text, tokenizer.sep_id]
        segments += [segment] * (len(text) + 1)
    return {"input_ids": np.array(ids, np.int32), "segment_ids": np.array(segments, np.int32)}


def shortened(texts: Sequence[Sequence[int]], room: int) -> list[Sequence[int]]:
    """Cuts one or two texts at their ends to `room` tokens together, always from the longer (the second in a tie)."""
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = texts
    # Where one token at a time would end: a text within half of the room stays whole, the other takes what is left.
    keep = min(len(first), max(room - len(second), room - room // 2))
    return [first[:keep], second[: room - keep]]
