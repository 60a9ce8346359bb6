"""Workers meet over plain sockets before TensorFlow starts: threads stand for processes."""

import concurrent.futures
import contextlib
import socket
import time

import pytest

from albert_tf.errors import UserError
from tpu import meeting
from tpu.cluster import Cluster
from tpu.meeting import meet

LONG = 30.0  # seconds, which no test should use up


@pytest.fixture
def clusters(addresses):
    """clusters(count) -> what each of so many workers reads in TF_CONFIG."""

    def make(count):
        given = tuple(addresses(count))
        return [Cluster(given, index) for index in range(count)]

    return make


@pytest.fixture
def run():
    """run(function, *arguments) -> future, in a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield pool.submit


@contextlib.contextmanager
def program_at(address, answer=b""):
    """Somebody else's program, which says something to everyone who calls, and holds the line."""
    with socket.create_server(("127.0.0.1", int(address.split(":")[1]))) as server:
        server.settimeout(0.05)
        callers = []

        def serve():
            while server.fileno() >= 0:
                with contextlib.suppress(OSError):
                    callers.append(server.accept()[0])
                    callers[-1].sendall(answer)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(serve)
            try:
                yield
            finally:
                server.close()
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_workers_meet_though_they_come_one_after_another(clusters, run, count):
    several = clusters(count)
    coming = []
    for cluster in several:
        assert not any(one.done() for one in coming), "left before all had come"
        coming.append(run(meet, cluster, LONG))
        time.sleep(0.1)
    assert [one.result() for one in coming] == [{}] * count
    for cluster in several:  # the ports are free for TensorFlow
        socket.create_server(("127.0.0.1", cluster.host_and_port(cluster.index)[1])).close()


def test_who_never_comes_is_named_by_each(clusters, run, capfd, monkeypatch):
    monkeypatch.setattr(meeting, "_REPORT", 0.3)
    several = clusters(4)
    start = time.monotonic()
    waiting = [run(meet, cluster, 1.0) for cluster in several[1:3]]
    missing = {several[0].name(0): "Connection refused", several[0].name(3): "Connection refused"}
    assert [one.result() for one in waiting] == [missing] * 2
    assert 1.0 <= time.monotonic() - start < LONG
    said = capfd.readouterr().err
    assert f"seconds for {several[0].name(0)}: Connection refused; {several[0].name(3)}: Connection refused\n" in said


def test_nobody_leaves_before_all_have_seen_it(clusters, run):
    """Worker 1 answers at once, so that worker 0 sees it, but looks for worker 0 only later."""
    first, second = clusters(2)
    seen_by = set()
    with meeting._door(second, seen_by):
        leaving = run(meet, first, LONG)
        deadline = time.monotonic() + LONG
        while 0 not in seen_by and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert seen_by == {0} and not leaving.done()
        assert meeting._ask(second, 0) is None
        assert leaving.result() == {}


def test_one_that_answers_but_does_not_get_through_is_named(clusters):
    first, second = clusters(2)
    with meeting._door(second, set()):
        assert meet(first, 0.5) == {first.name(1): "it answers, but does not reach this worker"}


@pytest.mark.parametrize("answer", [b"SSH-2.0-dropbear\r\n", b"\x00\x00\x12\x04\x00", b""])
def test_another_program_is_no_worker(clusters, monkeypatch, answer):
    monkeypatch.setattr(meeting, "_ANSWER", 0.2)
    first, second = clusters(2)
    with program_at(second.addresses[1], answer):
        why = meet(first, 0.5)[first.name(1)]
    assert why == ("something else answers: another program, or a run that is about to end" if answer else "timed out")


def test_another_list_of_workers_is_no_worker_of_this_run(clusters):
    first, second = clusters(2)
    other = Cluster((*second.addresses, "127.0.0.1:1"), 1)
    for here, there in ((first, other), (other, first)):
        with meeting._door(there, set()):
            why = meet(here, 0.5)[here.name(there.index)]
        assert why == "a worker with another TF_CONFIG answers: its list of workers or its index differs"


def test_a_caller_who_says_nothing_keeps_nobody(clusters, run):
    first, second = clusters(2)
    leaving = run(meet, first, LONG)
    while first.addresses[0] in " ".join(second.unreachable()):
        time.sleep(0.01)
    with socket.create_connection(first.host_and_port(0)), socket.create_connection(first.host_and_port(0)) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        start = time.monotonic()
        assert meet(second, LONG) == leaving.result() == {}
        assert time.monotonic() - start < 5


def test_a_port_that_is_taken_is_told_at_once(clusters):
    first, _ = clusters(2)
    with (
        program_at(first.addresses[0]),
        pytest.raises(UserError, match=r"worker 0 .* its port cannot be opened \(Addr"),
    ):
        meet(first, LONG)
