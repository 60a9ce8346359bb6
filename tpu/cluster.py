"""The workers of one run: who they are, what they tell each other, and what the others do when one is gone."""

import contextlib
import dataclasses
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError

TRY_AGAIN = 75  # exit code; EX_TEMPFAIL of sysexits.h: nothing is wrong with the command, start all workers again
_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_PROBE = 2.0  # seconds in which a living worker takes a connection
_LAST_WORDS = 3.0  # seconds in which the others can hear from the coordinator what this worker has heard
# What collectives raise when a worker is gone; which one depends on what they were doing.
_LOST = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError),
    *(tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError, tf.errors.InternalError),
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses (host:port) of a run's workers, and which of them this process is."""

    addresses: tuple[str, ...]
    index: int

    def name(self, index: int) -> str:
        """What a worker is called in messages."""
        chief = ", the chief" if index == 0 else ""
        return f"worker {index} ({self.addresses[index]}{chief})"

    def host_and_port(self, index: int) -> tuple[str, int]:
        """Where a worker is reached; the brackets of IPv6 are taken off."""
        host, port = self.addresses[index].rsplit(":", 1)
        return host.strip("[]"), int(port)

    def unreachable(self) -> list[str]:
        """Names of the other workers whose address takes no connection."""
        others = [index for index in range(len(self.addresses)) if index != self.index]
        return [self.name(index) for index in others if not _answers(self.host_and_port(index))]


def read_tf_config() -> Cluster:
    """The cluster that TF_CONFIG describes. Raises UserError where it is missing or describes none."""
    text = os.environ.get("TF_CONFIG")
    if text is None:
        raise UserError(f"distribution is multi_worker, but TF_CONFIG is not set: expected the like of {_EXAMPLE}")
    try:
        config = json.loads(text)
        addresses, index = tuple(config["cluster"]["worker"]), int(config["task"]["index"])
        known = config["task"]["type"] == "worker" and set(config["cluster"]) == {"worker"}
        known &= 0 <= index < len(addresses) == len(set(addresses))
        known &= all(re.fullmatch(r".+:\d{1,5}", address) for address in addresses)
        known = known and all(0 < int(address.rsplit(":", 1)[1]) < 2**16 for address in addresses)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UserError(f"TF_CONFIG is {text!r}: expected the like of {_EXAMPLE}, each address once")
    return Cluster(addresses, index)


def end_process(message: str, *, seconds: float = 0.0) -> None:
    """Ends this process with a line and, after some seconds, TRY_AGAIN, whatever hangs in it."""
    print(f"albert_tf: {message}", file=sys.stderr, flush=True)
    time.sleep(seconds)
    os._exit(TRY_AGAIN)


class Workers:
    """The processes that train together under a strategy. One process alone is its own chief."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.cluster = read_tf_config() if several else Cluster(("",), 0)
        self.count, self.is_chief = len(self.cluster.addresses), self.cluster.index == 0
        self._strategy = strategy
        self._replicas = strategy.num_replicas_in_sync // self.count  # of one worker
        self._all_sums = tf.function(self._replicated_sums, autograph=False)

    def exchange(self, *values: int) -> np.ndarray:
        """What every worker gave, int64 [workers, values]; all must call it at the same point of the run."""
        table = np.zeros([self.count, len(values)], np.int64)
        table[self.cluster.index] = values
        return self._sums([table])[0]

    def meet(self) -> None:
        """Waits until every worker has come here."""
        self.exchange(0)

    def take_from_chief(self, variables: Sequence[tf.Variable]) -> None:
        """Gives the variables the values that they have in the chief, the only one that reads the run folder."""
        if self.count == 1:
            return
        mine = [variable.numpy() for variable in variables]
        values = self._sums(mine if self.is_chief else [np.zeros_like(value) for value in mine])
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def check_same(self, fingerprint: str) -> None:
        """Raises UserError in every worker where one was started with other settings or data than the chief.

        fingerprint: hexadecimal digits, of which the first twelve are compared.
        """
        found = self.exchange(int(fingerprint[:12], 16))[:, 0]
        if others := [self.cluster.name(index) for index in np.flatnonzero(found != found[0])]:
            raise UserError(
                f"{', '.join(others)} has other flags or records than {self.cluster.name(0)}: expected the same "
                "command on the same data for every worker; compare them"
            )

    @contextlib.contextmanager
    def losing_none(self) -> Iterator[None]:
        """Within it, the loss of a worker ends this one within seconds, with a line that names the lost one.

        Nothing can go on without it, and TensorFlow cannot take it up again: all have to be started again.
        """
        try:
            yield
        except _LOST as error:
            lost = self._lost(error)
            if not lost:
                raise
            end_process(
                f"{', '.join(lost)} is gone: killed, stopped by an error that its own log tells, or cut off; start all "
                f"{self.count} workers again with the same command, and the run goes on from its last checkpoint",
                seconds=_LAST_WORDS,
            )

    def _lost(self, error: tf.errors.OpError) -> list[str]:
        """Who does not answer; where all do (frozen ones still take connections), whom TensorFlow blames."""
        if self.count == 1:
            return []
        if gone := self.cluster.unreachable():
            return gone
        named = re.findall(r"/job:worker/(?:replica:0/)?task:(\d+)", error.message)
        return [self.cluster.name(task) for task in dict.fromkeys(map(int, named)) if task != self.cluster.index]

    def _sums(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sums over the workers."""
        if self.count == 1:
            return list(values)
        per_replica = self._all_sums([tf.constant(value) for value in values])
        return [self._strategy.experimental_local_results(value)[0].numpy() for value in per_replica]

    def _replicated_sums(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        def sums() -> list[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            counts = context.replica_id_in_sync_group % self._replicas == 0  # one replica speaks for its worker
            mine = [tf.where(counts, value, tf.zeros_like(value)) for value in values]
            return [context.all_reduce(tf.distribute.ReduceOp.SUM, value) for value in mine]  # of several types

        return self._strategy.run(sums)


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=_PROBE):
            return True
    except OSError:
        return False
