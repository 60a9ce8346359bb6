"""Training steps and inference passes on random data, made to be measured: no records, no folder, no checkpoints."""

import dataclasses
import itertools
import os
import pathlib
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from albert_tf import checkpoints, optimization
from albert_tf.config import AlbertConfig
from tpu.trainer import PretrainingTrainer

HEADS = {"masked_lm": {}, "sentence_order": {}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured."""

    config: AlbertConfig
    rows: int  # sequences a device and step
    length: int  # tokens a sequence
    predictions: int  # masked tokens a sequence
    mixed_precision: str = "float32"
    recompute: bool = False
    grad_accum_steps: int = 1
    optimizer: str = "lamb"
    jit_compile: bool = False

    @property
    def tokens(self) -> int:
        """Tokens a device and step."""
        return self.rows * self.length


def random_features(case: Case) -> dict[str, tf.Tensor]:
    """A batch as pretraining has it (objective.forward_sums), every position a token and every prediction used."""
    random = np.random.default_rng(0)
    rows, length, vocabulary = case.rows, case.length, case.config.vocab_size
    positions = [np.sort(random.choice(length, case.predictions, replace=False)) for _ in range(rows)]
    whole = {
        "input_ids": random.integers(0, vocabulary, (rows, length)),
        "input_mask": np.ones((rows, length)),
        "segment_ids": np.broadcast_to(np.arange(length) >= length // 2, (rows, length)),
        "masked_lm_positions": np.stack(positions),
        "masked_lm_ids": random.integers(0, vocabulary, (rows, case.predictions)),
        "sentence_labels": random.integers(0, 2, rows),
    }
    features = {name: tf.constant(value, tf.int32) for name, value in whole.items()}
    weights = {"masked_lm_weights": tf.ones((rows, case.predictions)), "sentence_weights": tf.ones(rows)}
    return {**features, **weights}


def make_trainer(case: Case, strategy: tf.distribute.Strategy) -> PretrainingTrainer:
    """The trainer of `albert_tf pretrain` with a new model."""
    with strategy.scope():
        model = checkpoints.new_model(case.config, HEADS, dtype=case.mixed_precision)
        model.encoder.recompute = case.recompute
        optimizer = optimization.create_optimizer(
            case.optimizer, learning_rate=1e-4, num_train_steps=1000, num_warmup_steps=10, global_clipnorm=None
        )
        if case.mixed_precision == "mixed_float16":
            optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    return PretrainingTrainer(
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        dataset=tf.data.Dataset.from_tensors(0),
        global_step=step,
        grad_accum_steps=case.grad_accum_steps,
        jit_compile=case.jit_compile,
    )


def training_step(case: Case, trainer: PretrainingTrainer) -> Callable[[], None]:
    """A function that runs one optimiser step, on every device of the trainer's strategy, and waits for it."""
    batches = itertools.repeat(random_features(case))

    def step() -> None:
        trainer.train_step(batches)
        trainer.train_loop_end()  # reads what the step has computed

    return step


def inference_step(case: Case, trainer: PretrainingTrainer) -> Callable[[], None]:
    """A function that computes the pooled outputs of a batch, as classification does, and waits for them."""
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: value for name, value in random_features(case).items() if name in names}
    inputs["output_positions"] = tf.zeros([case.rows, 0], tf.int32)

    @tf.function(jit_compile=case.jit_compile or None, autograph=False)
    def encode(given: dict[str, tf.Tensor]) -> tf.Tensor:
        return trainer.model.encoder(given, training=False)["pooled_output"]

    everywhere = tf.function(lambda given: trainer.strategy.run(encode, args=(given,)), autograph=False)

    def step() -> None:
        for output in trainer.strategy.experimental_local_results(everywhere(inputs)):
            output.numpy()

    return step


def matrix_product_rate(case: Case, strategy: tf.distribute.Strategy, repeats: int = 5) -> float:
    """Operations a second of one device in nothing but the products of a layer: the limit of anything built of them.

    Every device of the strategy computes them at the same time, as it does a step.
    """
    width, inner = case.config.hidden_size, case.config.intermediate_size
    dtype = {"mixed_bfloat16": tf.bfloat16, "mixed_float16": tf.float16}.get(case.mixed_precision, tf.float32)
    shapes = [(width, 3 * width), (width, width), (width, inner), (inner, width)]

    def operands() -> tuple[dict[int, tf.Tensor], list[tf.Tensor]]:
        inputs = {size: tf.cast(tf.random.normal([case.tokens, size]), dtype) for size in {width, inner}}
        return inputs, [tf.cast(tf.random.normal(shape), dtype) for shape in shapes]

    def products(inputs: dict[int, tf.Tensor], kernels: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.matmul(inputs[kernel.shape[0]], kernel) for kernel in kernels]

    made = tf.function(lambda: strategy.run(operands), autograph=False)()  # on each device, not sent there each time
    everywhere = tf.function(lambda *given: strategy.run(products, args=given), autograph=False)

    def run() -> None:
        for product in everywhere(*made):
            for one in strategy.experimental_local_results(product):
                one[0, 0].numpy()

    flops = sum(2 * case.tokens * rows * columns for rows, columns in shapes)
    return flops / statistics.median(seconds(run, repeats))


def seconds(
    run: Callable[[], None], repeats: int, *, warm_up: int = 2, tell: Callable[[int], None] | None = None
) -> list[float]:
    """Times of `repeats` calls after some that do not count; `tell` hears of each counted one, from 1."""
    for _ in range(warm_up):
        run()
    times = []
    for number in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if tell is not None:
            tell(number + 1)
    return times


def resident_bytes() -> int | None:
    """Memory of this process now; None where the system does not tell (no /proc)."""
    return _status("VmRSS")


def peak_bytes(device: str = "CPU") -> int | None:
    """The most memory that was ever in use: of this process, or on the first GPU; None where nothing tells."""
    if device == "GPU":
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return _status("VmHWM") if device == "CPU" else None


def available_bytes(device: str = "CPU") -> int | None:
    """Memory that may still be taken: of the machine and this process's control group, or the whole first GPU."""
    if device == "GPU":
        from tensorflow.python.client import device_lib  # the one place that tells a GPU's size

        return next(d.memory_limit for d in device_lib.list_local_devices() if d.device_type == "GPU")
    if device != "CPU" or not os.path.exists("/proc/meminfo"):
        return None
    with open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    room = control_group_bytes()
    return free if room is None else min(free, room)


def control_group_bytes(folder: str = "/sys/fs/cgroup") -> int | None:
    """Memory that this process's control group may still take; None where there is none, or it has no limit ("max").

    What files that were read take of it is free as well: the kernel gives it up when it is asked for.
    """
    try:
        limit, used, counts = (
            pathlib.Path(folder, name).read_text() for name in ("memory.max", "memory.current", "memory.stat")
        )
        known = dict(line.split() for line in counts.splitlines())
        return int(limit) - int(used) + int(known["active_file"]) + int(known["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None


def _status(key: str) -> int | None:
    if not os.path.exists("/proc/self/status"):
        return None
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
