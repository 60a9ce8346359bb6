"""What a run tells while it goes: lines on standard error, metrics.jsonl, TensorBoard."""

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError

METRICS_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
_SECONDS_BETWEEN_LINES = 10.0
_SPIKE = 1.0  # nats from one line to the next


class Progress:
    """Times the steps of a run and reports them."""

    def __init__(self, folder: pathlib.Path, *, start: int, total: int, tokens_per_step: int) -> None:
        self._folder, self._total, self._tokens_per_step = folder, total, tokens_per_step
        with writing_metrics(folder):
            self._lines = MetricsLog(folder / METRICS_FILE, start)
            self._writers = {
                name: tf.summary.create_file_writer(str(folder / TENSORBOARD / name))
                for name in ("training", "evaluation")
            }
        self._clock, self._clock_step = time.perf_counter(), start
        self._steps_per_second: float | None = None
        self._loss: float | None = None

    def steps_until_next_line(self) -> int:
        """As many steps as fit between two lines of progress; one at first, so that a line appears early."""
        if self._steps_per_second is None:
            return 1
        return max(1, int(self._steps_per_second * _SECONDS_BETWEEN_LINES))

    def evaluated(self, step: int, name: str, records: str) -> dict[str, Any] | None:
        """What an earlier start of the run took down of an evaluation at this step, on the same data (`evaluation`)."""
        return self._lines.find(kind="evaluation", step=step, data=name, records=records)

    def restart_clock(self, step: int) -> None:
        """Leaves out what happened since the last line (an evaluation, a save) from the speed."""
        self._clock, self._clock_step = time.perf_counter(), step

    def training(self, step: int, metrics: dict[str, float], seconds_waiting: float | None) -> None:
        """Reports the steps since the last line."""
        seconds = max(time.perf_counter() - self._clock, 1e-9)
        speed = (step - self._clock_step) / seconds
        first = self._steps_per_second is None  # one step, with the tracing of the graph in it: says little of speed
        self._steps_per_second = speed
        waiting = {} if seconds_waiting is None else {"input_waiting_share": seconds_waiting / seconds}
        values = {
            **metrics,
            "steps_per_second": speed,
            "tokens_per_second": speed * self._tokens_per_step,
            **waiting,
        }
        parts = [f"step {step}/{self._total}", *_shown(metrics), f"{speed:.3g} steps/s"]
        parts += [f"{values['tokens_per_second']:,.0f} tokens/s"]
        parts += [f"input {waiting['input_waiting_share']:.1%}"] if waiting else []
        parts += ["(starting)" if first else f"{_clock_time((self._total - step) / speed)} left"]
        print(" | ".join(parts), file=sys.stderr, flush=True)
        self._warn_of_spike(step, metrics["loss"])
        self._write("training", step, values)
        self.restart_clock(step)

    def _warn_of_spike(self, step: int, loss: float) -> None:
        if self._loss is not None and loss > self._loss + _SPIKE:
            print(
                f"WARNING: the loss rose from {self._loss:.4f} to {loss:.4f} between steps {self._clock_step} and "
                f"{step}; if it stays high, begin another run with a lower --learning_rate and "
                f"--init_checkpoint={self._folder}/checkpoints/ckpt-STEP of a step before",
                file=sys.stderr,
            )
        self._loss = loss

    def evaluation(self, step: int, metrics: dict[str, float], name: str, records: str) -> None:
        """Reports an evaluation on the data called `name`; records: their fingerprint."""
        print(f"step {step}: evaluation on {name}: " + " | ".join(_shown(metrics)), file=sys.stderr, flush=True)
        self._write("evaluation", step, metrics, data=name, records=records)
        self.restart_clock(step)

    def close(self) -> None:
        """Ends the files. Raises UserError where the disk does not take them."""
        with writing_metrics(self._folder):
            self._lines.close()
            for writer in self._writers.values():
                writer.close()

    def _write(self, kind: str, step: int, values: dict[str, float], **more: Any) -> None:
        with writing_metrics(self._folder), self._writers[kind].as_default():
            self._lines.write({"kind": kind, "step": step, **more, **values})
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)
            self._writers[kind].flush()


class Silence:
    """Stands for Progress in the workers that are not the chief: tells and writes nothing."""

    def steps_until_next_line(self) -> int:
        return 1

    def evaluated(self, step: int, name: str, records: str) -> None:
        return None

    def restart_clock(self, step: int) -> None:
        pass

    def training(self, step: int, metrics: dict[str, float], seconds_waiting: float | None) -> None:
        pass

    def evaluation(self, step: int, metrics: dict[str, float], name: str, records: str) -> None:
        pass

    def close(self) -> None:
        pass


class MetricsLog:
    """metrics.jsonl: one JSON object a line, each with its step; a resumed run drops the lines behind its start."""

    def __init__(self, path: pathlib.Path, step: int) -> None:
        self._kept = [line for line in read_metrics(path) if line.get("step", 0) <= step]
        files.write_atomically(path, "".join(files.json_text(line) + "\n" for line in self._kept))
        self._file = open(path, "a", encoding="utf-8")

    def find(self, **values: Any) -> dict[str, Any] | None:
        """The last line with these values that was there when the file was opened."""
        return next((line for line in reversed(self._kept) if values.items() <= line.items()), None)

    def write(self, values: dict[str, Any]) -> None:
        """Adds a line, at once."""
        self._file.write(files.json_text(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that a kill cut short is left out."""
    lines = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                lines += [line] if isinstance(line, dict) else []
    return lines


@contextlib.contextmanager
def writing_metrics(folder: pathlib.Path) -> Iterator[None]:
    """Words a write that fails as a UserError: metrics.jsonl as well as TensorBoard's files, whatever they raise."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0][:160]
        raise UserError(
            f"cannot write the metrics to {folder} ({reason}): what was saved before is whole; free the disk and run "
            "the same command to go on"
        ) from error


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
    "skipped_steps": "{} skipped",
}


def _shown(metrics: dict[str, float]) -> list[str]:
    return [text.format(metrics[name]) for name, text in _SHORT.items() if name in metrics]


def _clock_time(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
