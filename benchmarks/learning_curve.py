"""Draws the curves of one or more pretraining runs that follow each other: `python benchmarks/learning_curve.py
--run=FOLDER [--run=FOLDER ...] --output=curve.png`, from their metrics.jsonl.
"""

import argparse
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tpu.progress import METRICS_FILE, read_metrics


def draw(runs: list[pathlib.Path], output: pathlib.Path) -> None:
    """Masked-LM loss and accuracy, sentence-order accuracy; a run's steps follow those of the one before."""
    figure, (losses, masked, order) = plt.subplots(1, 3, figsize=(14, 4))
    offset = 0
    for number, run in enumerate(runs):
        lines = read_metrics(run / METRICS_FILE)
        training = [line for line in lines if line["kind"] == "training"]
        held_out = [line for line in lines if line["kind"] == "evaluation"]
        for axis, name in (
            (losses, "masked_lm_loss"),
            (masked, "masked_lm_accuracy"),
            (order, "sentence_order_accuracy"),
        ):
            label = (lambda text: text) if number == 0 else lambda text: None
            steps = [offset + line["step"] for line in training if name in line]
            axis.plot(
                steps,
                [line[name] for line in training if name in line],
                color="#9db8d9",
                lw=0.8,
                label=label("training"),
            )
            steps = [offset + line["step"] for line in held_out if name in line]
            values = [line[name] for line in held_out if name in line]
            axis.plot(steps, values, "o-", color="#1f4e8c", ms=3, label=label("held out"))
            if name == "masked_lm_accuracy":
                baseline = held_out[-1]["masked_lm_baseline_accuracy"]
                axis.axhline(baseline, color="grey", ls="--", lw=1, label=label("commonest piece"))
            if name == "sentence_order_accuracy":
                axis.axhline(0.5, color="grey", ls="--", lw=1, label=label("chance"))
        if number:
            for axis in (losses, masked, order):
                axis.axvline(offset, color="black", ls=":", lw=0.8)
        offset += max((line["step"] for line in lines), default=0)
    losses.set(title="masked LM loss (nats)", xlabel="step")
    masked.set(title="masked LM accuracy", xlabel="step")
    order.set(title="sentence-order accuracy", xlabel="step")
    for axis in (losses, masked, order):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=pathlib.Path, action="append", required=True, help="run folder, in order")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="picture to write")
    arguments = parser.parse_args()
    draw(arguments.run, arguments.output)


if __name__ == "__main__":
    main()
