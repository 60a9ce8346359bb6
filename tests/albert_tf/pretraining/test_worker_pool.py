import os
import signal
import sys
import time

import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining.worker_pool import ordered_map


def prepare(kind):
    """The work of a worker, made in it."""

    def work(item):
        if kind == "uneven":
            time.sleep(0.02 * (item % 3 == 0))
        elif kind == "modules":
            return sorted({"tensorflow", "tf_keras"} & set(sys.modules))
        elif kind == "die" and item == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "exit" and item == 5:
            os._exit(7)
        elif kind == "user error" and item == 5:
            raise UserError("the fifth is wrong")
        elif kind == "bug" and item == 5:
            raise ZeroDivisionError("in the fifth")
        return item * item

    if kind == "die early":
        os.kill(os.getpid(), signal.SIGKILL)
    return work


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_order(num_workers):
    assert list(ordered_map(prepare, ("uneven",), range(40), num_workers)) == [i * i for i in range(40)]


def test_little_is_read_ahead():
    taken = []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    results = ordered_map(prepare, ("plain",), items(), 2)
    for _ in range(10):
        next(results)
    assert len(taken) <= 10 + 2 * 2 + 2
    results.close()


def test_few_items():
    assert list(ordered_map(prepare, ("plain",), [], 2)) == []
    assert list(ordered_map(prepare, ("plain",), [3], 3)) == [9]


def test_workers_do_without_tensorflow():
    assert list(ordered_map(prepare, ("modules",), [0, 0], 2)) == [[], []]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("die", UserError, r"worker \d \(process \d+\) died: killed by signal 9 \(Killed\)"),
        ("die early", UserError, "died: killed by signal 9"),
        ("exit", UserError, "died: exit code 7"),
        ("user error", UserError, "^the fifth is wrong$"),
        ("bug", RuntimeError, "(?s)worker . failed:.*in work.*ZeroDivisionError: in the fifth"),
    ],
)
def test_failures_are_told(kind, error, words):
    large = ("x" * 1_000_000,)  # larger than a pipe, so that a death meets a parent that is still writing
    with pytest.raises(error, match=words):
        list(ordered_map(prepare_with, (kind, *large), range(20), 2))


def prepare_with(kind, large):
    return prepare(kind)
