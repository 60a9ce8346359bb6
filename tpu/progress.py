"""What a run tells while it goes: lines on standard error, metrics.jsonl, TensorBoard."""

import json
import pathlib
import sys
import time
from typing import Any

import tensorflow as tf

from albert_tf import files

METRICS_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Times the steps of a run and reports them."""

    def __init__(self, folder: pathlib.Path, *, start: int, total: int, tokens_per_step: int) -> None:
        self._start, self._total, self._tokens_per_step = start, total, tokens_per_step
        self._lines = MetricsLog(folder / METRICS_FILE, start)
        self._writers = {
            name: tf.summary.create_file_writer(str(folder / TENSORBOARD / name)) for name in ("training", "evaluation")
        }
        self._clock, self._clock_step = time.perf_counter(), start
        self._steps_per_second: float | None = None

    def steps_until_next_line(self, step: int) -> int:
        """As many steps as fit between two lines of progress; one at first, so that a line appears early."""
        if self._steps_per_second is None:
            return 1
        return max(1, int(self._steps_per_second * _SECONDS_BETWEEN_LINES))

    def restart_clock(self, step: int) -> None:
        """Leaves out what happened since the last line (an evaluation, a save) from the speed."""
        self._clock, self._clock_step = time.perf_counter(), step

    def training(self, step: int, metrics: dict[str, float], seconds_waiting: float | None) -> None:
        """Reports the steps since the last line."""
        seconds = max(time.perf_counter() - self._clock, 1e-9)
        steps = step - self._clock_step
        speed = steps / seconds
        if self._steps_per_second is not None or steps > 1:
            self._steps_per_second = speed
        elif step > self._start:
            self._steps_per_second = speed  # of one step, with the tracing in it: an underestimate, soon replaced
        waiting = {} if seconds_waiting is None else {"input_waiting_share": seconds_waiting / seconds}
        values = {
            **metrics,
            "steps_per_second": speed,
            "tokens_per_second": speed * self._tokens_per_step,
            **waiting,
        }
        left = (self._total - step) / speed
        parts = [f"step {step}/{self._total}", *_shown(metrics), f"{speed:.3g} steps/s"]
        parts += [f"{values['tokens_per_second']:,.0f} tokens/s"]
        parts += [f"input {waiting['input_waiting_share']:.1%}"] if waiting else []
        print(" | ".join([*parts, f"{_clock_time(left)} left"]), file=sys.stderr, flush=True)
        self._write("training", step, values)
        self.restart_clock(step)

    def evaluation(self, step: int, metrics: dict[str, float], name: str) -> None:
        """Reports an evaluation on the data called `name`."""
        print(f"step {step}: evaluation on {name}: " + " | ".join(_shown(metrics)), file=sys.stderr, flush=True)
        self._write("evaluation", step, metrics, data=name)
        self.restart_clock(step)

    def close(self) -> None:
        self._lines.close()
        for writer in self._writers.values():
            writer.close()

    def _write(self, kind: str, step: int, values: dict[str, float], **more: Any) -> None:
        self._lines.write({"kind": kind, "step": step, **more, **values})
        with self._writers[kind].as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
        self._writers[kind].flush()


class MetricsLog:
    """metrics.jsonl: one JSON object a line, each with its step; a resumed run drops the lines behind its start."""

    def __init__(self, path: pathlib.Path, step: int) -> None:
        kept = [line for line in read_metrics(path) if line.get("step", 0) <= step]
        files.write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = open(path, "a", encoding="utf-8")

    def write(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that a kill cut short is left out."""
    lines = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return lines


_SHORT = {
    "loss": "loss {:.4f}",
    "masked_lm_loss": "masked LM {:.4f}",
    "masked_lm_accuracy": "accuracy {:.4f}",
    "masked_lm_baseline_accuracy": "commonest piece {:.4f}",
    "sentence_order_loss": "sentence order {:.4f}",
    "sentence_order_accuracy": "accuracy {:.4f}",
    "sentence_order_error": "± {:.4f}",
    "learning_rate": "rate {:.3g}",
    "gradient_norm": "gradient norm {:.3g}",
}


def _shown(metrics: dict[str, float]) -> list[str]:
    return [text.format(metrics[name]) for name, text in _SHORT.items() if name in metrics]


def _clock_time(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
