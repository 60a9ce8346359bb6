"""What happens between the steps of `Model.fit`: evaluations, the best model, checkpoints to go on from, metrics."""

import contextlib
import dataclasses
import math
import pathlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

import albert_tf
from albert_tf import checkpoints, files, optimization
from albert_tf.errors import UserError
from tasks.evaluation import Predictor, shown
from tasks.features import Features
from tasks.task import Task
from tasks.task_model import TaskModel
from tpu import saving
from tpu.progress import METRICS_FILE, TENSORBOARD, MetricsLog, read_metrics, writing_metrics

RESULTS_FILE = "results.json"
_CHECK_FINITE_EVERY = 10  # steps; reading the loss waits for the device


class EvaluationSet(NamedTuple):
    """Labelled data that is evaluated during a run."""

    name: str
    path: str
    examples: Sequence[Any]
    features: Features


class TrainingLoop(tf_keras.callbacks.Callback):
    """Evaluates every so many steps, keeps the best model at the root of the run folder, stops where it must.

    At every evaluation, in this order: metrics.jsonl, the model folder where it is the best so far, the checkpoint. A
    run that is killed in between does the rest again, with the same outcome.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        task: Task,
        model: checkpoints.Model,
        trained: TaskModel,
        predictor: Predictor,
        evaluation: Sequence[EvaluationSet],
        num_train_steps: int,
        eval_every_steps: int,
        early_stop_patience: int | None = None,
    ) -> None:
        super().__init__()
        self._folder, self._task, self._model, self._trained = folder, task, model, trained
        self._predictor, self._evaluation = predictor, evaluation
        self._num_train_steps, self._eval_every_steps = num_train_steps, eval_every_steps
        self._patience = early_stop_patience
        self._variables = list(model.named_variables().values())
        self._checkpoint = tf.train.Checkpoint(
            step=trained.global_step, optimizer=trained.optimizer, variables=self._variables
        )
        self._manager = saving.make_manager(self._checkpoint, folder / saving.FOLDER, keep=2)
        self._history: list[dict[str, Any]] = []  # lines of metrics.jsonl, one an evaluation after the start

    # ---- before and after -------------------------------------------------------------------------------------------

    def restore(self) -> int:
        """Takes up the run's newest checkpoint that can be read, where there is one; returns the step.

        Raises UserError where the evaluation of the model that is kept is lost: any other would pass for a better one.
        """
        if saving.restore_newest(self._checkpoint, self._manager):
            print(f"going on from step {self._step()}", file=sys.stderr)
        with writing_metrics(self._folder), contextlib.closing(MetricsLog(self._folder / METRICS_FILE, self._step())):
            pass  # drops the lines behind the checkpoint
        lines = read_metrics(self._folder / METRICS_FILE)
        lines = [line for line in lines if line.get("step") and line.get("kind") == "evaluation"]
        self._history = [_with_undefined(line) for line in lines]
        kept = self._kept_step()
        if kept <= self._step() and kept not in {0, *(line["step"] for line in self._history)}:
            raise UserError(
                f"{self._folder / METRICS_FILE} lacks the evaluation of step {kept}, whose model is kept: put the file "
                "back, or start again in another --output_dir"
            )
        return self._step()

    def _kept_step(self) -> int:
        """The step of the model at the root of the run folder; 0 where there is none."""
        try:
            return int(checkpoints.read_info(self._folder)[0].made_by.get("step", 0))
        except (UserError, TypeError, ValueError):  # none yet, or damaged: the next best one takes its place
            return 0

    @property
    def stopped_early(self) -> bool:
        """Whether the last `early_stop_patience` evaluations brought nothing better."""
        if self._patience is None or not self._evaluation or not self._history:
            return False
        return len(self._history) - 1 - self._history.index(self._best()) >= self._patience

    @contextlib.contextmanager
    def running(self) -> Iterator["TrainingLoop"]:
        """What `fit` needs around it: open files, and SIGTERM (a machine is taken away) as a wish to stop."""
        self._started_at = self._loss_since = self._step()
        self._clock = time.perf_counter()
        self._signals: list[int] = []
        with writing_metrics(self._folder):
            self._log = MetricsLog(self._folder / METRICS_FILE, self._step())
            self._writer = tf.summary.create_file_writer(str(self._folder / TENSORBOARD))
        before: Any = None
        with contextlib.suppress(ValueError):  # not in the main thread: leave signals alone
            before = signal.signal(signal.SIGTERM, lambda number, _: self._signals.append(number))
        try:
            yield self
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
            with writing_metrics(self._folder):
                self._log.close()
                self._writer.close()

    def finish(self) -> dict[str, Any]:
        """Writes RESULTS_FILE (the best evaluation; no score without development data) and returns its content.

        Raises UserError where `fit` came back before the last step, which it does in silence where data seem to end.
        """
        if self._step() < self._num_train_steps and not self.stopped_early:
            raise UserError(
                f"training ended at step {self._step()} of {self._num_train_steps}, with no more data: what was saved "
                "before is whole; run the same command to go on"
            )
        best = self._best() if self._evaluation else {}
        results = {
            "task": self._task.name,
            "primary": self._task.primary,
            "greater_is_better": self._task.greater_is_better,
            "score": best.get("score"),
            "best_step": best.get("step", self._step()),
            "last_step": self._step(),
            "metrics": best.get("metrics", {}),
            "degenerate": best.get("degenerate"),
        }
        files.write_json(self._folder / RESULTS_FILE, results)
        return results

    # ---- within fit -------------------------------------------------------------------------------------------------

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._step() == 0 and self._evaluation:
            self._write("evaluation", self._evaluate()[0])  # what the weights are worth before training

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        step = self._started_at + batch + 1
        last = step == self._num_train_steps
        due = last or step % self._eval_every_steps == 0
        if due or (batch + 1) % _CHECK_FINITE_EVERY == 0:
            self._check_finite(step, float(logs["loss"]))
        if due:
            saving.check_finite(self._variables, step, self._folder)
            self._report_training(step, float(logs["loss"]))
            self._keep(*self._evaluate())
            self._save(step)
            self._trained.reset_metrics()
            self._loss_since, self._clock = step, time.perf_counter()
            self._trained.stop_training = self.stopped_early
            if self.stopped_early and not last:
                print(f"stopped early at step {step}: {self._patience} evaluations without a better", file=sys.stderr)
        if self._signals and not last:
            self._check_finite(step, float(logs["loss"]))
            saving.check_finite(self._variables, step, self._folder)
            self._save(step)
            print(f"stopped by a signal at step {step}, saved; the same command goes on", file=sys.stderr)
            raise SystemExit(128 + self._signals[0])

    def _evaluate(self) -> tuple[dict[str, Any], Task]:
        """A line of metrics.jsonl, and the task with what was tuned on the first of the evaluation sets."""
        line: dict[str, Any] = {"step": self._step(), "score": None, "metrics": {}, "degenerate": None}
        task = self._task
        for number, data in enumerate(self._evaluation):
            predictions = self._predictor.predictions(data.features, data.examples)
            if number == 0:
                task = task.calibrated(predictions, data.examples)
            metrics = task.metrics(predictions, data.examples)
            line["metrics"][data.name] = metrics
            if number == 0:
                line["score"], line["degenerate"] = metrics[task.primary], task.degenerate(predictions, data.examples)
            print(f"\nstep {line['step']}: {data.name}: {shown(metrics)}", file=sys.stderr, flush=True)
        return line, task

    def _keep(self, line: dict[str, Any], task: Task) -> None:
        """Takes an evaluation down, and the model if it is the best so far (without evaluation sets: the newest)."""
        self._write("evaluation", line)
        self._history.append(line)
        if self._best() is line:
            made_by = {
                "command": "finetune",
                "step": line["step"],
                "metrics": line["metrics"],
                "new": list(self._model.restored.new),  # never trained: what a later load reports as such
                "albert_tf": albert_tf.__version__,
                "tensorflow": tf.__version__,
            }
            info = dataclasses.replace(self._model.info, made_by=made_by, **task.describe())
            checkpoints.save_model(self._folder, dataclasses.replace(self._model, info=info), step=line["step"])

    def _best(self) -> dict[str, Any]:
        """The first of the best lines. Undefined scores are the worst of all; where there are no others, the newest."""
        if not self._evaluation:
            return self._history[-1]
        sign = 1 if self._task.greater_is_better else -1

        def rank(line: dict[str, Any]) -> tuple[float, int]:
            score = line["score"]
            return (-math.inf, line["step"]) if score is None or math.isnan(score) else (sign * score, 0)

        return max(self._history, key=rank)

    def _check_finite(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is {loss} between steps {self._loss_since} and {step}: training has diverged; what was "
                "saved before is whole. Try a lower --learning_rate or more --num_warmup_steps in another --output_dir"
            )

    def _report_training(self, step: int, loss: float) -> None:
        seconds = time.perf_counter() - self._clock
        speed = (step - self._loss_since) / max(seconds, 1e-9)
        rate = float(optimization.current_learning_rate(self._trained.optimizer))
        self._write("training", {"step": step, "loss": loss, "learning_rate": rate, "steps_per_second": speed})
        left = (self._num_train_steps - step) / speed
        print(
            f"\nstep {step}/{self._num_train_steps}: loss {loss:.4f} | rate {rate:.3g} | {speed:.3g} steps/s | about "
            f"{left / 60:.1f} minutes left",
            file=sys.stderr,
            flush=True,
        )

    def _write(self, kind: str, line: dict[str, Any]) -> None:
        values = {name: value for name, value in line.items() if isinstance(value, float)}
        for data, metrics in line.get("metrics", {}).items():
            values.update({f"{data}/{name}": value for name, value in metrics.items()})
        # Model.fit takes OutOfRangeError, which TensorBoard's writer raises on a full disk, for the end of the data.
        with writing_metrics(self._folder), self._writer.as_default():
            self._log.write({"kind": kind, **line})
            for name, value in values.items():
                tf.summary.scalar(name, value, step=line["step"])

    def _save(self, step: int) -> None:
        try:
            self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise UserError(
                f"cannot save step {step} to {self._folder}/checkpoints ({str(error).splitlines()[0][:160]}); free the "
                "disk and run the same command to go on"
            ) from error

    def _step(self) -> int:
        return int(self._trained.global_step.numpy())


def _with_undefined(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl with NaN, which JSON does not know, where a metric was not defined."""

    def number(value: float | None) -> float:
        return math.nan if value is None else value

    metrics = {data: {name: number(value) for name, value in one.items()} for data, one in line["metrics"].items()}
    return {**line, "metrics": metrics, "score": number(line["score"]) if metrics else None}
