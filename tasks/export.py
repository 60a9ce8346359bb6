"""`albert_tf export`: a model for TensorFlow Serving, TF-Hub or TensorFlow Lite, checked before it gets its name."""

import dataclasses
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from albert_tf.errors import UserError

if TYPE_CHECKING:
    from absl import flags as absl_flags

    from albert_tf.checkpoints import Model
    from albert_tf.export.clean_process import CleanProcess
    from albert_tf.export.signatures import Signature
    from tasks.task import Task

# Heads of models that were converted, without word of what they were trained for.
_TASK_OF_HEAD = {
    "classifier": "classification",
    "regression": "regression",
    "span": "squad1.1",
    "conditional_span": "squad2.0",
    "multiple_choice": "race",
    "token_classifier": "tokens",
}
_HUB_LENGTH = 128  # the usual length of TF-Hub's preprocessors; callers may ask for another


def define_flags(flag_values: "absl_flags.FlagValues") -> None:
    """Defines the command's flags."""
    from absl import flags

    shared = {"flag_values": flag_values}
    flags.DEFINE_string("model_dir", None, "model of any kind, fine-tuned or not", **shared)
    text = "folder that a server watches: the export becomes its next numbered version"
    flags.DEFINE_string("export_dir", None, text, **shared)
    text = "what a request holds: ids (no ops beyond TensorFlow's own), text (tokenised in the graph), or both"
    flags.DEFINE_enum("signature", "ids", ["ids", "text", "both"], text, **shared)
    flags.DEFINE_integer("version", None, "number of the version; default: the next", lower_bound=0, **shared)
    text = "tokens a row that texts are cut to, special ones included; default: the model's"
    flags.DEFINE_integer("max_seq_length", None, text, lower_bound=4, **shared)
    text = "precision of arithmetic and stored weights; softmax and LayerNorm stay float32"
    flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16", "float16"], text, **shared)
    flags.DEFINE_boolean("warmup", False, "adds warm-up requests (needs tensorflow-serving-api)", **shared)
    formats = ["saved_model", "hub", "tflite"]
    text = "saved_model: TensorFlow Serving; hub: preprocessor and trainable encoder; tflite: two files"
    flags.DEFINE_enum("format", "saved_model", formats, text, **shared)
    flags.mark_flags_as_required(["model_dir", "export_dir"], flag_values=flag_values)


def run(flags: Any) -> None:
    """Exports the model.

    Raises UserError.
    """
    _check_flags(flags)
    from albert_tf import files
    from albert_tf.export.clean_process import CleanProcess
    from albert_tf.export.serving_files import write_settings
    from albert_tf.export.versions import version_folder

    export_dir = pathlib.Path(os.path.abspath(flags.export_dir))
    final = version_folder(export_dir, flags.version)
    if flags.format != "tflite" and files.is_hard_to_open(final):
        raise UserError(
            f"{final} has one of * ? [ ] \\ in its name, or bytes that are not UTF-8: TensorFlow would not find the "
            "weights there; give another --export_dir"
        )
    with CleanProcess() as clean:
        model, task = load(flags.model_dir, max_seq_length=flags.max_seq_length, precision=flags.precision)
        with files.new_folder(final) as folder:
            summary = _WRITERS[flags.format](folder, model, task, flags, clean)
    print(f"{final}: {summary}")
    if flags.format == "saved_model":
        for path in write_settings(export_dir, export_dir.name):
            print(f"wrote {path}", file=sys.stderr)


def load(
    model_dir: str | os.PathLike, *, max_seq_length: int | None = None, precision: str = "float32"
) -> tuple["Model", "Task | None"]:
    """A model and the task that it is served for, None for an encoder; both with the length that texts are cut to.

    A head without a task (of a converted model) is served as the task that has such a head.

    Raises UserError where the model lacks its head, or has fewer positions than asked for.
    """
    from albert_tf import checkpoints
    from albert_tf.export.saved_model import POLICIES
    from tasks.catalog import make_task, task_of
    from tasks.finetuned import check_head

    model = checkpoints.load_model(model_dir, dtype=POLICIES[precision])
    most = model.config.max_position_embeddings
    length = max_seq_length or min(model.info.max_seq_length or most, most)
    if length > most:
        raise UserError(f"max_seq_length is {length}: the model has {most} positions; give at most that")
    heads = [name for name in model.heads if name in _TASK_OF_HEAD]
    task = None
    if model.info.task is not None:
        task = task_of(model.info, model_dir).replace(max_seq_length=length)
    elif heads:
        labels = model.info.labels
        if labels is None and "num_labels" in model.info.heads[heads[0]]:
            labels = tuple(map(str, range(model.info.heads[heads[0]]["num_labels"])))
        task = make_task(_TASK_OF_HEAD[heads[0]], max_seq_length=length, labels=labels)
        print(f"NOTICE: {model_dir} names no task: its head {heads[0]} is served as task {task.name}", file=sys.stderr)
    if task is not None:
        check_head(model, task, model_dir)
    described = {"max_seq_length": length} if task is None else task.describe()
    model.info = dataclasses.replace(model.info, **described)
    return model, task


def _check_flags(flags: Any) -> None:
    if flags.format != "saved_model":
        wrong = {"signature": "ids", "precision": "float32", "warmup": False}
        for name, only in wrong.items():
            if getattr(flags, name) != only:
                value = getattr(flags, name)
                raise UserError(f"--{name}={value} with --format={flags.format}: it is for saved_model; leave it out")
    if flags.warmup:
        from albert_tf.export.serving_files import require_serving_api

        require_serving_api()


def _write_saved_model(
    folder: pathlib.Path, model: "Model", task: "Task | None", flags: Any, clean: "CleanProcess"
) -> str:
    from albert_tf.export import versions

    ids, text, tokenizer = signatures(model, task, with_text=flags.signature != "ids")
    differences = versions.write_saved_model_version(
        folder,
        model,
        ids,
        text,
        which=flags.signature,
        precision=flags.precision,
        tokenizer=tokenizer,
        warmup_name=os.path.basename(os.path.abspath(flags.export_dir)) if flags.warmup else None,
        clean=clean,
        details={"made_by": _made_by(flags)},
    )
    _notice_tokenizer(model)
    return f"signatures {', '.join(differences)}; within {max(differences.values()):.1e} of the Python model"


def signatures(model: "Model", task: "Task | None", *, with_text: bool) -> "tuple[Signature, Signature | None, Any]":
    """The signatures on ids and, where asked for, on text, with the GraphTokenizer that the latter uses.

    Raises UserError where text is asked for and the tokeniser is not SentencePiece.
    """
    from albert_tf.export import signatures as encoders
    from albert_tf.tokenization.in_graph import GraphTokenizer, require_sentencepiece

    tokenizer = text = None
    if with_text:
        require_sentencepiece(model.tokenizer)
        tokenizer = GraphTokenizer(model.tokenizer)
    if task is None:
        ids = encoders.ids_signature(model.config, lambda inputs: encoders.encoder_outputs(model, inputs))
        if with_text:
            text = encoders.encoder_text_signature(model, tokenizer, model.info.max_seq_length)
        return ids, text, tokenizer
    from tasks.serving import serving_of

    serving = serving_of(task, model)
    return serving.ids_signature(), serving.text_signature(tokenizer) if with_text else None, tokenizer


def _write_hub(folder: pathlib.Path, model: "Model", task: "Task | None", flags: Any, clean: "CleanProcess") -> str:
    from albert_tf.export import hub, versions
    from albert_tf.tokenization.unigram import SentencePieceTokenizer

    difference = hub.write_encoder(folder / hub.ENCODER, model, clean)
    parts = [hub.ENCODER]
    if isinstance(model.tokenizer, SentencePieceTokenizer):
        length = flags.max_seq_length or min(_HUB_LENGTH, model.config.max_position_embeddings)
        hub.write_preprocessor(folder / hub.PREPROCESSOR, model, length, clean)
        parts.append(hub.PREPROCESSOR)
    else:
        kind = "no" if model.tokenizer is None else f"a {model.tokenizer.kind}"
        print(f"NOTICE: the model has {kind} vocabulary: without a preprocessor, only the encoder", file=sys.stderr)
    check = {"largest_difference": {hub.ENCODER: difference}, "process": "tensorflow only"}
    versions.write_manifest(folder, model, format="hub", parts=parts, check=check, made_by=_made_by(flags))
    return f"{' and '.join(parts)}; within {difference:.1e} of the Python model"


def _write_lite(folder: pathlib.Path, model: "Model", task: "Task | None", flags: Any, clean: "CleanProcess") -> str:
    from albert_tf.export import lite, versions
    from albert_tf.export.signatures import encoder_outputs, ids_signature

    if task is None:
        ids = ids_signature(model.config, lambda inputs: encoder_outputs(model, inputs), checks=False)
    else:
        from tasks.serving import serving_of

        ids = serving_of(task, model).ids_signature(checks=False)
    report = lite.write_lite(folder, model, ids)
    versions.write_manifest(folder, model, format="tflite", parity=report, made_by=_made_by(flags))
    _notice_tokenizer(model)
    return "; ".join(
        f"{part['file']} {part['bytes']:,} bytes, within {max(part['largest_difference'].values()):.1e}"
        for part in report.values()
    )


_WRITERS = {"saved_model": _write_saved_model, "hub": _write_hub, "tflite": _write_lite}


def _made_by(flags: Any) -> dict[str, Any]:
    names = ("signature", "format", "precision", "max_seq_length", "warmup")
    return {"command": "export", **{name: getattr(flags, name) for name in names}}


def _notice_tokenizer(model: "Model") -> None:
    if model.tokenizer is None:
        print("NOTICE: the model has no tokeniser: callers must bring the ids themselves", file=sys.stderr)
