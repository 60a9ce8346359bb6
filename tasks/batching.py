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


def training_batches(
    lengths: np.ndarray, batch_size: int, *, seed: int, start: int = 0, even: bool = False
) -> Iterator[np.ndarray]:
    """Feature numbers int64 [batch_size] of the training steps start, start + 1, ... (counted from 0), without end.

    They are cut from the endless stream of epoch_order(0), epoch_order(1), ...: every step has `batch_size` features,
    and an epoch has every feature once.
    """
    epoch, skipped = divmod(start * batch_size, len(lengths))
    waiting = epoch_order(lengths, batch_size, epoch, seed=seed, even=even)[skipped:]
    while True:
        while len(waiting) < batch_size:
            epoch += 1
            waiting = np.concatenate([waiting, epoch_order(lengths, batch_size, epoch, seed=seed, even=even)])
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]


def epoch_order(lengths: np.ndarray, batch_size: int, epoch: int, *, seed: int, even: bool = False) -> np.ndarray:
    """The features in the order in which epoch number `epoch` has them, int64 [len(lengths)].

    A random order, of which each WINDOW batches are sorted by length and cut into batches of similar length; then the
    batches are put in random order. With `even` the sorted window is dealt out instead, so that all batches have
    about the same number of tokens, as packing.py wants it. What completes the last batch of the epoch before comes
    first, what is left for that of the next comes last: both drawn at random, or evenly over the lengths.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    head = min(len(order), -epoch * len(order) % batch_size)
    count = (len(order) - head) // batch_size
    first, order = _apart(lengths, order, head, even)
    last, order = _apart(lengths, order, len(order) - count * batch_size, even)
    batches = []
    for window in np.array_split(order.reshape(count, batch_size), max(1, -(-count // WINDOW))):
        by_length = window.reshape(-1)[np.argsort(lengths[window.reshape(-1)], kind="stable")]
        batches.append(_dealt(by_length, len(window)) if even else by_length.reshape(window.shape))
    return np.concatenate([first, np.concatenate(batches)[rng.permutation(count)].reshape(-1), last])


def evaluation_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Every feature once, longest first (so that a lack of memory shows at once); the last batch may be smaller.

    lengths: tokens of each feature, int [n]. Returns feature numbers, int64 [batch_size] each.
    """
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


def _apart(lengths: np.ndarray, order: np.ndarray, count: int, even: bool) -> tuple[np.ndarray, np.ndarray]:
    """`count` of the features, the first ones or evenly over the lengths, and the others in their order."""
    places = np.arange(count)
    if even and count:
        by_length = np.argsort(lengths[order], kind="stable")
        places = by_length[((np.arange(count) + 0.5) * len(order) / count).astype(np.int64)]
    return order[places], np.delete(order, places)


def _dealt(by_length: np.ndarray, count: int) -> np.ndarray:
    """Deals a sorted window to `count` batches (perhaps none), forwards and backwards in turn: int64 [count, ...]."""
    rounds = by_length.reshape(len(by_length) // max(count, 1), count)
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.T


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
