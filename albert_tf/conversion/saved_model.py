"""TF-Hub modules and other SavedModels of the release: their variables read, and the model run as it is."""

import pathlib
from typing import Any

import numpy as np

from albert_tf import checkpoints, files
from albert_tf.conversion import release
from albert_tf.conversion.names import Source
from albert_tf.errors import UserError

GRAPH = "saved_model.pb"
_PREFIX = "module/"  # TF-Hub's scope
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_INPUTS = ("input_ids", "input_mask", "segment_ids", "mlm_positions")
_OUTPUTS = {"sequence_output": "sequence_output", "pooled_output": "pooled_output", "mlm_logits": "masked_lm"}


def read(
    folder: pathlib.Path, *, heads: tuple[str, ...] | None = None, config_file: pathlib.Path | None = None
) -> Source:
    """Reads the variables of a SavedModel that the release's code made.

    Raises UserError where they have other names, or no configuration is found.
    """
    stored = checkpoints.read_tensors(folder / "variables" / "variables")
    if _OBJECT_GRAPH in stored:
        raise UserError(
            f"{folder} is a TensorFlow 2 SavedModel, whose variables do not have the release's names; convert the "
            "model folder or checkpoint that it was exported from"
        )
    stored = {name.removeprefix(_PREFIX): value for name, value in stored.items()}
    places = (folder / "assets" / checkpoints.CONFIG_FILE, folder / checkpoints.CONFIG_FILE)
    config_file = config_file or next((place for place in places if place.is_file()), None)
    if config_file is None:
        raise UserError(
            f"{folder} has no {checkpoints.CONFIG_FILE}, neither in assets: the numbers of layers and heads are not in "
            "the weights; name the file with --albert_config_file"
        )
    source = release.describe(folder, stored, config_file, heads=heads)
    source.kind = "hub"
    casing = checkpoints.ModelInfo(do_lower_case=_do_lower_case(folder))
    source.tokenizer = checkpoints.load_folder_tokenizer(folder, casing)
    return source


def run(folder: pathlib.Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the SavedModel itself says about `inputs`, under our names of outputs; empty where it has none of them."""
    model = _load(folder)  # kept while its functions are called
    outputs = {}
    for function in model.signatures.values():
        outputs.update(_call(function, inputs))
    return outputs


def _call(function: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import tensorflow as tf

    wanted = function.structured_input_signature[1]
    if "input_ids" not in wanted or set(wanted) - set(_INPUTS):
        return {}
    values = {**inputs, "mlm_positions": inputs["masked_lm_positions"]}
    try:
        results = function(**{name: tf.cast(values[name], spec.dtype) for name, spec in wanted.items()})
    except tf.errors.OpError:  # a graph with a fixed shape, which these inputs do not have
        return {}
    found = {ours: results[theirs].numpy() for theirs, ours in _OUTPUTS.items() if theirs in results}
    if "masked_lm" in found:  # [B * P, V] in the release's graph
        found["masked_lm"] = found["masked_lm"].reshape(*inputs["masked_lm_positions"].shape, -1)
    return found


def _do_lower_case(folder: pathlib.Path) -> bool | None:
    """Casing as a TF-Hub module tells it."""
    model = _load(folder)
    if "tokenization_info" not in model.signatures:
        return None
    value = model.signatures["tokenization_info"]().get("do_lower_case")
    return None if value is None else bool(value.numpy())


def _load(folder: pathlib.Path) -> Any:
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    try:
        graphs = saved_model_pb2.SavedModel.FromString((folder / GRAPH).read_bytes()).meta_graphs
        tags = [list(graph.meta_info_def.tags) for graph in graphs]
        inference = next((tag for tag in tags if "train" not in tag), tags[0] if tags else [])
        with files.plainly_named(folder) as found:
            return tf.saved_model.load(str(found), tags=inference)
    except Exception as error:  # TensorFlow's loader has one for each way in which a graph can be damaged
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"the SavedModel {folder} is truncated or damaged ({reason}); copy it again") from error
