"""Where a run computes: from the flags to a tf.distribute strategy, with clear lines and early refusals."""

import os
import signal
import socket
import sys
from collections.abc import Callable

import tensorflow as tf

from albert_tf.errors import UserError
from tpu.cluster import end_process, read_tf_config
from tpu.meeting import meet

DISTRIBUTIONS = ("auto", "cpu", "gpu", "mirrored", "multi_worker", "tpu")
CLUSTER_TIMEOUT = 600  # seconds that workers wait for each other at the start
LOCAL_TPU = "local"
_TPU_ANSWERS = 10.0  # seconds


class OneDevice(tf.distribute.OneDeviceStrategy):
    """One device, which reads a data set as it is.

    TensorFlow's own strategy puts an iterator between that prefetches to the device and is auto-tuned, whatever the
    data set's options say; such an iterator cannot end before the tuner's next turn, so every evaluation and run would
    stand still at its end, up to as long as it took (a minute at most).
    """

    def experimental_distribute_dataset(self, dataset, options=None):
        """See tf.distribute.Strategy."""
        return dataset

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        """See tf.distribute.Strategy."""
        return dataset_fn(tf.distribute.InputContext())


def make_strategy(
    distribution: str = "auto", *, tpu_name: str | None = None, cluster_timeout: float = CLUSTER_TIMEOUT
) -> tf.distribute.Strategy:
    """The strategy behind --distribution.

    auto: a TPU where `tpu_name` is given, several workers where TF_CONFIG names them, all GPUs where there are any,
    otherwise the CPU. tpu_name: a Cloud TPU's name, grpc://host:port, or "local" on a TPU VM. cluster_timeout: seconds
    after which a worker that waits for others names those that did not come, and ends its process.

    Raises UserError where the asked devices are missing or the flags contradict each other.
    """
    if distribution not in DISTRIBUTIONS:
        raise UserError(f"distribution is {distribution!r}: expected one of {', '.join(DISTRIBUTIONS)}")
    if distribution == "auto":
        distribution = _found(tpu_name)
    if tpu_name and distribution != "tpu":
        raise UserError(
            f"tpu_name is {tpu_name!r} with distribution {distribution}: drop one or set --distribution=tpu"
        )
    if distribution == "multi_worker":  # first: a cluster is joined before anything has looked at the devices
        return _multi_worker_strategy(cluster_timeout)
    gpus = tf.config.list_logical_devices("GPU")
    if distribution == "cpu":
        return OneDevice("/cpu:0")
    if distribution == "gpu":
        if not gpus:
            raise UserError("distribution is gpu, but TensorFlow sees no GPU: install its CUDA build or use cpu")
        return OneDevice("/gpu:0")
    if distribution == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in gpus or tf.config.list_logical_devices("CPU")])
    return _tpu_strategy(tpu_name)


def one_process_strategy(distribution: str = "auto", *, tpu_name: str | None = None) -> tf.distribute.Strategy:
    """make_strategy for what runs in one process and waits for no others.

    Raises UserError also where TF_CONFIG names a cluster and the flags leave it to that.
    """
    if distribution == "multi_worker" or (distribution == "auto" and not tpu_name and "TF_CONFIG" in os.environ):
        raise UserError(
            "this command runs in one process, but TF_CONFIG names a cluster of workers: choose --distribution=cpu, "
            "gpu, mirrored or tpu"
        )
    return make_strategy(distribution, tpu_name=tpu_name)


def share_out(
    make: Callable[[tf.distribute.InputContext], tf.data.Dataset], where: tf.distribute.Strategy
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """The data set of this worker, made from its context, for all its replicas.

    A worker with a single device reads it as it is, for the reason in OneDevice.
    """
    if isinstance(where, tf.distribute.MultiWorkerMirroredStrategy):
        cluster = read_tf_config()
        count = len(cluster.addresses)
        if where.num_replicas_in_sync == count:
            return make(tf.distribute.InputContext(count, cluster.index, count))
    return where.distribute_datasets_from_function(make)


def describe(strategy: tf.distribute.Strategy) -> str:
    """One line for the start of a run: kind, replicas, devices."""
    devices = sorted({device.split("/")[-1] for device in strategy.extended.worker_devices})
    workers = getattr(strategy.extended, "_num_workers", 1)
    kind = type(strategy).__name__
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        kind = "MultiWorkerMirroredStrategy"  # an object of it goes by its old name
    return f"{kind}: {strategy.num_replicas_in_sync} replica(s) on {workers} worker(s), devices {', '.join(devices)}"


def jit_compile(choice: str, where: tf.distribute.Strategy) -> bool:
    """What --jit_compile=auto|true|false means there; on CPU, XLA is not worth its compile time by itself."""
    if choice != "auto":
        return choice == "true"
    return not any("CPU" in device for device in where.extended.worker_devices)


def _found(tpu_name: str | None) -> str:
    if tpu_name:
        return "tpu"
    if "TF_CONFIG" in os.environ:
        return "multi_worker"
    gpus = len(tf.config.list_physical_devices("GPU"))
    return "cpu" if not gpus else "gpu" if gpus == 1 else "mirrored"


def is_remote_tpu(tpu_name: str | None) -> bool:
    """Whether that TPU belongs to other machines, which read the records themselves."""
    return bool(tpu_name) and tpu_name != LOCAL_TPU


def _multi_worker_strategy(cluster_timeout: float) -> tf.distribute.Strategy:
    cluster = read_tf_config()
    total = len(cluster.addresses)
    print(
        f"{cluster.name(cluster.index)} of {total}: waiting for all to come, {cluster_timeout:g} seconds at most",
        file=sys.stderr,
        flush=True,
    )
    if missing := meet(cluster, cluster_timeout):
        why = "; ".join(dict.fromkeys(missing.values()))
        end_process(
            f"{', '.join(missing)} did not come within {cluster_timeout:g} seconds ({why}): expected {total} workers "
            "with the addresses of TF_CONFIG; start them all, check the network between them, or raise "
            "--cluster_timeout"
        )
    print(f"all {total} have come", file=sys.stderr, flush=True)
    # TensorFlow waits without end for one that is lost right now, and no thread and no SIGTERM gets through to it: an
    # alarm, which nobody handles, ends the process all the same.
    signal.setitimer(signal.ITIMER_REAL, cluster_timeout)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{cluster.name(cluster.index)} cannot join the cluster of TF_CONFIG ({_first_line(error)}): check the "
            "addresses, and that nothing else uses this port"
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _tpu_strategy(tpu_name: str | None) -> tf.distribute.Strategy:
    name = tpu_name or LOCAL_TPU
    try:
        _check_tpu_address(name)
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # Looking a name up asks Google Cloud, by packages and a network that may both be missing.
    except (ImportError, OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
        raise UserError(
            f"no TPU {name!r} could be reached ({_first_line(error)}): check --tpu_name, that this TensorFlow is the "
            "one for TPUs (tpu/README.md), or use another --distribution"
        ) from error


def _check_tpu_address(name: str) -> None:
    """Raises OSError where nobody listens at grpc://host:port; TensorFlow would ask for many minutes."""
    if name.startswith("grpc://"):
        host, _, port = name.removeprefix("grpc://").rpartition(":")
        if not host or not port.isdigit():
            raise ValueError("expected grpc://host:port")
        socket.create_connection((host, int(port)), timeout=_TPU_ANSWERS).close()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
