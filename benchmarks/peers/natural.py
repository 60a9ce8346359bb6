"""Natural lengths: rows as long as those of MRPC, CoLA and SST-2, for the classifiers of those tasks.

Time depends on lengths, not on words, so lengths.json keeps how many rows have which length (tokens of the release's
vocabulary, special tokens included) and words are random: no data set is needed. The whole work is one pass over the
dev rows, or STEPS training steps at the paper's recipe. It would take hours on a processor, so each part is measured on
some of its batches, spread evenly over their sizes; `Plan.scale` is what all batches' computed tokens are to theirs.

Peers take rows of random order ("dynamic": each batch padded to its longest row), rows sorted by length ("grouped"),
or every row padded to the recipe's 512 tokens ("padded"). Of the last all batches look alike: a few rows are enough.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.peers import work

LENGTHS_FILE = pathlib.Path(__file__).with_name("lengths.json")
TRAIN_BATCH = {"mrpc": 32, "cola": 16, "sst-2": 32}  # the paper's recipes
TASKS = tuple(TRAIN_BATCH)
EVAL_BATCH = 64
STEPS = 100
RECIPE_LENGTH = 512
PADDED = "padded"
PADDED_ROWS = 4  # rows that stand for all padded ones, with hardly any difference in time a row
MODES = ("dynamic", "grouped")
_GROUPED = 50  # training batches that are sorted together, as in transformers' group_by_length


class Plan(NamedTuple):
    """Batches to measure, each as its rows' lengths, and what the whole work is to them."""

    batches: list[np.ndarray]
    widths: list[int]  # the length that each batch is padded to
    scale: float


def lengths(task: str, kind: str) -> np.ndarray:
    """int32 [n]: tokens of the training rows or the dev rows, in a random order that is always the same."""
    counts = json.loads(LENGTHS_FILE.read_text())[task]["train" if kind == "train" else "dev"]
    values = np.repeat(np.array(list(counts), np.int32), list(counts.values()))
    return np.random.default_rng(0).permutation(values)


def number_of_rows(task: str, kind: str) -> int:
    """Rows of the whole work."""
    return STEPS * TRAIN_BATCH[task] if kind == "train" else len(lengths(task, kind))


def peer_plans(case: work.Case) -> dict[str, Plan]:
    """The parts that a peer is measured on: padded (it serves all tasks), mrpc/dynamic, mrpc/grouped, cola/..."""
    padded = np.full(PADDED_ROWS, RECIPE_LENGTH // 10, np.int32)
    plans = {PADDED: Plan([padded], [RECIPE_LENGTH], 1.0)}
    for task in TASKS:
        for mode in MODES:
            batches = peer_batches(task, case.kind, mode)
            plans[f"{task}/{mode}"] = plan(batches, case.sample_tokens)
    return plans


def peer_batches(task: str, kind: str, mode: str) -> list[np.ndarray]:
    """All batches of the work, as rows' lengths."""
    rows = lengths(task, kind)
    size = TRAIN_BATCH[task] if kind == "train" else EVAL_BATCH
    if mode == "grouped":
        window = size * min(max(len(rows) // (4 * size), 1), _GROUPED) if kind == "train" else len(rows)
        rows = np.concatenate([-np.sort(-rows[i : i + window]) for i in range(0, len(rows), window)])
    rows = rows[: number_of_rows(task, kind)]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def plan(batches: Sequence[np.ndarray], sample_tokens: int) -> Plan:
    """Chooses at least two batches of about `sample_tokens` computed tokens together."""
    chosen = spread([len(batch) * int(batch.max()) for batch in batches], sample_tokens)
    kept = [batches[i] for i in chosen]
    return Plan(kept, [int(batch.max()) for batch in kept], scale(batches, chosen))


def spread(tokens: Sequence[int], sample_tokens: int) -> list[int]:
    """Numbers of some of the batches, evenly over their sizes, `tokens` being the computed tokens of each."""
    count = min(len(tokens), max(2, round(sample_tokens * len(tokens) / sum(tokens))))
    places = ((np.arange(count) + 0.5) * len(tokens) / count).astype(int)
    return [int(i) for i in np.argsort(tokens, kind="stable")[places]]


def scale(batches: Sequence[np.ndarray], chosen: Sequence[int]) -> float:
    """Computed tokens of all batches, padded to their longest, over those of the chosen."""
    tokens = [len(batch) * int(batch.max()) for batch in batches]
    return sum(tokens) / sum(tokens[i] for i in chosen)


def arrays(rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """A batch of random words: input_ids, input_mask, segment_ids int32 [B, S]; label int32 [B]."""
    rng = np.random.default_rng(len(rows) * width)
    mask = (np.arange(width) < rows[:, None]).astype(np.int32)
    return {
        "input_ids": rng.integers(work.FIRST_WORD, work.VOCABULARY, mask.shape, dtype=np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
        "label": rng.integers(2, size=len(rows), dtype=np.int32),
    }
