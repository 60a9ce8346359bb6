"""The watch that ends a run in which nothing goes on."""

import time

import pytest

from tpu.watchdog import Watchdog


def wait_for(said):
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    return list(said)


def test_it_tells_what_went_on_last():
    said = []
    with Watchdog(0.2, "stuck while {}".format, doing="starting", end=said.append) as watchdog:
        watchdog.note("reading")
        assert wait_for(said) == ["stuck while reading"]


@pytest.mark.parametrize("seconds", [0.3, 0])
def test_it_is_quiet_while_something_goes_on_and_after(seconds):
    said = []
    with Watchdog(seconds, str, doing="starting", end=said.append) as watchdog:
        for _ in range(8):
            time.sleep(0.1)
            watchdog.note("training")
    time.sleep(0.5)
    assert not said


def test_watched_batches_are_the_same_and_note_waiting_and_working():
    seen = []
    watchdog = Watchdog(0, str, doing="starting")

    def batches():
        for number in range(2):
            seen.append(watchdog._doing)
            yield number

    watched = watchdog.watched([0, 1], waiting="waiting", working="working")
    for _ in range(2):  # as often as asked
        assert [(number, watchdog._doing) for number in watched] == [(0, "working"), (1, "working")]
    list(watchdog.watched(batches(), waiting="waiting", working="working"))
    assert seen == ["waiting", "waiting"]

    def broken():
        raise ValueError("damaged")
        yield

    with pytest.raises(ValueError, match="damaged"):
        next(iter(watchdog.watched(broken(), waiting="waiting", working="working")))
