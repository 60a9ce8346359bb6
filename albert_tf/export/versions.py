"""Numbered exports: EXPORT_DIR/1, EXPORT_DIR/2, ... as TensorFlow Serving expects them, each whole from the start."""

import contextlib
import importlib.metadata
import pathlib
from typing import TYPE_CHECKING, Any

import albert_tf
from albert_tf import checkpoints, files
from albert_tf.errors import UserError
from albert_tf.export import saved_model, serving_files
from albert_tf.export.clean_process import CleanProcess
from albert_tf.export.exported import EXTRA_FOLDER, FORMAT_VERSION, MANIFEST_FILE
from albert_tf.export.signatures import Signature, named
from albert_tf.tokenization import code_points, in_graph

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model

_PACKAGES = ("tensorflow", "tf_keras", "tensorflow-text", "sentencepiece")


def version_folder(export_dir: pathlib.Path, version: int | None) -> pathlib.Path:
    """EXPORT_DIR/VERSION, by default the number after the greatest that is there; 1 in an empty folder.

    Write it with `files.new_folder`: until it is whole, its name is no number, and servers that watch EXPORT_DIR pass
    over it.

    Raises UserError where the version is there already, or EXPORT_DIR is a file.
    """
    if export_dir.exists() and not export_dir.is_dir():
        raise UserError(f"{export_dir} is a file: expected a folder for numbered exports; give another --export_dir")
    if version is None:
        found = [int(entry.name) for entry in export_dir.glob("*") if entry.name.isdecimal()]
        version = max(found, default=0) + 1
    folder = export_dir / str(version)
    if folder.exists():
        raise UserError(f"{folder} exists already: give another --version, or leave it out for the next number")
    return folder


def write_saved_model_version(
    folder: pathlib.Path,
    model: "Model",
    ids: Signature,
    text: Signature | None,
    *,
    which: str,
    precision: str,
    tokenizer: Any = None,
    warmup_name: str | None = None,
    clean: CleanProcess,
    details: dict[str, Any],
) -> dict[str, float]:
    """Writes a checked SavedModel with its manifest, tokeniser and warm-up requests into a new folder.

    Args:
      which: ids, text or both.
      tokenizer: the GraphTokenizer that `text` uses.
      warmup_name: the name that the model is served under, where warm-up requests are wanted.
      details: what the manifest says beyond this.

    Returns the largest difference from the Python model for each signature.

    Raises UserError where the check fails.
    """
    signatures = named(ids, text, which)
    saved_model.write_saved_model(folder, signatures, encoder=model.encoder, tokenizer=tokenizer)
    operations = saved_model.operations(folder)
    custom = saved_model.custom_operations(operations)
    libraries = (in_graph.operation_library(),) if custom else ()
    differences = clean.check(folder, signatures, precision=precision, libraries=libraries)
    if warmup_name is not None:
        serving_files.write_warmup(folder, warmup_name, signatures)
    write_manifest(
        folder,
        model,
        precision=precision,
        format="saved_model",
        signatures={name: _interface(signature) for name, signature in signatures.items()},
        ops={
            "custom": custom,
            "custom_from": f"tensorflow-text {importlib.metadata.version('tensorflow-text')}" if custom else None,
            "core": sorted(set(operations) - set(custom)),
        },
        check={"largest_difference": differences, "process": "tensorflow only"},
        unicode_version=code_points.unicode_version() if custom else None,
        **details,
    )
    return differences


def write_manifest(folder: pathlib.Path, model: "Model", **values: Any) -> None:
    """Writes manifest.json, and the configuration and tokeniser that clients need, beside the export."""
    extra = folder / EXTRA_FOLDER
    extra.mkdir(exist_ok=True)
    model.config.write_json(extra / checkpoints.CONFIG_FILE)
    info = model.info
    tokenizer = model.tokenizer
    if tokenizer is not None:
        tokenizer.save(extra)
    manifest = {
        "format_version": FORMAT_VERSION,
        "task": info.task,
        "task_options": info.task_options,
        "labels": info.labels,
        "max_seq_length": info.max_seq_length,
        "max_position_embeddings": model.config.max_position_embeddings,
        "vocab_size": model.config.vocab_size,
        "tokenizer_kind": None if tokenizer is None else tokenizer.kind,
        "vocabulary_hash": None if tokenizer is None else tokenizer.hash,
        "do_lower_case": None if tokenizer is None else tokenizer.do_lower_case,
        "keep_accents": None if tokenizer is None else tokenizer.keep_accents,
        "preset": info.preset,
        "model_made_by": info.made_by,
        "versions": {"albert_tf": albert_tf.__version__, **{name: _version(name) for name in _PACKAGES}},
    }
    files.write_json(folder / MANIFEST_FILE, {**manifest, **values})


def _interface(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in signature.inputs.items()
        },
        "outputs": sorted(signature.expected),
    }


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None
