"""One optimiser step: the same under padding, accumulation, replicas; and the way people use it from Python."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import checkpoints
from albert_tf.optimization import create_optimizer
from tasks import batching, packing
from tasks.batching import Shapes
from tasks.catalog import make_task
from tasks.features import make_features
from tasks.feeding import Feed, Padded
from tasks.task_model import TaskModel
from tasks.text import TextExample

TASK = make_task("rte", max_seq_length=48)


@pytest.fixture(scope="module")
def pretrained(tiny_model):
    return checkpoints.load_model(tiny_model, heads=())


def _model(pretrained, *, dropout=0.0, **settings):
    """The same weights each time."""
    tf_keras.utils.set_random_seed(3)
    config = pretrained.config.replace(hidden_dropout_prob=dropout)
    model = checkpoints.new_model(config, {"classifier": TASK.head_options(dropout)}, pretrained.tokenizer)
    values = {name: variable.numpy() for name, variable in pretrained.named_variables().items()}
    checkpoints.assign(model, values, source="test", new_heads=True)
    return model, TaskModel(model, TASK, **settings)


@pytest.fixture(scope="module")
def features(pretrained):
    texts = ["a river " * (1 + 3 * i % 7) + "bright " * (i % 2) for i in range(8)]
    examples = [TextExample("", (text, "a stone"), TASK.labels[i % 2]) for i, text in enumerate(texts)]
    return make_features(TASK, examples, pretrained.tokenizer)


def _stepped(pretrained, batch, steps=1, **settings):
    """Variables after some steps of SGD without momentum, which shows a gradient's size as it is."""
    model, trained = _model(pretrained, **settings)
    trained.compile(optimizer=tf_keras.optimizers.legacy.SGD(0.5))
    step = tf.function(trained.train_step)
    for _ in range(steps):
        loss = step({name: tf.constant(value) for name, value in batch.items()})["loss"]
    return {name: variable.numpy() for name, variable in model.named_variables().items()}, float(loss)


def _assert_same(first, second, atol=2e-6):
    assert first[1] == pytest.approx(second[1], abs=1e-6)
    for name, value in first[0].items():
        np.testing.assert_allclose(second[0][name], value, atol=atol, err_msg=name)


def test_padding_changes_nothing(pretrained, features):
    short = batching.padded_batch(features, range(8), Shapes(max_seq_length=48))
    long = batching.padded_batch(features, range(8), Shapes(max_seq_length=48, multiple=48), rows=11)
    assert short["input_ids"].shape != long["input_ids"].shape == (11, 48)
    first = _stepped(pretrained, short)
    before = {name: variable.numpy() for name, variable in _model(pretrained)[0].named_variables().items()}
    moved = [name for name, value in before.items() if np.abs(first[0][name] - value).max() > 1e-4]
    assert "classifier/kernel" in moved and any(name.startswith("encoder/attention") for name in moved)
    _assert_same(first, _stepped(pretrained, long))


def test_accumulation_is_one_step_on_the_whole_batch(pretrained, features):
    batch = batching.padded_batch(features, range(8), Shapes(max_seq_length=48))
    _assert_same(_stepped(pretrained, batch), _stepped(pretrained, batch, grad_accum_steps=4))


def test_accumulation_cuts_packed_rows_too(pretrained, features):
    """Arrays of rows and arrays of places are cut at the same examples."""
    plan = packing.plan(features.lengths, [np.arange(8)], max_seq_length=48, parts=2)
    assert plan.rows % 2 == 0 and plan.places > 1
    packed = packing.packed_batch(features, range(8), plan)
    plain = batching.padded_batch(features, range(8), Shapes(max_seq_length=48))
    _assert_same(_stepped(pretrained, plain), _stepped(pretrained, packed, grad_accum_steps=2))


def test_dropout_follows_seed_and_step(pretrained, features):
    batch = batching.padded_batch(features, range(8), Shapes(max_seq_length=48))
    one = _stepped(pretrained, batch, dropout=0.3, seed=1)
    assert one[1] == _stepped(pretrained, batch, dropout=0.3, seed=1)[1]
    assert one[1] != _stepped(pretrained, batch, dropout=0.3, seed=2)[1]
    model, trained = _model(pretrained, dropout=0.3, seed=1)
    trained.compile(optimizer=tf_keras.optimizers.legacy.SGD(0.0))
    step, losses = tf.function(trained.train_step), set()
    for _ in range(3):
        trained.reset_metrics()
        losses.add(float(step({k: tf.constant(v) for k, v in batch.items()})["loss"]))
    assert len(losses) == 3  # another mask each step


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_trains(pretrained, features, policy):
    tf_keras.utils.set_random_seed(3)
    head = {"classifier": TASK.head_options(0.0)}
    model = checkpoints.new_model(pretrained.config, head, pretrained.tokenizer, dtype=policy)
    trained = TaskModel(model, TASK)
    optimizer = create_optimizer("adamw", learning_rate=2e-3)
    if policy == "mixed_float16":
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
    trained.compile(optimizer=optimizer)
    batch = {k: tf.constant(v) for k, v in batching.padded_batch(features, range(8), Shapes(max_seq_length=48)).items()}
    step = tf.function(trained.train_step)
    losses = []
    for _ in range(40):
        trained.reset_metrics()
        losses.append(float(step(batch)["loss"]))
    assert np.isfinite(losses).all() and losses[-1] < 0.5 * losses[0], losses
    assert all(variable.dtype == tf.float32 for variable in model.named_variables().values())


def test_gradients_are_clipped_once(pretrained, features):
    batch = batching.padded_batch(features, range(8), Shapes(max_seq_length=48))
    tensors = {name: tf.constant(value) for name, value in batch.items()}

    def moved(clip):
        model, trained = _model(pretrained)
        optimizer = tf_keras.optimizers.legacy.SGD(1.0, global_clipnorm=clip)
        trained.compile(optimizer=optimizer)
        before = [variable.numpy() for variable in trained.trainable_variables]
        trained.train_step(tensors)
        after = [variable.numpy() for variable in trained.trainable_variables]
        return np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(after, before, strict=True)))

    whole = moved(None)
    assert moved(whole / 2) == pytest.approx(whole / 2, rel=1e-3)


def test_readme_example(tiny_model, tmp_path):
    """encoder -> head -> compile -> fit, with a current tf_keras optimiser and callbacks."""
    from albert_tf import load_model

    texts, labels = ["a bright river", "a river", "bright stone", "stone"] * 8, [1, 0, 1, 0] * 8

    model = load_model(tiny_model)
    rows = [[model.tokenizer.cls_id, *ids, model.tokenizer.sep_id] for ids in model.tokenizer.encode_batch(texts)]
    ids = tf_keras.utils.pad_sequences(rows, padding="post")
    inputs = {name: tf_keras.Input([None], dtype="int32", name=name) for name in ("input_ids", "input_mask")}
    probabilities = tf_keras.layers.Dense(2, activation="softmax")(model.encoder(inputs)["pooled_output"])
    classifier = tf_keras.Model(inputs, probabilities)
    classifier.compile(tf_keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    dataset = tf.data.Dataset.from_tensor_slices(({"input_ids": ids, "input_mask": ids > 0}, labels))
    stop = tf_keras.callbacks.EarlyStopping("loss", patience=3)
    history = classifier.fit(dataset.shuffle(32, seed=1).batch(8), epochs=12, callbacks=[stop], verbose=0)

    assert history.history["accuracy"][-1] > 0.9
    assert not np.allclose(
        model.encoder.pooler.kernel.numpy(), load_model(tiny_model).encoder.pooler.kernel.numpy()
    )  # the encoder trains too


def test_task_models_are_keras_models(pretrained, features):
    _, trained = _model(pretrained)
    trained.compile(optimizer=tf_keras.optimizers.Adam(1e-2))
    stream = batching.training_batches(features.lengths, 4, seed=1)
    dataset = Feed(features, Padded(Shapes(max_seq_length=48), 4), stream).dataset()
    history = trained.fit(dataset, steps_per_epoch=12, epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]
    assert int(trained.global_step) == 24


class _FromKeras3:
    """Stands for an optimizer of Keras 3: what matters is where its class says it is from."""

    __module__ = "keras.src.optimizers.adam"


def test_keras_3_objects_are_named(pretrained):
    _, trained = _model(pretrained)
    with pytest.raises(TypeError, match="Keras 3.*tf_keras.optimizers"):
        trained.compile(optimizer=_FromKeras3())
    trained.compile(optimizer=tf_keras.optimizers.Adam(1e-2))
    with pytest.raises(TypeError, match="Keras 3.*tf_keras.callbacks"):
        trained.fit(tf.data.Dataset.range(1), callbacks=[_FromKeras3()])
