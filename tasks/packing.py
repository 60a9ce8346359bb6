"""Several examples in one row, for devices that want the same shapes every step: TPUs.

An example attends only to itself and counts its positions from 0, so its outputs are those of a row of its own.
Axes: R rows, S tokens a row, K places for examples in a row.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from tasks.batching import Batch
from tasks.features import Features

_STEP = 16  # row lengths are multiples of it
_SAMPLE = 500  # batches that the first choice of row lengths looks at


@dataclasses.dataclass(frozen=True)
class Packing:
    """The one shape of all batches."""

    rows: int
    width: int
    places: int

    @property
    def tokens(self) -> int:
        """Computed tokens a batch."""
        return self.rows * self.width

    def batch(self, features: Features, numbers: Sequence[int]) -> Batch:
        """See packed_batch."""
        return packed_batch(features, numbers, self)

    def signature(self, features: Features) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array."""
        batch = self.batch(features, [0])
        return {name: (array.shape, str(array.dtype)) for name, array in batch.items()}

    def real_token_share(self, features: Features, batches: Sequence[Sequence[int]]) -> float:
        """Share of the computed tokens that are real."""
        real = sum(int(features.lengths[numbers].sum()) for numbers in batches)
        return real / (len(batches) * self.tokens)


def plan(lengths: np.ndarray, batches: Iterable[Sequence[int]], *, max_seq_length: int, parts: int = 1) -> Packing:
    """A small shape that holds every batch, its rows a multiple of `parts` (replicas, slices of their shares)."""
    batches = [lengths[np.asarray(numbers)] for numbers in batches]
    longest = max(int(some.max()) for some in batches)
    widths = [*range(-(-longest // _STEP) * _STEP, max_seq_length, _STEP), max_seq_length]
    some = batches[:: -(-len(batches) // _SAMPLE)]
    likely = sorted(widths, key=lambda width: _fitted(some, width, parts).tokens)[:3]
    return min((_fitted(batches, width, parts) for width in likely), key=lambda packing: packing.tokens)


def _fitted(batches: Sequence[np.ndarray], width: int, parts: int) -> Packing:
    filled = [assign(some, width) for some in batches]
    rows = max(int(row.max()) + 1 for row in filled)
    places = max(int(np.bincount(row).max()) for row in filled)
    return Packing(-(-rows // parts) * parts, width, places)


def assign(lengths: np.ndarray, width: int) -> np.ndarray:
    """The row of each example, int64 [n]: longest first, each into the first row with room."""
    rows, room = np.zeros(len(lengths), np.int64), []
    for number in np.argsort(-lengths, kind="stable"):
        length = int(lengths[number])
        row = next((row for row, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(width)
        room[row] -= length
        rows[number] = row
    return rows


def packed_batch(features: Features, numbers: Sequence[int], packing: Packing) -> Batch:
    """Some features in the shape of `packing`.

    int32 [R, S]: input_ids, segment_ids, input_mask, position_ids, sequence_ids (from 1; 0 is padding). int32 [R, K]:
    first_positions. [R * K]: the scalar fields and feature_index, -1 for a place without an example.
    """
    shape, places = (packing.rows, packing.width), packing.rows * packing.places
    names = ("input_ids", "segment_ids", "input_mask", "position_ids", "sequence_ids")
    batch = {name: np.zeros(shape, np.int32) for name in names}
    batch["first_positions"] = np.zeros((packing.rows, packing.places), np.int32)
    batch["feature_index"] = np.full([places], -1, np.int32)
    scalars = [name for name, field in features.fields.items() if field.axes == () and field.for_model]
    batch |= {name: np.zeros([places], features.fields[name].dtype) for name in scalars}
    used, count = [0] * packing.rows, [0] * packing.rows
    for number, row in zip(numbers, assign(features.lengths[np.asarray(numbers)], packing.width), strict=True):
        length, place = int(features.lengths[number]), int(row) * packing.places + count[row]
        span = (row, slice(used[row], used[row] + length))
        for name in ("input_ids", "segment_ids"):
            batch[name][span] = features.array(name, number)
        batch["input_mask"][span] = 1
        batch["position_ids"][span] = np.arange(length)
        batch["first_positions"][row, count[row]] = used[row]
        used[row], count[row] = used[row] + length, count[row] + 1
        batch["sequence_ids"][span] = count[row]
        batch["feature_index"][place] = number
        for name in scalars:
            batch[name][place] = features.array(name, number)
    return batch
