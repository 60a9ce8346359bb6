"""Where a run computes: from the flags to a tf.distribute strategy, with clear lines and early refusals."""

import json
import os

import tensorflow as tf

from albert_tf.errors import UserError

DISTRIBUTIONS = ("auto", "cpu", "gpu", "mirrored", "multi_worker", "tpu")


def make_strategy(distribution: str = "auto", *, tpu_name: str | None = None) -> tf.distribute.Strategy:
    """The strategy behind --distribution.

    auto: a TPU where `tpu_name` is given, several workers where TF_CONFIG names them, all GPUs where there are any,
    otherwise the CPU. tpu_name: a Cloud TPU's name, grpc://host:port, or "local" on a TPU VM.

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
    gpus = tf.config.list_logical_devices("GPU")
    if distribution == "cpu":
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    if distribution == "gpu":
        if not gpus:
            raise UserError("distribution is gpu, but TensorFlow sees no GPU: install its CUDA build or use cpu")
        return tf.distribute.OneDeviceStrategy("/gpu:0")
    if distribution == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in gpus or tf.config.list_logical_devices("CPU")])
    if distribution == "multi_worker":
        _check_cluster()
        return tf.distribute.MultiWorkerMirroredStrategy()
    return _tpu_strategy(tpu_name)


def describe(strategy: tf.distribute.Strategy) -> str:
    """One line for the start of a run: kind, replicas, devices."""
    devices = sorted({device.split("/")[-1] for device in strategy.extended.worker_devices})
    workers = getattr(strategy.extended, "_num_workers", 1)
    return (
        f"{type(strategy).__name__}: {strategy.num_replicas_in_sync} replica(s) on {workers} worker(s), "
        f"devices {', '.join(devices)}"
    )


def _found(tpu_name: str | None) -> str:
    if tpu_name:
        return "tpu"
    if "TF_CONFIG" in os.environ:
        return "multi_worker"
    gpus = len(tf.config.list_physical_devices("GPU"))
    return "cpu" if not gpus else "gpu" if gpus == 1 else "mirrored"


def _check_cluster() -> None:
    text = os.environ.get("TF_CONFIG")
    example = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
    if text is None:
        raise UserError(f"distribution is multi_worker, but TF_CONFIG is not set: expected the like of {example}")
    try:
        config = json.loads(text)
        workers, index = config["cluster"]["worker"], config["task"]["index"]
        known = config["task"]["type"] == "worker" and 0 <= int(index) < len(workers)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UserError(f"TF_CONFIG is {text!r}: expected the like of {example}")


def _tpu_strategy(tpu_name: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu_name or "local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"no TPU {tpu_name or 'local'!r} could be reached ({reason}): check --tpu_name, or use another "
            "--distribution"
        ) from error
