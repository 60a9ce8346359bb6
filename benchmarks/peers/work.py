"""What is measured: named cases, their random inputs, and the products of matrices that they consist of.

NumPy only, since every system's process imports it. Axes: B batch, S sequence, P predictions, H hidden, E embedding,
F feed-forward, A heads, V vocabulary.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

KINDS = ("infer", "train")
PRECISIONS = ("float32", "bfloat16")
EMBEDDING, VOCABULARY = 128, 30_000
LEARNING_RATE = 1e-4  # AdamW, clipped at global norm 1
FIRST_WORD = 5  # ids below are special tokens


class Sizes(NamedTuple):
    """The sizes of an encoder; the embedding has 128 units and the vocabulary 30,000 pieces in all of them."""

    hidden: int
    layers: int
    heads: int
    inner: int


PRESETS = {
    "albert_base": Sizes(768, 12, 12, 3072),
    "albert_large": Sizes(1024, 24, 16, 4096),
    "albert_xxlarge": Sizes(4096, 12, 64, 16384),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison: every system does this same work.

    infer: the encoder, as far as its pooled output. train: one optimiser step of masked LM and sentence order. Natural
    cases run classifiers over rows as long as those of three GLUE tasks; the others have full rows.
    """

    kind: str
    precision: str
    batch: int = 0  # rows; 0 in natural cases, as length
    length: int = 0  # tokens a row
    preset: str = "albert_base"
    sample_tokens: int = 0  # natural cases: tokens that each part is measured on; see natural.py

    @property
    def natural(self) -> bool:
        """Whether rows have lengths of real data."""
        return not self.length

    @property
    def work(self) -> str:
        """Shape and precision; cases that share them can share processes: natural_float32, 8x128_bfloat16."""
        shape = "natural" if self.natural else f"{self.batch}x{self.length}"
        preset = "" if self.preset == "albert_base" else f"{self.preset}_"
        return f"{preset}{shape}_{self.precision}"

    @property
    def name(self) -> str:
        """train_8x128_float32, infer_natural_bfloat16, train_albert_large_4x512_float32, ..."""
        return f"{self.kind}_{self.work}"

    @property
    def predictions(self) -> int:
        """Masked positions a row: 15 %, as 20 of 128 and 77 of 512."""
        return -(-self.length * 15 // 100)


class Product(NamedTuple):
    """`count` times `batch` products [m, k] x [k, n]."""

    count: int
    batch: int
    m: int
    k: int
    n: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of all of them."""
        return 2 * self.count * self.batch * self.m * self.k * self.n


def products(case: Case) -> list[Product]:
    """The forward products of a step, every layer at every position; the backward pass has two of the same size each.

    "Nominal" work: what a system leaves out (the last layer where nobody reads it) is counted as if it were done.
    """
    sizes = PRESETS[case.preset]
    tokens, head = case.batch * case.length, sizes.hidden // sizes.heads
    layer = [
        (1, tokens, sizes.hidden, 3 * sizes.hidden),
        (case.batch * sizes.heads, case.length, head, case.length),
        (case.batch * sizes.heads, case.length, case.length, head),
        (1, tokens, sizes.hidden, sizes.hidden),
        (1, tokens, sizes.hidden, sizes.inner),
        (1, tokens, sizes.inner, sizes.hidden),
    ]
    once = [(1, tokens, EMBEDDING, sizes.hidden), (1, case.batch, sizes.hidden, sizes.hidden)]
    if case.kind == "train":
        masked = case.batch * case.predictions
        once += [(1, masked, sizes.hidden, EMBEDDING), (1, masked, EMBEDDING, VOCABULARY)]
    return [Product(sizes.layers, *shape) for shape in layer] + [Product(1, *shape) for shape in once]


def operations(case: Case) -> int:
    """Multiplications and additions of one call of the case's work, nominal."""
    return (3 if case.kind == "train" else 1) * sum(product.operations for product in products(case))


def inputs(case: Case) -> dict[str, np.ndarray]:
    """One batch, the same for every system.

    int32 [B, S]: input_ids (random words), input_mask (ones), segment_ids (0, then 1 from the middle on). int32 [B, P]:
    masked_lm_positions (ascending, never the first), masked_lm_ids. int32 [B]: sentence_labels.
    """
    rng = np.random.default_rng(0)
    shape = (case.batch, case.length)
    segments = np.zeros(shape, np.int32)
    segments[:, case.length // 2 :] = 1
    places = [np.sort(rng.permutation(case.length - 1)[: case.predictions]) + 1 for _ in range(case.batch)]
    return {
        "input_ids": rng.integers(FIRST_WORD, VOCABULARY, shape, dtype=np.int32),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": segments,
        "masked_lm_positions": np.array(places, np.int32),
        "masked_lm_ids": rng.integers(FIRST_WORD, VOCABULARY, (case.batch, case.predictions), dtype=np.int32),
        "sentence_labels": rng.integers(2, size=case.batch, dtype=np.int32),
    }
