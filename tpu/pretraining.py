"""A pretraining run from its settings: checks, model, optimiser, data, then the loop (orbit.Controller)."""

import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras

import albert_tf
from albert_tf import checkpoints, optimization
from albert_tf.config import AlbertConfig
from albert_tf.conversion.names import POOLER
from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as datasets
from albert_tf.pretraining.served_dataset import served_dataset
from tpu import data_errors, evaluation, preflight, strategy
from tpu.cluster import Workers
from tpu.progress import Progress, Silence
from tpu.run_folder import RunFolder
from tpu.saving import Saver
from tpu.trainer import PretrainingTrainer
from tpu.training_loop import EVALUATING, TRAINING, WAITING, WAITING_TO_EVALUATE, TrainingLoop
from tpu.watchdog import Watchdog

# The published rates are for models of this width and more; narrower ones take several times as much.
_RATES_KNOWN_FROM = 768  # hidden units
_LESS_MEMORY = "--recompute takes less memory, and so does another run with more --grad_accum_steps"


def run(settings: preflight.PretrainingSettings) -> dict[str, float]:
    """Trains, or goes on where the same run stopped; returns the last evaluation.

    Raises UserError before any work where something does not fit, and when the loss stops being finite.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf_keras.utils.set_random_seed(settings.seed)
    preflight.check_places(settings.tpu_name, data_dir=settings.data_dir, eval_data_dir=settings.eval_data_dir)
    where = strategy.make_strategy(
        settings.distribution, tpu_name=settings.tpu_name, cluster_timeout=settings.cluster_timeout
    )
    workers = Workers(where)
    data = preflight.open_data(settings)
    config = preflight.model_config(settings, data.tokenizer)
    preflight.check(settings, config, data, where)
    with workers.losing_none():
        workers.check_same(preflight.agreement(settings, config, data))
        with _folder(settings, config, data, workers) as folder, _watchdog(settings, workers) as watchdog:
            return _run(settings, config, data, where, workers, folder, watchdog)


def _run(
    settings: preflight.PretrainingSettings,
    config: AlbertConfig,
    data: preflight.PretrainingData,
    where: tf.distribute.Strategy,
    workers: Workers,
    folder: pathlib.Path | None,
    watchdog: Watchdog,
) -> dict[str, float]:
    with where.scope():
        model, optimizer = _model(settings, config, data), _optimizer(settings)
        global_step = tf.Variable(
            0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        saver = Saver(
            folder,
            model,
            optimizer,
            global_step,
            keep=settings.keep_checkpoints,
            made_by=_made_by(settings, data),
            io_device="/job:localhost" if strategy.is_remote_tpu(settings.tpu_name) else None,
        )
    start = _restore(settings, model, saver, workers)
    if workers.is_chief:
        _print_start(settings, config, data, where, model, start)
    batches = _training_data(settings, data, where, start)
    on_device = settings.iterations_per_loop is not None
    trainer = PretrainingTrainer(
        strategy=where,
        model=model,
        optimizer=optimizer,
        dataset=batches if on_device else watchdog.watched(batches, waiting=WAITING, working=TRAINING),
        global_step=global_step,
        grad_accum_steps=settings.grad_accum_steps,
        seed=settings.seed,
        jit_compile=strategy.jit_compile(settings.jit_compile, where),
        loop_on_device=on_device,
    )
    evaluator = evaluation.PretrainingEvaluator(model, _evaluation_data(settings, data, where, watchdog), where)
    progress = _progress(settings, data, folder, start)
    with contextlib.closing(progress), _memory_told(), data_errors.named_by_file(data.source, data.evaluation):
        return TrainingLoop(
            trainer=trainer,
            evaluator=evaluator,
            evaluation_name=data.evaluation_name,
            evaluation_records=data.evaluation_fingerprint,
            saver=saver,
            progress=progress,
            workers=workers,
            watchdog=watchdog,
            output_dir=settings.output_dir,
            num_train_steps=settings.num_train_steps,
            save_checkpoints_steps=settings.save_checkpoints_steps,
            eval_every_steps=settings.eval_every_steps,
            iterations_per_loop=settings.iterations_per_loop,
        ).run()


@contextlib.contextmanager
def _memory_told() -> Iterator[None]:
    """Words what a device says that has no memory left."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = error.message.splitlines()[0][:160]
        raise UserError(
            f"the memory is exhausted ({reason}): what was saved before is whole; {_LESS_MEMORY}, and evaluations "
            "with a smaller --eval_batch_size"
        ) from error


@contextlib.contextmanager
def _folder(
    settings: preflight.PretrainingSettings, config: AlbertConfig, data: preflight.PretrainingData, workers: Workers
) -> Iterator[pathlib.Path | None]:
    """The run folder, which the chief alone opens, reads and writes."""
    if not workers.is_chief:
        yield None
        return
    folder = RunFolder(
        settings.output_dir,
        command="pretrain",
        settings=preflight.identity(settings, config, data),
        adjustable={name: getattr(settings, name) for name in sorted(preflight.ADJUSTABLE)},
    )
    with contextlib.closing(folder):
        yield folder.path


def _restore(settings: preflight.PretrainingSettings, model: checkpoints.Model, saver: Saver, workers: Workers) -> int:
    """The step that the run goes on from, with all workers at the state of the chief.

    Call it out of the strategy's scope, in which every new variable, such as another model's, would have to be made by
    all workers.
    """
    if saver.restore() is None and workers.is_chief:  # a new run, or one stopped before it saved anything
        new = _initialise(settings, model)
        if "sentence_order" not in model.heads:
            saver.note_untrained([name for name in new if name in POOLER])
    workers.take_from_chief(saver.state)
    if (start := saver.step) > settings.num_train_steps:
        raise UserError(
            f"{settings.output_dir} has trained {start} steps already, more than --num_train_steps="
            f"{settings.num_train_steps}: ask for more steps or give another --output_dir"
        )
    return start


def _progress(
    settings: preflight.PretrainingSettings, data: preflight.PretrainingData, folder: pathlib.Path | None, start: int
) -> Progress | Silence:
    if folder is None:
        return Silence()
    tokens = settings.train_batch_size * data.source.info.max_seq_length
    return Progress(folder, start=start, total=settings.num_train_steps, tokens_per_step=tokens)


def _watchdog(settings: preflight.PretrainingSettings, workers: Workers) -> Watchdog:
    others = ", or another worker is stuck, whose log may tell" if workers.count > 1 else ""

    def explain(doing: str) -> str:
        return (
            f"nothing has gone on for {settings.stall_timeout:g} seconds while {doing}: a disk or a network does not "
            f"answer{others}; what was saved is whole, and the same command goes on from it. Where a step takes so "
            "long, raise --stall_timeout"
        )

    return Watchdog(settings.stall_timeout, explain, doing="building the model")


def _made_by(settings: preflight.PretrainingSettings, data: preflight.PretrainingData) -> dict[str, Any]:
    made_by = {"command": "pretrain", "albert_tf": albert_tf.__version__, "tensorflow": tf.__version__}
    if data.source.info.objective == "none" and settings.init_checkpoint is None:
        made_by["new"] = list(POOLER)  # never trained: what a later load reports as such
    return made_by


def _model(
    settings: preflight.PretrainingSettings, config: AlbertConfig, data: preflight.PretrainingData
) -> checkpoints.Model:
    heads: dict[str, dict[str, Any]] = {"masked_lm": {}}
    if data.source.info.objective != "none":
        heads["sentence_order"] = {}
    info = checkpoints.ModelInfo(
        max_seq_length=data.source.info.max_seq_length,
        sentence_objective=data.source.info.objective,
        preset=settings.preset,
    )
    model = checkpoints.new_model(config, heads, data.tokenizer, info=info, dtype=settings.mixed_precision)
    model.encoder.recompute = settings.recompute
    return model


def _initialise(settings: preflight.PretrainingSettings, model: checkpoints.Model) -> tuple[str, ...]:
    """Takes the weights of --init_checkpoint, if any; says loudly, and returns, what they do not cover."""
    if settings.init_checkpoint is None:
        return ()
    restored = checkpoints.initialise_from(model, settings.init_checkpoint, from_group0=settings.init_from_group0)
    print(f"{len(restored.filled)} variables from {settings.init_checkpoint}", file=sys.stderr)
    if restored.new:
        print(f"WARNING: NEW, not in {settings.init_checkpoint}: {', '.join(restored.new)}", file=sys.stderr)
    return restored.new


def _optimizer(settings: preflight.PretrainingSettings) -> tf_keras.optimizers.legacy.Optimizer:
    optimizer = optimization.create_optimizer(
        settings.optimizer,
        learning_rate=settings.learning_rate,
        num_train_steps=settings.num_train_steps,
        num_warmup_steps=settings.num_warmup_steps,
        weight_decay=settings.weight_decay,
        bias_correction=settings.bias_correction,
        global_clipnorm=None,  # the trainer clips, as it reports the norm
    )
    if settings.mixed_precision == "mixed_float16":
        return tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer


def _training_data(
    settings: preflight.PretrainingSettings, data: preflight.PretrainingData, where: tf.distribute.Strategy, start: int
) -> tf.data.Dataset:
    make = datasets.pretraining_dataset
    if settings.data_service is not None:
        make = functools.partial(served_dataset, service=settings.data_service)
    batching = datasets.Batching(
        tokenizer=data.tokenizer,
        global_batch_size=settings.train_batch_size,
        seed=settings.seed,
        max_predictions_per_seq=settings.max_predictions_per_seq,
    )
    make = tf.autograph.experimental.do_not_convert(make)  # it has no need of it, and starts seconds sooner
    return strategy.share_out(
        lambda context: make(
            data.source, batching.share(context), start_position=start * settings.train_batch_size
        ).apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)),  # no asking each other for ends
        where,
    )


def _evaluation_data(
    settings: preflight.PretrainingSettings,
    data: preflight.PretrainingData,
    where: tf.distribute.Strategy,
    watchdog: Watchdog,
) -> Iterable[dict[str, tf.Tensor]]:
    batches = evaluation.batches(
        data.evaluation,
        datasets.Batching(
            tokenizer=data.tokenizer,
            global_batch_size=settings.eval_batch_size,
            max_predictions_per_seq=settings.max_predictions_per_seq,
        ),
        where,
        num_records=preflight.SAMPLE if data.evaluation is data.source else None,
    )
    return watchdog.watched(batches, waiting=WAITING_TO_EVALUATE, working=EVALUATING)


def _print_start(
    settings: preflight.PretrainingSettings,
    config: AlbertConfig,
    data: preflight.PretrainingData,
    where: tf.distribute.Strategy,
    model: checkpoints.Model,
    start: int,
) -> None:
    rows = settings.train_batch_size // where.num_replicas_in_sync // settings.grad_accum_steps
    info = data.source.info
    predictions = settings.max_predictions_per_seq or info.max_predictions_per_seq
    needed, own = preflight.step_memory(settings, config, data, where), preflight.machine_memory(where)
    parameters = sum(variable.shape.num_elements() for variable in model.named_variables().values())
    lines = [
        strategy.describe(where),
        f"model: {settings.preset or 'own configuration'}, {parameters:,} parameters, {settings.mixed_precision}",
        f"data: {data.source.num_records:,} sequences of {info.max_seq_length}, objective {info.objective}, "
        f"{info.masking} masks, {predictions} predictions a sequence; evaluation on {data.evaluation_name}",
        f"memory: about {needed['total'] / 2**30:.1f} GiB a device ({needed['state'] / 2**30:.1f} weights and "
        f"optimiser, {needed['activations'] / 2**30:.1f} activations of {rows} sequences, the rest gradients and the "
        "program)",
        f"{settings.optimizer}: rate {settings.learning_rate:g}, {settings.num_warmup_steps} of "
        f"{settings.num_train_steps} steps warm-up, global batch {settings.train_batch_size}",
    ]
    notice = optimization.learning_rate_notice(settings.learning_rate, settings.train_batch_size, settings.optimizer)
    if notice and config.hidden_size >= _RATES_KNOWN_FROM:
        lines.append(f"NOTICE: {notice}")
    if own is not None and needed["total"] > own:
        lines.append(
            f"WARNING: this machine has {own / 2**30:.1f} GiB of memory, less than that: the system may end the run; "
            f"{_LESS_MEMORY}"
        )
    lines += _left_out(data)
    lines += [f"resuming at step {start}"] if start else []
    print("\n".join(lines), file=sys.stderr, flush=True)


def _left_out(data: preflight.PretrainingData) -> list[str]:
    """Warnings of records that are damaged, or that lie behind such in files that cannot be read on."""
    lines = []
    for source in (data.source, *([] if data.evaluation is data.source else [data.evaluation])):
        if source.num_skipped:
            behind = source.info.num_records - source.num_records - source.num_skipped
            more = f", and {behind:,} behind them" if behind > 0 else ""
            folder = os.path.dirname(source.paths[0])
            lines.append(f"WARNING: {source.num_skipped} damaged records are left out{more} ({folder})")
    return lines
