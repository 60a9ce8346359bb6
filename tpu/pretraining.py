"""A pretraining run from its settings: checks, model, optimiser, data, then the loop (orbit.Controller)."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import orbit
import tensorflow as tf
import tf_keras

import albert_tf
from albert_tf import checkpoints, optimization
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.pretraining import dataset as datasets
from albert_tf.pretraining import objective
from tpu import data_errors, evaluation, memory, preflight, strategy
from tpu.progress import Progress
from tpu.run_folder import RunFolder
from tpu.saving import Saver
from tpu.trainer import PretrainingTrainer

# The published rates are for models of this width and more; narrower ones take several times as much.
_RATES_KNOWN_FROM = 768  # hidden units


def run(settings: preflight.PretrainingSettings) -> dict[str, float]:
    """Trains, or goes on where the same run stopped; returns the last evaluation.

    Raises UserError before any work where something does not fit, and when the loss stops being finite.
    """
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf_keras.utils.set_random_seed(settings.seed)
    where = strategy.make_strategy(settings.distribution, tpu_name=settings.tpu_name)
    data = preflight.open_data(settings)
    config = preflight.model_config(settings, data.tokenizer)
    preflight.check(settings, config, data, where)
    folder = _folder(settings, config, data)
    with contextlib.closing(folder):
        with where.scope():
            model = _model(settings, config, data)
            optimizer = _optimizer(settings)
            global_step = tf.Variable(
                0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
            made_by = {"command": "pretrain", "albert_tf": albert_tf.__version__, "tensorflow": tf.__version__}
            saver = Saver(folder.path, model, optimizer, global_step, keep=settings.keep_checkpoints, made_by=made_by)
            start = saver.restore()
            if start is None:  # a new run, or one that was stopped before it saved anything
                start = 0
                _initialise(settings, model)
        if start > settings.num_train_steps:
            raise UserError(
                f"{folder.path} has trained {start} steps already, more than --num_train_steps="
                f"{settings.num_train_steps}: ask for more steps or give another --output_dir"
            )
        _print_start(settings, config, data, where, model, start)
        trainer = PretrainingTrainer(
            strategy=where,
            model=model,
            optimizer=optimizer,
            dataset=_training_data(settings, data, where, start),
            global_step=global_step,
            grad_accum_steps=settings.grad_accum_steps,
            seed=settings.seed,
            jit_compile=_jit_compile(settings.jit_compile, where),
            loop_on_device=settings.iterations_per_loop is not None,
        )
        evaluation_batches = evaluation.batches(
            data.evaluation,
            where,
            tokenizer=data.tokenizer,
            global_batch_size=settings.eval_batch_size,
            num_records=preflight.SAMPLE if data.evaluation is data.source else None,
            max_predictions_per_seq=settings.max_predictions_per_seq,
        )
        evaluator = evaluation.PretrainingEvaluator(model, evaluation_batches, where)
        tokens = settings.train_batch_size * data.source.info.max_seq_length
        progress = Progress(folder.path, start=start, total=settings.num_train_steps, tokens_per_step=tokens)
        with contextlib.closing(progress), data_errors.named_by_file(data.source, data.evaluation):
            return _train(settings, trainer, evaluator, saver, progress, data.evaluation_name)


def _folder(
    settings: preflight.PretrainingSettings, config: AlbertConfig, data: preflight.PretrainingData
) -> RunFolder:
    return RunFolder(
        settings.output_dir,
        command="pretrain",
        settings=preflight.identity(settings, config, data),
        adjustable={name: getattr(settings, name) for name in sorted(preflight.ADJUSTABLE)},
    )


def _train(
    settings: preflight.PretrainingSettings,
    trainer: PretrainingTrainer,
    evaluator: evaluation.PretrainingEvaluator,
    saver: Saver,
    progress: Progress,
    evaluation_name: str,
) -> dict[str, float]:
    """The loop: steps, progress, saving, evaluation."""
    with _stop_signals() as stopped, open(os.devnull, "w") as quiet:

        def evaluate(step: int) -> dict[str, float]:
            if (known := progress.evaluated(step, evaluation_name)) is not None:
                return known
            metrics = evaluator.evaluate(stopped)
            if stopped:
                stop(step)
            progress.evaluation(step, metrics, evaluation_name)
            return metrics

        def stop(step: int) -> None:
            saver.save()
            print(f"stopped by signal {stopped[0]} at step {step}, saved; the same command goes on", file=sys.stderr)
            raise SystemExit(128 + stopped[0])

        def steps_per_loop(step: int) -> int:
            save, asked = settings.save_checkpoints_steps, settings.iterations_per_loop
            return min(save - step % save, asked or progress.steps_until_next_line(step))

        def after_loop(output: dict[str, Any]) -> None:
            step = int(trainer.global_step.numpy())
            _check_finite(output, settings.output_dir)
            progress.training(step, _training_metrics(trainer, output), output["seconds_waiting"])
            if step % settings.save_checkpoints_steps == 0 or step == settings.num_train_steps:
                saver.save()
                progress.restart_clock(step)
            if stopped:
                stop(step)

        controller = orbit.Controller(
            global_step=trainer.global_step,
            trainer=trainer,
            strategy=trainer.strategy,
            steps_per_loop=steps_per_loop,
            train_actions=[after_loop],
        )
        step, total = int(trainer.global_step.numpy()), settings.num_train_steps
        due = step % settings.eval_every_steps == 0 or step == total
        metrics = evaluate(step) if due else {}  # a run that is resumed may have been stopped before it got there
        while step < total:
            step = min(total, (step // settings.eval_every_steps + 1) * settings.eval_every_steps)
            with contextlib.redirect_stdout(quiet):  # orbit prints a line a loop; ours says more
                controller.train(steps=step)
            metrics = evaluate(step)
        return metrics


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
    return checkpoints.new_model(config, heads, data.tokenizer, info=info, dtype=settings.mixed_precision)


def _initialise(settings: preflight.PretrainingSettings, model: checkpoints.Model) -> None:
    """Takes the weights of --init_checkpoint, and says loudly what they do not cover."""
    if settings.init_checkpoint is None:
        return
    restored = checkpoints.initialise_from(model, settings.init_checkpoint, from_group0=settings.init_from_group0)
    print(f"{len(restored.filled)} variables from {settings.init_checkpoint}", file=sys.stderr)
    if restored.new:
        print(f"WARNING: NEW, not in {settings.init_checkpoint}: {', '.join(restored.new)}", file=sys.stderr)


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
    return where.distribute_datasets_from_function(
        lambda context: datasets.pretraining_dataset(
            data.source,
            tokenizer=data.tokenizer,
            global_batch_size=settings.train_batch_size,
            seed=settings.seed,
            start_position=start * settings.train_batch_size,
            num_workers=context.num_input_pipelines,
            worker=context.input_pipeline_id,
            replicas_per_worker=where.num_replicas_in_sync // context.num_input_pipelines,
            max_predictions_per_seq=settings.max_predictions_per_seq,
        )
    )


def _jit_compile(choice: str, where: tf.distribute.Strategy) -> bool:
    """Whether XLA compiles the gradient step; on CPU it is not worth its compile time by itself."""
    if choice != "auto":
        return choice == "true"
    return not any("CPU" in device for device in where.extended.worker_devices)


def _training_metrics(trainer: PretrainingTrainer, output: dict[str, Any]) -> dict[str, float]:
    metrics = objective.metrics(output["sums"], sentence="sentence_order" in trainer.model.heads)
    metrics["learning_rate"] = output["learning_rate"]
    if output["gradient_norm"] is not None:
        metrics["gradient_norm"] = output["gradient_norm"]
    if output["skipped_steps"]:
        metrics["skipped_steps"] = output["skipped_steps"]
    return metrics


def _check_finite(output: dict[str, Any], folder: str) -> None:
    if output["first_bad_step"] is not None:
        raise UserError(
            f"the loss or its gradient is not finite at step {output['first_bad_step']}: the run stops, and {folder} "
            "keeps the last good checkpoint; lower --learning_rate or lengthen the warm-up, and look at the gradient "
            "norms in metrics.jsonl"
        )


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
    needed = memory.training_bytes(
        config,
        rows=rows,
        max_seq_length=info.max_seq_length,
        num_predictions=predictions,
        mixed_precision=settings.mixed_precision,
    )
    parameters = sum(variable.shape.num_elements() for variable in model.named_variables().values())
    lines = [
        strategy.describe(where),
        f"model: {settings.preset or 'own configuration'}, {parameters:,} parameters, {settings.mixed_precision}",
        f"data: {data.source.num_records:,} sequences of {info.max_seq_length}, objective {info.objective}, "
        f"{info.masking} masks, {predictions} predictions a sequence; evaluation on {data.evaluation_name}",
        f"memory: about {needed['total'] / 2**30:.1f} GiB a device ({needed['state'] / 2**30:.1f} weights and "
        f"optimiser, {needed['activations'] / 2**30:.1f} activations of {rows} sequences)",
        f"{settings.optimizer}: rate {settings.learning_rate:g}, {settings.num_warmup_steps} of "
        f"{settings.num_train_steps} steps warm-up, global batch {settings.train_batch_size}",
    ]
    notice = optimization.learning_rate_notice(settings.learning_rate, settings.train_batch_size, settings.optimizer)
    if notice and config.hidden_size >= _RATES_KNOWN_FROM:
        lines.append(f"NOTICE: {notice}")
    if data.source.num_skipped:
        lines.append(f"WARNING: {data.source.num_skipped} damaged records are left out")
    lines += [f"resuming at step {start}"] if start else []
    print("\n".join(lines), file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects SIGTERM (a scheduler's notice), so that the loop can save before it ends."""
    received: list[int] = []
    before: Callable | int | None = None
    with contextlib.suppress(ValueError):  # not in the main thread: leave signals alone
        before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
