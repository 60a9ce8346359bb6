"""From seed and number to a case: its class, its files and its command line."""

import dataclasses
import pathlib
import random
import shutil
from collections.abc import Callable

from benchmarks.fuzz import corpora, descriptions, flags, questions, records, tables, vocabularies, weights
from benchmarks.fuzz.workshop import Workshop

# Class -> (share of the cases, what makes one: files in the workshop, then the arguments after the program's name).
CLASSES: dict[str, tuple[int, Callable[[Workshop], list[str]]]] = {
    "flags": (30, flags.make),
    "descriptions": (20, descriptions.make),
    "tables": (10, tables.make),
    "questions": (8, questions.make),
    "corpora": (10, corpora.make),
    "records": (8, records.make),
    "weights": (8, weights.make),
    "vocabularies": (6, vocabularies.make),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """What `main` gets, in a folder of its own whose files are made."""

    seed: int
    number: int
    kind: str
    arguments: list[str]  # after the program's name
    folder: pathlib.Path


def make_case(seed: int, number: int, *, material: pathlib.Path, folder: pathlib.Path) -> Case:
    """Makes the files of a case in `folder`, which must not exist; the same seed and number give the same case."""
    rng = random.Random(f"{seed}/{number}")
    shares = [share for share, _ in CLASSES.values()]
    kind = rng.choices(list(CLASSES), shares)[0]
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("in", "out", "tmp"):
        (folder / name).mkdir(parents=True)
    arguments = CLASSES[kind][1](Workshop(rng, material, folder))
    return Case(seed, number, kind, arguments, folder)
