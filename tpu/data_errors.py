"""Records that turn out to be damaged, or are gone, while a run reads them."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pretraining import record_source

# What the input pipeline says where records are missing, for training and for an evaluation.
_TOO_FEW = re.compile(r"a file of records holds fewer than records\.json says|expected to contain \d+ elements")
# What it says of a record, and TensorFlow's parser of one that is no example or lacks a feature.
_OF_RECORDS = re.compile(
    r"a record[^\n]{0,80} records\.json says[^\n\]]{0,80}|Could not parse example input"
    r"|(Key|Feature): \w+[^\n]{0,60}(Data types don't match|Can't parse|is required|Number of \w+ values)"
)


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
    except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
        if _TOO_FEW.search(error.message):
            print("reading stopped (fewer records than records.json says); looking for the files", file=sys.stderr)
            shortages = filter(None, map(record_source.locate_shortage, sources))
            raise next(shortages, _unfit("fewer records than records.json says", sources)) from error
        found = _OF_RECORDS.search(error.message)
        if found is None:
            raise
        raise _unfit(found[0], sources) from error
    except UnicodeDecodeError as error:  # TensorFlow quotes the record
        raise _unfit("a record is no tf.train.Example", sources) from error


def _unfit(what: str, sources: tuple[record_source.RecordSource, ...]) -> UserError:
    folders = ", ".join(dict.fromkeys(os.path.dirname(path) for source in sources for path in source.paths))
    return UserError(f"{what} (records in {folders}): copy or make the records again, all of them, and run again")
