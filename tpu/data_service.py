"""`albert_tf data_service`: one dispatcher or worker of a tf.data service, for `albert_tf pretrain --data_service`."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from albert_tf.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

_HEARTBEAT_MS = 2_000  # a worker tells the dispatcher that it lives
_WORKER_TIMEOUT_MS = 20_000  # silence after which the dispatcher gives a worker up
_JOB_TIMEOUT_MS = 120_000  # silence after which the work for a trainer ends


def define_flags(flag_values: flags.FlagValues) -> None:
    """The flags."""
    flags.DEFINE_enum(
        "role",
        None,
        ["dispatcher", "worker"],
        "dispatcher: one for all trainers, hands out the work; worker: as many as wanted, read and mask records",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "port", 0, "port to listen on; 0: a free one, which is printed", 0, 65535, flag_values=flag_values
    )
    flags.DEFINE_string(
        "host", "localhost", "name or address under which the others reach this machine", flag_values=flag_values
    )
    flags.DEFINE_string("dispatcher", None, "grpc://host:port of the dispatcher (worker)", flag_values=flag_values)
    flags.DEFINE_integer(
        "wait_seconds",
        600,
        "how long a worker waits for a dispatcher that is not there yet",
        1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "work_dir",
        None,
        "folder where the dispatcher keeps its state, so that it may be stopped and started again (dispatcher)",
        flag_values=flag_values,
    )
    flags.mark_flag_as_required("role", flag_values)


def run(options: flags.FlagValues) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Raises UserError for flags that do not go together, a port that is taken, and a dispatcher that never comes.
    """
    is_worker = options.role == "worker"
    if is_worker != (options.dispatcher is not None):
        found = "none" if is_worker else repr(options.dispatcher)
        raise UserError(f"--role={options.role}, but --dispatcher is {found}: a worker has one, a dispatcher none")
    if is_worker and options.work_dir is not None:
        raise UserError("--work_dir is for --role=dispatcher: a worker keeps no state; leave it out")

    if is_worker:
        _wait_for_dispatcher(options.dispatcher, options.wait_seconds)
    server = _start(options)
    with _stop_signals() as stopped:
        address = f"grpc://{options.host}:{_port(server)}"
        print(f"{options.role} at {address}", flush=True)
        stopped.wait()
        print(f"{options.role} at {address} stopped", flush=True)


def _wait_for_dispatcher(address: str, seconds: int) -> None:
    """Raises UserError where nothing listens at the address for so long; TensorFlow would wait without an end."""
    from albert_tf.pretraining.served_dataset import check_service, service_place

    service_place(address)
    end = time.monotonic() + seconds
    while True:
        try:
            return check_service(address)
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def _start(
    options: flags.FlagValues,
) -> "tf.data.experimental.service.DispatchServer | tf.data.experimental.service.WorkerServer":
    import tensorflow as tf

    service = tf.data.experimental.service
    try:
        if options.role == "dispatcher":
            return service.DispatchServer(
                service.DispatcherConfig(
                    port=options.port,
                    work_dir=options.work_dir,
                    fault_tolerant_mode=options.work_dir is not None,
                    worker_timeout_ms=_WORKER_TIMEOUT_MS,
                    job_gc_check_interval_ms=_JOB_TIMEOUT_MS // 4,
                    job_gc_timeout_ms=_JOB_TIMEOUT_MS,
                )
            )
        return service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=options.dispatcher.removeprefix("grpc://"),
                worker_address=f"{options.host}:%port%",
                port=options.port,
                heartbeat_interval_ms=_HEARTBEAT_MS,
            )
        )
    except (tf.errors.OpError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"the {options.role} cannot start ({reason}): check --port, --dispatcher and the network"
        ) from error


def _port(server: "tf.data.experimental.service.DispatchServer | tf.data.experimental.service.WorkerServer") -> int:
    return int(server._address.rpartition(":")[2])  # its public name exists for dispatchers only


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Gives an event that SIGTERM and Ctrl-C set."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
