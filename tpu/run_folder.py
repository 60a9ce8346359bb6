"""A run's output folder: whose it is, and that only one run uses it at a time."""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
from typing import Any

import tensorflow as tf

import albert_tf
from albert_tf import files
from albert_tf.errors import UserError

RUN_FILE = "run.json"
_LOCK = ".lock"


class RunFolder:
    """Opens an output folder for one run: a new one, or the same run again. Of several workers only the chief does.

    `settings` are what a resumed run must have in common with its beginning; `adjustable` may differ each time.
    Raises UserError where the folder holds something else, another run, is in use, or has a name that cannot be used.
    """

    def __init__(
        self, path: str | os.PathLike, *, command: str, settings: dict[str, Any], adjustable: dict[str, Any]
    ) -> None:
        self.path = pathlib.Path(path)
        self._existed = self.path.exists()
        self._refuse_foreign()
        self._lock = self._locked()
        self.resumed = (self.path / RUN_FILE).is_file()
        versions = {"albert_tf": albert_tf.__version__, "tensorflow": tf.__version__}
        record = {"command": command, "settings": settings, "adjustable": adjustable, "versions": versions}
        try:
            if self.resumed:
                self._check_same_run(command, settings)
            files.write_json(self.path / RUN_FILE, record)
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        """Gives the folder free, as the end of the process also does; where a run never began, nothing is left."""
        if (
            not self.resumed
            and self.path.is_dir()
            and {entry.name for entry in self.path.iterdir()} <= {RUN_FILE, _LOCK}
        ):
            for name in (RUN_FILE, _LOCK):
                (self.path / name).unlink(missing_ok=True)
            if not self._existed:
                self.path.rmdir()
        self._lock.close()

    def _refuse_foreign(self) -> None:
        if files.is_hard_to_open(self.path):
            raise UserError(
                f"{self.path} has one of * ? [ ] \\ in its name, or bytes that are not UTF-8: TensorFlow would not "
                "find its checkpoints there again; give another --output_dir"
            )
        if not self.path.is_dir() or (self.path / RUN_FILE).is_file():
            return
        found = sorted(entry.name for entry in self.path.iterdir() if entry.name != _LOCK)
        if not all(name.startswith(".partial-") for name in found):
            raise UserError(
                f"{self.path} holds {', '.join(found[:3])} but no {RUN_FILE}: it is not a run of this command; "
                "give a new --output_dir"
            )

    def _locked(self):
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / _LOCK, "a+")  # held open as long as the run lives; the kernel frees it at its death
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; give another --output_dir") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read(200).strip() or "an unknown process"
            lock.close()
            raise UserError(
                f"{self.path} is in use by another run ({holder}): wait for it or give another --output_dir"
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the name
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return lock

    def _check_same_run(self, command: str, settings: dict[str, Any]) -> None:
        before = files.read_json(self.path / RUN_FILE, "run description")
        if before.get("command") != command:
            raise UserError(
                f"{self.path} holds a run of {before.get('command')!r}, not of {command!r}; give another --output_dir"
            )
        now = json.loads(json.dumps(settings))  # as it will be read back
        then = before.get("settings")
        if not isinstance(then, dict):
            raise UserError(f"{self.path / RUN_FILE} is damaged: found settings {then!r}; give another --output_dir")
        then, now = _single_values(then), _single_values(now)
        changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if changed:
            first = changed[0]
            rest = f" (and {', '.join(changed[1:])})" if changed[1:] else ""
            raise UserError(
                f"{self.path} holds a run with {first} {then.get(first)!r}, now it is {now.get(first)!r}{rest}: to go "
                "on, give what it began with; for another run, give another --output_dir"
            )


def _single_values(settings: dict[str, Any]) -> dict[str, Any]:
    """{"model": {"hidden_size": 4}} -> {"model.hidden_size": 4}, so that what differs has a name of its own."""
    groups = {name: value if isinstance(value, dict) else {"": value} for name, value in settings.items()}
    return {f"{name}.{key}".rstrip("."): value for name, group in groups.items() for key, value in group.items()}
