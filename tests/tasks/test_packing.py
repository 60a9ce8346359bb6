"""Several examples in a row give what each gives alone, in few tokens."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from tasks import batching, packing
from tasks.catalog import make_task
from tasks.features import make_features
from tasks.packing import Packing
from tasks.text import TextExample

TASK = make_task("rte", max_seq_length=64)


@pytest.fixture(scope="module")
def model(tiny_model):
    source = checkpoints.load_model(tiny_model, heads=())
    return checkpoints.new_model(source.config, {"classifier": TASK.head_options(0.0)}, source.tokenizer)


@pytest.fixture(scope="module")
def features(model):
    examples = [TextExample(str(i), ("river stone " * (1 + i % 4), "a bird"), TASK.labels[i % 2]) for i in range(9)]
    return make_features(TASK, examples, model.tokenizer)


def test_rows_are_filled_longest_first():
    assert packing.assign(np.array([5, 3, 8, 2, 1]), 8).tolist() == [1, 1, 0, 2, 2]


def test_plan_holds_every_batch():
    lengths = np.random.default_rng(0).integers(4, 60, 500)
    batches = list(itertools.islice(batching.training_batches(lengths, 16, seed=1, even=True), 100))
    chosen = packing.plan(lengths, batches, max_seq_length=512, parts=2)
    assert chosen.rows % 2 == 0 and chosen.width % 16 == 0
    for numbers in batches:
        rows = packing.assign(lengths[numbers], chosen.width)
        assert rows.max() < chosen.rows and np.bincount(rows).max() <= chosen.places
        assert np.bincount(rows, lengths[numbers]).max() <= chosen.width


def test_even_batches_have_every_feature_once_and_about_the_same_tokens():
    lengths = np.random.default_rng(0).integers(4, 60, 1003)
    batches = list(itertools.islice(batching.training_batches(lengths, 8, seed=1, even=True), 2 * 1003 // 8))
    stream = np.concatenate(batches)
    assert sorted(stream[:1003]) == list(range(1003))
    totals = np.array([lengths[numbers].sum() for numbers in batches])
    random = lengths[np.random.default_rng(1).permutation(1003)[:1000].reshape(-1, 8)].sum(axis=1)
    assert totals.std() < random.std() / 3 and totals.max() < 1.15 * totals.mean()


def test_packed_batch(features):
    batch = packing.packed_batch(features, [2, 0, 5], Packing(rows=2, width=64, places=3))
    lengths = features.lengths
    assert batch["feature_index"].tolist()[:3] == [2, 0, 5] or set(batch["feature_index"].tolist()) == {2, 0, 5, -1}
    assert int(batch["input_mask"].sum()) == lengths[[2, 0, 5]].sum()
    for place, number in enumerate(batch["feature_index"]):
        if number >= 0:
            row, start = place // 3, batch["first_positions"].reshape(-1)[place]
            span = slice(start, start + lengths[number])
            np.testing.assert_array_equal(batch["input_ids"][row, span], features[number]["input_ids"])
            np.testing.assert_array_equal(batch["segment_ids"][row, span], features[number]["segment_ids"])
            np.testing.assert_array_equal(batch["position_ids"][row, span], np.arange(lengths[number]))
            assert set(batch["sequence_ids"][row, span]) == {place % 3 + 1}
            assert batch["label"][place] == features[number]["label"]


def test_packed_outputs_losses_and_gradients_are_those_of_rows_of_their_own(model, features):
    def results(batch):
        batch = {name: tf.constant(value) for name, value in batch.items()}
        with tf.GradientTape() as tape:
            outputs = TASK.forward(model, batch)
            weights = TASK.loss_weights(batch)
            loss = tf.reduce_sum(weights * TASK.loss(outputs, batch)) / tf.reduce_sum(weights)
        variables = list(model.named_variables().values())
        order = [int(np.flatnonzero(batch["feature_index"].numpy() == number)[0]) for number in range(9)]
        return outputs["logits"].numpy()[order], float(loss), tape.gradient(loss, variables)

    plain = results(batching.padded_batch(features, range(9), batching.Shapes(max_seq_length=64)))
    packed = results(packing.packed_batch(features, range(9), Packing(rows=4, width=64, places=6)))
    assert np.ptp(plain[0], axis=0).min() > 1e-3  # examples differ
    np.testing.assert_allclose(packed[0], plain[0], atol=2e-6)
    assert packed[1] == pytest.approx(plain[1], abs=1e-6)
    for first, second in zip(packed[2], plain[2], strict=True):
        np.testing.assert_allclose(first, second, atol=2e-6)


def test_static_feeds_pack(model, features, monkeypatch):
    from tasks import feeding
    from tasks.evaluation import Predictor

    plain = Predictor(model, TASK, batch_size=4).outputs(features)
    monkeypatch.setattr(feeding, "_is_static", lambda strategy: True)
    for batch_size in (4, 64):  # also one that holds all features and more
        packed = Predictor(model, TASK, batch_size=batch_size).outputs(features)
        np.testing.assert_allclose([o["logits"] for o in packed], [o["logits"] for o in plain], atol=2e-6)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    feed, share = feeding.training_feed(TASK, features, strategy, batch_size=4, num_steps=5, seed=1)
    assert isinstance(feed.form, Packing) and share > 0.5
    shapes = {tuple(batch["input_ids"].shape) for batch in feed.dataset().take(5)}
    assert len(shapes) == 1 and all(None not in spec.shape for spec in feed.dataset().element_spec.values())


@pytest.mark.parametrize("name", ["cola", "sst-2"])
def test_share_of_real_tokens_on_the_official_files(shared, name):
    from albert_tf.tokenization import load_tokenizer

    task = make_task(name)
    examples = task.read(task.files(shared / "data/GLUE")["train"])[:8000]
    features = make_features(task, examples, load_tokenizer(shared / "data/sentencepiece/30k-clean.model"))
    stream = batching.training_batches(features.lengths, task.recipe.train_batch_size, seed=1, even=True)
    batches = list(itertools.islice(stream, 8000 // task.recipe.train_batch_size))
    chosen = packing.plan(features.lengths, batches, max_seq_length=512)
    assert chosen.real_token_share(features, batches) > 0.85
