"""The cost model's tables for docs/scale.md, from the configurations by arithmetic, and the check on this machine.

    python -m benchmarks.scale_model                           # prints the tables
    python -m benchmarks.scale_model --write=docs/scale.md     # renews them between their marks
    python -m benchmarks.scale_model --measure --write=docs/scale.md   # runs 1, 2 and 4 processes here as well

Without --measure no TensorFlow is loaded, and what an earlier --measure wrote stays.
"""

import argparse
import pathlib
import re

from albert_tf import costs
from albert_tf.config import preset
from tpu import memory

NAMES = ("albert_base", "albert_large", "albert_xlarge", "albert_xxlarge", "bert_base", "bert_large")
# Paper, table 2: how many times faster than BERT-large one pass over the data is.
PAPER_SPEED = {
    **{"bert_base": 4.7, "bert_large": 1.0, "albert_base": 5.6},
    **{"albert_large": 1.7, "albert_xlarge": 0.6, "albert_xxlarge": 0.3},
}
STEPS, BATCH, LENGTH, PREDICTIONS = 125_000, 4096, 512, 77  # the paper's schedule
GIB = 2**30


def step_flops(name: str, *, recompute: bool = False) -> int:
    """Operations of one step of the paper's schedule."""
    shape = {"rows": BATCH, "length": LENGTH, "predictions": PREDICTIONS}
    return sum(costs.training_flops(preset(name), **shape, recompute=recompute).values())


def work_table() -> list[str]:
    """Parameters, operations, exchanged bytes."""
    rows = [
        f"| {name} | {sum(costs.parameters(preset(name)).values()) / 1e6:,.1f} | {step_flops(name) / 1e15:.2f} | "
        f"{step_flops(name, recompute=True) / step_flops(name):.2f} | {costs.gradient_bytes(preset(name)) / 1e6:,.0f} |"
        for name in NAMES
    ]
    head = "| model | parameters, millions | step, 1e15 FLOP | with recomputation, times | gradients, MB |"
    return [head, "|---|---|---|---|---|", *rows]


def parts_table() -> list[str]:
    """Shares of a step by part."""
    names = ("albert_base", "albert_large", "albert_xxlarge", "bert_large")
    shape = {"rows": 1, "length": LENGTH, "predictions": PREDICTIONS}
    flops = {name: costs.training_flops(preset(name), **shape) for name in names}
    rows = []
    for part in flops["albert_base"]:
        shares = (100 * flops[name][part] / sum(flops[name].values()) for name in names)
        rows.append(f"| {part.replace('_', ' ')} | {' | '.join(f'{share:.2f}' for share in shares)} |")
    return [f"| part, % of a step | {' | '.join(names)} |", "|---|---|---|---|---|", *rows]


def memory_table() -> list[str]:
    """A device's memory by sequences of 512, with and without recomputation."""
    rows = []
    for name in NAMES:
        for dtype in ("float32", "mixed_bfloat16"):
            cells = []
            for recompute in (False, True):
                needs = [_needs(name, rows, dtype, recompute) for rows in (1, 8)]
                each = (needs[1]["activations"] - needs[0]["activations"]) / 7
                cells += [f"{each / GIB:.2f}", f"{needs[1]['total'] / GIB:.1f}"]
                cells.append(str(_largest(name, dtype, recompute, 32 * GIB)))
            rows.append(f"| {name} | {dtype.removeprefix('mixed_')} | {' | '.join(cells)} |")
    head = (
        "| model | precision | activations a sequence, GiB | step of 8, GiB | most in 32 GiB | the same with "
        "recomputation | | |"
    )
    return [head, "|---|---|---|---|---|---|---|---|", *rows]


def _needs(name: str, rows: int, dtype: str, recompute: bool) -> dict[str, int]:
    shape = {"rows": rows, "max_seq_length": LENGTH, "num_predictions": PREDICTIONS}
    return memory.training_bytes(preset(name), **shape, mixed_precision=dtype, recompute=recompute)


def _largest(name: str, dtype: str, recompute: bool, room: int) -> int:
    rows = 0
    while _needs(name, rows + 1, dtype, recompute)["total"] <= room:
        rows += 1
    return rows


def devices_table(flop_rate: float, bandwidth: float) -> list[str]:
    """Step time and length of the paper's schedule by number of devices."""
    rows = []
    for name in ("albert_base", "albert_large", "albert_xxlarge", "bert_large"):
        for devices in (1, 8, 64, 512):
            step = costs.step_time(
                device_flops=step_flops(name) / devices,
                flop_rate=flop_rate,
                exchanged_bytes=costs.gradient_bytes(preset(name)),
                devices=devices,
                bandwidth=bandwidth,
            )
            hours = STEPS * step.total / 3600
            rows.append(
                f"| {name} | {devices} | {step.compute:.2f} | {step.exchange:.3f} | "
                f"{100 * step.exchange / step.total:.1f} | {hours:,.0f} |"
            )
    head = "| model | devices | computing, s | exchange, s | exchange, % | 125,000 steps, hours |"
    return [head, "|---|---|---|---|---|---|", *rows]


def speed_table() -> list[str]:
    """The paper's speeds beside operations alone, and with one constant for what is paid by the parameter."""
    flops = {name: step_flops(name) / step_flops("bert_large") for name in NAMES}
    size = {name: costs.gradient_bytes(preset(name)) / costs.gradient_bytes(preset("bert_large")) for name in NAMES}
    by_parameter = parameter_cost()
    rows = [
        f"| {name} | {PAPER_SPEED[name]}x | {1 / flops[name]:.2f}x | "
        f"{(1 + by_parameter) / (flops[name] + by_parameter * size[name]):.2f}x |"
        for name in NAMES
    ]
    head = "| model | paper | by operations | operations and parameters |"
    return [head, "|---|---|---|---|", *rows]


def parameter_cost() -> float:
    """What BERT-large pays for its parameters, as a share of its computing, if ALBERT-large is 1.7 times as fast."""
    speed = PAPER_SPEED["albert_large"]
    flops = step_flops("albert_large") / step_flops("bert_large")
    size = costs.gradient_bytes(preset("albert_large")) / costs.gradient_bytes(preset("bert_large"))
    return (speed * flops - 1) / (1 - speed * size)


def renew(path: pathlib.Path, tables: dict[str, list[str]]) -> None:
    """Replaces what stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    text = path.read_text()
    for name, lines in tables.items():
        pattern = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"{path} has no marks for the table {name!r}: add <!-- {name}: begin --> and end")
        text = pattern.sub(lambda found, lines=lines: found[1] + "\n".join(lines) + "\n" + found[2], text)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=pathlib.Path, help="document whose marked tables to renew")
    parser.add_argument("--measure", action="store_true", help="run 1, 2 and 4 processes here, and compare")
    parser.add_argument("--flop_rate", type=float, default=50e12, help="operations a second that a device reaches")
    parser.add_argument("--bandwidth", type=float, default=12.5e9, help="bytes a second between devices")
    arguments = parser.parse_args()
    tables = {
        "work": work_table(),
        "parts": parts_table(),
        "memory": memory_table(),
        "devices": devices_table(arguments.flop_rate, arguments.bandwidth),
        "speed": speed_table(),
    }
    if arguments.measure:
        from benchmarks.scale_measured import measured_table

        tables["measured"] = measured_table()
    for name, lines in tables.items():
        print(f"\n## {name}\n", *lines, sep="\n")
    if arguments.write:
        renew(arguments.write, tables)


if __name__ == "__main__":
    main()
