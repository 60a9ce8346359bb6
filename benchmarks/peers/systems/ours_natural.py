"""This project's classifiers on rows of natural lengths, by the paths of `albert_tf finetune` and `predict`."""

import itertools

import numpy as np
import tensorflow as tf

from albert_tf import checkpoints, config, optimization
from benchmarks.peers import natural, work
from benchmarks.peers.contract import Part
from tasks import batching, feeding
from tasks.catalog import make_task
from tasks.evaluation import Predictor
from tasks.features import Column, Features
from tasks.task import Task
from tasks.task_model import TaskModel

OWN = "own"  # the only mode: the project's way of making batches
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def parts(case: work.Case, where: tf.distribute.Strategy) -> dict[str, Part]:
    """mrpc/own, cola/own, sst-2/own; called within the strategy's scope."""
    task = make_task(natural.TASKS[0], max_seq_length=natural.RECIPE_LENGTH)  # all three have two classes
    sizes = config.preset(case.preset).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = checkpoints.new_model(sizes, {task.head: task.head_options(0.0)}, dtype=POLICIES[case.precision])
    if case.kind == "infer":
        predictor = Predictor(model, task, strategy=where, batch_size=natural.EVAL_BATCH)
        return {f"{name}/{OWN}": _inference(predictor, task, name, case) for name in natural.TASKS}
    trained = TaskModel(model, task)
    trained.compile(optimizer=optimization.create_optimizer("adamw", learning_rate=work.LEARNING_RATE))
    return {f"{name}/{OWN}": _training(trained, task, name, case, where) for name in natural.TASKS}


def features(task: Task, rows: np.ndarray) -> Features:
    """Features of random words with these lengths."""
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
    ids = rng.integers(work.FIRST_WORD, work.VOCABULARY, starts[-1], dtype=np.int32)
    count = len(rows)
    columns = {
        "input_ids": Column(ids, rows[:, None], starts),
        "segment_ids": Column(np.zeros_like(ids), rows[:, None], starts),
        "label": Column(
            rng.integers(2, size=count, dtype=np.int32), np.zeros((count, 0), np.int32), np.arange(count + 1)
        ),
    }
    return Features(columns, np.arange(count, dtype=np.int32), task.fields)


def _sample(feed_batches: list[np.ndarray], rows: np.ndarray, case: work.Case) -> tuple[list[np.ndarray], float]:
    """Some of the batches of feature numbers, and what all are to them."""
    batches = [rows[numbers] for numbers in feed_batches]
    chosen = natural.spread([len(batch) * int(batch.max()) for batch in batches], case.sample_tokens)
    return [feed_batches[i] for i in chosen], natural.scale(batches, chosen)


def _training(trained: TaskModel, task: Task, name: str, case: work.Case, where: tf.distribute.Strategy) -> Part:
    rows = natural.lengths(name, "train")
    some = features(task, rows)
    feed, _ = feeding.training_feed(
        task, some, where, batch_size=natural.TRAIN_BATCH[name], num_steps=natural.STEPS, seed=0
    )
    chosen, scale = _sample(list(itertools.islice(feed.batches, natural.STEPS)), rows, case)

    def fit(batches: list[np.ndarray]) -> float:
        dataset = feeding.Feed(some, feed.form, batches).dataset()
        return float(trained.fit(dataset, steps_per_epoch=len(batches), verbose=0).history["loss"][-1])

    return Part(lambda: fit(chosen), scale, lambda: fit(chosen[:1]))


def _inference(predictor: Predictor, task: Task, name: str, case: work.Case) -> Part:
    rows = natural.lengths(name, "infer")
    chosen, scale = _sample(batching.evaluation_batches(rows, natural.EVAL_BATCH), rows, case)

    # The predictor makes the same batches of these rows as of all: they are whole batches of its order.
    whole = features(task, rows[np.concatenate(chosen)])
    one = features(task, rows[chosen[0]])

    def predict(some: Features) -> float:
        return float(predictor.outputs(some)[0]["logits"][0])

    return Part(lambda: predict(whole), scale, lambda: predict(one))
