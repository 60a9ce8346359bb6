"""The lines that say how far the creation of records has come."""

import io
import types

from albert_tf.pretraining import progress


def test_share_rate_and_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    corpus = types.SimpleNamespace(bytes_read=0, num_bytes=4_000_000, num_chars=0)
    log = io.StringIO()
    shown = progress.Progress(corpus, log)
    for seconds, read in ((1, 100_000), (3, 1_000_000), (5, 1_200_000), (14, 3_000_000)):
        now[0], corpus.bytes_read, corpus.num_chars = 100.0 + seconds, read, read
        shown.show(read // 1000)
    shown.show(3000, final=True)
    assert log.getvalue().splitlines() == [  # none before two seconds, then one in ten
        "1.0 million characters (25%), 1000 records, 0.33 million/s, 3s, 9s left",
        "3.0 million characters (75%), 3000 records, 0.21 million/s, 14s, 5s left",
        "3.0 million characters (75%), 3000 records, 0.21 million/s, 14s",
    ]
