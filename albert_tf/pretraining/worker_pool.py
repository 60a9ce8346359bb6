"""Results of many processes in the order of their items, with little held in memory and every death named."""

import collections
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from albert_tf.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items in work or done, but not yet due, for each worker


def ordered_map(
    prepare: Callable[..., Callable[[Item], Result]], arguments: tuple, items: Iterable[Item], num_workers: int
) -> Iterator[Result]:
    """Yields work(item) for each item in order, where work = prepare(*arguments) is made once in each process.

    The processes are new ones (spawned): they import what `prepare` needs and nothing else. One worker is this process.

    Raises UserError where a worker dies or the work raises one; any other failure of the work is a RuntimeError with
    the worker's traceback.
    """
    if num_workers == 1:
        yield from map(prepare(*arguments), items)
        return
    workers: list[_Worker] = []
    finished = False
    try:
        for number in range(num_workers):
            workers.append(_Worker(number))
        for worker in workers:
            worker.send((prepare, arguments))
        yield from _in_order(workers, enumerate(items))
        finished = True
    finally:
        for worker in workers:
            worker.stop(at_once=not finished)


def _in_order(workers: list["_Worker"], items: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    idle, busy = collections.deque(workers), {}
    done: dict[int, Any] = {}
    due = 0  # number of the next result to hand out
    item = next(items, None)

    def may_send() -> bool:
        return item is not None and bool(idle) and item[0] < due + _AHEAD * len(workers)

    while True:
        while may_send():
            worker = idle.popleft()
            worker.send(item[1])
            busy[worker.connection] = worker, item[0]
            item = next(items, None)  # read ahead while the workers work
        while due in done:
            yield done.pop(due)
            due += 1
        if may_send():
            continue
        if not busy:
            return
        for connection in wait(list(busy)):
            worker, number = busy.pop(connection)
            done[number] = worker.receive()
            idle.append(worker)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, number: int):
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.connection, theirs = context.Pipe()
        # Nothing large goes with the start: a process that dies while it reads that leaves its parent waiting for ever.
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # Ctrl-C reaches the whole group; the parent decides. A blocked signal stays blocked in the new process, from
        # its first moment on. (The tracker is started before, since its start unblocks.)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()  # so that the pipe ends with the process

    def send(self, item: Any) -> None:
        """Hands over an item; the worker is waiting for it, so that neither side blocks the other."""
        try:
            self.connection.send(item)
        except OSError:
            self.receive()  # says what went wrong before
            raise

    def receive(self) -> Any:
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(self._obituary()) from error
        if kind == "result":
            return value
        if kind == "user error":
            raise UserError(value)
        raise RuntimeError(f"worker {self.number} failed:\n{value}")

    def stop(self, *, at_once: bool) -> None:
        self.connection.close()  # a waiting worker takes this as the end
        if at_once:
            self.process.terminate()
        self.process.join()

    def _obituary(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        how = f"killed by signal {-code} ({signal.strsignal(-code)})" if code and code < 0 else f"exit code {code}"
        hint = "memory often runs out so; use fewer workers" if code == -signal.SIGKILL else "run the command again"
        return f"worker {self.number} (process {self.process.pid}) died: {how}; nothing was written; {hint}"


def _serve(connection: Connection) -> None:
    """A worker's life: until the pipe ends, which it also does when the parent dies."""
    try:
        prepare, arguments = connection.recv()
        work = prepare(*arguments)
        while True:
            connection.send(("result", work(connection.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except UserError as error:
        answer = ("user error", str(error))
    except Exception:
        answer = ("failure", traceback.format_exc())
    try:
        connection.send(answer)
    except OSError:
        return
