"""The report: one Markdown document and one picture of the results."""

import pathlib
import platform
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.peers import catalog, figures, goals, natural
from benchmarks.peers.runner import THREADS, Results
from benchmarks.peers.work import Case

# Cases with full rows that are not this project against peers, and what they are for.
OWN_CASES = {
    goals.RECOMPUTE_CASE: "Recomputation",
    goals.LARGEST_CASE: "The largest model",
    goals.ACCUMULATION_CASE: "Gradient accumulation: 8 micro-batches of 8 rows against 64 rows at once",
}


def machine() -> str:
    """Processor, cores, memory and system in a line (Linux)."""
    cpu = _after("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    flags = (_after("/proc/cpuinfo", "flags") or "").split()
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    cores = (pathlib.Path("/proc/cpuinfo").read_text().count("processor\t:")) if flags else "?"
    memory = int((_after("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1e6
    return (
        f"{cpu} ({', '.join(known)}), {cores} cores, {memory:.0f} GB memory, {platform.system()} {platform.machine()}"
    )


def document(data: dict[str, Any], *, picture: str | None = None) -> str:
    """The whole report.

    `data` is what performance.json holds: machine, command, results, records, estimated_bytes, and remarks, lines of
    Markdown that are written into it by hand.
    """
    results: Results = data["results"]
    lines = [
        "# Speed and memory beside the peers",
        "",
        f"`{data['command']}` on {data['machine']}; {THREADS} threads; Python {data['python']}.",
        f"{_versions(results)}.",
        "",
        *_METHOD,
        "",
        *_goals(data),
        *(["", "### Remarks on this run", "", *data["remarks"]] if data.get("remarks") else []),
    ]
    lines += ["", f"![ratios]({picture})"] if picture else []
    for name, (case, _) in catalog.CASES.items():
        if name in results and results[name]["systems"]:
            make = _natural if case.natural else _full
            lines += ["", f"## {_title(case)}", "", *make(case, results[name])]
    if data.get("records"):
        lines += ["", "## Records creation", "", *_records(data["records"])]
    return "\n".join(lines) + "\n"


_METHOD = """
Every system does the same work in a process of its own: the same random ids, full rows, no dropout, AdamW at a rate of
1e-4, gradients clipped at norm 1, albert_base. Calls to warm up (compilation among them) are not timed; then the
systems take turns, round after round. Times are medians; a ratio is a peer's time over albert_tf's (above 1: albert_tf
is faster), with the lowest and highest ratio of single rounds. Peak memory is that of the timed calls. The limit is the
time that the step's products of matrices take alone, in TensorFlow's kernels, in the same rounds; GFLOP/s count nominal
work, every layer at every position, whatever a system leaves out or adds: training in transformers computes the masked
LM's logits at every position, as it comes (4 % more operations at 8 x 128). keras-hub has no sentence order: its
training step is masked LM alone.
""".strip().splitlines()


def _goals(data: dict[str, Any]) -> list[str]:
    rows = [
        (goal.text, goal.measured, {True: "met", False: "**not met**", None: "-"}[goal.met])
        for goal in goals.goals(data["results"], estimated_bytes=data.get("estimated_bytes"))
    ]
    return ["## Goals", "", *_table(("goal", "measured", ""), rows)]


def _full(case: Case, results: figures.CaseResults) -> list[str]:
    """Table of a case with full rows."""
    best = figures.best_ratio(results)
    systems = sorted(results["systems"], key=lambda name: figures.seconds(results, name))
    rows = [_full_row(case, results, name, best) for name in systems]
    header = ("system", "seconds", "tokens/s", "GFLOP/s", "of the limit", "peak GB", "times albert_tf")
    return [*_table(header, rows), *_skipped(results)]


def _full_row(case: Case, results: figures.CaseResults, name: str, best: figures.Ratio | None) -> tuple[str, ...]:
    share, peak = figures.limit_share(results, name), figures.peak_gigabytes(results, name)
    against = ""
    if name != catalog.OURS and catalog.OURS in results["systems"]:
        ratio = figures.ratio(results, name)
        against = f"{ratio.value:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"
    title = catalog.SYSTEMS[name].title
    return (
        f"{title} (best peer)" if best is not None and name == best.peer else title,
        f"{figures.seconds(results, name):.3f}",
        f"{figures.tokens_per_second(case, results, name):,.0f}",
        f"{figures.gigaflops(case, results, name):.0f}",
        "" if share is None else f"{share:.0%}",
        "" if peak is None else f"{peak:.2f}",
        against,
    )


def _natural(case: Case, results: figures.CaseResults) -> list[str]:
    """Table of a case with rows of natural lengths."""
    whole = f"{natural.STEPS} training steps" if case.kind == "train" else "one pass over the dev rows"
    lines = [f"Seconds for {whole}, from a sample of its batches; in brackets, times albert_tf.", ""]
    own = (
        next(iter(figures.natural_seconds(results, catalog.OURS, case.kind).values()), None)
        if (catalog.OURS in results["systems"])
        else None
    )
    rows = []
    for name in results["systems"]:
        for mode, times in figures.natural_seconds(results, name, case.kind).items():
            against = {task: "" if own is None else f" ({times[task] / own[task]:.2f})" for task in natural.TASKS}
            cells = (f"{times[task]:.1f}{against[task] if own is not times else ''}" for task in natural.TASKS)
            rows.append((catalog.SYSTEMS[name].title, mode, *cells))
    return lines + [*_table(("system", "batches", *natural.TASKS), rows), *_skipped(results)]


def _records(lines: Sequence[str]) -> list[str]:
    return [
        "`albert_tf create_pretraining_data` on prose that Python brings, many times over:",
        "",
        "```",
        *lines,
        "```",
    ]


def _skipped(results: figures.CaseResults) -> list[str]:
    found = [f"- {catalog.SYSTEMS[name].title}: {why}" for name, why in results["skipped"].items()]
    return ["", "Not measured:", "", *found] if found else []


def _title(case: Case) -> str:
    purpose = {"infer": "Inference", "train": "Training"}[case.kind]
    if case.name in OWN_CASES:
        return f"{OWN_CASES[case.name]}: {case.preset}, {case.batch} x {case.length}, {case.precision}"
    if case.natural:
        return f"{purpose} at natural lengths, {case.precision}"
    return f"{purpose}, {case.batch} x {case.length}, {case.precision}"


def _versions(results: Results) -> str:
    found: dict[str, set[str]] = {}
    for case in results.values():
        for system in case["systems"].values():
            for package, version in system["versions"].items():
                found.setdefault(package, set()).add(version)
    return ", ".join(f"{package} {' and '.join(sorted(versions))}" for package, versions in sorted(found.items()))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _after(path: str, name: str) -> str | None:
    """What follows "name:" in a file of lines, or None."""
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def draw(results: Results, path: pathlib.Path) -> bool:
    """A bar for each case: ratio to the best peer, and the goal as a line on it; False without anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {name: figures.best_ratio(results[name]) for name in goals.FULL if name in results}
    ratios = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not ratios:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(ratios) + 1.2))
    places = range(len(ratios))
    axes.barh(places, [ratio.value for ratio in ratios.values()], color="#4c78a8", height=0.6)
    for place, (name, ratio) in zip(places, ratios.items(), strict=True):
        axes.plot([goals.FULL[name]] * 2, [place - 0.4, place + 0.4], color="#e45756", linewidth=2)
        axes.text(
            ratio.value, place, f" {ratio.value:.2f} {catalog.SYSTEMS[ratio.peer].title}", va="center", fontsize=8
        )
    axes.set_yticks(places, ratios)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(ratio.value for ratio in ratios.values()))
    axes.set_xlabel("time of the best peer / time of albert_tf (line: goal)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
