"""Records folders at an address, gs://bucket/folder and the like, which TensorFlow reads and Python does not.

A remote TPU reads its records from there. The shards stay where they are; description and tokeniser are fetched.
"""

import atexit
import os
import pathlib
import tempfile
from collections.abc import Callable

from albert_tf.errors import UserError
from albert_tf.pretraining.records import DESCRIPTION

_FETCHED = (DESCRIPTION, "spiece.model", "spiece.vocab", "vocab.txt", "tokenizer_config.json")


def is_address(path: str | os.PathLike) -> bool:
    """Whether that is no path of this machine's file system."""
    return "://" in os.fspath(path)


def with_small_files(records_dir: str | os.PathLike) -> pathlib.Path:
    """A folder with description and tokeniser of the records: theirs, or a copy that is gone when the process ends.

    Raises UserError where there is no description at an address, or it cannot be read.
    """
    if not is_address(records_dir):
        return pathlib.Path(records_dir)
    import tensorflow as tf

    address = os.fspath(records_dir)
    folder = tempfile.TemporaryDirectory(prefix="albert_tf-")
    atexit.register(folder.cleanup)
    try:
        for name in _FETCHED:
            source = f"{address.rstrip('/')}/{name}"
            if tf.io.gfile.exists(source):
                tf.io.gfile.copy(source, os.path.join(folder.name, name))
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {address}: {error.message}; check the address and the rights") from error
    if not os.path.exists(os.path.join(folder.name, DESCRIPTION)):
        raise UserError(f"no records at {address}: expected {DESCRIPTION} there; copy the whole records folder")
    return pathlib.Path(folder.name)


def size_function(address: str) -> Callable[[str], int | None]:
    """Gives the function name -> bytes of that file at `address`, None where there is none."""
    import tensorflow as tf

    def size_of(name: str) -> int | None:
        try:
            return int(tf.io.gfile.stat(f"{address.rstrip('/')}/{name}").length)
        except tf.errors.NotFoundError:
            return None

    return size_of


def has_folder(address: str, name: str) -> bool:
    """Whether there is a records folder of that name at `address`."""
    import tensorflow as tf

    return tf.io.gfile.exists(f"{address.rstrip('/')}/{name}/{DESCRIPTION}")
