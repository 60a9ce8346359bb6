"""`albert_tf finetune`: a pretrained model folder and labelled data -> a model that answers."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError
from tpu.device_flags import define_device_flags, define_memory_flags

if TYPE_CHECKING:
    from absl import flags as absl_flags

# Settings of single tasks, by flag: (kind, meaning). A task has those that are in its `default_options`.
TASK_FLAGS = {
    "text_columns": ("list", "classification, regression: column or two columns with the text (default: text)"),
    "label_column": ("string", "classification, regression: column with the label (default: label)"),
    "doc_stride": ("integer", "SQuAD: tokens from the start of a window to the next (default: 128)"),
    "max_query_length": ("integer", "SQuAD: tokens kept of a question (default: 64)"),
    "max_answer_length": ("integer", "SQuAD: tokens of the longest answer (default: 30)"),
    "n_best_size": ("integer", "SQuAD: answers listed for each question (default: 20)"),
    "span_head": ("string", "SQuAD 2.0: conditional, the release's, or plain (default: conditional)"),
    "null_threshold": (
        "float",
        "SQuAD 2.0: no answer above this probability of none (default: tuned on the development set)",
    ),
    "start_n_top": ("integer", "SQuAD 2.0: starts that are followed up (default: 5)"),
    "end_n_top": ("integer", "SQuAD 2.0: ends that are followed up for each start (default: 5)"),
    "max_qa_length": ("integer", "RACE: tokens kept of question and option (default: 128)"),
}


def define_flags(flag_values: "absl_flags.FlagValues") -> None:
    """Defines the command's flags."""
    from absl import flags

    shared = {"flag_values": flag_values}
    for name, text in _TEXTS.items():
        flags.DEFINE_string(name, None, text, **shared)
    for name, (kind, text) in _NUMBERS.items():
        define = flags.DEFINE_integer if kind is int else flags.DEFINE_float
        define(name, None, text, **shared)
    flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "update rule", **shared)
    text = "seed of new weights, data order and dropout"
    flags.DEFINE_integer("seed", 1, text, lower_bound=0, upper_bound=2**31 - 1, **shared)
    flags.DEFINE_integer("num_seeds", 1, "runs with seeds seed, seed + 1, ...: reports median and spread", **shared)
    flags.DEFINE_integer("eval_batch_size", 64, "rows computed together in evaluation", lower_bound=1, **shared)
    flags.DEFINE_boolean("random_weights", False, "start from new weights in the sizes of --model_dir", **shared)
    define_device_flags(flag_values, remote_tpu=False)
    define_memory_flags(flag_values)
    define_task_flags(flag_values)
    flags.mark_flags_as_required(["task_name", "model_dir", "output_dir"], flag_values=flag_values)


_TEXTS = {
    "task_name": "cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, squad (1.1 or 2.0, as the data), squad1.1, "
    "squad2.0, race, race-middle, race-high, tokens, classification or regression; in any case",
    "model_dir": "folder of the pretrained model: our own, a release, TF-Hub or Hugging Face",
    "output_dir": "run folder: a model folder with the best weights, and everything to go on with the same command",
    "data_dir": "folder with the task's official files",
    "train_file": "training data in place of that of --data_dir",
    "eval_file": "development data in place of that of --data_dir",
    "cache_dir": "where features are kept between runs (default: OUTPUT_DIR/features)",
}
_NUMBERS = {
    "train_batch_size": (int, "features an optimiser step, over all devices (default: the recipe's)"),
    "learning_rate": (float, "peak learning rate (default: the recipe's)"),
    "num_train_steps": (int, "optimiser steps (default: the recipe's)"),
    "num_train_epochs": (float, "passes over the training data, in place of steps"),
    "num_warmup_steps": (int, "steps of linear warm-up (default: the recipe's share of the steps)"),
    "max_seq_length": (int, "tokens a row (default: the recipe's)"),
    "encoder_dropout": (float, "dropout in the encoder (default: the recipe's)"),
    "classifier_dropout": (float, "dropout before the classifier (default: the recipe's)"),
    "max_train_examples": (int, "uses only the first examples of the training data"),
    "max_eval_examples": (int, "uses only the first examples of the development data"),
    "early_stop_patience": (int, "stops after that many evaluations without a better one"),
    "eval_every_steps": (int, "steps between evaluations (default: ten evaluations a run)"),
}


def define_task_flags(flag_values: "absl_flags.FlagValues") -> None:
    """Defines TASK_FLAGS; None where not given."""
    from absl import flags

    definers = {
        "list": flags.DEFINE_list,
        "string": flags.DEFINE_string,
        "integer": flags.DEFINE_integer,
        "float": flags.DEFINE_float,
    }
    for name, (kind, text) in TASK_FLAGS.items():
        definers[kind](name, None, text, flag_values=flag_values)


def task_options(flags: Any) -> dict[str, Any]:
    """The settings of single tasks that were given."""
    return {name: flags[name].value for name in TASK_FLAGS if flags[name].value is not None}


def run(flags: Any) -> None:
    """Fine-tunes and prints the result.

    Raises UserError.
    """
    if flags.num_seeds < 1:
        raise UserError(f"num_seeds is {flags.num_seeds}, expected at least 1")
    from tasks import finetuning

    names = {field.name for field in dataclasses.fields(finetuning.Settings)} - {"task_options"}
    settings = finetuning.Settings(**{name: flags[name].value for name in names}, task_options=task_options(flags))
    if flags.num_seeds > 1:
        _print_seeds(finetuning.run_seeds(settings, flags.num_seeds))
    else:
        _print_result(finetuning.run(settings))


def check_positive(name: str, value: float | None) -> None:
    """Refuses what is not above 0."""
    if value is not None and value <= 0:
        raise UserError(f"{name} is {value}, expected more than 0")


def _print_result(result: dict[str, Any]) -> None:
    from tasks.evaluation import shown

    for name, metrics in result["metrics"].items():
        print(f"{name} at step {result['best_step']}: {shown(metrics)}")
    if result["degenerate"]:
        print(f"DEGENERATE RUN, not a score: {result['degenerate']}")
    if not result["metrics"]:
        print(f"trained {result['last_step']} steps; no development data, so no score")
    sys.stdout.flush()


def _print_seeds(summary: dict[str, Any]) -> None:
    for seed, result in summary["seeds"].items():
        note = f"  DEGENERATE: {result['degenerate']}" if result["degenerate"] else ""
        print(f"seed {seed}: {summary['primary']} {result['score']:.4f} at step {result['best_step']}{note}")
    if summary["median"] is not None:
        print(f"median {summary['median']:.4f}, spread {summary['spread']:.4f}; best seed {summary['best_seed']}")
    if summary["degenerate_seeds"]:
        print(f"{len(summary['degenerate_seeds'])} of {len(summary['seeds'])} runs are degenerate")
