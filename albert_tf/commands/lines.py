"""Text that commands take line by line."""

import os
from collections.abc import Iterator

from albert_tf.errors import UserError

_MARK = b"\xef\xbb\xbf"  # UTF-8's byte-order mark


def read_lines(path: str | os.PathLike) -> Iterator[str]:
    """Lines as an editor counts them, one after the other: ended by LF or CRLF, empty ones included.

    Raises UserError where the file cannot be read, or a line is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(_MARK if number == 1 else b"").removesuffix(b"\n").removesuffix(b"\r")
                yield line.decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path and its rights") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} line {number} is not UTF-8 text ({error.reason}); convert the file") from error
