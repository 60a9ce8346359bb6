"""What a run keeps: numbered checkpoints to go on from, and the model folder at its root to use."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from albert_tf import checkpoints
from albert_tf.errors import UserError

FOLDER = "checkpoints"
# What TensorFlow raises at damaged checkpoints; a truncated file gives an IndexError, a foreign one an AssertionError.
_UNREADABLE = (tf.errors.OpError, AssertionError, IndexError, RuntimeError, ValueError)


class Saver:
    """Writes and reads the state of a run: variables, optimiser slots, step. The data position follows from the step.

    Make it within the strategy's scope: it creates the optimiser's slots. Without a run folder (a worker that is not
    the chief) it reads and writes nothing; `state` is what such a worker takes from the chief. io_device: that of the
    file system with the folder, where variables lie elsewhere (a remote TPU).
    """

    def __init__(
        self,
        run_folder: pathlib.Path | None,
        model: checkpoints.Model,
        optimizer: tf_keras.optimizers.legacy.Optimizer,
        global_step: tf.Variable,
        *,
        keep: int,
        made_by: dict[str, Any],
        io_device: str | None = None,
    ) -> None:
        self._folder, self._model, self._global_step, self._made_by = run_folder, model, global_step, dict(made_by)
        self._variables = list(model.named_variables().values())
        # Slots exist before a restore, so that a checkpoint without some of them is noticed.
        optimizer._create_all_weights(self._variables)
        self._checkpoint = tf.train.Checkpoint(step=global_step, optimizer=optimizer, variables=self._variables)
        # Else the chief's restore would make it: but a variable is made by all workers together.
        _ = self._checkpoint.save_counter
        self.state = _variables_of(self._checkpoint, optimizer)
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._saved_step: int | None = None
        if run_folder is not None:
            self._manager = make_manager(self._checkpoint, run_folder / FOLDER, keep=keep)

    def restore(self) -> int | None:
        """Takes up the newest checkpoint that can be read, with a warning for each that cannot.

        Returns its step, or None where nothing was saved yet. Raises UserError where nothing that was can be read.
        """
        if self._folder is None:
            return None
        if not restore_newest(self._checkpoint, self._manager, self._options):
            return None
        self._saved_step = self.step
        self.note_untrained(self._model_folder_made_by().get("new", ()))
        self._save_model_folder()
        return self._saved_step

    def note_untrained(self, names: Sequence[str]) -> None:
        """Takes down variables that came without values and are not trained: model.json names them from then on."""
        if names:
            self._made_by["new"] = list(names)

    def save(self) -> None:
        """Saves the present step, once: the checkpoint first, then the model folder.

        Raises UserError where a weight is not finite or the disk does not take it; what was saved before stays whole.
        """
        step = self.step
        if self._folder is None or step == self._saved_step:
            return
        check_finite(self._variables, step, self._folder)
        try:
            self._manager.save(checkpoint_number=step, options=self._options)
        except (tf.errors.OpError, OSError) as error:
            raise UserError(
                f"cannot save step {step} to {self._folder / FOLDER} ({str(error).splitlines()[0][:160]}): the "
                "checkpoints before it are whole; free the disk and run the same command to go on"
            ) from error
        self._saved_step = step
        self._save_model_folder()

    def _save_model_folder(self) -> None:
        """Brings the model folder to the saved step; a killed run may have left it one checkpoint behind."""
        if self._model_folder_made_by().get("step") == self._saved_step:
            return
        info = dataclasses.replace(self._model.info, made_by={**self._made_by, "step": self._saved_step})
        checkpoints.save_model(self._folder, dataclasses.replace(self._model, info=info), step=self._saved_step)

    def _model_folder_made_by(self) -> dict[str, Any]:
        try:
            return checkpoints.read_info(self._folder)[0].made_by
        except UserError:  # none yet, or damaged: it is written anew
            return {}

    @property
    def step(self) -> int:
        """The present step of the run."""
        return int(self._global_step.numpy())


def check_finite(variables: Sequence[tf.Variable], step: int, folder: pathlib.Path) -> None:
    """Raises UserError where a weight is not a finite number: such weights would take the place of good ones."""
    if not all(bool(tf.reduce_all(tf.math.is_finite(variable))) for variable in variables):
        raise UserError(
            f"weights are not finite after step {step}: the run stops and {folder} keeps what was saved before; lower "
            "--learning_rate or lengthen the warm-up"
        )


def make_manager(checkpoint: tf.train.Checkpoint, folder: pathlib.Path, *, keep: int) -> tf.train.CheckpointManager:
    """A manager of checkpoints ckpt-STEP; a list of them that is damaged is dropped, as the files tell the same."""
    try:
        return tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=keep, checkpoint_name="ckpt")
    except ValueError:  # not text, or not a list
        names = folder / "checkpoint"
        print(f"WARNING: the list {names} is damaged: looking for the checkpoints themselves", file=sys.stderr)
        names.unlink()
        return tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=keep, checkpoint_name="ckpt")


def restore_newest(
    checkpoint: tf.train.Checkpoint,
    manager: tf.train.CheckpointManager,
    options: tf.train.CheckpointOptions | None = None,
) -> bool:
    """Takes up the newest checkpoint that can be read, with a warning for each that cannot; False where there is none.

    Raises UserError where there are some, and none of them can be read.
    """
    # Where the manager's list is lost, the files themselves tell: else the run would begin anew in silence.
    candidates = list(reversed(manager.checkpoints)) or _found_in(pathlib.Path(manager.directory))
    for path in candidates:
        try:
            checkpoint.restore(path, options).assert_existing_objects_matched().expect_partial()
            return True
        except _UNREADABLE as error:
            reason = str(error).splitlines()[0][:160]
            print(f"WARNING: {path} cannot be read ({reason}); trying the one before", file=sys.stderr)
    if candidates:
        raise UserError(
            f"none of the {len(candidates)} checkpoints in {manager.directory} can be read: the disk or the copy is "
            "damaged; start again in another --output_dir"
        )
    return False


def _found_in(folder: pathlib.Path) -> list[str]:
    """The checkpoints ckpt-STEP in a folder, the newest first."""
    steps = [path.stem.removeprefix("ckpt-") for path in folder.glob("ckpt-*.index")]
    return [str(folder / f"ckpt-{step}") for step in sorted(map(int, filter(str.isdigit, steps)), reverse=True)]


def _variables_of(
    checkpoint: tf.train.Checkpoint, optimizer: tf_keras.optimizers.legacy.Optimizer
) -> list[tf.Variable]:
    """All that a checkpoint holds, in the same order in every worker; slots are not among a checkpoint's children."""
    children = [child for child in tf.train.TrackableView(checkpoint).descendants() if isinstance(child, tf.Variable)]
    return list({id(variable): variable for variable in [*children, *optimizer.variables()]}.values())
