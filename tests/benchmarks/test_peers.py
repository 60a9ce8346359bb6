"""benchmarks/peers: the contract over a real process, rounds and skips with fakes, arithmetic, goals, report."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from albert_tf import config
from benchmarks.peers import __main__ as program
from benchmarks.peers import catalog, figures, goals, natural, report, runner, work
from benchmarks.peers.contract import STEP
from tasks.catalog import make_task

SMALL = work.Case(kind="train", precision="float32", batch=2, length=16)
NATURAL = catalog.CASES["train_natural_float32"][0]


def measured(*rounds, scale=1.0, part=STEP, peak=None):
    """A SystemResult of the runner with one part."""
    parts = {part: {"scale": scale, "rounds": [list(one) for one in rounds]}}
    return {"parts": parts, "values": {}, "versions": {"numpy": "2.0"}, "peak_bytes": peak}


def results_of(**systems):
    return {"systems": systems, "skipped": {}}


# ---- work ------------------------------------------------------------------------------------------------------------


def test_names_of_cases_are_their_keys_and_presets_are_those_of_the_project():
    assert "train_8x128_float32" in catalog.CASES and "infer_natural_bfloat16" in catalog.CASES
    assert set(goals.FULL) <= set(catalog.CASES)
    assert {goals.RECOMPUTE_CASE, goals.LARGEST_CASE, goals.ACCUMULATION_CASE} <= set(catalog.CASES)
    for name, sizes in work.PRESETS.items():
        ours = config.preset(name)
        assert sizes == (ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads, ours.intermediate_size)
        assert (work.EMBEDDING, work.VOCABULARY) == (ours.embedding_size, ours.vocab_size)


def test_operations_of_a_training_step():
    case = work.Case(kind="train", precision="float32", batch=8, length=128)
    tokens, hidden, inner = 8 * 128, 768, 3072
    layer = 2 * tokens * (4 * hidden * hidden + 2 * hidden * inner) + 4 * 8 * 128 * 128 * hidden
    heads = 2 * tokens * 128 * hidden + 2 * 8 * hidden * hidden + 2 * 8 * 20 * 128 * (hidden + 30_000)
    assert (
        case.predictions == 20 and work.Case(kind="train", precision="float32", batch=2, length=512).predictions == 77
    )
    assert work.operations(case) == 3 * (12 * layer + heads)


def test_inputs_are_the_same_every_time_and_possible():
    first, second = work.inputs(SMALL), work.inputs(SMALL)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert first["input_ids"].shape == (2, 16) and first["masked_lm_positions"].shape == (2, 3)
    assert (np.diff(first["masked_lm_positions"]) > 0).all() and first["masked_lm_positions"].min() > 0
    assert first["masked_lm_positions"].max() < 16 and first["segment_ids"].sum() == 2 * 8


# ---- natural lengths -------------------------------------------------------------------------------------------------


def test_batches_and_lengths_are_those_of_the_recipes():
    for name, batch in natural.TRAIN_BATCH.items():
        assert make_task(name).recipe.train_batch_size == batch
        assert make_task(name).max_seq_length == natural.RECIPE_LENGTH
    assert [len(natural.lengths(name, "infer")) for name in natural.TASKS] == [408, 1043, 872]
    assert [len(natural.lengths(name, "train")) for name in natural.TASKS] == [3668, 8551, 67349]


@pytest.mark.parametrize("kind", work.KINDS)
@pytest.mark.parametrize("mode", natural.MODES)
def test_peers_see_every_row_once(kind, mode):
    batches = natural.peer_batches("cola", kind, mode)
    rows = np.concatenate(batches)
    assert len(rows) == natural.number_of_rows("cola", kind)
    if kind == "infer":
        assert sorted(rows) == sorted(natural.lengths("cola", kind))
    else:
        assert [len(batch) for batch in batches] == [16] * 100
    padding = sum(len(batch) * batch.max() for batch in batches) / rows.sum()
    assert padding < 1.2 if mode == "grouped" else padding > 1.4


def test_a_sample_is_spread_over_the_sizes_and_scaled_to_all():
    batches = [np.array([size, 1]) for size in (10, 40, 20, 30, 60, 50)]
    plan = natural.plan(batches, sample_tokens=1)
    assert sorted(plan.widths) == [20, 50] and [len(batch) for batch in plan.batches] == [2, 2]
    assert plan.scale == pytest.approx(210 / 70)
    assert natural.plan(batches, sample_tokens=10_000).scale == 1.0
    arrays = natural.arrays(np.array([3, 5]), 6)
    assert arrays["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    assert ((arrays["input_ids"] > 0) == (arrays["input_mask"] > 0)).all()


def test_padded_rows_stand_for_all_tasks():
    results = {"systems": {"pytorch": {"parts": {
        "padded": {"scale": 1.0, "rounds": [[8.0]]},
        **{f"{task}/dynamic": {"scale": 5.0, "rounds": [[2.0]]} for task in natural.TASKS},
        **{f"{task}/grouped": {"scale": 4.0, "rounds": [[2.0]]} for task in natural.TASKS},
    }}, "ours": {"parts": {f"{task}/own": {"scale": 2.0, "rounds": [[1.0]]} for task in natural.TASKS}}}}  # fmt: skip
    times = figures.natural_seconds(results, "pytorch", "train")
    assert times["padded"] == {"mrpc": 6400.0, "cola": 3200.0, "sst-2": 6400.0}
    assert times["dynamic"]["cola"] == 10.0
    ratios = figures.natural_ratios(results, "train")
    assert ratios["padded"]["cola"] == 1600.0 and ratios["grouped"]["mrpc"] == 4.0


# ---- runner ----------------------------------------------------------------------------------------------------------


class Fake:
    """A process that answers at once, and writes down what it was asked."""

    def __init__(self, name, journal, fails=()):
        self.name, self.journal, self.fails = name, journal, fails
        self.versions = {"fake": "1"}

    def ask(self, **order):
        done = f"prepare {order['prepare']['kind']}" if "prepare" in order else "measure"
        self.journal.append((self.name, done))
        if done in self.fails:
            raise runner.Failed("no memory")
        if "prepare" in order:
            return {"scales": {STEP: 1.0}, "values": {STEP: 10.0}, "seconds": 0.1}
        return {"seconds": [1.0] * order["times"], "peak_bytes": 7}

    def close(self):
        self.journal.append((self.name, "close"))


def run(cases, *, fails=None, absent=(), rounds=2):
    journal = []

    def start(name, settings):
        if name in absent:
            raise runner.Failed("No module named 'torch'")
        journal.append((name, "start"))
        return Fake(name, journal, (fails or {}).get(name, ()))

    settings = runner.Settings(rounds=rounds, steps=3)
    return runner.run(cases, settings, start=start, say=lambda line: None), journal


def test_rounds_are_interleaved_and_processes_shared():
    train, infer = SMALL, dataclasses.replace(SMALL, kind="infer")
    results, journal = run([(infer, ("a", "b")), (train, ("a", "b"))])
    rounds = [(name, "measure") for name in "abab"]
    prepared = {kind: [(name, f"prepare {kind}") for name in "ab"] for kind in ("infer", "train")}
    started = [("a", "start"), ("b", "start")]  # systems are prepared two at a time, in either order
    assert sorted(journal[:4]) == sorted(started + prepared["infer"]) and journal[4:8] == rounds
    assert sorted(journal[8:10]) == prepared["train"] and journal[10:14] == rounds
    assert journal[14:] == [("a", "close"), ("b", "close")]
    assert results[train.name]["systems"]["b"]["parts"][STEP]["rounds"] == [[1.0] * 3] * 2
    assert results[train.name]["systems"]["b"]["peak_bytes"] == 7


def test_other_shapes_get_other_processes():
    longer = dataclasses.replace(SMALL, length=32)
    _, journal = run([(SMALL, ("a",)), (longer, ("a",))])
    assert [done for _, done in journal].count("start") == 2


def test_what_fails_is_skipped_with_its_reason():
    results, journal = run([(SMALL, ("a", "b", "c"))], absent=("a",), fails={"b": ("measure",)})
    assert results[SMALL.name]["skipped"] == {"a": "No module named 'torch'", "b": "no memory"}
    assert list(results[SMALL.name]["systems"]) == ["c"]
    assert [done for name, done in journal if name == "b"] == ["start", "prepare train", "measure", "close"]


def test_a_real_worker_prepares_measures_and_reports_errors(monkeypatch):
    monkeypatch.setitem(catalog.SYSTEMS, "tiny", catalog.System(title="tiny", module="products"))
    monkeypatch.setitem(catalog.SYSTEMS, "absent", catalog.System(title="absent", module="no_such"))
    with pytest.raises(runner.Failed, match="ModuleNotFoundError: .*no_such"):
        runner.Worker("absent", runner.Settings())
    worker = runner.Worker("tiny", runner.Settings())
    try:
        assert "tensorflow" in worker.versions
        ready = worker.ask(prepare=dataclasses.asdict(SMALL), warm_ups=1)
        assert ready["scales"] == {STEP: 1.0} and np.isfinite(ready["values"][STEP])
        answer = worker.ask(measure=STEP, times=2)
        assert len(answer["seconds"]) == 2 and min(answer["seconds"]) > 0
        if sys.platform == "linux":
            assert 50e6 < answer["peak_bytes"] < 4e9
        with pytest.raises(runner.Failed, match="KeyError"):
            worker.ask(measure="nothing", times=1)
    finally:
        worker.close()


def test_peers_need_their_environment(tmp_path):
    with pytest.raises(runner.Failed, match="make bench-peers"):
        runner.Worker("pytorch", runner.Settings(own_python=tmp_path / "python"))


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_ratio_is_of_medians_with_the_spread_of_rounds():
    results = results_of(
        ours=measured([1.0, 1.2], [1.0, 1.0]),
        slow=measured([3.0, 3.0], [3.0, 3.0]),
        fast=measured([1.5, 1.7], [2.0, 2.2]),
    )
    ratio = figures.best_ratio(results)
    assert ratio.peer == "fast" and ratio.value == pytest.approx(1.85)
    assert (ratio.lowest, ratio.highest) == (pytest.approx(1.6 / 1.1), pytest.approx(2.1))


def test_limit_and_own_variants_are_no_peers():
    results = results_of(
        ours=measured([2.0]), ours_jit=measured([1.0]), products=measured([1.5]), keras_hub_jit=measured([3.0])
    )
    assert figures.peers(results) == ["keras_hub_jit"]
    assert figures.limit_share(results, "ours") == 0.75
    assert figures.best_ratio(results_of(ours=measured([1.0]))) is None
    case = catalog.CASES["infer_8x128_float32"][0]
    assert figures.tokens_per_second(case, results, "ours") == 512
    assert figures.gigaflops(case, results, "ours") == pytest.approx(work.operations(case) / 2e9)


# ---- goals and report ------------------------------------------------------------------------------------------------


def example_results():
    float32 = {"ours": measured([1.0], peak=2e9), "keras_hub_jit": measured([1.10]), "products": measured([0.8])}
    bfloat16 = {"ours": measured([1.0]), "pytorch": measured([1.1]), "products": measured([0.95])}
    large = {"ours": measured([10.0], peak=10e9), "ours_recompute": measured([14.0], peak=5e9)}
    return {
        "train_8x128_float32": results_of(**float32),
        "train_8x128_bfloat16": results_of(**bfloat16),
        "infer_8x128_float32": results_of(ours=measured([1.0]), pytorch=measured([1.3])),
        goals.RECOMPUTE_CASE: results_of(**large),
        goals.LARGEST_CASE: results_of(ours_recompute=measured([50.0], peak=12e9)),
        goals.ACCUMULATION_CASE: results_of(ours=measured([10.0]), ours_accumulate=measured([10.4])),
    }


def test_goals_are_judged_by_number():
    found = {goal.text: goal for goal in goals.goals(example_results(), estimated_bytes=15e9)}

    def of(words):
        return next(goal for text, goal in found.items() if words in text)

    assert of("train_8x128_float32").met is False and of("train_8x128_float32").measured.startswith(
        "1.10 times keras-hub"
    )
    assert of("train_8x128_bfloat16").met is True  # 95 % of the limit
    assert of("infer_8x128_float32").met is True
    assert of("infer_2x512_float32").met is None
    assert (of("peak memory without").met, of("time without").met) == (False, True)
    assert of("within 16 GB").met is True and of("memory estimate").met is False
    assert of("memory estimate").measured == "15.0 GB, +25%"
    assert of("micro-batches").met is True
    assert len(found) == 8 + 4 * 3 + 2 + 2 + 1


def test_report_has_tables_goals_and_reasons(tmp_path):
    results = example_results()
    results["train_8x128_float32"]["skipped"]["pytorch"] = "there is no python"
    data = {"command": "make bench", "machine": report.machine(), "python": "3.11", "results": results}
    data |= {"estimated_bytes": 12e9, "records": ["dynamic, length 128: 5 MB/s"]}
    document = tmp_path / "performance.md"
    program.write(document, data)
    text = document.read_text()
    assert "| albert_tf | 1.000 | 1,024 |" in text and "keras-hub, XLA (best peer) | 1.100 |" in text
    assert "80%" in text and "**not met**" in text and "there is no python" in text and "5 MB/s" in text
    assert json.loads((tmp_path / "performance.json").read_text()) == data
    assert (tmp_path / "performance.png").stat().st_size > 5000


def test_cases_and_systems_by_pattern():
    cases = program.chosen_cases("train_8x128_*", "ours,keras_hub_jit,transformers_tf")
    assert [(case.name, systems) for case, systems in cases] == [
        ("train_8x128_float32", ("ours", "keras_hub_jit", "transformers_tf")),
        ("train_8x128_bfloat16", ("ours", "keras_hub_jit")),
    ]
    assert program.chosen_cases("infer_2x512_float32", None) == [catalog.CASES["infer_2x512_float32"]]
    for patterns, systems in (("fly", None), ("*", "ours,theirs")):
        with pytest.raises(SystemExit, match="fly|theirs"):
            program.chosen_cases(patterns, systems)


def test_help_needs_no_framework():
    code = """
import atexit, runpy, sys
sys.argv = ["x", "--help"]
atexit.register(lambda: print("tensorflow" in sys.modules))
runpy.run_module("benchmarks.peers", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=runner.ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--cases" in done.stdout and done.stdout.endswith("False\n")
