"""What a run keeps: numbered checkpoints to go on from, and the model folder at its root to use."""

import dataclasses
import pathlib
import sys
from typing import Any

import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.errors import UserError

FOLDER = "checkpoints"


class Saver:
    """Writes and reads the state of a run: variables, optimiser slots, step. The data position follows from the step."""

    def __init__(
        self,
        run_folder: pathlib.Path,
        model: checkpoints.Model,
        optimizer: tf.Module,
        global_step: tf.Variable,
        *,
        keep: int,
        made_by: dict[str, Any],
    ) -> None:
        self._folder, self._model, self._global_step, self._made_by = run_folder, model, global_step, made_by
        # Slots exist before the first step, so that restoring one kind of run into another is noticed.
        self._checkpoint = tf.train.Checkpoint(
            step=global_step, optimizer=optimizer, variables=list(model.named_variables().values())
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(run_folder / FOLDER), max_to_keep=keep, checkpoint_name="ckpt"
        )
        self._saved_step: int | None = None

    def restore(self) -> int:
        """Takes up the newest checkpoint that can be read, with a warning for each that cannot; returns its step.

        Raises UserError where there are checkpoints and none can be read.
        """
        candidates = list(reversed(self._manager.checkpoints))
        for path in candidates:
            try:
                self._checkpoint.restore(path).assert_existing_objects_matched().expect_partial()
                self._saved_step = int(self._global_step.numpy())
                return self._saved_step
            except (tf.errors.OpError, AssertionError, ValueError) as error:
                reason = str(error).splitlines()[0][:160]
                print(f"WARNING: {path} cannot be read ({reason}); trying the one before", file=sys.stderr)
        if candidates:
            raise UserError(
                f"none of the {len(candidates)} checkpoints in {self._folder / FOLDER} can be read: the disk or the copy "
                "is damaged; start again in another --output_dir, with --init_checkpoint of the model folder if it loads"
            )
        return 0

    def save(self) -> None:
        """Saves the present step, once: the checkpoint first, then the model folder.

        Raises UserError where the disk does not take it; what was saved before stays whole.
        """
        step = int(self._global_step.numpy())
        if step == self._saved_step:
            return
        try:
            self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise UserError(
                f"cannot save step {step} to {self._folder / FOLDER} ({str(error).splitlines()[0][:160]}): the checkpoints "
                "before it are whole; free the disk and run the same command to go on"
            ) from error
        info = dataclasses.replace(self._model.info, made_by={**self._made_by, "step": step})
        checkpoints.save_model(self._folder, dataclasses.replace(self._model, info=info), step=step)
        self._saved_step = step
