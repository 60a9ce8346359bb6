"""Columns of arrays -> serialized `tf.train.Example`s, without TensorFlow and many at once.

The message is simple and fixed: Example{1: Features{1: map entry{1: name, 2: Feature}}}, a Feature holding a list of
bytes (field 1), packed float32 (2) or packed int64 (3). A field is its key, the length of what follows, and that.
"""

from collections.abc import Sequence

import numpy as np

_BYTES, _FLOATS, _INTS = 1, 2, 3


def encode_examples(columns: dict[str, np.ndarray | Sequence[bytes]]) -> list[bytes]:
    """One serialized Example for each row.

    columns: by feature name, a list of bytes (one for each row), or an array [rows, values] of int (0 <= value < 2**28)
    or float32.
    """
    features = [_features(name, column) for name, column in columns.items()]
    return [_field(1, b"".join(row)) for row in zip(*features, strict=True)]


def _features(name: str, column: np.ndarray | Sequence[bytes]) -> list[bytes]:
    """The map entries of one column, one for each row."""
    key = _field(1, name.encode())
    if not isinstance(column, np.ndarray):
        kind, rows = _BYTES, column
    elif column.dtype == np.float32:
        kind, rows = _FLOATS, [row.tobytes() for row in column.astype("<f4", copy=False)]
    else:
        kind, rows = _INTS, _varint_rows(column)
    return [_field(1, key + _field(2, _field(kind, _field(1, row)))) for row in rows]


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    size = len(content)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + content
    length = []
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content


def _varint_rows(values: np.ndarray) -> list[bytes]:
    """Variable-length integers of each row [rows, values]: seven bits a byte, low first, the high bit is `more`."""
    if not values.size or values.max() < 0x80:
        return [row.tobytes() for row in values.astype(np.uint8)]
    shifts = np.arange(0, 28, 7)
    digits = (values[..., None] >> shifts).astype(np.uint32)  # [rows, values, 4]; what is left at each byte
    used = digits > 0
    used[..., 0] = True
    encoded = (digits & 0x7F | np.where(digits >= 0x80, 0x80, 0)).astype(np.uint8)
    ends = np.cumsum(used.sum(axis=(1, 2)))
    flat = encoded[used].tobytes()
    return [flat[start:end] for start, end in zip(ends - used.sum(axis=(1, 2)), ends, strict=True)]
