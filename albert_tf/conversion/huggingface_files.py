"""Hugging Face folders, read and written."""

import json
import pathlib
from typing import Any

import numpy as np

from albert_tf import checkpoints, files
from albert_tf.config import AlbertConfig
from albert_tf.conversion import huggingface, torch_files
from albert_tf.conversion.names import POOLER, Source, translate_back
from albert_tf.errors import UserError

CONFIG_FILE = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_LABELLED = ("classifier", "token_classifier")
_KINDS = {"architectures": list, "hidden_act": str, "problem_type": str, "id2label": dict, "label2id": dict}
_JSON_NAMES = {list: "a list", str: "a text", dict: "an object"}


def read(
    folder: pathlib.Path,
    *,
    heads: tuple[str, ...] | None = None,
    hidden_act: str | None = None,
    weights_file: pathlib.Path | None = None,
) -> Source:
    """Reads a Hugging Face folder: config.json with model.safetensors or pytorch_model.bin.

    `hidden_act` (our name) overrides what config.json says.

    Raises UserError where a file is missing or damaged, or the model has something that ours cannot express.
    """
    theirs = files.read_json(folder / CONFIG_FILE, "model configuration")
    for key, kind in _KINDS.items():
        if not isinstance(theirs.get(key), kind | None):
            raise UserError(
                f"{folder / CONFIG_FILE} has {key}={theirs[key]!r}: expected {_JSON_NAMES[kind]}; copy the file again"
            )
    notices: list[str] = []
    stored = _read_weights(folder, weights_file, notices)
    config = _our_config(theirs, folder, hidden_act, notices)
    root = "albert." if any(name.startswith("albert.") for name in stored) else ""
    found = _heads_of(stored, theirs, folder, heads)
    taken = tuple(found) if heads is None else heads
    if absent := [head for head in taken if head not in found]:
        present = ", ".join(found) or "none"
        raise UserError(f"{folder} has no {absent[0]} head: its heads are {present}; choose one of them")
    names, skipped = huggingface.encoder_names(config, root), huggingface.SKIPPED
    if not config.has_projection:
        _check_identity(stored, root, folder)
        skipped += rf"|^{root}encoder\.embedding_hidden_mapping_in\."
    _check_tied(stored, root, folder)
    names += [name for head in taken for name in huggingface.HEADS[head]]
    used = {name.source for name in names}
    known = {name.source for rows in huggingface.HEADS.values() for name in rows}
    without_pooler = bool(found) and huggingface.WITHOUT_POOLER.issuperset(found)
    options = {head: _head_options(head, stored, theirs) for head in taken}
    return Source(
        kind="huggingface",
        path=folder,
        config=config,
        stored_config={**theirs, "hidden_act": _their_activation(hidden_act)} if hidden_act else theirs,
        stored=stored,
        names=names,
        skipped=skipped,
        heads=options,
        other_tensors=tuple(name for name in stored if name in known and name not in used),
        tokenizer=_tokenizer(folder, notices),
        info=checkpoints.ModelInfo(labels=_labels(theirs, options, folder)),
        may_be_new=POOLER if without_pooler and f"{root}pooler.weight" not in stored else (),
        notices=notices,
    )


def _our_config(
    theirs: dict[str, Any], folder: pathlib.Path, hidden_act: str | None, notices: list[str]
) -> AlbertConfig:
    if theirs.get("model_type", "albert") != "albert":
        raise UserError(f"{folder / CONFIG_FILE} describes a {theirs['model_type']!r} model: expected 'albert'")
    for key, plain in huggingface.PLAIN.items():
        if theirs.get(key, plain) not in (plain, None):
            raise UserError(f"{folder / CONFIG_FILE} has {key}={theirs[key]!r}: only {plain!r} is possible here")
    values = {ours: theirs.get(key, default) for ours, key, default in huggingface.CONFIG}
    act = values["hidden_act"]
    if hidden_act is not None:
        values["hidden_act"] = hidden_act
        notices.append(f"config.json says hidden_act {act!r}; taking {hidden_act!r}, as asked for")
    elif act not in huggingface.ACTIVATIONS:
        known = ", ".join(huggingface.ACTIVATIONS)
        raise UserError(f"{folder / CONFIG_FILE} has hidden_act={act!r}: expected one of {known}; see --hidden_act")
    else:
        values["hidden_act"] = huggingface.ACTIVATIONS[act]
        if act == "gelu":
            notices.append(
                "config.json says hidden_act 'gelu', in transformers the exact form: taking gelu_erf. Some old folders "
                "meant the tanh form; for those give --hidden_act=gelu"
            )
    return AlbertConfig.from_dict(values, source=str(folder / CONFIG_FILE))


def _their_activation(ours: str) -> str:
    return next(theirs for theirs, name in huggingface.ACTIVATIONS.items() if name == ours)


def _heads_of(
    stored: dict[str, np.ndarray], theirs: dict[str, Any], folder: pathlib.Path, asked: tuple[str, ...] | None
) -> list[str]:
    """Every head that the tensors hold; of those named alike, the one that the class in config.json has."""
    alike = huggingface.NAMESAKES
    found = [head for head, rows in huggingface.HEADS.items() if head not in alike and rows[0].source in stored]
    if "classifier.weight" not in stored:
        return found
    architecture = str((theirs.get("architectures") or [""])[0])
    told = [head for head in huggingface.CLASSES.get(architecture, ()) if head in alike]
    if not told:
        told = [head for head in asked or () if head in alike]
        if not told and asked is None:
            raise UserError(
                f"{folder} has a classifier, and config.json does not say of which class (architectures is "
                f"{theirs.get('architectures')}); say which head it is: --head={'|'.join(alike)}, or none"
            )
    if told == ["classifier"]:
        told = [_classifier_kind(theirs, len(stored["classifier.weight"]), folder, asked)]
    return found + told[:1]


def _classifier_kind(theirs: dict[str, Any], rows: int, folder: pathlib.Path, asked: tuple[str, ...] | None) -> str:
    problem = theirs.get("problem_type") or ("regression" if rows == 1 else "single_label_classification")
    if problem == "multi_label_classification" and asked is None:
        raise UserError(
            f"{folder} is a multi-label classifier, and heads here choose one label; --head=classifier takes its "
            "weights all the same"
        )
    if problem == "regression" and rows != 1:
        raise UserError(f"{folder} is a regression of {rows} values: only one can be expressed here")
    return "regression" if rows == 1 else "classifier"


def _head_options(head: str, stored: dict[str, np.ndarray], theirs: dict[str, Any]) -> dict[str, Any]:
    if head not in huggingface.NAMESAKES:
        return {}
    rate = theirs.get("classifier_dropout_prob", huggingface.CLASSIFIER_DROPOUT)
    options = {"dropout_rate": theirs.get("hidden_dropout_prob", 0) if rate is None else rate}
    return {"num_labels": len(stored["classifier.weight"]), **options} if head in _LABELLED else options


def _labels(theirs: dict[str, Any], heads: dict[str, dict[str, Any]], folder: pathlib.Path) -> tuple[str, ...] | None:
    head = next((head for head in _LABELLED if head in heads), None)
    names = theirs.get("id2label")
    if head is None or not names:
        return None
    count = heads[head]["num_labels"]
    if sorted(names) != sorted(map(str, range(count))):
        raise UserError(
            f"{folder / CONFIG_FILE}: id2label names the labels {', '.join(names)}, the head has {count}; expected "
            f"names for 0 to {count - 1}"
        )
    labels = tuple(str(names[str(i)]) for i in range(count))
    backwards = theirs.get("label2id") or {label: i for i, label in enumerate(labels)}
    if any(backwards.get(label) != i for i, label in enumerate(labels)):
        raise UserError(f"{folder / CONFIG_FILE}: id2label and label2id contradict each other; correct one of them")
    return labels


def _tokenizer(folder: pathlib.Path, notices: list[str]) -> Any:
    tokenizer = checkpoints.load_folder_tokenizer(folder)
    if tokenizer is None and (folder / "tokenizer.json").is_file():
        notices.append(
            "tokenizer.json alone is not read: put the spiece.model (or vocab.txt) that it was made from into the "
            "folder, as without it the model is of no use on text"
        )
    return tokenizer


def _check_identity(stored: dict[str, np.ndarray], root: str, folder: pathlib.Path) -> None:
    """Where E = H ours has no projection; theirs always has one, which then must do nothing."""
    kernel = stored.get(f"{root}encoder.embedding_hidden_mapping_in.weight", np.zeros((0, 0)))
    bias = stored.get(f"{root}encoder.embedding_hidden_mapping_in.bias", np.ones(1))
    if not np.array_equal(kernel, np.eye(len(kernel))) or not len(kernel) or bias.any():
        raise UserError(
            f"{folder} projects embeddings of embedding_size = hidden_size by a trained matrix, and here nothing is "
            "projected there: the model cannot be expressed"
        )


def _check_tied(stored: dict[str, np.ndarray], root: str, folder: pathlib.Path) -> None:
    """The output matrix is the embedding table; a copy of it must be equal."""
    if "predictions.bias" not in stored and "predictions.decoder.bias" in stored:
        stored["predictions.bias"] = stored["predictions.decoder.bias"]
    pairs = {
        "predictions.decoder.weight": f"{root}embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    for copy, original in pairs.items():
        if copy in stored and original in stored and not np.array_equal(stored[copy], stored[original]):
            raise UserError(f"{folder}: {copy} is not {original}: an untied masked LM head cannot be expressed here")


def _read_weights(folder: pathlib.Path, chosen: pathlib.Path | None, notices: list[str]) -> dict[str, np.ndarray]:
    found = chosen or next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise UserError(f"{folder} has no weights that can be read: expected {WEIGHTS[0]} or {WEIGHTS[2]}")
    stored: dict[str, np.ndarray] = {}
    for path in _parts(found):
        stored.update(_read_safetensors(path) if path.suffix == ".safetensors" else torch_files.read_tensors(path))
    widened = sorted({str(value.dtype) for value in stored.values() if value.dtype.kind in "fV"} - {"float32"})
    if widened:
        notices.append(f"{found.name} holds {', '.join(widened)}: kept as float32")
    return {
        _modern(name): value.astype(np.float32, copy=False) if value.dtype.kind in "fV" else value
        for name, value in stored.items()
    }


def _modern(name: str) -> str:
    """Very old folders name LayerNorm's parts as TensorFlow does."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _parts(path: pathlib.Path) -> list[pathlib.Path]:
    if path.suffix != ".json":
        return [path]
    names = files.read_json(path, "index of weights").get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path} has no weight_map from names to files; copy it again")
    parts = [path.with_name(pathlib.PurePath(name).name) for name in sorted(set(names.values()))]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise UserError(f"{path} lists {', '.join(missing)}, which {path.parent} lacks; copy every part")
    return parts


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    import safetensors

    try:
        entries = safetensors.deserialize(path.read_bytes())
        return {name: _array(entry) for name, entry in entries}
    except KeyError as error:
        raise UserError(
            f"{path} holds numbers of the type {error}, which is not read: get the weights as float32 or float16"
        ) from error
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); copy it again") from error


def _array(entry: dict[str, Any]) -> np.ndarray:
    import ml_dtypes  # comes with TensorFlow

    plain = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
    dtype = ml_dtypes.bfloat16 if entry["dtype"] == "BF16" else plain[entry["dtype"]]
    return np.frombuffer(entry["data"], dtype).reshape(entry["shape"])


def write(folder: pathlib.Path, model: checkpoints.Model) -> list[str]:
    """Writes config.json, model.safetensors and the tokeniser, as transformers loads them.

    Returns what to tell the user. Raises UserError naming what transformers cannot express, or where the disk does not
    take it.
    """
    import safetensors.numpy

    config, heads = model.config, tuple(model.heads)
    architecture = _architecture(heads)
    root = "albert." if heads else ""
    names = huggingface.encoder_names(config, root)
    names += [name for head in heads for name in huggingface.HEADS[head]]
    tensors = {name: variable.numpy() for name, variable in model.named_variables().items()}
    unrunnable = huggingface.inner_groups_that_do_not_run(config)
    notices = [unrunnable] if unrunnable else []
    if untrained := [name for name in POOLER if name in model.restored.new]:
        if not heads or not huggingface.WITHOUT_POOLER.issuperset(heads):
            raise UserError(f"{', '.join(untrained)} has no trained values, and {architecture} needs them")
        tensors = {name: value for name, value in tensors.items() if name not in untrained}
        notices.append(f"left out, as it was never trained: {', '.join(untrained)}")
    stored = translate_back(tensors, names)
    if not config.has_projection:
        at = f"{root}encoder.embedding_hidden_mapping_in"
        stored[f"{at}.weight"] = np.eye(config.hidden_size, dtype=np.float32)
        stored[f"{at}.bias"] = np.zeros(config.hidden_size, np.float32)
        notices.append("embedding_size = hidden_size: transformers always projects, so the projection is the identity")
    files.write_atomically(folder / WEIGHTS[0], safetensors.numpy.save(stored, metadata={"format": "pt"}))
    files.write_json(folder / CONFIG_FILE, _their_config(model, architecture))
    if model.tokenizer is not None:
        _write_tokenizer(folder, model)
    return notices


def _architecture(heads: tuple[str, ...]) -> str:
    alike = {"classifier" if head == "regression" else head for head in heads}
    for architecture, theirs in huggingface.CLASSES.items():
        if alike == set(theirs) and len(heads) == len(theirs):
            return architecture
    known = "; ".join(", ".join(theirs) for theirs in huggingface.CLASSES.values() if theirs)
    raise UserError(
        f"transformers has no ALBERT class with the heads {', '.join(heads)}: expected one of {known}; choose with "
        "--head, none for the encoder alone"
    )


def _their_config(model: checkpoints.Model, architecture: str) -> dict[str, Any]:
    values = {key: getattr(model.config, ours) for ours, key, _ in huggingface.CONFIG}
    values["hidden_act"] = _their_activation(model.config.hidden_act)
    options = next((options for head, options in model.info.heads.items() if head in huggingface.NAMESAKES), {})
    values["classifier_dropout_prob"] = options.get("dropout_rate", huggingface.CLASSIFIER_DROPOUT)
    tokenizer = model.tokenizer
    values["bos_token_id"] = tokenizer.cls_id if tokenizer else 2
    values["eos_token_id"] = tokenizer.sep_id if tokenizer else 3
    values["pad_token_id"] = tokenizer.pad_id if tokenizer else 0
    if "regression" in model.heads:
        values["problem_type"] = "regression"
    count = 1 if "regression" in model.heads else options.get("num_labels", 0)
    if count:
        labels = model.info.labels or tuple(f"LABEL_{i}" for i in range(count))
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    values = {**huggingface.PLAIN, **values}
    del values["pruned_heads"], values["is_decoder"], values["add_cross_attention"]  # false and empty unless said
    return {"architectures": [architecture], "model_type": "albert", **dict(sorted(values.items()))}


def _write_tokenizer(folder: pathlib.Path, model: checkpoints.Model) -> None:
    tokenizer = model.tokenizer
    tokenizer.save(folder)
    pieces = {"cls_token": tokenizer.cls_id, "sep_token": tokenizer.sep_id, "mask_token": tokenizer.mask_id}
    pieces |= {"pad_token": tokenizer.pad_id, "unk_token": tokenizer.unk_id}
    settings = {name: tokenizer.id_to_piece(piece) for name, piece in pieces.items()}
    if tokenizer.kind == "sentencepiece":
        settings |= {"tokenizer_class": "AlbertTokenizer", "remove_space": True}
    else:
        strips = tokenizer.do_lower_case and not tokenizer.keep_accents  # true would mean there: of whatever case
        settings |= {"tokenizer_class": "BertTokenizer", "strip_accents": strips}
    settings["model_max_length"] = model.config.max_position_embeddings
    written = folder / "tokenizer_config.json"
    files.write_json(written, {**json.loads(written.read_text(encoding="utf-8")), **settings})
