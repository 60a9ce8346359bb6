"""albert_tf convert: weights between the release, TF-Hub, Hugging Face and model folders."""

import pathlib
import sys
from typing import TYPE_CHECKING

from absl import flags

from albert_tf.config import ACTIVATIONS
from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.checkpoints import Restored

HEADS = (
    "masked_lm",
    "sentence_order",
    "classifier",
    "regression",
    "multiple_choice",
    "token_classifier",
    "span",
    "conditional_span",
)


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command."""
    define_source_flags(flag_values)
    flags.DEFINE_string("output_dir", None, "new folder for the result", flag_values=flag_values)
    targets = ["native", "huggingface", "release"]
    flags.DEFINE_enum("to", None, targets, "kind of folder to write", flag_values=flag_values)
    names = "names of the labels in the order of the logits, with commas between them"
    flags.DEFINE_list("label_names", None, names, flag_values=flag_values)
    flags.mark_flags_as_required(["model_dir", "output_dir", "to"], flag_values=flag_values)


def define_source_flags(flag_values: flags.FlagValues) -> None:
    """Flags that say what to read, for `convert` and `inspect`."""
    text = "model folder, release checkpoint (folder, prefix, .index, .tar.gz), TF-Hub folder or Hugging Face folder"
    flags.DEFINE_string("model_dir", None, text, flag_values=flag_values)
    text = f"heads to take, with commas between them, of {', '.join(HEADS)}; none: the encoder alone; by default all"
    flags.DEFINE_list("head", None, text, flag_values=flag_values)
    text = "activation to take in place of what the source says: gelu is the tanh form, gelu_erf the exact one"
    flags.DEFINE_enum("hidden_act", None, list(ACTIVATIONS), text, flag_values=flag_values)
    text = "albert_config.json of a release checkpoint or SavedModel that has none beside it"
    flags.DEFINE_string("albert_config_file", None, text, flag_values=flag_values)


def source_arguments(flag_values: flags.FlagValues) -> dict:
    """What `define_source_flags` were given, as arguments of `conversion.sources.opened`."""
    config_file = flag_values.albert_config_file
    return {
        "heads": None if flag_values.head is None else _chosen_heads(flag_values.head),
        "hidden_act": flag_values.hidden_act,
        "config_file": None if config_file is None else pathlib.Path(config_file),
    }


def _chosen_heads(names: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in names]
    if not names:
        raise UserError(f"--head is empty: choose from {', '.join(HEADS)}, or none for the encoder alone")
    if wrong := [name for name in names if name not in (*HEADS, "none")]:
        raise UserError(f"--head={','.join(names)}: {wrong[0]!r} is no head; choose from {', '.join(HEADS)}, or none")
    if "none" in names and len(names) > 1:
        raise UserError(f"--head={','.join(names)}: none goes with no other head; drop one of them")
    return tuple(name for name in dict.fromkeys(names) if name != "none")


def run(flag_values: flags.FlagValues) -> None:
    """Converts and prints what was taken, left out and compared."""
    from albert_tf.conversion import convert

    labels = flag_values.label_names
    report = convert.convert(
        pathlib.Path(flag_values.model_dir),
        pathlib.Path(flag_values.output_dir),
        flag_values.to,
        label_names=None if labels is None else tuple(label.strip() for label in labels),
        **source_arguments(flag_values),
    )
    for notice in report.notices:
        print(f"notice: {notice}", file=sys.stderr)
    print(f"{report.kind} -> {flag_values.to}: {flag_values.output_dir}")
    print(f"heads: {', '.join(report.heads) or 'none'}")
    print_restored(report.restored)
    for difference in report.differences:
        print(difference)


def print_restored(restored: "Restored") -> None:
    """One line for each fate of a variable or stored tensor; names in full where something was left out."""
    print(f"filled: {len(restored.filled)} variables")
    for what, names in (
        ("NEW, as the source has none", restored.new),
        ("skipped by rule", restored.skipped),
        ("left out", restored.unused),
    ):
        if names:
            print(f"{what}: {len(names)}: {', '.join(names)}")
