"""Batches that hold hardly any padding: rows of similar length together, cut to the longest.

Which features make which batch is plain arithmetic on (seed, position), so a run can begin at any step.
Axes: B batch of features, S sequence; other letters as the task's fields name them.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from tasks.features import Features
from tasks.task import Field

WINDOW = 100  # batches that are sorted by length together; the more, the less padding and the less random the order
Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """How long the rows of a batch are."""

    max_seq_length: int
    multiple: int = 1  # rows are rounded up to it: 8 suits GPUs, a processor needs none
    static: bool = False  # TPU: only max_seq_length and its halves down to 32, so that few programs are compiled

    def width(self, longest: int) -> int:
        """Row length of a batch whose longest row has `longest` tokens."""
        if not self.static:
            return max(longest, min(-(-longest // self.multiple) * self.multiple, self.max_seq_length))
        width = self.max_seq_length
        while width // 2 >= max(longest, 32):
            width //= 2
        return width


def training_batches(lengths: np.ndarray, batch_size: int, *, seed: int, start: int = 0) -> Iterator[np.ndarray]:
    """Feature numbers int64 [batch_size] of the training steps start, start + 1, ... (counted from 0), without end.

    The stream is one random order of all features after another. Each window of it, WINDOW batches long, is sorted by
    length, cut into batches, and the batches are put in random order: every step has `batch_size` features, and an
    epoch has every feature once.
    """
    step = start
    while True:
        window, place = divmod(step, WINDOW)
        numbers = _stream(len(lengths), window * WINDOW * batch_size, WINDOW * batch_size, seed)
        ordered = numbers[np.argsort(lengths[numbers], kind="stable")].reshape(WINDOW, batch_size)
        for row in np.random.default_rng([seed, 1, window]).permutation(WINDOW)[place:]:
            yield ordered[row]
            step += 1


def evaluation_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Every feature once, longest first (so that a lack of memory shows at once); the last batch may be smaller."""
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def padded_batch(features: Features, numbers: Sequence[int], shapes: Shapes, *, rows: int | None = None) -> Batch:
    """The arrays of some features as a batch, with `input_mask` and `feature_index`.

    `rows` fills the batch with copies of its first feature, whose feature_index is -1.
    """
    numbers = np.asarray(numbers)
    filled = np.concatenate([numbers, np.repeat(numbers[:1], (rows or len(numbers)) - len(numbers))])
    sizes = _axis_sizes(features, numbers, shapes)
    batch = {name: _padded(features, name, filled, sizes) for name, field in features.fields.items() if field.for_model}
    batch["input_mask"] = _mask(features, filled, batch["input_ids"].shape)
    batch["feature_index"] = np.where(np.arange(len(filled)) < len(numbers), filled, -1).astype(np.int32)
    return batch


def real_token_share(features: Features, batches: Sequence[Sequence[int]], shapes: Shapes) -> float:
    """Share of the computed tokens that are real."""
    ids = features.columns["input_ids"]
    rows = ids.shapes[:, :-1].prod(axis=1, dtype=np.int64)
    real = sum(int((ids.starts[1:] - ids.starts[:-1])[numbers].sum()) for numbers in batches)
    widest = (int(rows[numbers].max()) for numbers in batches)
    computed = sum(
        len(numbers) * most * shapes.width(int(features.lengths[numbers].max()))
        for numbers, most in zip(batches, widest, strict=True)
    )
    return real / computed


def _stream(count: int, start: int, size: int, seed: int) -> np.ndarray:
    """Positions [start, start + size) of the endless stream of shuffled epochs over `count` features."""
    epochs = range(start // count, (start + size - 1) // count + 1)
    numbers = np.concatenate([np.random.default_rng([seed, 0, epoch]).permutation(count) for epoch in epochs])
    return numbers[start - epochs[0] * count :][:size]


def _axis_sizes(features: Features, numbers: np.ndarray, shapes: Shapes) -> dict[str | int, int]:
    sizes: dict[str | int, int] = {}
    for name, field in ((name, field) for name, field in features.fields.items() if field.for_model):
        shape_of = features.columns[name].shapes
        among = shape_of if shapes.static else shape_of[numbers]
        for axis, letter in enumerate(field.axes):
            longest = int(shape_of[numbers, axis].max() if letter == "S" else among[:, axis].max())
            sizes[letter] = max(sizes.get(letter, 0), longest)
    sizes["S"] = shapes.width(sizes["S"])
    return sizes


def _padded(features: Features, name: str, numbers: np.ndarray, sizes: dict[str | int, int]) -> np.ndarray:
    field: Field = features.fields[name]
    shape = (len(numbers), *(sizes[letter] for letter in field.axes))
    result = np.full(shape, field.padding, field.dtype)
    for row, number in enumerate(numbers):
        array = features.array(name, number)
        result[(row, *(slice(size) for size in array.shape))] = array
    return result


def _mask(features: Features, numbers: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    mask = np.zeros(shape, np.int32)
    for row, number in enumerate(numbers):
        mask[(row, *(slice(size) for size in features.columns["input_ids"].shapes[number]))] = 1
    return mask
