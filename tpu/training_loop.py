"""The loop of a pretraining run: steps, progress, saving, evaluation, and a stop of all workers on a signal."""

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import orbit

from albert_tf.errors import UserError
from albert_tf.pretraining import objective
from tpu.cluster import Workers
from tpu.evaluation import PretrainingEvaluator
from tpu.progress import Progress, Silence
from tpu.saving import Saver
from tpu.trainer import PretrainingTrainer
from tpu.watchdog import Watchdog

WAITING, TRAINING = "waiting for a batch of training records", "computing training steps"
WAITING_TO_EVALUATE, EVALUATING = "waiting for a batch of records to evaluate on", "evaluating"


@dataclasses.dataclass
class TrainingLoop:
    """Trains up to `num_train_steps`. Every worker runs it alike; what only the chief knows, it tells the others.

    tf.distribute's PreemptionCheckpointHandler is not used: it restores by itself, without a way past a damaged
    checkpoint, and asks Google's metadata server at each start. One exchange a loop does the same.
    """

    trainer: PretrainingTrainer
    evaluator: PretrainingEvaluator
    evaluation_name: str  # of its data
    evaluation_records: str  # their fingerprint
    saver: Saver
    progress: Progress | Silence
    workers: Workers
    watchdog: Watchdog
    output_dir: str
    num_train_steps: int
    save_checkpoints_steps: int
    eval_every_steps: int
    iterations_per_loop: int | None
    _received: list[int] = dataclasses.field(default_factory=list, init=False)  # signals

    def run(self) -> dict[str, float]:
        """Returns the last evaluation. Raises UserError when the loss stops being finite, SystemExit on a signal."""
        with _stop_signals() as self._received, open(os.devnull, "w") as quiet:
            controller = orbit.Controller(
                global_step=self.trainer.global_step,
                trainer=self.trainer,
                strategy=self.trainer.strategy,
                steps_per_loop=self._steps_per_loop,
                train_actions=[self._after_loop],
            )
            step, total = self._step(), self.num_train_steps
            due = step % self.eval_every_steps == 0 or step == total
            metrics = self._evaluate(step) if due else {}  # a resumed run may have been stopped before it got there
            while step < total:
                step = min(total, (step // self.eval_every_steps + 1) * self.eval_every_steps)
                with contextlib.redirect_stdout(quiet):  # orbit prints a line a loop; ours says more
                    controller.train(steps=step)
                metrics = self._evaluate(step)
            self.workers.meet()  # none leaves before the chief has written everything
            return metrics

    def _steps_per_loop(self, step: int) -> int:
        until_save = self.save_checkpoints_steps - step % self.save_checkpoints_steps
        if self.iterations_per_loop:
            return min(until_save, self.iterations_per_loop)
        return min(until_save, int(self.workers.exchange(self.progress.steps_until_next_line())[0, 0]))

    def _after_loop(self, output: dict[str, Any]) -> None:
        step = self._step()
        self.watchdog.note(TRAINING)
        _check_finite(output, self.output_dir)
        self.progress.training(step, _training_metrics(self.trainer, output), output["seconds_waiting"])
        if step % self.save_checkpoints_steps == 0 or step == self.num_train_steps:
            self._save()
            self.progress.restart_clock(step)
        if number := self._stop_wanted():
            self._stop(step, number)

    def _evaluate(self, step: int) -> dict[str, float]:
        known = self.progress.evaluated(step, self.evaluation_name, self.evaluation_records)
        if self.workers.exchange(known is not None)[0, 0]:  # the chief knows for all
            return known or {}
        self.watchdog.note(EVALUATING)
        metrics = self.evaluator.evaluate(self._stop_wanted)
        if number := self._stop_wanted():
            self._stop(step, number)
        self.progress.evaluation(step, metrics, self.evaluation_name, self.evaluation_records)
        self.watchdog.note(TRAINING)
        return metrics

    def _stop_wanted(self) -> int:
        """The number of a signal that any of the workers has received, or 0."""
        return int(self.workers.exchange(*(self._received or [0])[:1]).max())

    def _stop(self, step: int, number: int) -> None:
        self._save()
        self.workers.meet()
        print(f"stopped by signal {number} at step {step}, saved; the same command goes on", file=sys.stderr)
        raise SystemExit(128 + number)

    def _save(self) -> None:
        self.watchdog.note("saving")
        self.saver.save()
        self.watchdog.note(TRAINING)

    def _step(self) -> int:
        return int(self.trainer.global_step.numpy())


def _training_metrics(trainer: PretrainingTrainer, output: dict[str, Any]) -> dict[str, float]:
    metrics = objective.metrics(output["sums"], sentence="sentence_order" in trainer.model.heads)
    metrics["learning_rate"] = output["learning_rate"]
    if output["gradient_norm"] is not None:
        metrics["gradient_norm"] = output["gradient_norm"]
    if output["skipped_steps"]:
        metrics["skipped_steps"] = output["skipped_steps"]
    return metrics


def _check_finite(output: dict[str, Any], folder: str) -> None:
    if output["first_bad_step"] is not None:
        raise UserError(
            f"the loss or its gradient is not finite at step {output['first_bad_step']}: the run stops, and {folder} "
            "keeps the last good checkpoint; lower --learning_rate or lengthen the warm-up, and look at the gradient "
            "norms in metrics.jsonl"
        )


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects SIGTERM (a scheduler's notice), so that the loop can save before it ends."""
    received: list[int] = []
    before: Callable | int | None = None
    with contextlib.suppress(ValueError):  # not in the main thread: leave signals alone
        before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
