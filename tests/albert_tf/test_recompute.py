"""Recomputation gives the same numbers and keeps little between the passes."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.encoder import AlbertEncoder

CONFIG = AlbertConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=4,
    num_hidden_groups=2,
    inner_group_num=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
    initializer_range=0.3,
    hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.2,
)


def make_inputs(batch=3, length=12):
    rng = np.random.default_rng(0)
    mask = (np.arange(length) < rng.integers(4, length + 1, batch)[:, None]).astype(np.int32)
    return {
        "input_ids": tf.constant(rng.integers(5, 60, (batch, length)), tf.int32) * mask,
        "input_mask": tf.constant(mask),
        "output_positions": tf.constant(rng.integers(0, 4, (batch, 3)), tf.int32),
        "dropout_seed": tf.constant([3, 4], tf.int32),
    }


def gradients(encoder, inputs, *, recompute, jit_compile=False):
    weights = list(encoder.named_variables().values())
    encoder.recompute = recompute

    @tf.function(jit_compile=jit_compile)
    def step():
        with tf.GradientTape() as tape:
            outputs = encoder(inputs, training=True)
            # Intermediate layers have readers of their own, as in distillation.
            parts = (outputs["sequence_output"], outputs["pooled_output"], outputs["encoder_outputs"][1])
            loss = tf.add_n(
                [tf.reduce_sum(tf.sin(tf.cast(part, tf.float32) * (i + 1))) for i, part in enumerate(parts)]
            )
        return loss, tape.gradient(loss, weights)

    return step()


def relative_difference(one, other):
    """Of whole gradients: single entries of a sum that cancels say nothing."""
    one, other = (
        np.concatenate([tf.reshape(tf.convert_to_tensor(x), [-1]).numpy() for x in xs]) for xs in (one, other)
    )
    return np.linalg.norm(other - one) / np.linalg.norm(one)


@pytest.mark.parametrize(
    ("policy", "jit_compile", "tolerance"),
    # bfloat16 has 8 bits: TensorFlow fuses the forward pass alone otherwise than the one that is kept.
    [("float32", False, 1e-5), ("float32", True, 1e-5), ("mixed_bfloat16", False, 0.04)],
)
def test_gradients_with_dropout_are_equal(policy, jit_compile, tolerance):
    # Few blocks, as XLA takes long over many with dropout; else two groups that are used twice.
    few = {"num_hidden_layers": 1, "num_hidden_groups": 1} if jit_compile else {"inner_group_num": 1}
    config = CONFIG.replace(**few)
    tf.random.set_seed(1)
    encoder, inputs = AlbertEncoder(config, dtype=policy), make_inputs()
    encoder(inputs)
    loss, plain = gradients(encoder, inputs, recompute=False, jit_compile=jit_compile)
    again, recomputed = gradients(encoder, inputs, recompute=True, jit_compile=jit_compile)
    assert abs(again - loss) < 20 * tolerance  # a sum of some 1,000 sines
    assert relative_difference(plain, recomputed) < tolerance


def test_the_backward_pass_reads_nothing_of_the_first_forward_pass():
    encoder, inputs = AlbertEncoder(CONFIG), make_inputs()
    encoder(inputs)

    def readers(recompute):
        """For each softmax, in order of making, how many operations read it."""
        encoder.recompute = recompute
        weights = list(encoder.named_variables().values())

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(encoder(inputs, training=True)["pooled_output"])
            return tape.gradient(loss, weights)

        operations = step.get_concrete_function().graph.get_operations()
        return [len(x.outputs[0].consumers()) for x in operations if x.type == "Softmax"]

    plain, recomputed = readers(recompute=False), readers(recompute=True)
    assert len(plain) == 8  # layers and inner groups
    assert len(recomputed) == 16
    assert max(recomputed[:8]) < min(plain)  # the forward pass alone reads the first eight
    assert recomputed[8:] == plain


def test_recompute_travels_with_the_layer():
    encoder = AlbertEncoder(CONFIG, recompute=True)
    assert AlbertEncoder.from_config(encoder.get_config()).recompute


def test_attention_probabilities_are_still_given():
    encoder, inputs = AlbertEncoder(CONFIG, recompute=True), make_inputs()
    del inputs["output_positions"]
    assert len(encoder(inputs, training=True, return_attention_probs=True)["attention_probs"]) == 8


def test_gradients_of_a_shared_block_are_added_layer_by_layer():
    """Else all layers' wait until the end: albert_large took twice as much at 2 x 512 (tests/tpu/test_memory.py)."""
    config = CONFIG.replace(num_hidden_groups=1, inner_group_num=1)
    encoder, inputs = AlbertEncoder(config, recompute=True), make_inputs()
    encoder(inputs)
    weights = list(encoder.named_variables().values())

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs, training=True)["pooled_output"])
        return tape.gradient(loss, weights)

    graph = step.get_concrete_function().graph
    sums = [{source.name for source in op.control_inputs if source.type == "AddV2"} for op in graph.get_operations()]
    waiting = [names for names in sums if names]
    per_layer = 12  # weights as a block reads them: six of each sub-layer
    assert [len(names) for names in waiting] == [per_layer] * (config.num_hidden_layers - 1)
