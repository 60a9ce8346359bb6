"""From the runner's results to figures: medians, ratios to the best peer, shares of the limit. Plain arithmetic."""

import statistics
from typing import Any, NamedTuple

from benchmarks.peers import catalog, natural, work
from benchmarks.peers.contract import STEP
from benchmarks.peers.work import Case

CaseResults = dict[str, dict[str, Any]]  # {"systems": ..., "skipped": ...} of one case, see runner.py


class Ratio(NamedTuple):
    """How many times longer a peer takes than this project."""

    peer: str
    value: float  # of the medians
    lowest: float  # of the medians of single rounds
    highest: float


def seconds(results: CaseResults, system: str, part: str = STEP) -> float:
    """The whole work of a part: the median of all calls, scaled."""
    measured = results["systems"][system]["parts"][part]
    return statistics.median(s for one in measured["rounds"] for s in one) * measured["scale"]


def peers(results: CaseResults) -> list[str]:
    """Systems that are neither this project nor the limit."""
    return [name for name in results["systems"] if name not in (*catalog.OWN_VARIANTS, catalog.LIMIT)]


def best_ratio(results: CaseResults) -> Ratio | None:
    """This project against the fastest peer of a case with full rows; None where one of the two is missing."""
    if catalog.OURS not in results["systems"] or not peers(results):
        return None
    best = min(peers(results), key=lambda name: seconds(results, name))
    return ratio(results, best)


def ratio(results: CaseResults, peer: str, reference: str = catalog.OURS) -> Ratio:
    """`peer` over `reference`, with its spread over the rounds."""
    rounds = [results["systems"][name]["parts"][STEP]["rounds"] for name in (peer, reference)]
    each = [statistics.median(a) / statistics.median(b) for a, b in zip(*rounds, strict=True)]
    return Ratio(peer, seconds(results, peer) / seconds(results, reference), min(each), max(each))


def limit_share(results: CaseResults, system: str) -> float | None:
    """Time of the products alone over that of the system; None where the products were not measured."""
    if catalog.LIMIT not in results["systems"]:
        return None
    return seconds(results, catalog.LIMIT) / seconds(results, system)


def tokens_per_second(case: Case, results: CaseResults, system: str) -> float:
    """Tokens of full rows a second."""
    return case.batch * case.length / seconds(results, system)


def gigaflops(case: Case, results: CaseResults, system: str) -> float:
    """Nominal GFLOP/s: see work.products."""
    return work.operations(case) / seconds(results, system) / 1e9


def peak_gigabytes(results: CaseResults, system: str) -> float | None:
    """10^9 bytes."""
    peak = results["systems"][system].get("peak_bytes")
    return None if peak is None else peak / 1e9


def natural_seconds(results: CaseResults, system: str, kind: str) -> dict[str, dict[str, float]]:
    """{mode: {task: seconds of the whole work}} of a natural case."""
    found: dict[str, dict[str, float]] = {}
    for part in results["systems"][system]["parts"]:
        if part == natural.PADDED:  # a few rows stand for those of all tasks
            row = seconds(results, system, part) / natural.PADDED_ROWS
            found[part] = {task: row * natural.number_of_rows(task, kind) for task in natural.TASKS}
        else:
            task, mode = part.split("/")
            found.setdefault(mode, {})[task] = seconds(results, system, part)
    return found


def natural_ratios(results: CaseResults, kind: str) -> dict[str, dict[str, float]]:
    """{mode: {task: the best peer's time over this project's}}; empty where one of the two is missing."""
    if catalog.OURS not in results["systems"] or not peers(results):
        return {}
    (own,) = natural_seconds(results, catalog.OURS, kind).values()
    by_peer = [natural_seconds(results, peer, kind) for peer in peers(results)]
    return {
        mode: {task: min(times[mode][task] for times in by_peer) / own[task] for task in natural.TASKS}
        for mode in (natural.PADDED, *natural.MODES)
    }
