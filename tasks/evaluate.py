"""`albert_tf evaluate`: the scores of a fine-tuned model on labelled data."""

import os
import sys
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError
from albert_tf.files import check_output_file
from tasks.finetune import check_positive, define_task_flags, task_options
from tpu.device_flags import define_device_flags

if TYPE_CHECKING:
    from absl import flags as absl_flags

    from tasks.exported import ExportedEnsemble
    from tasks.finetuned import Ensemble


def define_flags(flag_values: "absl_flags.FlagValues") -> None:
    """Defines the command's flags."""
    from absl import flags

    define_model_flags(flag_values)
    shared = {"flag_values": flag_values}
    flags.DEFINE_string("input_file", None, "labelled data in the form of the training data", **shared)
    flags.DEFINE_string("data_dir", None, "folder with the task's official files, in place of --input_file", **shared)
    flags.DEFINE_integer("max_eval_examples", None, "uses only the first examples", **shared)
    flags.DEFINE_string("output_file", None, "where to write the predictions as well", **shared)


def define_model_flags(flag_values: "absl_flags.FlagValues") -> None:
    """The flags that evaluate and predict have in common."""
    from absl import flags

    shared = {"flag_values": flag_values}
    flags.DEFINE_string("model_dir", None, "folder of a fine-tuned model, or of its export", **shared)
    flags.DEFINE_list("ensemble", None, "folders of several models that answer together", **shared)
    flags.DEFINE_string("task_name", None, "checked against the model's task; ax for the diagnostic set", **shared)
    flags.DEFINE_integer("eval_batch_size", 64, "rows computed together", lower_bound=1, **shared)
    define_device_flags(flag_values, remote_tpu=False)
    flags.DEFINE_string("cache_dir", None, "where features are kept between runs (default: nowhere)", **shared)
    define_task_flags(flag_values)


def load_ensemble(flags: Any) -> "Ensemble | ExportedEnsemble":
    """The models that --model_dir and --ensemble name, or the export that --model_dir names.

    Raises UserError where there is none, or one is named twice.
    """
    model_dirs = [*([flags.model_dir] if flags.model_dir else []), *(flags.ensemble or [])]
    if not model_dirs:
        raise UserError("no model: give --model_dir=DIR, or --ensemble=DIR,DIR")
    _check_distinct(model_dirs)
    from albert_tf.export import is_exported

    if any(map(is_exported, model_dirs)):
        return _exported(flags, model_dirs)
    from tasks.finetuned import Computing, Ensemble

    computing = Computing(
        batch_size=flags.eval_batch_size,
        mixed_precision=flags.mixed_precision,
        distribution=flags.distribution,
        tpu_name=flags.tpu_name,
        cache_dir=flags.cache_dir,
    )
    return Ensemble(model_dirs, task_name=flags.task_name, task_options=task_options(flags), computing=computing)


def _check_distinct(model_dirs: list[str]) -> None:
    """Refuses an ensemble in which a model would count twice."""
    named: dict[str, str] = {}
    for folder in filter(os.path.isdir, model_dirs):
        place = os.path.realpath(folder)
        if place in named:
            raise UserError(
                f"--model_dir and --ensemble name {named[place]} twice (as {folder}), whose answers would count twice: "
                "name each model once"
            )
        named[place] = folder


def _exported(flags: Any, model_dirs: list[str]) -> "ExportedEnsemble":
    """An export in place of a model folder.

    Raises UserError for several, and for flags that an export has already decided.
    """
    if len(model_dirs) > 1:
        raise UserError(f"{', '.join(model_dirs)}: an ensemble is made of model folders, not of exports; give those")
    fixed = {
        "mixed_precision": flags.mixed_precision != "float32",
        "distribution": flags.distribution not in ("auto", "cpu"),
        **{name: flags[name].value is not None for name in ("tpu_name", "start_n_top", "end_n_top", "span_head")},
    }
    if any(fixed.values()):
        asked = ", ".join(f"--{name}" for name, given in fixed.items() if given)
        raise UserError(
            f"{model_dirs[0]} is an export, which has that fixed: leave out {asked}, or give the model folder"
        )
    from tasks.exported import ExportedEnsemble

    return ExportedEnsemble(
        model_dirs[0],
        task_name=flags.task_name,
        task_options=task_options(flags),
        batch_size=flags.eval_batch_size,
        cache_dir=flags.cache_dir,
    )


def run(flags: Any) -> None:
    """Prints the metrics of each file.

    Raises UserError.
    """
    check_positive("max_eval_examples", flags.max_eval_examples)
    if (flags.input_file is None) == (flags.data_dir is None):
        raise UserError("give either --input_file or --data_dir")
    check_output_file(flags.output_file, flags.input_file)
    ensemble = load_ensemble(flags)
    from tasks.evaluation import labelled, shown

    files = {"": flags.input_file}
    if flags.data_dir is not None:
        known = ensemble.task.files(flags.data_dir)
        files = {f"{split}: ": path for split, path in known.items() if split.startswith("dev")}
        if not files:
            raise UserError(f"task {ensemble.task.name} has no development file; give --input_file")
    check_output_file(flags.output_file, *files.values())
    if flags.output_file is not None and len(files) > 1:
        raise UserError(f"{flags.data_dir} has {len(files)} development files for one --output_file; give --input_file")
    for split, path in files.items():
        task = ensemble.task
        examples = labelled(task.read(path), path)[: flags.max_eval_examples]
        predictions = ensemble.predictions(examples, path)
        print(f"{split}{len(examples)} examples: {shown(task.metrics(predictions, examples))}")
        reason = task.degenerate(predictions, examples)
        if reason:
            print(f"DEGENERATE, not a score: {reason}")
        if flags.output_file is not None:
            for written in task.write_predictions(flags.output_file, predictions, examples):
                print(f"wrote {written}", file=sys.stderr)
