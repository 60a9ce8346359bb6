"""Fine-tunes a pretrained encoder and the same sizes from random weights on real data, three seeds each.

    python -m benchmarks.finetuning --model_dir=MODEL --data_dir=$DATA --work_dir=runs/finetuning [--tasks=sst-2,mrpc]

DATA holds GLUE/, SQuAD/ and RACE/ in the official formats. Runs that are done are not done again; the page
docs/results/finetuning.md is written after each task, and names the tasks that are still to be run.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

from albert_tf import files

COMMAND = "python -m benchmarks.finetuning --model_dir=MODEL --data_dir=$DATA --work_dir=runs/finetuning"
RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results" / "finetuning.md"
STARTS = {"pretrained": [], "random weights": ["--random_weights"]}
SEEDS = 3
# Articles of the training subset that the development file has as well.
DEV_ARTICLES = ("Genghis_Khan", "Huguenot", "Immune_system")
COMMON = ["--learning_rate=1e-4", "--mixed_precision=mixed_bfloat16"]


@dataclasses.dataclass(frozen=True)
class Case:
    """One task with its caps; `flags` name data under DATA."""

    flags: tuple[str, ...]
    caps: str
    baseline: str  # what answers without reading get


_GLUE = ("--data_dir={data}/GLUE", "--max_seq_length=128", "--train_batch_size=32")
CASES = {
    "sst-2": Case((*_GLUE, "--num_train_epochs=1"), "all 67,349 rows, 1 epoch", "majority 0.509"),
    "mrpc": Case((*_GLUE, "--num_train_epochs=3"), "3 epochs", "majority 0.684"),
    "cola": Case((*_GLUE, "--num_train_epochs=3"), "3 epochs", "majority 0.000"),
    "rte": Case((*_GLUE, "--num_train_epochs=3"), "3 epochs", "majority 0.527"),
    "squad1.1": Case(
        (
            *("--train_file={work}/squad-train.json", "--eval_file={data}/SQuAD/dev-v1.1.json"),
            *("--max_eval_examples=2000", "--max_seq_length=256", "--train_batch_size=32", "--num_train_epochs=1"),
            "--eval_every_steps=1000000",
        ),
        "17 articles, 1 epoch, 256 tokens; scored on the first 2,000 questions of dev-v1.1",
        "none",
    ),
    "race-middle": Case(
        (
            *("--data_dir={data}/RACE/RACE.tar.gz", "--max_seq_length=256", "--max_train_examples=500"),
            *("--max_eval_examples=300", "--train_batch_size=32", "--num_train_epochs=1", "--eval_every_steps=1000000"),
        ),
        "500 questions, 1 epoch, 256 tokens; scored on 300",
        "random 0.250",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_dir", type=pathlib.Path, required=True)
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--work_dir", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default=",".join(CASES))
    options = parser.parse_args()
    options.work_dir.mkdir(parents=True, exist_ok=True)
    _write_squad_training(options.data_dir, options.work_dir)
    for task in options.tasks.split(","):
        for start in STARTS:
            _run(task, start, options)
        if task == "squad1.1":
            _evaluate_full_squad(options)
        files.write_atomically(RESULTS, document(options.work_dir))
        print(f"{task}: {RESULTS}")


def _write_squad_training(data: pathlib.Path, work: pathlib.Path) -> None:
    articles = json.loads((data / "SQuAD" / "subset20articles.json").read_text(encoding="utf-8"))
    articles["data"] = [article for article in articles["data"] if article["title"] not in DEV_ARTICLES]
    files.write_json(work / "squad-train.json", articles)


def _folder(work: pathlib.Path, task: str, start: str) -> pathlib.Path:
    return work / f"{task}-{start.replace(' ', '-')}"


def _summary_path(work: pathlib.Path, task: str, start: str) -> pathlib.Path:
    return _folder(work, task, start) / "summary.json"


def command(task: str, start: str) -> list[str]:
    """Arguments of `albert_tf finetune`, with {data}, {work} and {model} still to fill in."""
    case = CASES[task]
    name = f"runs/{_folder(pathlib.Path(), task, start)}"
    fixed = [f"--task_name={task}", "--model_dir={model}", f"--num_seeds={SEEDS}"]
    return [*fixed, *case.flags, *COMMON, *STARTS[start], f"--output_dir={name}"]


def _run(task: str, start: str, options: argparse.Namespace) -> None:
    summary_path = _summary_path(options.work_dir, task, start)
    if summary_path.exists():
        return
    folder = _folder(options.work_dir, task, start)
    arguments = command(task, start)[:-1] + [f"--output_dir={folder}"]
    places = {"data": options.data_dir, "work": options.work_dir, "model": options.model_dir}
    print(f"{task}, {start}", file=sys.stderr, flush=True)
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "albert_tf", "finetune", *(text.format(**places) for text in arguments)], check=True
    )
    minutes = (time.perf_counter() - started) / 60 / SEEDS
    summary = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    files.write_json(summary_path, {**summary, "minutes_a_run": minutes})


def _evaluate_full_squad(options: argparse.Namespace) -> None:
    output = options.work_dir / "squad-full-dev.txt"
    if output.exists():
        return
    folder = _folder(options.work_dir, "squad1.1", "pretrained")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "albert_tf", "evaluate", f"--model_dir={folder}"),
            f"--input_file={options.data_dir / 'SQuAD' / 'dev-v1.1.json'}",
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    files.write_atomically(output, done.stdout)


def document(work: pathlib.Path) -> str:
    """The Markdown page, from the summaries of the runs that are done."""
    done = [task for task in CASES if all(_summary_path(work, task, start).exists() for start in STARTS)]
    rows = ["| task | metric | caps | answers without reading | start | seeds | median | spread | minutes a run |"]
    rows.append("|---" * 9 + "|")
    remarks = []
    for task in done:
        summaries = {start: files.read_json(_summary_path(work, task, start), "a summary") for start in STARTS}
        rows += [_row(task, start, summary) for start, summary in summaries.items()]
        remarks.append(f"- {task}: {_comparison(summaries)}")
    full = work / "squad-full-dev.txt"
    if full.exists():
        remarks.append(f"- squad1.1, all 10,570 questions, best pretrained seed: `{full.read_text().strip()}`")
    if missing := [task for task in CASES if task not in done]:
        remarks.append(f"- still to be run: {', '.join(missing)}")
    return _PAGE.format(
        command=COMMAND,
        commands="\n".join(_shown(task) for task in done),
        table="\n".join(rows),
        remarks="\n".join(remarks),
    )


def _row(task: str, start: str, summary: dict[str, Any]) -> str:
    case = CASES[task]
    scores = ", ".join(_score(seed) for seed in summary["seeds"].values())
    return (
        f"| {task} | {summary['primary']} | {case.caps} | {case.baseline} | {start} | {scores} | "
        f"{_number(summary['median'])} | {_number(summary['spread'])} | {summary['minutes_a_run']:.1f} |"
    )


def _comparison(summaries: dict[str, dict[str, Any]]) -> str:
    medians = [summary["median"] for summary in summaries.values()]
    if None in medians:
        return "undefined for one of the two, as all its runs are degenerate"
    difference = medians[0] - medians[1]
    spread = max(summary["spread"] for summary in summaries.values())
    verdict = "more than" if abs(difference) > spread else "within"
    return f"the pretrained median is {difference:+.3f} against random weights, {verdict} the spread ({spread:.3f})"


def _shown(task: str) -> str:
    places = {"data": "$DATA", "work": "runs", "model": "MODEL"}
    return "albert_tf finetune " + " ".join(text.format(**places) for text in command(task, "pretrained"))


def _score(result: dict[str, Any]) -> str:
    return _number(result["score"]) + (" (degenerate)" if result["degenerate"] else "")


def _number(value: float | None) -> str:
    return "undefined" if value is None or value != value else f"{value:.3f}"


_PAGE = """# Fine-tuning on real data

MODEL is the small encoder of [pretraining.md](pretraining.md) (`albert_tiny`, 2 million parameters, at the end of the
longer run on novels). Each task starts from it and, for comparison, from random weights of the same sizes and the same
vocabulary (`--random_weights`), three seeds each, with the same rate for both. Such an encoder says whether the pieces
work together; it is far from the published models, whose weights `albert_tf convert` reads.

`{command}` runs everything and writes this page; one task by itself:

```
{commands}
```

runs/squad-train.json is SQuAD/subset20articles.json without the three articles that dev-v1.1.json has too.

{table}

Other work shared the 2 cores, which the minutes include. A run marked degenerate answers one class for
everything, or chance; the command says so. The spread is the highest minus the lowest seed.

{remarks}
"""


if __name__ == "__main__":
    main()
