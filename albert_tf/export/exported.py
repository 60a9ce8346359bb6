"""Reading an export back: what it is, and its answers to token ids."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from albert_tf import checkpoints, files
from albert_tf.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from albert_tf.checkpoints import ModelInfo
    from albert_tf.tokenization import Tokenizer

MANIFEST_FILE = "manifest.json"
EXTRA_FOLDER = "assets.extra"  # TensorFlow's place for what servers do not read
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A SavedModel of ours. `answer` maps int32 input_ids, input_mask, segment_ids to the outputs by name."""

    path: pathlib.Path
    manifest: dict[str, Any]
    info: "ModelInfo"  # as of the model folder, without heads
    tokenizer: "Tokenizer | None"
    answer: Callable[[dict[str, "np.ndarray"]], dict[str, "np.ndarray"]]


def is_exported(path: str | os.PathLike) -> bool:
    """Whether a path is an export, or a folder of numbered ones."""
    return _version_folder(pathlib.Path(path)) is not None


def load_exported(path: str | os.PathLike) -> ExportedModel:
    """Loads EXPORT_DIR/N, or the newest version in EXPORT_DIR.

    Raises UserError where there is none, it is damaged, or it has another format than a SavedModel.
    """
    folder = _version_folder(pathlib.Path(path))
    if folder is None:
        raise UserError(f"{path} is no export: expected {MANIFEST_FILE} there or in a numbered folder below")
    manifest = files.read_json(folder / MANIFEST_FILE, "export description")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise UserError(
            f"{folder / MANIFEST_FILE} has format_version {manifest.get('format_version')!r}: expected "
            f"{FORMAT_VERSION}; update albert_tf, or export the model again"
        )
    if manifest.get("format") != "saved_model":
        raise UserError(
            f"{folder} is an export of format {manifest.get('format')}: only saved_model answers here; export the "
            "model again, or give the model folder"
        )
    names = {field.name for field in dataclasses.fields(checkpoints.ModelInfo)}
    known = {name: value for name, value in manifest.items() if name in names}
    info = checkpoints.info_from(known, folder / MANIFEST_FILE)
    if not isinstance(manifest.get("ops", {}), dict):
        raise UserError(f"{folder / MANIFEST_FILE} is damaged: found ops {manifest['ops']!r}; export the model again")
    tokenizer = checkpoints.load_folder_tokenizer(folder / EXTRA_FOLDER, info)
    if tokenizer is not None and info.vocabulary_hash not in (None, tokenizer.hash):
        raise UserError(
            f"{tokenizer.path} is not the vocabulary that the model was exported with (SHA-256 {tokenizer.hash[:12]}, "
            f"expected {info.vocabulary_hash[:12]}); copy the export again"
        )
    return ExportedModel(
        path=folder,
        manifest=manifest,
        info=info,
        tokenizer=tokenizer,
        answer=_ids_function(folder, manifest),
    )


def _version_folder(path: pathlib.Path) -> pathlib.Path | None:
    if (path / MANIFEST_FILE).is_file():
        return path
    versions = [entry for entry in path.glob("*") if entry.name.isdecimal() and (entry / MANIFEST_FILE).is_file()]
    return max(versions, key=lambda entry: int(entry.name), default=None)


def _ids_function(
    folder: pathlib.Path, manifest: dict[str, Any]
) -> Callable[[dict[str, "np.ndarray"]], dict[str, "np.ndarray"]]:
    import tensorflow as tf

    from albert_tf.tokenization import in_graph

    if manifest.get("ops", {}).get("custom"):
        tf.load_op_library(in_graph.operation_library())
    try:
        with files.plainly_named(folder) as found:
            model = tf.saved_model.load(str(found))
        function = model.signatures["ids" if "ids" in model.signatures else "serving_default"]
    except Exception as error:  # TensorFlow's loader has one for each way in which a graph can be damaged
        raise _damaged(folder, error) from error

    def answer(inputs: dict[str, "np.ndarray"]) -> dict[str, "np.ndarray"]:
        values = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
        try:
            return {name: value.numpy() for name, value in function(**values).items()}
        except (TypeError, ValueError, tf.errors.OpError) as error:  # other inputs, or a graph that contradicts itself
            raise _damaged(folder, error) from error

    answer.model = model  # the function lives as long as the model does
    return answer


def _damaged(folder: pathlib.Path, error: Exception) -> UserError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return UserError(f"the export {folder} is damaged ({reason}); copy it again, or export again")
