"""Batches: every feature once an epoch, hardly any padding, the same numbers as padded batches."""

import itertools

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.tokenization import load_tokenizer
from tasks import batching
from tasks.batching import Shapes
from tasks.catalog import make_task
from tasks.evaluation import Predictor
from tasks.features import Features, make_features
from tasks.task import Field
from tasks.text import TextExample

LENGTHS = np.random.default_rng(0).integers(3, 60, size=1003)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("count", "batch_size"), [(1003, 8), (1003, 400), (20, 8), (3, 8), (8, 8), (9, 8), (1, 4)])
def test_every_feature_once_an_epoch(count, batch_size, even):
    steps = -(-3 * count // batch_size)
    batches = list(itertools.islice(batching.training_batches(LENGTHS[:count], batch_size, seed=5, even=even), steps))
    assert all(len(batch) == batch_size for batch in batches)
    stream = np.concatenate(batches)
    epochs = stream[: 3 * count].reshape(3, count)
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count > 9:
        assert (epochs[0] != epochs[1]).any()  # shuffled anew


def test_a_run_can_begin_at_any_step():
    whole = list(itertools.islice(batching.training_batches(LENGTHS, 24, seed=5), 130))
    for start in (1, 41, 42, 100):
        part = list(itertools.islice(batching.training_batches(LENGTHS, 24, seed=5, start=start), 30))
        np.testing.assert_array_equal(part, whole[start : start + 30])
    other = next(batching.training_batches(LENGTHS, 24, seed=6))
    assert (other != whole[0]).any()


def test_batches_are_of_similar_length():
    first_epoch = list(itertools.islice(batching.training_batches(LENGTHS, 8, seed=5), len(LENGTHS) // 8))
    real = sum(LENGTHS[batch].sum() for batch in first_epoch)
    computed = sum(8 * LENGTHS[batch].max() for batch in first_epoch)
    assert real / computed > 0.95
    random = np.random.default_rng(1).permutation(len(LENGTHS))[:1000].reshape(-1, 8)
    assert LENGTHS[random].sum() / (8 * LENGTHS[random].max(axis=1)).sum() < 0.7
    lengths = [LENGTHS[batch].mean() for batch in first_epoch]
    assert abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.3  # not from short to long


def test_widths():
    assert Shapes(max_seq_length=512).width(13) == 13
    assert Shapes(max_seq_length=512, multiple=8).width(13) == 16
    assert Shapes(max_seq_length=15, multiple=8).width(13) == 15
    static = Shapes(max_seq_length=512, static=True)
    assert [static.width(longest) for longest in (3, 32, 33, 64, 300, 512)] == [32, 32, 64, 64, 512, 512]


class _Choices:
    """A task whose features are rows of two axes, padded apart."""

    name = "choices"
    fields = {
        "input_ids": Field(("C", "S")),
        "score": Field(("C",), "float32", -1),
        "label": Field(),
        "kept": Field(("T",), for_model=False),
    }

    def featurise(self, example, tokenizer):
        choices, length = example
        ids = np.arange(choices * length).reshape(choices, length) + 1
        return [{"input_ids": ids, "score": np.ones(choices), "label": np.array(choices), "kept": np.arange(9)}]


def test_padded_batch():
    features = make_features(_Choices(), [(2, 3), (3, 2), (1, 1)], None)
    assert isinstance(features, Features) and features[1]["input_ids"].tolist() == [[1, 2], [3, 4], [5, 6]]
    batch = batching.padded_batch(features, [2, 0], Shapes(max_seq_length=8, multiple=4), rows=3)
    assert set(batch) == {"input_ids", "score", "label", "input_mask", "feature_index"}
    assert batch["input_ids"].tolist() == [
        [[1, 0, 0, 0], [0] * 4],
        [[1, 2, 3, 0], [4, 5, 6, 0]],
        [[1, 0, 0, 0], [0] * 4],
    ]
    assert batch["input_mask"].tolist() == [[[1, 0, 0, 0], [0] * 4], [[1, 1, 1, 0]] * 2, [[1, 0, 0, 0], [0] * 4]]
    assert batch["score"].tolist() == [[1, -1], [1, 1], [1, -1]] and batch["score"].dtype == np.float32
    assert batch["label"].tolist() == [1, 2, 1] and batch["feature_index"].tolist() == [2, 0, -1]
    share = batching.real_token_share(features, [np.array([2, 0])], Shapes(max_seq_length=8, multiple=4))
    assert share == pytest.approx((1 + 6) / (2 * 2 * 4))


def test_outputs_are_those_of_plain_padding(tiny_model):
    task = make_task("rte", max_seq_length=64)
    tokenizer = checkpoints.load_model(tiny_model).tokenizer
    model = checkpoints.new_model(
        checkpoints.load_model(tiny_model).config, {"classifier": task.head_options(0.1)}, tokenizer
    )
    texts = ["river " * (1 + 5 * i % 37) for i in range(23)]
    features = make_features(task, [TextExample("", (text, "a stone"), "entailment") for text in texts], tokenizer)
    outputs = Predictor(model, task, batch_size=5).outputs(features)
    plain = batching.padded_batch(features, range(len(features)), Shapes(max_seq_length=64, multiple=64))
    assert plain["input_ids"].shape == (23, 64)
    expected = task.forward(model, plain)["logits"].numpy()
    assert np.ptp(expected, axis=0).min() > 1e-3  # rows differ
    np.testing.assert_allclose([output["logits"] for output in outputs], expected, atol=2e-6)


@pytest.mark.parametrize("name", ["cola", "sst-2"])
def test_share_of_real_tokens_on_the_official_files(shared, name):
    task = make_task(name)
    assert task.max_seq_length == 512
    tokenizer = load_tokenizer(shared / "data/sentencepiece/30k-clean.model")
    examples = task.read(task.files(shared / "data/GLUE")["train"])[:20_000]
    features = make_features(task, examples, tokenizer)
    size = task.recipe.train_batch_size
    batches = list(itertools.islice(batching.training_batches(features.lengths, size, seed=1), len(features) // size))
    assert batching.real_token_share(features, batches, Shapes(max_seq_length=512)) > 0.95
    assert batching.real_token_share(features, batches, Shapes(max_seq_length=512, multiple=4)) > 0.85
    evaluation = batching.evaluation_batches(features.lengths, 64)
    assert batching.real_token_share(features, evaluation, Shapes(max_seq_length=512)) > 0.95
