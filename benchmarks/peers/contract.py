"""The one contract between the runner and a system.

A system is a module of benchmarks/peers/systems with

    PACKAGES: tuple[str, ...]                               whose versions go into the report
    prepare(case: work.Case, variant: str) -> dict[str, Part]

`prepare` builds model, optimiser and inputs of a case; nothing of it is timed. A case with full rows has the one part
STEP; natural cases have a part for each piece of work, see natural.py. A module imports its framework at the top, so
that a missing one is noticed before any work.
"""

from collections.abc import Callable
from typing import NamedTuple

STEP = "step"


class Part(NamedTuple):
    """Work that is timed as a whole."""

    run: Callable[[], float]  # does it once, waits for the end, gives back the loss or another number of the result
    scale: float = 1.0  # the whole work is so many times what `run` does
    warm_up: Callable[[], float] | None = None  # what to do first, untimed; `run` where left out
