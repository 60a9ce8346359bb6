"""From a path to stored weights, whatever kind of folder, file or archive it is."""

import contextlib
import dataclasses
import glob
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from albert_tf import checkpoints, files
from albert_tf.config import AlbertConfig
from albert_tf.conversion import archives, huggingface_files, release, saved_model
from albert_tf.conversion.names import Name, Source
from albert_tf.errors import UserError

if TYPE_CHECKING:
    import numpy as np

KINDS = {
    "native": "model folder of albert_tf",
    "release": "checkpoint of the TensorFlow 1 release",
    "hub": "TF-Hub module or other SavedModel of the release",
    "huggingface": "Hugging Face folder",
}


def load(
    path: pathlib.Path, *, heads: Iterable[str] | str | None = None, dtype: Any = None, name: str | None = None
) -> checkpoints.Model:
    """checkpoints.load_model: see there and `opened`. What the source makes worth knowing is logged.

    Raises UserError as `opened` does, and where the encoder has no value for a variable.
    """
    from absl import logging

    if heads is not None:
        heads = (heads,) if isinstance(heads, str) else tuple(heads)
    with opened(path, heads=heads) as source:
        model = source.model(dtype, name)
    for notice in source.notices:
        logging.warning("%s: %s", path, notice)
    if model.restored.new:
        logging.warning("%s: not in the source, left as initialised: %s", path, ", ".join(model.restored.new))
    return model


@contextlib.contextmanager
def opened(
    path: pathlib.Path,
    *,
    heads: tuple[str, ...] | None = None,
    hidden_act: str | None = None,
    label_names: tuple[str, ...] | None = None,
    config_file: pathlib.Path | None = None,
) -> Iterator[Source]:
    """Reads the weights at `path`; its files stay in reach within the `with` block, also those of an archive.

    Args:
      path: folder, checkpoint prefix, .index file, weights file or archive of any kind in KINDS.
      heads: those to take, by our names; by default all.
      hidden_act: our name of the activation, where the source's own is wrong.
      label_names: in the order of the logits, for a classifier or token classifier.
      config_file: albert_config.json, for a release checkpoint or SavedModel without one.

    Raises UserError where there is no model, or it is damaged, incomplete or contradicts itself.
    """
    with tempfile.TemporaryDirectory(prefix="albert_tf-") as scratch:
        at = path
        if path.is_file() and path.name.endswith(archives.ENDINGS):
            at = archives.extract(path, pathlib.Path(scratch))
        source = _read(kind_of(at), at, heads, hidden_act, config_file)
        if at is not path:
            source.notices.insert(0, f"reading the archive {path.name}")
        if hidden_act is not None and source.kind != "huggingface":
            said = source.config.hidden_act
            source.notices.append(f"the configuration says hidden_act {said!r}; taking {hidden_act!r}, as asked for")
            source.config = source.config.replace(hidden_act=hidden_act)
            source.stored_config = {**source.stored_config, "hidden_act": hidden_act}
        if label_names is not None:
            source.info = dataclasses.replace(source.info, labels=_checked_labels(label_names, source))
        labels = source.info.labels or ()
        if labels and all(label == f"LABEL_{i}" for i, label in enumerate(labels)):
            source.notices.append("the labels have no names but LABEL_0, LABEL_1, ...; give them with --label_names")
        _check_tokenizer(source)
        yield source


def kind_of(path: pathlib.Path) -> str:
    """The kind of model at `path`, a key of KINDS.

    Raises UserError where there is none, or two of different kinds.
    """
    if not path.is_dir():
        return _kind_of_file(path)
    if (path / checkpoints.INFO_FILE).is_file():
        return "native"
    found = []
    if (path / saved_model.GRAPH).is_file():
        found.append("hub")
    if any((path / name).is_file() for name in huggingface_files.WEIGHTS):
        found.append("huggingface")
    if steps := sorted(path.glob("ckpt-*.index")):
        if _is_of_run(_without_ending(steps[0])):
            raise UserError(
                f"{path} holds the checkpoints of a run: give the run folder {path.absolute().parent} for the latest "
                f"weights, or one of them, such as {_without_ending(steps[0])}"
            )
    if any(path.glob("*.index")):
        found.append("release")
    if len(found) > 1:
        both = " and a ".join(KINDS[kind] for kind in found)
        raise UserError(f"{path} holds a {both}: cannot tell which is meant; name the weights file")
    if not found:
        _explain_nothing(path)
    return found[0]


def _kind_of_file(path: pathlib.Path) -> str:
    if path.name in (checkpoints.INFO_FILE, saved_model.GRAPH):
        raise UserError(f"{path} is one file of a model folder: give the folder {path.parent}")
    if path.is_file() and (path.suffix in (".safetensors", ".bin") or path.name in huggingface_files.WEIGHTS):
        return "huggingface"
    prefix = _without_ending(path)
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return "native" if _is_of_run(prefix) else "release"
    data = sorted(path.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))
    if data:
        raise UserError(f"the checkpoint {prefix} has no index, only {data[0].name}; copy {prefix.name}.index too")
    raise UserError(
        f"no model at {path}: expected a model folder, a checkpoint prefix or a {'/'.join(archives.ENDINGS)} archive; "
        "check the path"
    )


def _explain_nothing(path: pathlib.Path) -> None:
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if data := [name for name in names if ".data-" in name]:
        raise UserError(f"{path} holds {data[0]} without its index: copy the .index file beside it")
    if foreign := [name for name in names if name in ("tf_model.h5", "flax_model.msgpack", "rust_model.ot")]:
        raise UserError(
            f"{path} holds {foreign[0]}, which is not read; get model.safetensors or pytorch_model.bin of that model"
        )
    listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    raise UserError(
        f"{path} is no model folder: expected model.json, *.index, model.safetensors, pytorch_model.bin or "
        f"saved_model.pb, found {listed or 'nothing'}; check the path"
    )


def _without_ending(path: pathlib.Path) -> pathlib.Path:
    """model.ckpt-best.index and model.ckpt-best.data-00000-of-00001 mean model.ckpt-best."""
    name = path.name.removesuffix(".index").split(".data-")[0]
    return path.with_name(name) if name else path


def _is_of_run(prefix: pathlib.Path) -> bool:
    """Whether that is RUN/checkpoints/ckpt-STEP, a step from which a run goes on."""
    folder, named = prefix.absolute().parent, re.fullmatch(r"ckpt-\d+", prefix.name)
    return bool(named) and folder.name == "checkpoints" and (folder.parent / checkpoints.INFO_FILE).is_file()


def _read(
    kind: str,
    path: pathlib.Path,
    heads: tuple[str, ...] | None,
    hidden_act: str | None,
    config_file: pathlib.Path | None,
) -> Source:
    if config_file is not None and kind not in ("release", "hub"):
        raise UserError(f"{path} is a {KINDS[kind]}, which has its configuration in it; leave --albert_config_file out")
    if kind == "huggingface":
        weights = None if path.is_dir() else path
        folder = path if path.is_dir() else path.parent
        return huggingface_files.read(folder, heads=heads, hidden_act=hidden_act, weights_file=weights)
    if kind == "hub":
        return saved_model.read(path, heads=heads, config_file=config_file)
    if kind == "release":
        path = path if path.is_dir() else _without_ending(path)
        return release.read(path, heads=heads, config_file=config_file)
    if path.is_dir():
        return _read_native(path, heads)
    step = _without_ending(path).absolute()
    return _read_native(step.parent.parent, heads, step=step)


def _read_native(folder: pathlib.Path, heads: tuple[str, ...] | None, *, step: pathlib.Path | None = None) -> Source:
    """A model folder; with `step`, the prefix of a numbered checkpoint of the run there, the weights of that step."""
    info, prefix = checkpoints.read_info(folder)
    config_file = folder / checkpoints.CONFIG_FILE
    config = AlbertConfig.from_json(config_file)
    taken = tuple(info.heads) if heads is None else heads
    if absent := [head for head in taken if head not in info.heads]:
        present = ", ".join(info.heads) or "none"
        raise UserError(f"{folder} has no {absent[0]} head: its heads are {present}; choose one of them")
    tokenizer = checkpoints.load_folder_tokenizer(folder, info)
    checkpoints.check_vocabulary(config, tokenizer, info.vocabulary_hash, folder)
    untrained = tuple(info.made_by.get("new", ()))
    if step is None:
        try:
            stored = checkpoints.read_tensors(folder / prefix)
        except UserError:
            if checkpoints.read_info(folder)[1] == prefix:
                raise
            return _read_native(folder, heads)  # a run has put another model in its place meanwhile
    else:
        stored = _numbered_tensors(step, config, info)
        made_by = {**info.made_by, "step": int(step.name.removeprefix("ckpt-"))}
        made_by.pop("metrics", None)  # those of the step that the folder holds
        info = dataclasses.replace(info, made_by=made_by)
    parts = {"encoder", *taken}
    return Source(
        kind="native",
        path=step or folder,
        config=config,
        stored_config=files.read_json(config_file, "model configuration"),
        stored=stored,
        names=[Name(name, name) for name in stored if name.split("/")[0] in parts],
        heads={head: info.heads[head] for head in taken},
        other_tensors=tuple(name for name in stored if name.split("/")[0] in set(info.heads) - parts),
        tokenizer=tokenizer,
        info=info,
        may_be_new=untrained,
        untrained=untrained,
    )


def _numbered_tensors(step: pathlib.Path, config: AlbertConfig, info: checkpoints.ModelInfo) -> dict[str, "np.ndarray"]:
    """The weights in a run's checkpoint, which numbers them in the order in which a model names them."""
    tensors = checkpoints.read_tensors(step)
    names = list(checkpoints.new_model(config, info.heads).named_variables())
    numbered = {name: f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE" for number, name in enumerate(names)}
    if not tensors.keys() >= set(numbered.values()):
        raise UserError(
            f"{step} does not hold the {len(names)} weights of the model in {step.parent.parent}: expected a "
            "checkpoint of that run; check the path"
        )
    return {name: tensors[source] for name, source in numbered.items()}


def _checked_labels(names: tuple[str, ...], source: Source) -> tuple[str, ...]:
    head = next((head for head in ("classifier", "token_classifier") if head in source.heads), None)
    if head is None:
        raise UserError(
            f"--label_names was given, and {source.path} has no head with labels (its heads: "
            f"{', '.join(source.heads) or 'none'}); leave it out"
        )
    count = source.heads[head]["num_labels"]
    if len(names) != count or len(set(names)) != count or not all(names):
        raise UserError(
            f"--label_names has {len(names)} names ({', '.join(names)}): expected {count} different ones, in the order "
            "of the logits"
        )
    return names


def _check_tokenizer(source: Source) -> None:
    """Foreign folders have one row for each piece; another number means that the two do not belong together."""
    tokenizer, rows = source.tokenizer, source.config.vocab_size
    if tokenizer is None:
        source.notices.append("no tokeniser in the folder: the model works on ids alone until one is put there")
    elif tokenizer.vocab_size != rows and source.kind != "native":
        raise UserError(
            f"{source.path}: the tokeniser {tokenizer.path.name} has {tokenizer.vocab_size} pieces, the configuration "
            f"vocab_size {rows}; put the tokeniser there that the model was trained with"
        )
