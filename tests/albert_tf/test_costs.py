"""The cost model against built graphs: every product counted by its static shapes, forward and backward."""

import os

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints, costs
from albert_tf.config import PRESETS, AlbertConfig, preset
from albert_tf.errors import UserError
from albert_tf.pretraining import objective

SMALL = AlbertConfig(
    vocab_size=50,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
)
VARIANTS = {
    "shared": SMALL,
    "groups": SMALL.replace(num_hidden_groups=2, inner_group_num=3),
    "attention shared": SMALL.replace(sharing="attention"),
    "feed-forward shared": SMALL.replace(sharing="feed_forward"),
    "nothing shared": SMALL.replace(sharing="none", embedding_size=16),
    "one layer": SMALL.replace(num_hidden_layers=1),
}
ROWS, LENGTH, PREDICTIONS = 3, 11, 4


def product_flops(outputs) -> int:
    """Counts the products of matrices that these tensors depend on, by walking their graph."""
    seen, waiting, count = set(), [tensor.op for tensor in tf.nest.flatten(outputs)], 0
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
        if op.type in ("MatMul", "BatchMatMulV2"):
            flag = "transpose_a" if op.type == "MatMul" else "adj_x"
            inner = op.inputs[0].shape[-2 if op.get_attr(flag) else -1]
            count += 2 * op.outputs[0].shape.num_elements() * inner
        if op.type == "PartitionedCall":  # GELU's derivative in one loop: steps without products
            functions = op.graph.as_graph_def().library.function
            (called,) = (function for function in functions if function.signature.name == op.get_attr("f").name)
            assert not any("MatMul" in node.op or "Call" in node.op for node in called.node_def)
            continue
        assert op.type not in ("Einsum", "BatchMatMul", "BatchMatMulV3", "StatefulPartitionedCall")
    return count


def make_features(config, rows=ROWS, length=LENGTH, predictions=PREDICTIONS):
    whole = {"input_ids": (rows, length), "input_mask": (rows, length), "segment_ids": (rows, length)}
    whole |= {"masked_lm_positions": (rows, predictions), "masked_lm_ids": (rows, predictions)}
    features = {name: tf.ones(shape, tf.int32) for name, shape in whole.items()}
    features["sentence_labels"] = tf.ones([rows], tf.int32)
    return features | {"masked_lm_weights": tf.ones([rows, predictions]), "sentence_weights": tf.ones([rows])}


def training_graph(config, heads=costs.PRETRAINING_HEADS, *, recompute=False, **shape):
    """(losses, gradients) in the graph that is current, where variables take no memory."""
    model = checkpoints.new_model(config, {name: {} for name in heads})
    model.encoder.recompute = recompute
    variables = list(model.named_variables().values())
    features = make_features(config, **shape)
    with tf.GradientTape() as tape:
        sums = objective.forward_sums(model, features, training=True, dropout_seed=tf.constant([1, 2]))
        loss = objective.loss(sums, objective.batch_weights(features))
    gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, gradients, variables


@pytest.mark.parametrize("heads", [("masked_lm", "sentence_order"), ("masked_lm",)])
@pytest.mark.parametrize("name", VARIANTS)
def test_training_operations_and_parameters_are_those_of_the_graph(name, heads):
    config = VARIANTS[name]
    with tf.Graph().as_default():
        loss, gradients, variables = training_graph(config, heads)
        counted = product_flops([loss, gradients])
    sizes = {"rows": ROWS, "length": LENGTH, "predictions": PREDICTIONS}
    assert sum(costs.training_flops(config, **sizes, heads=heads).values()) == counted
    elements = sum(variable.shape.num_elements() for variable in variables)
    assert sum(costs.parameters(config, heads).values()) == elements
    assert costs.gradient_bytes(config, heads) == 4 * sum(np.prod(g.shape.as_list()) for g in gradients)


@pytest.mark.parametrize("name", VARIANTS)
def test_recomputation_runs_the_layers_once_more(name):
    config = VARIANTS[name].replace(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    with tf.Graph().as_default():
        counted = product_flops(training_graph(config, recompute=True)[:2])
    sizes = {"rows": ROWS, "length": LENGTH, "predictions": PREDICTIONS}
    assert sum(costs.training_flops(config, **sizes, recompute=True).values()) == counted


@pytest.mark.parametrize("positions", [None, 0, PREDICTIONS])
@pytest.mark.parametrize("name", VARIANTS)
def test_inference_operations_are_those_of_the_graph(name, positions):
    config = VARIANTS[name]
    with tf.Graph().as_default():
        encoder = checkpoints.new_model(config, {}).encoder
        inputs = {"input_ids": tf.ones([ROWS, LENGTH], tf.int32)}
        if positions is not None:
            inputs["output_positions"] = tf.ones([ROWS, positions], tf.int32)
        outputs = encoder(inputs)
        counted = product_flops([outputs["sequence_output"], outputs["pooled_output"]])
    forward = costs.forward_flops(config, rows=ROWS, length=LENGTH, output_positions=positions)
    assert sum(forward.values()) == counted


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_counted_at_their_true_size(name):
    config = PRESETS[name]
    with tf.Graph().as_default():
        model = checkpoints.new_model(config, {name: {} for name in costs.PRETRAINING_HEADS})
        features = make_features(config, rows=2, length=128, predictions=20)
        sums = objective.forward_sums(model, features, training=False)
        counted = product_flops(sums)
        elements = sum(variable.shape.num_elements() for variable in model.named_variables().values())
    sizes = {"rows": 2, "length": 128, "output_positions": 20}
    forward = costs.forward_flops(config, **sizes, heads=costs.PRETRAINING_HEADS)
    assert sum(forward.values()) == counted
    assert sum(costs.parameters(config).values()) == elements


def test_a_whole_training_graph_of_albert_base():
    config = preset("albert_base")
    with tf.Graph().as_default():
        counted = product_flops(training_graph(config, rows=2, length=128, predictions=20)[:2])
    assert sum(costs.training_flops(config, rows=2, length=128, predictions=20).values()) == counted


def test_parts_by_hand():
    # One layer of width 4 with 2 heads, inner width 8, embeddings of 3, two rows of 5 tokens, everything read.
    config = SMALL.replace(hidden_size=4, intermediate_size=8, embedding_size=3, num_hidden_layers=1, vocab_size=7)
    assert costs.forward_flops(config, rows=2, length=5, heads=costs.PRETRAINING_HEADS) == {
        "embedding_projection": 2 * 10 * 3 * 4,
        "query_key_value": 2 * 10 * 4 * 12,
        "scores": 2 * 2 * 2 * 5 * 5 * 2,  # rows, heads, 5 by 5 scores of head size 2
        "context": 2 * 2 * 2 * 5 * 5 * 2,
        "attention_output": 2 * 10 * 4 * 4,
        "feed_forward": 2 * 10 * (4 * 8 + 8 * 4),
        "pooler": 2 * 2 * 4 * 4,
        "masked_lm": 2 * 10 * (4 * 3 + 3 * 7),
        "sentence_order": 2 * 2 * 4 * 2,
    }


def test_step_time_of_a_ring():
    given = {"device_flops": 6e12, "flop_rate": 2e12, "exchanged_bytes": 4e9, "bandwidth": 1e9, "update_seconds": 0.5}
    assert costs.step_time(**given, devices=1) == (3.0, 0.0, 0.5)
    assert costs.step_time(**given, devices=4) == (3.0, 6.0, 0.5)  # each gradient leaves a device 2 x 3/4 times
    assert costs.step_time(**given, devices=4).total == 9.5


def test_memory_is_that_of_the_container_where_it_is_less(tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, expected in (("max", whole), (str(3 << 20), 3 << 20), (str(2 * whole), whole)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert costs.machine_memory(tmp_path) == expected
    assert costs.machine_memory(tmp_path / "none") == whole


def test_weights_beyond_the_memory_are_refused(monkeypatch):
    config = AlbertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=128)
    monkeypatch.setattr(costs, "machine_memory", lambda: 4 * sum(costs.parameters(config, ()).values()))
    costs.check_weights_fit(config)
    with pytest.raises(UserError, match="hidden_size 68, .* GB of weights, this machine"):
        costs.check_weights_fit(config.replace(hidden_size=68))
    monkeypatch.undo()
    with pytest.raises(UserError, match="correct the configuration"):
        checkpoints.new_model(config.replace(hidden_size=4_000_000), {})
