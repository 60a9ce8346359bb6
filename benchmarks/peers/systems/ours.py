"""This project, by the paths that its commands take.

Variants: "" takes what `--jit_compile=auto` chooses; "jit" and "nojit" decide; "recompute" is `--recompute`;
"accumulate" takes the global batch in ACCUMULATED micro-batches.
"""

import functools

import numpy as np
import tensorflow as tf

from albert_tf import checkpoints, config, optimization
from benchmarks.peers import work
from benchmarks.peers.contract import STEP, Part
from benchmarks.peers.systems import ours_natural
from tpu import strategy
from tpu.trainer import PretrainingTrainer

PACKAGES = ("tensorflow", "tf_keras", "numpy")
ACCUMULATED = 8
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def prepare(case: work.Case, variant: str) -> dict[str, Part]:
    """See contract.py."""
    where = _strategy()
    with where.scope():
        if case.natural:
            return ours_natural.parts(case, where)
        model = build_model(case.preset, case.precision)
        model.encoder.recompute = variant == "recompute"
        if case.kind == "infer":
            return {STEP: Part(_inference(model, case, variant))}
        return {STEP: Part(_training(model, case, variant, where))}


@functools.lru_cache(maxsize=1)
def _strategy() -> tf.distribute.Strategy:
    """One for all cases of a process: optimisers are made under the strategy of the model, which is kept as well."""
    return strategy.make_strategy()


@functools.lru_cache(maxsize=1)
def build_model(preset: str, precision: str) -> checkpoints.Model:
    """A fresh encoder with both pretraining heads, without dropout."""
    sizes = config.preset(preset).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return checkpoints.new_model(sizes, {"masked_lm": {}, "sentence_order": {}}, dtype=POLICIES[precision])


def features(case: work.Case) -> dict[str, np.ndarray]:
    """A batch as the pretraining data set makes them."""
    batch = work.inputs(case)
    batch["masked_lm_weights"] = np.ones(batch["masked_lm_ids"].shape, np.float32)
    batch["sentence_weights"] = np.ones(case.batch, np.float32)
    return batch


def _inference(model: checkpoints.Model, case: work.Case, variant: str):
    """The encoder as a classifier calls it: nobody reads anything but the first token."""
    batch = {name: tf.constant(x) for name, x in work.inputs(case).items()}
    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    inputs["output_positions"] = tf.zeros([case.batch, 0], tf.int32)

    @tf.function(autograph=False, jit_compile=variant == "jit" or None)
    def forward(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(model.encoder(inputs, training=False)["pooled_output"], tf.float32))

    return lambda: float(forward(inputs))


def _training(model: checkpoints.Model, case: work.Case, variant: str, where: tf.distribute.Strategy):
    """A step of `albert_tf pretrain`; its number is the loss."""
    dataset = tf.data.Dataset.from_tensors(features(case)).repeat()
    trainer = PretrainingTrainer(
        strategy=where,
        model=model,
        optimizer=optimization.create_optimizer("adamw", learning_rate=work.LEARNING_RATE, global_clipnorm=None),
        dataset=where.experimental_distribute_dataset(dataset),
        global_step=tf.Variable(0, dtype=tf.int64, trainable=False),
        grad_accum_steps=ACCUMULATED if variant == "accumulate" else 1,
        jit_compile=_jit_compile(variant, where),
    )
    one = tf.constant(1)

    def step() -> float:
        sums = trainer.train(one)["sums"]
        return float(sums[0] / sums[1] + sums[3] / sums[4])

    return step


def _jit_compile(variant: str, where: tf.distribute.Strategy) -> bool:
    choice = {"jit": "true", "nojit": "false"}.get(variant, "auto")
    return strategy.jit_compile(choice, where)
