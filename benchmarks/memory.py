"""Memory of a training step: what `albert_tf pretrain` tells beforehand, beside what is measured.

    python -m benchmarks.memory                 # the small cases, a few minutes
    python -m benchmarks.memory --cases=albert_xxlarge:1x512:mixed_bfloat16:recompute
    python -m benchmarks.memory --cases=all --write=PAGE.md   # 16 GiB free, a quarter of an hour

Each case runs in a process of its own. The start-up baseline is the resident memory after a step of a tiny model:
TensorFlow, its threads, its kernels. The peak is the most that was ever resident; the step's share is the difference.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from albert_tf.config import AlbertConfig, preset  # noqa: E402
from tpu import memory  # noqa: E402

SMALL = [
    *(
        f"albert_base:{shape}:{dtype}"
        for shape in ("4x128", "8x128", "2x512")
        for dtype in ("float32", "mixed_bfloat16")
    ),
    *(
        f"albert_base:{shape}:{dtype}:recompute"
        for shape in ("8x128", "2x512")
        for dtype in ("float32", "mixed_bfloat16")
    ),
    *(f"albert_large:2x512:{dtype}{again}" for dtype in ("float32", "mixed_bfloat16") for again in ("", ":recompute")),
]
LARGE = [
    "albert_xxlarge:1x512:float32:recompute",
    "albert_xxlarge:1x512:mixed_bfloat16:recompute",
    "albert_xxlarge:1x512:float32",
    "albert_xxlarge:1x512:mixed_bfloat16",
    "albert_large:4x512:float32",
    "albert_large:4x512:float32:recompute",
]
MIB = 2**20


def parse(case: str) -> dict:
    """The arguments of `memory.training_bytes` in albert_base:4x128:float32[:recompute], and the preset's name."""
    name, shape, dtype, *rest = case.split(":")
    rows, length = map(int, shape.split("x"))
    return {
        "preset": name,
        "rows": rows,
        "max_seq_length": length,
        "num_predictions": round(0.15 * length),
        "mixed_precision": dtype,
        "recompute": rest == ["recompute"],
    }


def measure(config: AlbertConfig, *, steps: int = 2, **arguments) -> dict[str, int]:
    """Runs some steps in this process: {"baseline": ..., "peak": ...} in bytes."""
    import tensorflow as tf

    from tpu import measuring

    def run(config: AlbertConfig, rows: int, length: int, predictions: int, times: int):
        case = measuring.Case(
            config=config,
            rows=rows,
            length=length,
            predictions=predictions,
            mixed_precision=arguments["mixed_precision"],
            recompute=arguments["recompute"],
        )
        trainer = measuring.make_trainer(case, tf.distribute.OneDeviceStrategy("/cpu:0"))
        step = measuring.training_step(case, trainer)
        for _ in range(times):
            step()

    run(preset("albert_tiny").replace(vocab_size=100), 2, 16, 2, times=1)
    baseline = measuring.resident_bytes()
    run(config, arguments["rows"], arguments["max_seq_length"], arguments["num_predictions"], times=steps)
    return {"baseline": baseline, "peak": measuring.peak_bytes()}


def compare(case: str, *, steps: int) -> str:
    """A row of the table."""
    command = [sys.executable, "-m", "benchmarks.memory", f"--measure={case}", f"--steps={steps}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    arguments = parse(case)
    estimate = memory.training_bytes(preset(arguments.pop("preset")), **arguments)["total"]
    name, shape, dtype, *rest = case.split(":")
    start = f"| {name} | {shape} | {dtype} | {'yes' if rest else 'no'} |"
    if done.returncode:
        return f"{start} | | | {estimate / MIB:,.0f} | ended with code {done.returncode} |"
    seen = json.loads(done.stdout.splitlines()[-1])
    step = seen["peak"] - seen["baseline"]
    figures = (seen["baseline"], seen["peak"], step, estimate)
    return f"{start} {' | '.join(f'{value / MIB:,.0f}' for value in figures)} | {estimate / step:.2f} |"


def _document(lines: list[str], arguments: argparse.Namespace) -> str:
    """The table with what it needs to be read and made again."""
    import platform

    import tensorflow as tf

    return "\n".join(
        [
            "# Memory of a training step",
            "",
            "What `albert_tf pretrain` tells beforehand (tpu/memory.py) beside the peak of a process that runs",
            f"{arguments.steps} steps; in MiB, without the start-up that any TensorFlow program has. The ratio is the",
            "estimate to the measurement.",
            "",
            *lines,
            "",
            f"Made by `python -m benchmarks.memory --cases={arguments.cases or 'small'} --steps={arguments.steps}`, "
            f"TensorFlow {tf.__version__}, {platform.machine()}, {os.cpu_count()} cores.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", help="PRESET:ROWSxLENGTH:PRECISION[:recompute], several with commas; or small, large, all"
    )
    parser.add_argument("--steps", type=int, default=2, help="steps to run in each case")
    parser.add_argument("--write", type=pathlib.Path, help="file for the table")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one case, in the process that is measured
    arguments = parser.parse_args()
    if arguments.measure:
        case = parse(arguments.measure)
        print(json.dumps(measure(preset(case.pop("preset")), steps=arguments.steps, **case)))
        return
    named = {"small": SMALL, "large": LARGE, "all": SMALL + LARGE}
    cases = named.get(arguments.cases or "small") or arguments.cases.split(",")
    lines = [
        "| model | batch | precision | recompute | start-up, MiB | peak | step measured | step estimated | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for case in cases:
        lines.append(compare(case, steps=arguments.steps))
        print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(_document(lines, arguments))


if __name__ == "__main__":
    main()
