"""A watch over a run: where nothing goes on for too long, the process ends and says what it was waiting for.

A read from a dead disk, or a collective that another worker never joins, blocks within TensorFlow for ever: no signal
and no exception reaches Python there, and a scheduler sees a healthy process. So a thread ends the process.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tpu.cluster import end_process


class Watchdog(contextlib.AbstractContextManager):
    """Ends the process when nothing was noted for `seconds`; 0 never does.

    explain: (what went on last) -> the line to end with.
    """

    def __init__(
        self, seconds: float, explain: Callable[[str], str], *, doing: str, end: Callable[[str], None] = end_process
    ) -> None:
        self._seconds, self._explain, self._end = seconds, explain, end
        self._doing, self._since = doing, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._since = time.monotonic()
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()

    def note(self, doing: str) -> None:
        """Something has ended well, and this goes on now."""
        self._doing, self._since = doing, time.monotonic()

    def watched(self, batches: Iterable[Any], *, waiting: str, working: str) -> "Watched":
        """The same batches; it is noted when the wait for one begins, and when the work on it does."""
        return Watched(batches, lambda: self.note(waiting), lambda: self.note(working))

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 4)):
            if time.monotonic() - self._since > self._seconds:
                self._end(self._explain(self._doing))
                return


class Watched:
    """Batches that tell when they are waited for and when they have come."""

    def __init__(self, batches: Iterable[Any], before: Callable[[], None], after: Callable[[], None]) -> None:
        self._batches, self._before, self._after = batches, before, after

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)
        while True:
            self._before()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._after()
            yield batch
