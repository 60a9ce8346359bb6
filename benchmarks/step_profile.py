"""Where the time of a step goes: products, attention, LayerNorm, GELU, optimiser, heads, and the limit beside it.

    python -m benchmarks.step_profile --write=docs/results/profile.md

TensorFlow's profiler times every operation. Operations run one after another for it (one inter-op thread, all
cores within an operation), so that their times add up to the step; the usual step, where small ones overlap, is
timed in a process of its own. Nothing else may run meanwhile.
"""

import argparse
import collections
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from albert_tf import files

COMMAND = "python -m benchmarks.step_profile --write=docs/results/profile.md"
STEPS, WARM_UPS = 5, 3
CASES = [(kind, precision) for kind in ("train", "infer") for precision in ("float32", "bfloat16")]
# The first pattern that "name:operation" has decides. Names are those of layers and name scopes; the gradient of an
# operation carries its name.
PARTS = {
    "products with weights": r":_?(Mkl)?(Native)?(Fused)?MatMul$",
    "LayerNorm": r"layer_norm",
    "GELU": r"Gelu|:Xla\w+$",  # its derivative in one loop
    "attention between tokens": r"attention",
    "optimiser, clipping": r"Adam|adam|L2Loss|global_norm|clip|optimi[sz]er|AssignSub",
    "heads and losses": r"masked_lm|sentence_order|SoftmaxCrossEntropy|CrossEntropy|ArgMax",
    "residuals, dropout, sums of shared gradients": r":AddN$|:AddV2$",
    "reading and casting weights": r"ReadVariable|Cast|concat|Slice",
}
REST = "the rest"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What one process measured, in milliseconds a step."""

    usual: float
    in_order: float
    parts: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=pathlib.Path, help="where to write the page")
    parser.add_argument("--one", help="used by the program itself: KIND,PRECISION,ordered|usual")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(*options.one.split(","))))
        return
    profiles = {}
    for kind, precision in CASES:
        print(f"{kind}, {precision}", file=sys.stderr, flush=True)
        usual, ordered = (_in_process(kind, precision, order) for order in ("usual", "ordered"))
        profiles[kind, precision] = Profile(usual["step"], ordered["step"], ordered["parts"])
    limits = {precision: _in_process("products", precision, "usual") for precision in ("float32", "bfloat16")}
    page = document(profiles, limits)
    print(page)
    if options.write:
        files.write_atomically(options.write, page)


def _in_process(kind: str, precision: str, order: str) -> dict:
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    if order == "ordered":
        environment["TF_NUM_INTEROP_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step_profile", f"--one={kind},{precision},{order}"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _measure(kind: str, precision: str, order: str) -> dict:
    from benchmarks.peers import work
    from benchmarks.peers.contract import STEP
    from benchmarks.peers.systems import ours, products

    if kind == "products":
        cases = {name: work.Case(kind=name, precision=precision, batch=8, length=128) for name in ("train", "infer")}
        return {name: _seconds(products.prepare(case, "")[STEP].run) * 1e3 for name, case in cases.items()}
    step = ours.prepare(work.Case(kind=kind, precision=precision, batch=8, length=128), "")[STEP].run
    seconds = _seconds(step)
    return {"step": seconds * 1e3, "parts": _profiled(step) if order == "ordered" else {}}


def _seconds(step: Callable[[], float]) -> float:
    times = []
    for _ in range(WARM_UPS + STEPS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times[WARM_UPS:])


def _profiled(step: Callable[[], float]) -> dict[str, float]:
    """Milliseconds a step by part, from a trace of TensorFlow's profiler."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(STEPS):
                step()
        (trace,) = pathlib.Path(folder).glob("**/*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(trace.read_bytes())
    times: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if re.fullmatch(r"[\w/.>-]+:\w+", name):  # an operation of the graph: its name, its kind
                    times[part_of(name)] += event.duration_ps / 1e9 / STEPS
    return dict(times)


def part_of(name: str) -> str:
    """The part that an operation, "scope/name:Kind", belongs to."""
    return next((part for part, pattern in PARTS.items() if re.search(pattern, name)), REST)


def document(profiles: dict[tuple[str, str], Profile], limits: dict[str, dict[str, float]]) -> str:
    """The Markdown page."""
    heads = [f"{kind}, {precision}" for kind, precision in profiles]
    rows = ["| part | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for part in (*PARTS, REST):
        cells = []
        for profile in profiles.values():
            spent = profile.parts.get(part, 0.0)
            cells.append(f"{spent:.0f} ({spent / sum(profile.parts.values()):.0%})")
        rows.append(f"| {part} | " + " | ".join(cells) + " |")
    rows.append("| all operations, one after another | " + _cells(sum(p.parts.values()) for p in profiles.values()))
    rows.append("| step, one operation after another | " + _cells(p.in_order for p in profiles.values()))
    rows.append("| step as it usually runs | " + _cells(p.usual for p in profiles.values()))
    rows.append("| the products of matrices alone | " + _cells(limits[precision][kind] for kind, precision in profiles))
    shares = (limits[precision][kind] / profile.usual for (kind, precision), profile in profiles.items())
    rows.append("| their share of the usual step | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
    return _PAGE.format(table="\n".join(rows), command=COMMAND, tensorflow=importlib.metadata.version("tensorflow"))


def _cells(values) -> str:
    return " | ".join(f"{value:.0f}" for value in values) + " |"


_PAGE = """# Where a step's time goes

albert_base, 8 sequences of 128, 2 CPU cores, TensorFlow {tensorflow}; milliseconds a step, medians of 5, and the share
of all operations. Training is the step of `albert_tf pretrain` (both heads, AdamW, clipping, no dropout), inference the
encoder as a classifier calls it. `{command}` makes this page.

{table}

"Products with weights" includes biases and activations where TensorFlow fuses them with the product (inference).
"Attention between tokens" is scores, softmax, context and the transposes around them. The products of matrices alone
are those of the same step, shape by shape, without anything between them: the limit that a step on this processor can
come to.

## What is left, and why

- Between the products: attention's softmax and transposes, LayerNorm in float32 whatever the policy, and in training
  GELU, whose input the backward pass needs, so that it cannot be fused with its product as in inference. Each is bound
  by memory, not by arithmetic.
- GELU's backward pass takes the forward steps again, for the memory's sake (a step of albert_base at 8 x 128 in float32
  takes a third less). In float32 XLA makes one loop of its steps: 10 ms a layer became 2, and a training step takes
  0.98 times as long at 8 x 128 and at 2 x 512 (medians of steps of both ways in turn). In bfloat16 that gave nothing
  and took memory; there the steps again cost 1.02 times the time. The derivative written out rounds otherwise than the
  reference: the weights of LAMB's third step left it by 3e-5 where the gradient is only rounding (bias of the keys).
- Tried, and not kept as the step took as long: LayerNorm's gradient by hand. In bfloat16 a sigmoid costs more than
  twice the tanh it replaces.
- Kept: the gradient of a bias as a plain sum over the rows takes less than half the time of BiasAddGrad in bfloat16.
- Input: `albert_tf pretrain` waited for it 0.1 % of the time in the runs of [pretraining.md](pretraining.md)
  (`input_waiting_share` in metrics.jsonl).
"""


if __name__ == "__main__":
    main()
