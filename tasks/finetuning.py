"""A fine-tuning run from its settings: task, model, features, then Model.fit with evaluations in between."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from albert_tf import checkpoints, files, optimization
from albert_tf.checkpoints import Model
from albert_tf.errors import UserError
from tasks import archives, starting
from tasks.catalog import make_task
from tasks.evaluation import Predictor, labelled, single_machine_strategy
from tasks.features import (
    MOST_UNKNOWN,
    FeatureCache,
    Features,
    check_segments,
    content_hash,
    tell_unknown,
    unknown_share,
)
from tasks.feeding import training_feed
from tasks.finetune import check_positive
from tasks.task import Recipe, Task
from tasks.task_model import TaskModel
from tasks.training_loop import RESULTS_FILE, EvaluationSet, TrainingLoop
from tpu import strategy as strategies
from tpu.run_folder import RUN_FILE, RunFolder

EVALUATIONS = 10  # in a run, unless eval_every_steps says otherwise
_COUNTS = (
    *("train_batch_size", "eval_batch_size", "max_train_examples", "max_eval_examples", "max_seq_length"),
    *("num_train_steps", "num_train_epochs", "eval_every_steps", "early_stop_patience"),
)
# What may differ when the same run goes on.
ADJUSTABLE = (
    *("num_train_steps", "num_train_epochs", "eval_every_steps", "early_stop_patience"),
    *("distribution", "recompute"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What `albert_tf finetune` was asked for; None leaves a value to the task's recipe."""

    task_name: str
    model_dir: str | os.PathLike
    output_dir: str | os.PathLike
    data_dir: str | os.PathLike | None = None
    train_file: str | os.PathLike | None = None
    eval_file: str | os.PathLike | None = None
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    train_batch_size: int | None = None
    eval_batch_size: int = 64
    learning_rate: float | None = None
    num_train_steps: int | None = None
    num_train_epochs: float | None = None
    num_warmup_steps: int | None = None
    max_seq_length: int | None = None
    encoder_dropout: float | None = None
    classifier_dropout: float | None = None
    optimizer: str = "adamw"
    seed: int = 1
    max_train_examples: int | None = None
    max_eval_examples: int | None = None
    grad_accum_steps: int = 1
    mixed_precision: str = "float32"
    recompute: bool = False
    distribution: str = "auto"
    tpu_name: str | None = None
    early_stop_patience: int | None = None
    eval_every_steps: int | None = None
    cache_dir: str | os.PathLike | None = None
    random_weights: bool = False

    def __post_init__(self) -> None:
        """Raises UserError for a count that is not above 0: as the end of a slice, -1 would drop the last example."""
        for name in _COUNTS:
            check_positive(name, getattr(self, name))


class Source(NamedTuple):
    """Labelled examples and where they come from."""

    name: str  # train, dev, dev_matched, ...
    path: str
    examples: list[Any]


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tunes, or goes on where the same run stopped, and returns what RESULTS_FILE holds.

    Raises UserError before any work where something does not fit, and when the loss stops being finite.
    """
    tf_keras.utils.set_random_seed(settings.seed)
    where = single_machine_strategy(settings.distribution, settings.tpu_name)
    task, sources = read_sources(settings)
    source = starting.load_source(settings.model_dir)
    task = starting.with_labels_of(task, source.info)
    recipe = recipe_of(settings, task, source)
    check_batch(settings, recipe, where)
    with where.scope():
        model = starting.start_model(
            source,
            task,
            recipe,
            name=settings.model_dir,
            dtype=settings.mixed_precision,
            random_weights=settings.random_weights,
        )
    model.encoder.recompute = settings.recompute
    cache = FeatureCache(settings.cache_dir or os.path.join(settings.output_dir, "features"))
    train, *evaluation = [
        EvaluationSet(*one, cache.features(task, one.examples, model.tokenizer, one.path)) for one in sources
    ]
    for one in (train, *evaluation):
        check_known(one, model)
    recipe = in_steps(settings, recipe, len(train.features))
    with where.scope():
        trained = TaskModel(model, task, seed=settings.seed, grad_accum_steps=settings.grad_accum_steps)
        trained.compile(optimizer=make_optimizer(settings, recipe))
    folder = RunFolder(
        settings.output_dir,
        command="finetune",
        settings=_identity(settings, task, recipe, sources, model),
        adjustable={name: getattr(settings, name) for name in ADJUSTABLE},
    )
    with contextlib.closing(folder):
        cache.keep()
        _print_start(settings, task, recipe, len(train.features), where)
        for remark in task.remarks(train.features, train.examples):
            print(f"NOTICE: {train.path}: {remark}", file=sys.stderr)
        loop = TrainingLoop(
            folder.path,
            task=task,
            model=model,
            trained=trained,
            predictor=Predictor(model, task, strategy=where, batch_size=settings.eval_batch_size),
            evaluation=evaluation,
            num_train_steps=recipe.num_train_steps,
            eval_every_steps=settings.eval_every_steps or -(-recipe.num_train_steps // EVALUATIONS),
            early_stop_patience=settings.early_stop_patience,
        )
        return _fit(settings, task, recipe, train.features, trained, loop, where)


def _fit(
    settings: Settings,
    task: Task,
    recipe: Recipe,
    train: Features,
    trained: TaskModel,
    loop: TrainingLoop,
    where: tf.distribute.Strategy,
) -> dict[str, Any]:
    start, steps = loop.restore(), recipe.num_train_steps
    if start < steps and not loop.stopped_early:
        size = recipe.train_batch_size
        feed, share = training_feed(
            task,
            train,
            where,
            batch_size=size,
            num_steps=steps,
            seed=settings.seed,
            start=start,
            slices=settings.grad_accum_steps,
        )
        plain = train.lengths.mean() / task.max_seq_length
        print(
            f"{share:.1%} of the computed tokens are real, against {plain:.1%} padded to {task.max_seq_length}",
            file=sys.stderr,
        )
        with loop.running():
            bar = int(sys.stdout.isatty())
            trained.fit(feed.dataset(), steps_per_epoch=steps - start, callbacks=[loop], verbose=bar)
    return loop.finish()


def read_sources(settings: Settings) -> tuple[Task, list[Source]]:
    """The task with its labels, and the labelled examples: the training data first, then each development set.

    Raises UserError where there is no training data, or a file does not fit.
    """
    task = _task(settings)
    paths = _paths(settings, task)
    if "train" not in paths:
        if settings.data_dir is not None:
            raise UserError(f"task {task.name} has no training data; fine-tune mnli and predict with that model")
        raise UserError("no training data: give --data_dir with the task's files, or --train_file and --eval_file")
    examples = labelled(task.read(paths["train"]), paths["train"])[: settings.max_train_examples]
    task = task.learned_from(examples)
    sources = [Source("train", paths["train"], examples)]
    for split, path in paths.items():
        if split.startswith("dev"):
            sources.append(Source(split, path, labelled(task.read(path), path)[: settings.max_eval_examples]))
    if len(sources) == 1:
        print("NOTICE: no development data: the last weights are kept, and there is no score", file=sys.stderr)
    return task, sources


def _task(settings: Settings) -> Task:
    return make_task(settings.task_name, max_seq_length=settings.max_seq_length, options=settings.task_options)


def _paths(settings: Settings, task: Task) -> dict[str, str]:
    """The files of each split, by its name; of the development sets those that are there."""
    paths = dict(task.files(settings.data_dir)) if settings.data_dir is not None else {}
    paths = {split: path for split, path in paths.items() if split == "train" or archives.exists(path)}
    if settings.train_file is not None:
        paths["train"] = settings.train_file
    if settings.eval_file is not None:
        paths = {split: path for split, path in paths.items() if not split.startswith("dev")}
        paths["dev"] = settings.eval_file
    return paths


def check_known(data: EvaluationSet, model: Model) -> None:
    """Refuses data that the model's vocabulary mostly does not know, and warns where it is much."""
    share = unknown_share(data.features, model.tokenizer)
    if share > MOST_UNKNOWN:
        raise UserError(
            f"{data.path}: {share:.1%} of the tokens are unknown to the vocabulary {model.tokenizer.path}, expected at "
            f"most {MOST_UNKNOWN:.0%}: give a --model_dir of this language, casing and script"
        )
    tell_unknown(data.features, model.tokenizer, data.path)
    check_segments(data.features, model.config.type_vocab_size, data.path)


def recipe_of(settings: Settings, task: Task, source: Model) -> Recipe:
    """The task's recipe for that pretrained model, with the values that were asked for."""
    recipe = task.recipe_for(source.config, source.info.preset)
    asked = {
        name: getattr(settings, name)
        for name in ("train_batch_size", "learning_rate", "encoder_dropout", "classifier_dropout")
        if getattr(settings, name) is not None
    }
    return dataclasses.replace(recipe, max_seq_length=task.max_seq_length, **asked)


def in_steps(settings: Settings, recipe: Recipe, num_features: int) -> Recipe:
    """The recipe with steps and warm-up as numbers; epochs are converted here and nowhere else.

    Raises UserError where both steps and epochs are asked for.
    """
    if None not in (settings.num_train_steps, settings.num_train_epochs):
        raise UserError("num_train_steps and num_train_epochs are both given; leave one out")
    epochs = settings.num_train_epochs
    steps = settings.num_train_steps
    if steps is None and epochs is None:
        steps, epochs = recipe.num_train_steps, recipe.num_train_epochs
    if steps is None:
        steps = max(1, round(epochs * num_features / recipe.train_batch_size))
    if steps < 1:
        raise UserError(f"num_train_steps is {steps}, expected at least 1")
    warmup = settings.num_warmup_steps
    if warmup is None:
        warmup = round(recipe.warmup_share * steps)
    return dataclasses.replace(recipe, num_train_steps=steps, num_train_epochs=None, num_warmup_steps=warmup)


def make_optimizer(settings: Settings, recipe: Recipe) -> tf_keras.optimizers.legacy.Optimizer:
    """The release's optimiser with the recipe's schedule; gradients are clipped to norm 1 inside it, once."""
    optimizer = optimization.create_optimizer(
        settings.optimizer,
        learning_rate=recipe.learning_rate,
        num_train_steps=recipe.num_train_steps,
        num_warmup_steps=recipe.num_warmup_steps,
    )
    if settings.mixed_precision == "mixed_float16":
        return tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer


def check_batch(settings: Settings, recipe: Recipe, where: tf.distribute.Strategy) -> None:
    """Refuses a batch that does not divide over replicas and accumulation steps."""
    parts = settings.grad_accum_steps * where.num_replicas_in_sync
    if parts < 1 or recipe.train_batch_size < 1 or recipe.train_batch_size % parts:
        raise UserError(
            f"train_batch_size is {recipe.train_batch_size} with grad_accum_steps {settings.grad_accum_steps} on "
            f"{where.num_replicas_in_sync} replicas: expected a multiple of {max(parts, 1)}; change one of them"
        )


def _identity(
    settings: Settings, task: Task, recipe: Recipe, sources: Sequence[Source], model: Model
) -> dict[str, Any]:
    """What a resumed run must have in common with its beginning."""
    asked = ("optimizer", "seed", "num_warmup_steps", "grad_accum_steps", "mixed_precision")
    values = dataclasses.asdict(recipe)
    del values["num_train_steps"], values["num_train_epochs"]  # as far as asked for, they may be raised
    return {
        **task.describe(),
        **values,
        "model_dir": os.fspath(settings.model_dir),
        **{name: getattr(settings, name) for name in (*asked, "random_weights")},
        "vocabulary_hash": model.tokenizer.hash,
        "data": {one.name: [content_hash(one.path), len(one.examples)] for one in sources},
    }


def _print_start(
    settings: Settings, task: Task, recipe: Recipe, num_features: int, where: tf.distribute.Strategy
) -> None:
    epochs = recipe.num_train_steps * recipe.train_batch_size / num_features
    print(
        f"{task.name}: learning rate {recipe.learning_rate:g}, batch {recipe.train_batch_size}, encoder dropout "
        f"{recipe.encoder_dropout:g}, classifier dropout {recipe.classifier_dropout:g}, {recipe.num_train_steps} steps "
        f"({epochs:.1f} epochs of {num_features} features), {recipe.num_warmup_steps} of them warm-up, at most "
        f"{recipe.max_seq_length} tokens, {settings.optimizer}, {settings.mixed_precision}, seed {settings.seed}\n"
        f"{strategies.describe(where)}",
        file=sys.stderr,
    )


def run_seeds(settings: Settings, count: int) -> dict[str, Any]:
    """Runs seeds seed, seed + 1, ... in folders of their own, and reports each, the median and the spread.

    The best seed's model goes to the root of the output folder, so that it is a model folder too.

    Raises UserError where there is no development data to compare the seeds with, or the folder holds anything else.
    """
    if not any(split.startswith("dev") for split in _paths(settings, _task(settings))):
        raise UserError("num_seeds needs development data to compare the seeds; give --eval_file or a full --data_dir")
    root = pathlib.Path(settings.output_dir)
    if (root / RUN_FILE).exists():
        raise UserError(f"{root} holds a single run: give another --output_dir for {count} seeds")
    found = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
    if found and not any(name.startswith("seed-") for name in found):
        raise UserError(
            f"{root} holds {', '.join(found[:3])} but no runs of seeds, and the best model would be written over it; "
            "give a new --output_dir"
        )
    cache_dir = settings.cache_dir or str(root / "features")
    results = {}
    for seed in range(settings.seed, settings.seed + count):
        print(f"seed {seed}", file=sys.stderr)
        one = dataclasses.replace(settings, seed=seed, output_dir=str(root / f"seed-{seed}"), cache_dir=cache_dir)
        results[seed] = run(one)
        tf_keras.backend.clear_session()
    summary = summarise(results)
    best = checkpoints.load_model(root / f"seed-{summary['best_seed']}")
    checkpoints.save_model(root, best)
    files.write_json(root / RESULTS_FILE, summary)
    return summary


def summarise(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Each seed's primary metric, their median, and their spread (highest minus lowest)."""
    import numpy as np

    first = next(iter(results.values()))
    scores = {seed: result["score"] for seed, result in results.items()}
    sign = 1 if first["greater_is_better"] else -1
    known = [score for score in scores.values() if score == score]  # NaN: undefined, of a degenerate run
    return {
        "task": first["task"],
        "primary": first["primary"],
        "seeds": {str(seed): result for seed, result in results.items()},
        "best_seed": max(scores, key=lambda seed: (scores[seed] == scores[seed], sign * scores[seed])),
        "median": float(np.median(known)) if known else None,
        "spread": float(max(known) - min(known)) if known else None,
        "degenerate_seeds": [seed for seed, result in results.items() if result["degenerate"]],
    }
