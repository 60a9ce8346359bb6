"""The goals of the project's speed, as numbers, and whether a run met them."""

from typing import NamedTuple

from benchmarks.peers import catalog, figures
from benchmarks.peers.runner import Results

# Case -> ratio to the best peer of the same precision.
FULL = {
    "infer_8x128_float32": 1.05,
    "infer_8x128_bfloat16": 1.20,
    "train_8x128_float32": 1.12,
    "train_8x128_bfloat16": 1.20,
    "infer_2x512_float32": 1.04,
    "infer_2x512_bfloat16": 1.15,
    "train_2x512_float32": 1.05,
    "train_2x512_bfloat16": 1.12,
}
LIMIT_SHARE = 0.90  # is as good as the ratio
NATURAL = {"padded": 5.0, "dynamic": 1.5, "grouped": 1.2}  # how peers pad -> ratio, on each task
RECOMPUTE_CASE = "train_albert_large_4x512_float32"
RECOMPUTE_MEMORY, RECOMPUTE_TIME = 0.40, 1.45  # of a step without
LARGEST_CASE = "train_albert_xxlarge_1x512_bfloat16"
LARGEST_GIGABYTES, ESTIMATE_ERROR = 16.0, 0.15
ACCUMULATION_CASE = "train_64x128_bfloat16"
ACCUMULATION_TIME = 1.05  # of the same tokens in one batch


class Goal(NamedTuple):
    """A goal and what a run says of it."""

    text: str
    measured: str
    met: bool | None  # None: not measured


def goals(results: Results, *, estimated_bytes: float | None = None) -> list[Goal]:
    """Every goal; `estimated_bytes` is what the project says that LARGEST_CASE takes."""
    natural = [_natural(results, name) for name, (case, _) in catalog.CASES.items() if case.natural]
    return [
        *(_full(results, name, least) for name, least in FULL.items()),
        *(goal for some in natural for goal in some),
        *_recomputation(results),
        *_largest(results, estimated_bytes),
        _accumulation(results),
    ]


def _full(results: Results, name: str, least: float) -> Goal:
    text = f"{name}: at least {least:.2f} times the best peer's speed, or {LIMIT_SHARE:.0%} of the limit"
    ratio = figures.best_ratio(results[name]) if name in results else None
    if ratio is None:
        return Goal(text, "not measured", None)
    share = figures.limit_share(results[name], catalog.OURS)
    measured = f"{ratio.value:.2f} times {catalog.SYSTEMS[ratio.peer].title}"
    measured += "" if share is None else f", {share:.0%} of the limit"
    return Goal(text, measured, ratio.value >= least or (share is not None and share >= LIMIT_SHARE))


def _natural(results: Results, name: str) -> list[Goal]:
    case, _ = catalog.CASES[name]
    ratios = figures.natural_ratios(results[name], case.kind) if name in results else {}
    made = []
    for mode, least in NATURAL.items():
        text = f"{name}: at least {least:.1f} times the best peer's speed on each task, peers {mode}"
        if not ratios:
            made.append(Goal(text, "not measured", None))
            continue
        measured = ", ".join(f"{task} {ratio:.2f}" for task, ratio in ratios[mode].items())
        made.append(Goal(text, measured, min(ratios[mode].values()) >= least))
    return made


def _recomputation(results: Results) -> list[Goal]:
    memory = f"{RECOMPUTE_CASE}: recomputation takes at most {RECOMPUTE_MEMORY:.0%} of the peak memory without"
    time = f"{RECOMPUTE_CASE}: recomputation takes at most {RECOMPUTE_TIME:.2f} times the time without"
    both = _both(results, RECOMPUTE_CASE, "ours_recompute")
    if both is None:
        return [Goal(memory, "not measured", None), Goal(time, "not measured", None)]
    peaks = [figures.peak_gigabytes(both, system) for system in ("ours_recompute", catalog.OURS)]
    share, ratio = peaks[0] / peaks[1], figures.ratio(both, "ours_recompute").value
    return [
        Goal(memory, f"{share:.0%} ({peaks[0]:.1f} of {peaks[1]:.1f} GB)", share <= RECOMPUTE_MEMORY),
        Goal(time, f"{ratio:.2f} times", ratio <= RECOMPUTE_TIME),
    ]


def _largest(results: Results, estimated_bytes: float | None) -> list[Goal]:
    fits = f"{LARGEST_CASE}: a step within {LARGEST_GIGABYTES:.0f} GB, with recomputation"
    close = f"{LARGEST_CASE}: the memory estimate within {ESTIMATE_ERROR:.0%} of the peak"
    system = "ours_recompute"
    if LARGEST_CASE not in results or system not in results[LARGEST_CASE]["systems"]:
        return [Goal(fits, "not measured", None), Goal(close, "not measured", None)]
    peak = figures.peak_gigabytes(results[LARGEST_CASE], system)
    made = [Goal(fits, f"{peak:.1f} GB", peak <= LARGEST_GIGABYTES)]
    if estimated_bytes is None:
        return [*made, Goal(close, "no estimate", None)]
    error = estimated_bytes / 1e9 / peak - 1
    return [*made, Goal(close, f"{estimated_bytes / 1e9:.1f} GB, {error:+.0%}", abs(error) <= ESTIMATE_ERROR)]


def _accumulation(results: Results) -> Goal:
    text = f"{ACCUMULATION_CASE}: 8 micro-batches take at most {ACCUMULATION_TIME:.2f} times one batch of all"
    both = _both(results, ACCUMULATION_CASE, "ours_accumulate")
    if both is None:
        return Goal(text, "not measured", None)
    ratio = figures.ratio(both, "ours_accumulate").value
    return Goal(text, f"{ratio:.2f} times", ratio <= ACCUMULATION_TIME)


def _both(results: Results, case: str, system: str) -> figures.CaseResults | None:
    """The results of a case where both this project's plain way and `system` were measured."""
    measured = results.get(case, {"systems": {}})
    return measured if {system, catalog.OURS} <= measured["systems"].keys() else None
