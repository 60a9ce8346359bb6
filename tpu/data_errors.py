"""Records that turn out to be damaged, or are gone, while a run reads them."""

import contextlib
import sys
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import record_source


@contextlib.contextmanager
def named_by_file(*sources: record_source.RecordSource) -> Iterator[None]:
    """Words a failed read as a UserError with file and byte offset, which TensorFlow's own error does not name."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
        reason = error.message.splitlines()[0]
        print(f"reading stopped ({reason}); looking for the damaged file", file=sys.stderr)
        paths = dict.fromkeys(path for source in sources for path in source.paths)
        found = record_source.locate_corruption(list(paths))
        raise found or UserError(f"the records could not be read: {reason}; check the disk and run again") from error
    except tf.errors.InvalidArgumentError as error:
        if "records.json says" not in error.message:
            raise
        reason = error.message.splitlines()[0]
        raise UserError(f"{reason}: copy the records again, all of them, and run again") from error
