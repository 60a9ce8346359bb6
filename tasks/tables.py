"""Rows of text files, each with its line number: TSV without quoting, CSV with, and JSON lines."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from albert_tf.errors import UserError

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}


class Row(NamedTuple):
    """One row: where it stands in the file (counted from 1) and its values by column."""

    line: int
    values: dict[str, str]


class Table(NamedTuple):
    """A file's column names and rows; `broken` holds the lines that were left out on purpose."""

    path: str
    columns: tuple[str, ...]
    rows: list[Row]
    broken: tuple[int, ...] = ()


def read_table(
    path: str | os.PathLike, *, columns: Sequence[str] | None = None, skip_short_rows: bool = False
) -> Table:
    """Reads a file by its ending: .tsv and .txt (no quoting), .csv (quoting), .jsonl and .json (an object a line).

    Args:
      path: the file, UTF-8, with or without a byte-order mark, LF or CRLF. Blank lines are ignored.
      columns: names for a TSV or CSV file that has no header line; by default the first line is the header.
      skip_short_rows: leaves rows with too few columns out and lists them in `broken`, in place of an error.

    Raises UserError with file and line number where the file is not there, not UTF-8, empty, or a row does not fit.
    """
    kind = FORMATS.get(pathlib.Path(path).suffix.lower())
    if kind is None:
        known = ", ".join(FORMATS)
        raise UserError(f"{path}: the ending tells the format, expected one of {known}; rename or convert the file")
    text = read_text(path)
    if kind == "jsonl":
        return _json_table(str(path), text)
    lines = list(_tsv_lines(text) if kind == "tsv" else _csv_lines(str(path), text))
    if columns is None:
        if not lines:
            raise UserError(f"{path} is empty: expected a header line with the names of the columns")
        columns = lines.pop(0)[1]
        repeated = sorted({name for name in columns if columns.count(name) > 1})
        if repeated:
            raise UserError(f"{path}:1: the column {repeated[0]!r} is there twice; give every column its own name")
    rows, broken = [], []
    for line, values in lines:
        if skip_short_rows and len(values) < len(columns):
            broken.append(line)
            continue
        if len(values) != len(columns):
            raise UserError(
                f"{path}:{line}: found {len(values)} columns, expected {len(columns)} ({', '.join(columns)}); "
                "check for missing or additional separators"
            )
        rows.append(Row(line, dict(zip(columns, values, strict=True))))
    return Table(str(path), tuple(columns), rows, tuple(broken))


def read_text(path: str | os.PathLike) -> str:
    """A whole UTF-8 file without its byte-order mark, newlines untouched.

    Raises UserError naming the line that is not UTF-8.
    """
    try:
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"no file at {path}; check the path") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder: expected a file") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path and its rights") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from None


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    # Only \n ends a line: str.splitlines would also cut at U+2028, form feeds and others that sentences contain.
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line.strip(" \t"):
            yield number, line.split("\t")


def _csv_lines(path: str, text: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a text may be longer than Python's 131,072
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield start, values
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{start}: not valid CSV: {error}; check the quotes of that row") from error


def _json_table(path: str, text: str) -> Table:
    rows: list[Row] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}; expected one object a line") from error
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}: found a JSON {type(value).__name__}; expected one object a line")
        rows.append(Row(number, {key: _as_text(item) for key, item in value.items() if item is not None}))
    columns = tuple(dict.fromkeys(key for row in rows for key in row.values))
    return Table(path, columns, rows)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
