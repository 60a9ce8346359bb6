"""`albert_tf predict`: the answers of a fine-tuned model, one row an example."""

import os
import sys
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError
from albert_tf.files import check_output_file
from tasks.evaluate import define_model_flags, load_ensemble

if TYPE_CHECKING:
    from absl import flags as absl_flags


def define_flags(flag_values: "absl_flags.FlagValues") -> None:
    """Defines the command's flags."""
    from absl import flags

    define_model_flags(flag_values)
    shared = {"flag_values": flag_values}
    flags.DEFINE_string("input_file", None, "data in the form of the training data; labels are not looked at", **shared)
    flags.DEFINE_string("output_file", None, "where to write the predictions", **shared)
    flags.DEFINE_boolean(
        "glue_submission", False, "also writes NAME.tsv for the GLUE benchmark beside --output_file", **shared
    )
    flags.mark_flags_as_required(["input_file", "output_file"], flag_values=flag_values)


def run(flags: Any) -> None:
    """Writes the predictions.

    Raises UserError.
    """
    check_output_file(flags.output_file, flags.input_file)
    ensemble = load_ensemble(flags)
    task = ensemble.task
    if flags.glue_submission and not hasattr(task, "write_submission"):
        raise UserError(f"task {task.name} is not a GLUE task: leave out --glue_submission")
    examples = task.read(flags.input_file, with_labels=False)
    if flags.glue_submission:
        task.check_submission(flags.input_file, len(examples))
        submission = os.path.join(os.path.dirname(flags.output_file), f"{task.submission_name(flags.input_file)}.tsv")
        if os.path.realpath(submission) in map(os.path.realpath, (flags.output_file, flags.input_file)):
            raise UserError(f"{submission} is the name of the submission file: give another --output_file")
    predictions = ensemble.predictions(examples, flags.input_file)
    written = task.write_predictions(flags.output_file, predictions, examples)
    if flags.glue_submission:
        folder = os.path.dirname(flags.output_file)
        written.append(task.write_submission(folder, flags.input_file, predictions))
    for path in written:
        print(f"wrote {path}: {len(examples)} examples", file=sys.stderr)
