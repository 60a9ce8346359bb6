"""What a TPU needs and a CPU can show: steps compile with XLA, with static shapes, and compute the same.

XLA refuses a function whole, so a step that runs with jit_compile=True holds no operation that it lacks and no shape
that depends on values.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import checkpoints, optimization
from albert_tf.config import PRESETS, AlbertConfig
from albert_tf.pretraining import dataset, objective, record_source
from albert_tf.tokenization import load_tokenizer
from tasks import batching, packing
from tasks.catalog import make_task
from tasks.features import make_features
from tasks.race import RaceExample
from tasks.squad_data import GoldAnswer, Question
from tasks.task_model import TaskModel
from tasks.text import TextExample
from tasks.tokens import Sentence
from tpu.trainer import PretrainingTrainer

SMALL = AlbertConfig(
    vocab_size=800,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
# XLA draws other random numbers, so values are compared without dropout.
SLOW = pytest.mark.slow
CASES = pytest.mark.parametrize(("accumulation", "dropout"), [(1, 0.0), (2, 0.0), pytest.param(2, 0.1, marks=SLOW)])


def assert_close(first, second, atol=1e-5):
    for ours, theirs in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=atol)


def with_dropout(rate):
    return SMALL.replace(hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)


def is_static(function, *arguments):
    """Whether the compiled program has no dynamic dimension (written <=N) and was traced once."""
    program = function.experimental_get_compiler_ir(*arguments)(stage="hlo")
    return "<=" not in program and function.experimental_get_tracing_count() == 1


# Pretraining


def pretraining_trainer(config, heads, batches, *, slots=True, **options):
    tf_keras.utils.set_random_seed(1)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model, step = checkpoints.new_model(config, heads), tf.Variable(0, dtype=tf.int64)
    optimizer = tf_keras.optimizers.legacy.SGD(0.01)  # has no slots
    if slots:
        optimizer = optimization.create_optimizer("lamb", learning_rate=0.01, num_train_steps=10, num_warmup_steps=2)
    return PretrainingTrainer(
        strategy=strategy, model=model, optimizer=optimizer, dataset=batches, global_step=step, **options
    )


@CASES
@pytest.mark.parametrize("kind", ["sop", "nsp", "none"])
def test_a_pretraining_step_compiles_for_every_objective(make_records, tiny_spm, kind, accumulation, dropout):
    """The whole step of a replica, as a TPU compiles it: gradients, clipping, LAMB."""
    source = record_source.open_records(make_records(objective=kind))
    batching = dataset.Batching(tokenizer=load_tokenizer(tiny_spm), global_batch_size=4, seed=1)
    batches = dataset.pretraining_dataset(source, batching)
    assert all(spec.shape.is_fully_defined() for spec in batches.element_spec.values())
    heads = {"masked_lm": {}} if kind == "none" else {"masked_lm": {}, "sentence_order": {}}
    features = next(iter(batches))
    weights, results = [], []
    for compiled in (True, False)[: 1 if dropout else 2]:
        trainer = pretraining_trainer(with_dropout(dropout), heads, batches, grad_accum_steps=accumulation)
        step = tf.function(trainer._replica_step, jit_compile=compiled or None, autograph=False)
        for _ in range(3):
            step(features)
            trainer.global_step.assign_add(1)
        assert not compiled or is_static(step, features)
        results.append([trainer.train_loop_end()["sums"], trainer.train_loop_end()["gradient_norm"]])
        weights.append([variable.numpy() for variable in trainer.model.named_variables().values()])
    assert all(np.isfinite(value).all() for value in weights[0])
    if not dropout:
        assert_close(*results)
        assert_close(*weights)


def preset_step(name, length):
    """A preset at its true width with two layers: sums and gradients of one row, compiled and not."""
    # Without dropout: XLA draws other random numbers.
    config = PRESETS[name].replace(num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    random = np.random.default_rng(0)
    features = {
        "input_ids": random.integers(5, config.vocab_size, [1, length]).astype(np.int32),
        "input_mask": np.ones([1, length], np.int32),
        "segment_ids": (np.arange(length) >= length // 2).astype(np.int32)[np.newaxis],
        "masked_lm_positions": np.arange(1, 9, dtype=np.int32)[np.newaxis],
        "masked_lm_ids": random.integers(5, config.vocab_size, [1, 8]).astype(np.int32),
        "masked_lm_weights": np.ones([1, 8], np.float32),
        "sentence_labels": np.ones([1], np.int32),
        "sentence_weights": np.ones([1], np.float32),
    }
    features = {key: tf.constant(value) for key, value in features.items()}
    heads = {"masked_lm": {}, "sentence_order": {}}
    trainer = pretraining_trainer(config, heads, None, slots=False, jit_compile=True)
    arguments = features, objective.batch_weights(features), tf.constant([1, 2])
    gradients, sums = trainer._gradients(*arguments)
    assert trainer._gradients.experimental_get_tracing_count() == 1
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert any(np.abs(gradient).max() > 0 for gradient in gradients)
    return sums, trainer._micro_gradients(*arguments)[1]


@pytest.mark.parametrize("name", ["albert_tiny", "albert_base_v1", "albert_base_v2", "bert_base"])
def test_presets_compile_at_their_true_width(name):
    assert_close(*preset_step(name, 64), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if "xlarge" not in name])
def test_presets_compile_at_512_tokens(name):
    """The quick twin is test_presets_compile_at_their_true_width."""
    assert_close(*preset_step(name, 512), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if "xlarge" in name])
def test_wide_presets_compile_at_64_tokens(name):
    """The quick twin is test_presets_compile_at_their_true_width."""
    assert_close(*preset_step(name, 64), atol=1e-3)


# Fine-tuning

TEXTS = ["the river is green", "the bird is white and the stone is brown", "a letter", "a market in winter"]
PAIRS = [(text, "the bird is white") for text in TEXTS]


def questions(version):
    def question(number, text):
        answers = () if version == "2.0" and number % 2 else (GoldAnswer(text.split()[-1], text.rindex(" ") + 1),)
        return Question(str(number), "what is it ?", text, answers, version)

    return [question(number, text) for number, text in enumerate(TEXTS)]


TASKS = {
    "cola": lambda: [TextExample("", (text,), str(i % 2)) for i, text in enumerate(TEXTS)],
    "mnli": lambda: [
        TextExample("", pair, ("contradiction", "entailment", "neutral")[i % 3]) for i, pair in enumerate(PAIRS)
    ],
    "sts-b": lambda: [TextExample("", pair, float(i)) for i, pair in enumerate(PAIRS)],
    "squad1.1": lambda: questions("1.1"),
    "squad2.0": lambda: questions("2.0"),
    "squad2.0-plain": lambda: questions("2.0"),
    "race": lambda: [
        RaceExample(str(i), text, "what is _ ?", ("green", "white", "brown", "black"), i, "middle")
        for i, text in enumerate(TEXTS)
    ],
    "tokens": lambda: [
        Sentence(str(i), tuple(text.split()), tuple("B-X" if word == "is" else "O" for word in text.split()))
        for i, text in enumerate(TEXTS)
    ],
}


QUICK = [*((name, 1, 0.0) for name in TASKS), ("cola", 2, 0.0)]  # accumulation is the same code for all heads


def task_batch(name, tokenizer, slices):
    """(task, its batch as TPUs get it: every length fixed, several examples a row where the task allows it)."""
    examples = TASKS[name]()
    options = {"span_head": "plain"} if name.endswith("-plain") else {}
    if name.startswith("squad"):
        options |= {"max_query_length": 12, "doc_stride": 16}
    if name == "race":
        options |= {"max_qa_length": 16}
    task = make_task(name.removesuffix("-plain"), max_seq_length=48, options=options).learned_from(examples)
    features = make_features(task, examples, tokenizer)
    numbers = range(4)
    if task.packable:
        plan = packing.plan(features.lengths, [np.array(numbers)], max_seq_length=48, parts=slices)
        return task, packing.packed_batch(features, numbers, plan)
    return task, batching.padded_batch(features, numbers, batching.Shapes(max_seq_length=48, static=True), rows=4)


@pytest.mark.parametrize(
    ("name", "accumulation", "dropout"),
    [
        pytest.param(name, accumulation, dropout, marks=[] if (name, accumulation, dropout) in QUICK else SLOW)
        for name in TASKS
        for accumulation, dropout in ((1, 0.0), (2, 0.0), (2, 0.1))
    ],
)
def test_a_fine_tuning_step_compiles_for_every_head(tiny_spm, name, accumulation, dropout):
    """The whole step, as a TPU compiles it."""
    task, batch = task_batch(name, load_tokenizer(tiny_spm), accumulation)
    batch = {key: tf.constant(value) for key, value in batch.items()}
    weights, losses = [], []
    for compiled in (True, False)[: 1 if dropout else 2]:
        tf_keras.utils.set_random_seed(1)
        model = checkpoints.new_model(with_dropout(dropout), {task.head: task.head_options(dropout)})
        trained = TaskModel(model, task, seed=3, grad_accum_steps=accumulation)
        trained.compile(optimizer=optimization.create_optimizer("adamw", learning_rate=0.01, num_train_steps=9))
        step = tf.function(trained.train_step, jit_compile=compiled or None)
        losses.append([step(batch)["loss"] for _ in range(3)])
        assert not compiled or is_static(step, batch)
        weights.append([variable.numpy() for variable in model.named_variables().values()])
    assert np.isfinite(losses[0]).all()
    if not dropout:
        assert_close(*losses)
        # AdamW makes steps of up to 0.01 here also of gradients near 0, of which races, with most rows, have some.
        assert_close(*weights, atol=3e-4 if name == "race" else 1e-4)
