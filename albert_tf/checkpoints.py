"""Model folders: what a model is on disk, and one `load_model` for every kind of folder.

A native folder holds albert_config.json, model.json, the tokeniser file and weights-STEP.{index,data-*}. model.json is
written last and names the weights, so a reader always finds a whole model, also while a run replaces it.
"""

import contextlib
import dataclasses
import glob
import os
import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from albert_tf import costs, files
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from albert_tf.encoder import AlbertEncoder
    from albert_tf.layers import AlbertLayer
    from albert_tf.pretraining.records import RecordsInfo
    from albert_tf.tokenization import Tokenizer

CONFIG_FILE = "albert_config.json"
INFO_FILE = "model.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What model.json says of a model beyond its sizes."""

    heads: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # name -> options of heads.make_head
    task: str | None = None  # task name of a fine-tuned model
    labels: tuple[str, ...] | None = None  # in the order of the logits
    max_seq_length: int | None = None  # tokens a row, as trained
    sentence_objective: str | None = None  # sop, nsp or none
    tokenizer_kind: str | None = None
    vocabulary_hash: str | None = None
    do_lower_case: bool | None = None
    keep_accents: bool | None = None
    preset: str | None = None
    made_by: dict[str, Any] = dataclasses.field(default_factory=dict)  # command, step, versions
    task_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # what a task needs to predict alike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What happened to each variable and each stored tensor."""

    filled: tuple[str, ...] = ()  # our variables that have values from the source
    new: tuple[str, ...] = ()  # our variables left as initialised
    skipped: tuple[str, ...] = ()  # stored tensors left out by rule (optimiser slots, counters)
    unused: tuple[str, ...] = ()  # stored tensors nobody asked for


@dataclasses.dataclass(kw_only=True)
class Model:
    """An encoder with its heads, tokeniser (None where the folder has none) and description."""

    config: AlbertConfig
    encoder: "AlbertEncoder"
    heads: dict[str, "AlbertLayer"]
    tokenizer: "Tokenizer | None"
    info: ModelInfo
    restored: Restored = dataclasses.field(default_factory=Restored)

    def named_variables(self) -> dict[str, Any]:
        """Every variable under its name in the model folder."""
        from albert_tf.layers import prefixed

        named = prefixed("encoder", self.encoder.named_variables())
        for name, head in self.heads.items():
            named.update(prefixed(name, head.named_variables()))
        return named


def new_model(
    config: AlbertConfig,
    heads: dict[str, dict[str, Any]],
    tokenizer: "Tokenizer | None" = None,
    *,
    info: ModelInfo | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Model:
    """A freshly initialised model; `heads` maps names of heads.HEADS to their options.

    dtype is a tf_keras policy, name as in load_model.
    """
    from albert_tf.encoder import AlbertEncoder
    from albert_tf.heads import make_head

    costs.check_weights_fit(config)
    encoder = AlbertEncoder(config, dtype=dtype, **({"name": name} if name else {}))
    made = {
        head: make_head(head, config, options, dtype=dtype, layer_name=f"{name}_{head}" if name else None)
        for head, options in heads.items()
    }
    for layer in (encoder, *made.values()):
        encoder.build_child(layer)
    info = dataclasses.replace(info or ModelInfo(), heads=heads)
    return Model(config=config, encoder=encoder, heads=made, tokenizer=tokenizer, info=info)


def save_model(folder: str | os.PathLike, model: Model, *, step: int = 0) -> None:
    """Writes or replaces the model in `folder`; at every moment the folder holds a whole one, if it held one before.

    Raises UserError where the folder cannot be written to.
    """
    folder = pathlib.Path(folder)
    info = _with_tokenizer(model.info, model.tokenizer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        prefix = _new_prefix(folder, step)
        write_tensors(folder / prefix, {name: variable for name, variable in model.named_variables().items()})
        if model.tokenizer is not None:
            model.tokenizer.save(folder)
    except OSError as error:
        raise UserError(
            f"cannot write the model to {folder}: {error.strerror}; check the folder and the disk"
        ) from error
    model.config.write_json(folder / CONFIG_FILE)
    values = {"format_version": FORMAT_VERSION, "weights": prefix, **dataclasses.asdict(info)}
    files.write_json(folder / INFO_FILE, values)
    for old in folder.glob("weights-*"):
        if not old.name.startswith(f"{prefix}."):
            old.unlink(missing_ok=True)


def _new_prefix(folder: pathlib.Path, step: int) -> str:
    """weights-STEP, or another name where model.json already names that one: those files stay until it is replaced."""
    prefix = f"weights-{step}"
    with contextlib.suppress(UserError):  # no model.json yet, or a damaged one
        if read_info(folder)[1] == prefix:
            return f"{prefix}-again"
    return prefix


def load_model(
    path: str | os.PathLike, *, heads: Iterable[str] | str | None = None, dtype: Any = None, name: str | None = None
) -> Model:
    """Loads a model of any kind, told apart by its files.

    Args:
      path: a native folder or a run folder; a release checkpoint (folder, prefix, .index file or .tar.gz); a TF-Hub
        folder; a Hugging Face folder.
      heads: names of the heads to build, or one name; by default those that the source has.
      dtype: a tf_keras policy ("float32", "mixed_bfloat16", "mixed_float16") or None for the global one.
      name: of the encoder as a Keras layer ("albert_encoder" by default), and the beginning of its heads' names: two
        models inside one functional model need two.

    Raises UserError where the path holds no model, a file is damaged, or a variable of the encoder has no value.
    """
    from albert_tf.conversion import sources

    return sources.load(pathlib.Path(path), heads=heads, dtype=dtype, name=name)


def initialise_from(model: Model, path: str | os.PathLike, *, from_group0: bool = False) -> Restored:
    """Gives `model` the weights of another one as a start; heads that the other lacks stay new, and are reported.

    The other may have fewer layers where all of them share one block; with `from_group0`, every group (or layer of its
    own) starts from the other's first group.

    Raises UserError where the other model is not to be loaded, has another vocabulary or other sizes.
    """
    from absl import logging

    from albert_tf.conversion import resizing

    source = load_model(path)
    theirs, ours = source.tokenizer, model.tokenizer
    check_vocabulary(model.config, ours, theirs.hash if theirs else source.info.vocabulary_hash, path)
    if theirs and ours and (theirs.do_lower_case, theirs.keep_accents) != (ours.do_lower_case, ours.keep_accents):
        logging.warning(
            "%s was trained on text with do_lower_case=%s, keep_accents=%s, which is now read with %s, %s",
            *(path, theirs.do_lower_case, theirs.keep_accents, ours.do_lower_case, ours.keep_accents),
        )
    untrained = source.restored.new
    values = {name: v.numpy() for name, v in source.named_variables().items() if name not in untrained}
    values, notice = resizing.fit(values, source.config, model.config, from_group0=from_group0)
    if notice:
        logging.warning("%s: %s", path, notice)
    return assign(model, values, source=str(path), new_heads=True, may_be_new=untrained)


def read_info(folder: str | os.PathLike) -> tuple[ModelInfo, str]:
    """model.json as (description, prefix of the weights).

    Raises UserError where it is missing, damaged, or written by a later version of the format.
    """
    folder = pathlib.Path(folder)
    values = files.read_json(folder / INFO_FILE, "model description")
    version = values.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder / INFO_FILE} has format_version {version!r}: expected {FORMAT_VERSION}; update albert_tf"
        )
    prefix = values.pop("weights", None)
    if not isinstance(prefix, str) or not prefix or "/" in prefix or "\0" in prefix:
        raise UserError(f"{folder / INFO_FILE} is damaged: found weights {prefix!r}; write the model folder anew")
    return info_from(values, folder / INFO_FILE), prefix


def info_from(values: dict[str, Any], source: str | os.PathLike) -> ModelInfo:
    """A ModelInfo from the values of a JSON file, `source`.

    Raises UserError where a key is unknown or a value not possible.
    """
    known = {field.name for field in dataclasses.fields(ModelInfo)}
    found = [f"unknown key {name}" for name in values if name not in known]
    found += [f"{name} {values[name]!r}" for name in values if name in known and not _is_possible(name, values[name])]
    if found:
        raise UserError(f"{source} is damaged: found {found[0]}; make the folder anew")
    if values.get("labels") is not None:
        values = {**values, "labels": tuple(values["labels"])}
    return ModelInfo(**values)


def _is_possible(name: str, value: Any) -> bool:
    """Whether a field of ModelInfo may have this value in JSON."""
    if name == "heads":
        return isinstance(value, dict) and all(isinstance(options, dict) for options in value.values())
    if name == "made_by":
        new = value.get("new", []) if isinstance(value, dict) else None
        return isinstance(new, list) and all(isinstance(variable, str) for variable in new)
    if name == "task_options":
        return isinstance(value, dict)
    if value is None:
        return True
    if name == "labels":
        return isinstance(value, list) and all(isinstance(label, str) for label in value)
    if name == "max_seq_length":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return isinstance(value, bool if name in ("do_lower_case", "keep_accents") else str)


def load_folder_tokenizer(folder: pathlib.Path, info: "ModelInfo | RecordsInfo" = ModelInfo()) -> "Tokenizer | None":
    """The tokeniser that a folder carries, or None where it has none. `info` describes it as far as that is known."""
    from albert_tf import tokenization

    found = tokenization.find_vocabulary(folder, vocabulary_hash=info.vocabulary_hash)
    if found is None:
        return None
    return tokenization.load_tokenizer(found, do_lower_case=info.do_lower_case, keep_accents=info.keep_accents)


def check_vocabulary(
    config: AlbertConfig, tokenizer: "Tokenizer | None", expected_hash: str | None, source: str | os.PathLike
) -> None:
    """Refuses a tokeniser that is not the model's: another size than the table's rows, or another file."""
    if tokenizer is None:
        return
    if expected_hash is not None and tokenizer.hash != expected_hash:
        raise UserError(
            f"{source}: the tokeniser file has hash {tokenizer.hash[:12]}, the model was made with "
            f"{expected_hash[:12]}; put the right file back, or make the records with the vocabulary of the model"
        )
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{source}: the tokeniser has {tokenizer.vocab_size} pieces, the embedding table {config.vocab_size} rows; "
            "give the tokeniser that the model was trained with"
        )


def assign(
    model: Model,
    tensors: dict[str, "np.ndarray"],
    *,
    source: str,
    skipped: tuple[str, ...] = (),
    new_heads: bool = False,
    may_be_new: tuple[str, ...] = (),
) -> Restored:
    """Gives every variable its value and reports; anything of the encoder left without a value is an error.

    Heads may be new only where `new_heads` allows it, other variables only where `may_be_new` names them (the pooler
    of a model whose head never had one).

    Raises UserError naming what is missing, has another shape, or holds something else than real numbers.
    """
    variables = model.named_variables()
    missing = [name for name in variables if name not in tensors]
    essential = [name for name in missing if name.startswith("encoder/") or not new_heads]
    essential = [name for name in essential if name not in may_be_new]
    if essential:
        raise UserError(
            f"{source} has no values for {len(essential)} of {len(variables)} variables: {_listed(essential)}; "
            "check that the configuration and the weights belong together"
        )
    for name, variable in variables.items():
        if name in tensors:
            _check_tensor(name, tensors[name], tuple(variable.shape), source)
    for name, variable in variables.items():
        if name in tensors:
            variable.assign(tensors[name])
    return Restored(
        filled=tuple(name for name in variables if name in tensors),
        new=tuple(missing),
        skipped=skipped,
        unused=tuple(name for name in tensors if name not in variables),
    )


def check_sizes(config: AlbertConfig, tensors: dict[str, "np.ndarray"], source: str) -> None:
    """Compares the sizes in a configuration with tensors (our names) before a model of these sizes takes memory.

    Raises UserError naming the first that differs.
    """
    embedding, hidden = config.embedding_size, config.hidden_size
    shapes = {
        "encoder/embeddings/word_embeddings": (config.vocab_size, embedding),
        "encoder/embeddings/position_embeddings": (config.max_position_embeddings, embedding),
        "encoder/embeddings/segment_embeddings": (config.type_vocab_size, embedding),
        "encoder/feed_forward_0/intermediate/kernel": (hidden, config.intermediate_size),
    }
    for name, shape in shapes.items():
        if name in tensors:
            _check_tensor(name, tensors[name], shape, source)


def _check_tensor(name: str, tensor: "np.ndarray", shape: tuple[int, ...], source: str) -> None:
    if tensor.shape != shape:
        raise UserError(
            f"{source}: {name} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}; check that "
            "the configuration and the weights belong together"
        )
    if tensor.dtype.kind not in "fV":  # V: bfloat16, which NumPy does not know
        raise UserError(f"{source}: {name} holds {tensor.dtype} values: expected floating-point numbers, not quantised")


def write_tensors(prefix: str | os.PathLike, tensors: dict[str, Any]) -> None:
    """Writes a name-based TensorFlow checkpoint, prefix.index and prefix.data-00000-of-00001.

    Raises OSError where the disk does not take it.
    """
    import tensorflow as tf

    names, prefix = list(tensors), pathlib.Path(prefix)
    values = [tf.convert_to_tensor(tensors[name]) for name in names]
    try:
        with tf.device("CPU:0"), files.plainly_named(prefix.parent) as folder:
            tf.raw_ops.SaveV2(
                prefix=str(folder / prefix.name), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
            )
    except tf.errors.OpError as error:
        for part in prefix.parent.glob(f"{glob.escape(prefix.name)}.*"):
            part.unlink(missing_ok=True)
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]$", "", error.message.splitlines()[0])  # names of TensorFlow's own
        raise OSError(0, reason) from error


def read_tensors(prefix: str | os.PathLike) -> dict[str, "np.ndarray"]:
    """Reads every tensor of a TensorFlow checkpoint.

    Raises UserError where a file is missing, truncated or damaged.
    """
    import numpy as np
    import tensorflow as tf

    prefix = pathlib.Path(prefix)
    index = prefix.with_name(f"{prefix.name}.index")
    data = list(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))
    if not index.is_file():
        raise UserError(f"no checkpoint at {prefix}: {index.name} is missing; copy it too, or check the path")
    if not data:
        raise UserError(f"the checkpoint {prefix} has no {prefix.name}.data-* file beside its index; copy it too")
    try:
        endings = [file.name.removeprefix(prefix.name) for file in (index, *data)]
        with files.plainly_named(prefix, endings) as found:
            reader = tf.train.load_checkpoint(str(found))
            names = sorted(reader.get_variable_to_shape_map())
            return {name: np.asarray(reader.get_tensor(name)) for name in names}  # a scalar text comes as bytes
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:  # IndexError: the file ends early
        reason = str(error).splitlines()[0][:200]
        raise UserError(f"the checkpoint {prefix} is truncated or damaged ({reason}); copy it again") from error


def _with_tokenizer(info: ModelInfo, tokenizer: "Tokenizer | None") -> ModelInfo:
    if tokenizer is None:
        return info
    return dataclasses.replace(
        info,
        tokenizer_kind=tokenizer.kind,
        vocabulary_hash=tokenizer.hash,
        do_lower_case=tokenizer.do_lower_case,
        keep_accents=tokenizer.keep_accents,
    )


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
