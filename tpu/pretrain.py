"""`albert_tf pretrain`: flags to settings."""

from collections.abc import Callable
from typing import Any

from absl import flags

from albert_tf.config import AlbertConfig, preset
from albert_tf.errors import UserError
from tpu.device_flags import define_device_flags, define_memory_flags


def define_flags(flag_values: flags.FlagValues) -> None:
    """The flags; the release's names where it has them."""
    _define_inputs(flag_values)
    _define_recipe(flag_values)
    _define_machinery(flag_values)
    for name in ("data_dir", "output_dir"):
        flags.mark_flag_as_required(name, flag_values)


def _define_inputs(flag_values: flags.FlagValues) -> None:
    text, _, integer, yes_no, _ = _definers(flag_values)
    text("data_dir", None, "records folder (create_pretraining_data), or TFRecord files of the release")
    text("output_dir", None, "run folder; the same command with the same folder goes on where the run stopped")
    text("preset", None, "size of the model, such as albert_base; the vocabulary sets vocab_size")
    text("albert_config_file", None, "albert_config.json, instead of a preset")
    text("init_checkpoint", None, "model folder or checkpoint whose weights to start from; the optimiser starts anew")
    yes_no("init_from_group0", False, "start every group, or layer of its own, from the first group of init_checkpoint")
    text("eval_data_dir", None, "records folder to evaluate on; default: DATA_DIR/heldout where there is one")
    text("spm_model_file", None, "SentencePiece model, where the records folder does not hold it")
    text("vocab_file", None, "WordPiece vocab.txt, where the records folder does not hold it")
    integer("max_seq_length", None, "tokens a sequence: checked against the records", lower_bound=1)
    integer("max_predictions_per_seq", None, "masked tokens a sequence at most; default: the records'", lower_bound=1)
    yes_no("skip_corrupt_records", False, "read all records once at the start and leave out the damaged ones")


def _define_recipe(flag_values: flags.FlagValues) -> None:
    _, number, integer, yes_no, choice = _definers(flag_values)
    integer("num_train_steps", 125_000, "optimiser steps in all", lower_bound=1)
    integer("train_batch_size", 4096, "sequences of one optimiser step, over all devices", lower_bound=1)
    number("learning_rate", 0.00176, "peak rate, reached after the warm-up", lower_bound=0.0)
    integer("num_warmup_steps", 3125, "steps of linear warm-up; linear decay to 0 follows", lower_bound=0)
    choice("optimizer", "lamb", "optimiser", enum_values=["lamb", "adamw"])
    yes_no("bias_correction", False, "correct the moments' bias, as the LAMB paper does and the release does not")
    number("weight_decay", 0.01, "decay of weights, LayerNorm and biases left out", lower_bound=0.0)
    number("hidden_dropout", None, "dropout of hidden states, share; default: the preset's", lower_bound=0.0)
    number(
        "attention_dropout", None, "dropout of attention probabilities, share; default: the preset's", lower_bound=0.0
    )
    seed = "fixes initial weights, order of records, masks and dropout"
    integer("seed", 12345, seed, lower_bound=0, upper_bound=2**31 - 1)
    yes_no("deterministic", False, "give the same bits every time on the same device, at some cost of speed")


def _define_machinery(flag_values: flags.FlagValues) -> None:
    text, number, integer, _, choice = _definers(flag_values)
    define_device_flags(flag_values, workers=True)
    define_memory_flags(flag_values)
    text(
        "data_service", None, "grpc://host:port of a dispatcher (albert_tf data_service) whose workers read the records"
    )
    integer(
        "iterations_per_loop", None, "steps that the device runs without the host (TPU); default: 1 by 1", lower_bound=1
    )
    integer("save_checkpoints_steps", 1000, "steps between checkpoints", lower_bound=1)
    integer("keep_checkpoints", 3, "checkpoints kept", lower_bound=1)
    integer("eval_every_steps", None, "steps between evaluations; default: at every checkpoint", lower_bound=1)
    integer("eval_batch_size", 64, "sequences of one evaluation step", lower_bound=1)
    choice(
        "jit_compile",
        "auto",
        "compile the gradient step with XLA; auto does on GPU and TPU",
        enum_values=["auto", "true", "false"],
    )
    number(
        "cluster_timeout",
        600,
        "seconds after which workers give up those that did not come at the start",
        lower_bound=1,
    )
    number("stall_timeout", 1800, "seconds without any progress after which the run ends; 0: never", lower_bound=0)


def run(flags_given: flags.FlagValues) -> None:
    """Makes the settings and trains."""
    given = flags_given
    if (given.preset is None) == (given.albert_config_file is None):
        raise UserError("give one of --preset=NAME and --albert_config_file=FILE")
    if given.spm_model_file and given.vocab_file:
        raise UserError("--spm_model_file and --vocab_file are both given: a model has one vocabulary; drop one")
    if given.init_from_group0 and not given.init_checkpoint:
        raise UserError("--init_from_group0 is given without --init_checkpoint, whose weights it spreads; give both")
    if given.preset:
        preset(given.preset)  # an unknown name is told before TensorFlow loads
    config = AlbertConfig.from_json(given.albert_config_file) if given.albert_config_file else None

    from tpu import pretraining
    from tpu.preflight import PretrainingSettings

    same = (
        *("data_dir", "output_dir", "preset", "init_checkpoint", "init_from_group0", "eval_data_dir"),
        *("eval_batch_size", "num_train_steps", "train_batch_size", "grad_accum_steps", "learning_rate"),
        *("num_warmup_steps", "optimizer", "bias_correction", "weight_decay", "hidden_dropout", "attention_dropout"),
        *("max_seq_length", "max_predictions_per_seq", "mixed_precision", "distribution", "tpu_name"),
        *("iterations_per_loop", "save_checkpoints_steps", "keep_checkpoints", "skip_corrupt_records", "seed"),
        *("deterministic", "jit_compile", "recompute", "cluster_timeout", "stall_timeout", "data_service"),
    )
    pretraining.run(
        PretrainingSettings(
            **{name: getattr(given, name) for name in same},
            model=config,
            tokenizer_file=given.spm_model_file or given.vocab_file,
            eval_every_steps=given.eval_every_steps or given.save_checkpoints_steps,
        )
    )
    print(f"model: {given.output_dir}")


def _definers(flag_values: flags.FlagValues) -> list[Callable[..., Any]]:
    """Functions (name, default, meaning, **limits) for text, number, integer, boolean and choice."""

    def definer(define: Callable[..., Any]) -> Callable[..., Any]:
        return lambda name, default, meaning, **limits: define(
            name, default, help=meaning, flag_values=flag_values, **limits
        )

    kinds = (flags.DEFINE_string, flags.DEFINE_float, flags.DEFINE_integer, flags.DEFINE_boolean, flags.DEFINE_enum)
    return [definer(define) for define in kinds]
