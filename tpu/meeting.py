"""How the workers of a run find each other, over plain sockets, before TensorFlow's own cluster starts.

TensorFlow waits for a worker that does not come without letting any other thread of Python run, and without telling
whom it waits for. So each worker first answers at its own address until it has seen all the others and all the others
have seen it. Then it closes the port, which TensorFlow opens again.
"""

import contextlib
import hashlib
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator

from albert_tf.errors import UserError
from tpu.cluster import Cluster

_ROUND = 0.1  # seconds between two rounds of asking
_ANSWER = 2.0  # seconds in which a living worker takes a connection and answers
_PATIENCE = 10.0  # seconds that an open door waits for a caller's next words
_REPORT = 10.0  # seconds between two lines on who is missing
_SEEN = b"seen\n"


def meet(cluster: Cluster, seconds: float) -> dict[str, str]:
    """Waits until all workers have met, for some seconds at most.

    Returns those that did not come, name -> how they are missed; empty once all have met. Raises UserError where this
    worker's own port cannot be opened.
    """
    others = [index for index in range(len(cluster.addresses)) if index != cluster.index]
    unseen, seen_by = dict.fromkeys(others, "not asked yet"), set()
    start = reported = time.monotonic()
    with _door(cluster, seen_by):
        while True:
            for index in list(unseen):
                unseen[index] = _ask(cluster, index)
            unseen = {index: why for index, why in unseen.items() if why}
            blind = {index: "it answers, but does not reach this worker" for index in others if index not in seen_by}
            missing = {cluster.name(index): why for index, why in sorted({**blind, **unseen}.items())}
            now = time.monotonic()
            if not missing or now - start > seconds:
                return missing
            if now - reported > _REPORT:
                reported = now
                who = "; ".join(f"{name}: {why}" for name, why in missing.items())
                print(f"still waiting after {now - start:.0f} seconds for {who}", file=sys.stderr, flush=True)
            time.sleep(_ROUND)


def _ask(cluster: Cluster, index: int) -> str | None:
    """Why that worker is not seen; where it is, it is told so, and None comes back."""
    try:
        with socket.create_connection(cluster.host_and_port(index), timeout=_ANSWER) as connection:
            connection.sendall(_hello(cluster, cluster.index))
            answer = connection.recv(200)
            if answer == _hello(cluster, index):
                connection.sendall(_SEEN)
                return None
    except OSError as error:
        return error.strerror or str(error)
    if answer.startswith(b"albert_tf "):
        return "a worker with another TF_CONFIG answers: its list of workers or its index differs"
    return "something else answers: another program, or a run that is about to end"


@contextlib.contextmanager
def _door(cluster: Cluster, seen_by: set[int]) -> Iterator[None]:
    """Answers at this worker's port as long as it is open, and notes who has seen this worker."""

    class Caller(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.settimeout(_PATIENCE)
                hello = self.request.recv(200)
                self.request.sendall(_hello(cluster, cluster.index))
                caller = re.fullmatch(rb"albert_tf worker (\d+) of \w+\n", hello)
                if caller and hello == _hello(cluster, int(caller[1])) and self.request.recv(200) == _SEEN:
                    seen_by.add(int(caller[1]))

    try:
        door = _Door(("", cluster.host_and_port(cluster.index)[1]), Caller)
    except OSError as error:
        raise UserError(
            f"{cluster.name(cluster.index)} cannot join the cluster of TF_CONFIG, as its port cannot be opened "
            f"({error.strerror}): end what else uses it, or give this worker another address"
        ) from error
    with door:
        thread = threading.Thread(target=door.serve_forever, args=(_ROUND,), name="door", daemon=True)
        thread.start()
        try:
            yield
        finally:
            door.shutdown()
            thread.join()


class _Door(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    allow_reuse_address = True  # where the last run has just left the port
    daemon_threads = True  # a caller who says nothing keeps nobody
    request_queue_size = 128

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, *_: object) -> None:
        """A caller who breaks off is no matter."""


def _hello(cluster: Cluster, index: int) -> bytes:
    """What worker `index` of this cluster says of itself."""
    return f"albert_tf worker {index} of {hashlib.sha256(repr(cluster.addresses).encode()).hexdigest()[:16]}\n".encode()
