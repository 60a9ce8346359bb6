"""Which documents are held out, and which go together into a chunk of work.

The rule sees only lengths and numbers. So it can be followed while the text streams by (creation.py), or for a whole
corpus before its text is read again by many machines (beam.py), with the same chunks and so the same records.
"""

import collections
import dataclasses
import fractions
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from albert_tf.pretraining.corpus import Corpus

if TYPE_CHECKING:
    from albert_tf.pretraining.creation import CreationSettings

CHUNK_CHARS = 1_000_000  # text that one process takes at a time
PARTNER_CHARS = 50_000  # NSP: taken of each other document for a chunk that holds only one
_PARTNERS = 8  # such documents at most


class Part(Protocol):
    """A document or one part of a very long one; corpus.Document for one."""

    index: int  # number of the document in the corpus
    file_index: int  # number of the file (archive member) it is from
    num_chars: int


SomePart = TypeVar("SomePart", bound=Part)


@dataclasses.dataclass(frozen=True)
class Group(Generic[SomePart]):
    """What makes up one chunk; of the partners only the first PARTNER_CHARS characters are used."""

    number: int
    heldout: bool
    parts: list[SomePart]
    partners: list[SomePart]


def plan_chunks(
    parts: Iterable[SomePart],
    settings: "CreationSettings",
    *,
    by_file: bool,
    again: Callable[[], Iterable[SomePart]],
) -> Iterator[Group[SomePart]]:
    """Groups whole documents of one split, about CHUNK_CHARS together (less where each text makes many records).

    by_file: hold out whole files (see holds_out_files). again: gives the parts from the start once more.
    """
    limit = CHUNK_CHARS // min(settings.dupe_factor, 20)
    waiting: list[list[SomePart]] = [[], []]
    held = [0, 0]  # characters waiting
    recent: list[collections.deque] = [collections.deque(maxlen=_PARTNERS) for _ in waiting]
    numbers = itertools.count()

    def side(part: SomePart) -> bool:
        return is_heldout(part.file_index if by_file else part.index, settings)

    @functools.cache  # a long first document makes many chunks, which all ask for the same
    def first_other(index: int, heldout: bool) -> list[SomePart]:
        others = (part for part in again() if part.index != index and side(part) == heldout)
        return list(itertools.islice(others, 1))

    def group(heldout: bool) -> Group[SomePart]:
        own, waiting[heldout], held[heldout] = waiting[heldout], [], 0
        partners: list[SomePart] = []
        if settings.objective == "nsp" and len({part.index for part in own}) == 1:
            partners = [part for part in recent[heldout] if part.index != own[0].index]
            partners = partners or first_other(own[0].index, heldout)
        return Group(next(numbers), heldout, own, partners)

    for part in parts:
        heldout = side(part)
        waiting[heldout].append(part)
        held[heldout] += part.num_chars
        if settings.objective == "nsp" and (not recent[heldout] or recent[heldout][-1].index != part.index):
            recent[heldout].append(part)
        if held[heldout] >= limit:
            yield group(heldout)
    for heldout in (False, True):
        if waiting[heldout]:
            yield group(heldout)


def holds_out_files(corpus: Corpus) -> bool:
    """Whole files are held out where files are books parted by their headings, else single documents."""
    return corpus.input_format == "paragraphs" and corpus.has_many_texts


def is_heldout(unit: int, settings: "CreationSettings") -> bool:
    """One of every 1 / heldout_fraction units (files or documents), picked by a hash of the seed."""
    share = fractions.Fraction(settings.heldout_fraction).limit_denominator(1_000_000)
    if not share:
        return False
    block = int(unit * share)
    first, end = math.ceil(block / share), math.ceil((block + 1) / share)
    digest = hashlib.blake2b(f"{settings.random_seed}:{block}".encode(), digest_size=8).digest()
    return unit == first + int.from_bytes(digest, "big") % (end - first)
