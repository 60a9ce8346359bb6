"""How far a command that reads a corpus has come, in a line every few seconds."""

import time
from typing import TextIO

from albert_tf.pretraining.corpus import Corpus

_FIRST_SECONDS, _EVERY_SECONDS = 2.0, 10.0


class Progress:
    """Prints the share of the corpus that is read, the rate and the time left."""

    def __init__(self, corpus: Corpus, log: TextIO):
        self._corpus, self._log = corpus, log
        self._start = time.monotonic()
        self._next = self._start + _FIRST_SECONDS

    def show(self, records: int, *, final: bool = False) -> None:
        """Prints a line if one is due."""
        now = time.monotonic()
        if now < self._next and not final:
            return
        self._next = now + _EVERY_SECONDS
        seconds = max(now - self._start, 1e-9)
        corpus = self._corpus
        share = min(1.0, corpus.bytes_read / corpus.num_bytes) if corpus.num_bytes else 1.0
        millions = corpus.num_chars / 1e6  # not megabytes: a Chinese character has three bytes
        line = f"{millions:.1f} million characters ({share:.0%}), {records} records, "
        line += f"{millions / seconds:.2f} million/s, {_duration(seconds)}"
        if not final and share:
            line += f", {_duration(seconds / share - seconds)} left"
        print(line, file=self._log, flush=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"
