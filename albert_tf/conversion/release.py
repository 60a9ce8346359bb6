"""The public TensorFlow 1 release: its names beside ours, as data, and its checkpoints read and written."""

import pathlib
import re
from typing import Any

import numpy as np

from albert_tf import checkpoints, files
from albert_tf.config import AlbertConfig, block_plan
from albert_tf.conversion.names import Name, Source, translate_back
from albert_tf.errors import UserError

CHECKPOINT = "model.ckpt-best"  # the name in the released archives
VOCABULARY = {"spiece.model": "30k-clean.model", "spiece.vocab": "30k-clean.vocab"}  # our file names, theirs

# Optimiser state and counters, which no model folder keeps.
SKIPPED = r"/(adam|lamb)_[mv]$|/Adam(_1)?$|^global_step$|^beta[12]_power$"

_EMBEDDINGS = (
    Name("bert/embeddings/word_embeddings", "encoder/embeddings/word_embeddings"),
    Name("bert/embeddings/position_embeddings", "encoder/embeddings/position_embeddings"),
    Name("bert/embeddings/token_type_embeddings", "encoder/embeddings/segment_embeddings"),
    Name("bert/embeddings/LayerNorm/gamma", "encoder/embeddings/layer_norm/gamma"),
    Name("bert/embeddings/LayerNorm/beta", "encoder/embeddings/layer_norm/beta"),
)
_PROJECTION = (
    Name("bert/encoder/embedding_hidden_mapping_in/kernel", "encoder/embeddings/projection/kernel"),
    Name("bert/encoder/embedding_hidden_mapping_in/bias", "encoder/embeddings/projection/bias"),
)
# Within a block: "LayerNorm" stands after attention, "LayerNorm_1" after the feed-forward part.
_ATTENTION = (
    Name("attention_1/self/query/kernel", "query/kernel"),
    Name("attention_1/self/query/bias", "query/bias"),
    Name("attention_1/self/key/kernel", "key/kernel"),
    Name("attention_1/self/key/bias", "key/bias"),
    Name("attention_1/self/value/kernel", "value/kernel"),
    Name("attention_1/self/value/bias", "value/bias"),
    Name("attention_1/output/dense/kernel", "output/kernel"),
    Name("attention_1/output/dense/bias", "output/bias"),
    Name("LayerNorm/gamma", "layer_norm/gamma"),
    Name("LayerNorm/beta", "layer_norm/beta"),
)
_FEED_FORWARD = (
    Name("ffn_1/intermediate/dense/kernel", "intermediate/kernel"),
    Name("ffn_1/intermediate/dense/bias", "intermediate/bias"),
    Name("ffn_1/intermediate/output/dense/kernel", "output/kernel"),
    Name("ffn_1/intermediate/output/dense/bias", "output/bias"),
    Name("LayerNorm_1/gamma", "layer_norm/gamma"),
    Name("LayerNorm_1/beta", "layer_norm/beta"),
)
_POOLER = (
    Name("bert/pooler/dense/kernel", "encoder/pooler/kernel"),
    Name("bert/pooler/dense/bias", "encoder/pooler/bias"),
)
HEADS: dict[str, tuple[Name, ...]] = {
    "masked_lm": (
        Name("cls/predictions/transform/dense/kernel", "masked_lm/dense/kernel"),
        Name("cls/predictions/transform/dense/bias", "masked_lm/dense/bias"),
        Name("cls/predictions/transform/LayerNorm/gamma", "masked_lm/layer_norm/gamma"),
        Name("cls/predictions/transform/LayerNorm/beta", "masked_lm/layer_norm/beta"),
        Name("cls/predictions/output_bias", "masked_lm/output_bias"),
    ),
    "sentence_order": (
        Name("cls/seq_relationship/output_weights", "sentence_order/kernel", transposed=True),
        Name("cls/seq_relationship/output_bias", "sentence_order/bias"),
    ),
    # Three heads with the same names; a single row may be either of two.
    "classifier": (
        Name("output_weights", "classifier/kernel", transposed=True),
        Name("output_bias", "classifier/bias"),
    ),
    "regression": (
        Name("output_weights", "regression/kernel", transposed=True),
        Name("output_bias", "regression/bias"),
    ),
    "multiple_choice": (
        Name("output_weights", "multiple_choice/kernel", transposed=True),
        Name("output_bias", "multiple_choice/bias"),
    ),
    "span": (
        Name("cls/squad/output_weights", "span/kernel", transposed=True),
        Name("cls/squad/output_bias", "span/bias"),
    ),
    "conditional_span": (
        Name("start_logits/dense/kernel", "conditional_span/start/kernel"),
        Name("start_logits/dense/bias", "conditional_span/start/bias"),
        Name("end_logits/dense_0/kernel", "conditional_span/end_dense/kernel"),
        Name("end_logits/dense_0/bias", "conditional_span/end_dense/bias"),
        Name("end_logits/LayerNorm/gamma", "conditional_span/end_layer_norm/gamma"),
        Name("end_logits/LayerNorm/beta", "conditional_span/end_layer_norm/beta"),
        Name("end_logits/dense_1/kernel", "conditional_span/end/kernel"),
        Name("end_logits/dense_1/bias", "conditional_span/end/bias"),
        Name("answer_class/dense_0/kernel", "conditional_span/answer_dense/kernel"),
        Name("answer_class/dense_0/bias", "conditional_span/answer_dense/bias"),
        Name("answer_class/dense_1/kernel", "conditional_span/answer/kernel"),
    ),
}

_ONE_ROW_HEADS = ("regression", "multiple_choice")
_NAMESAKES = ("classifier", *_ONE_ROW_HEADS)
_OWN_KEYS = ("sharing", "layer_norm_epsilon")  # of our configuration, unknown to the release


def encoder_names(config: AlbertConfig) -> list[Name]:
    """Every tensor of an encoder.

    Raises UserError for a way of sharing that the release does not have.
    """
    if config.sharing != "all":
        raise UserError(
            f"sharing is {config.sharing!r}: the release knows only 'all', with num_hidden_groups and "
            "inner_group_num; this model can be kept as native only"
        )
    names = [*_EMBEDDINGS, *(_PROJECTION if config.has_projection else ())]
    for block, (attention, feed_forward) in enumerate(block_plan(config)[0]):
        group, inner = divmod(block, config.inner_group_num)
        at = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
        for rows, part in ((_ATTENTION, f"attention_{attention}"), (_FEED_FORWARD, f"feed_forward_{feed_forward}")):
            names += [row._replace(source=f"{at}/{row.source}", ours=f"encoder/{part}/{row.ours}") for row in rows]
    return [*names, *_POOLER]


def read(
    path: pathlib.Path, *, heads: tuple[str, ...] | None = None, config_file: pathlib.Path | None = None
) -> Source:
    """Reads a release checkpoint: a folder, a prefix (.../model.ckpt-best) or its .index file.

    Raises UserError where there is no checkpoint or configuration, or a head has to be named.
    """
    folder, prefix, notices = find_checkpoint(path)
    config_file = config_file or _config_file(folder)
    stored = checkpoints.read_tensors(prefix)
    source = describe(prefix, stored, config_file, heads=heads)
    source.tokenizer = checkpoints.load_folder_tokenizer(folder)
    source.notices += notices
    return source


def describe(
    path: pathlib.Path, stored: dict[str, np.ndarray], config_file: pathlib.Path, *, heads: tuple[str, ...] | None
) -> Source:
    """A source, without its tokeniser, from tensors under the release's names."""
    config = AlbertConfig.from_json(config_file)
    found = heads_of(stored)
    if heads is None:
        if "" in found:
            raise UserError(
                f"{path} has output_weights of one row, which the release writes for {' and for '.join(_ONE_ROW_HEADS)}"
                " (STS-B and RACE) alike; say which with --head (heads= in Python), or --head=none for the encoder"
            )
        heads = tuple(found)
    options = {name: _head_options(name, stored, path) for name in heads}
    names = encoder_names(config)
    for head in options:
        names += HEADS[head]
    known = {name.source: head for head, rows in HEADS.items() for name in rows}
    taken = {name.source for name in names}
    return Source(
        kind="release",
        path=path,
        config=config,
        stored_config=files.read_json(config_file, "model configuration"),
        stored=stored,
        names=names,
        skipped=SKIPPED,
        heads=options,
        other_tensors=tuple(source for source in stored if source in known and source not in taken),
        tokenizer=None,
    )


def heads_of(stored: dict[str, np.ndarray]) -> list[str]:
    """Heads that tensors belong to; "" stands for one that only the user can name."""
    found = [name for name, rows in HEADS.items() if name not in _NAMESAKES and rows[0].source in stored]
    rows = len(np.atleast_1d(stored.get("output_weights", ())))
    return found + (["classifier"] if rows > 1 else [""] if rows else [])


def write(folder: pathlib.Path, model: checkpoints.Model) -> list[str]:
    """Writes albert_config.json, model.ckpt-best and the tokeniser as the released archives hold them.

    Returns what to tell the user. Raises UserError naming what the release cannot express.
    """
    config, notices = model.config, []
    names = encoder_names(config)
    if config.layer_norm_epsilon != 1e-12:
        _refuse(f"layer_norm_epsilon is {config.layer_norm_epsilon}", "the release computes with 1e-12 always")
    if config.hidden_act == "gelu_erf":
        _refuse("hidden_act is 'gelu_erf'", "the release's gelu is the tanh form")
    for head in model.heads:
        if head not in HEADS:
            _refuse(f"the model has a {head} head", "the release has none; choose other heads with --head")
        names += HEADS[head]
    if len({name.source for name in names}) < len(names):
        both = ", ".join(head for head in model.heads if head in _NAMESAKES)
        _refuse(f"the heads {both} have the same names in the release", "choose one with --head")
    tensors = {name: variable.numpy() for name, variable in model.named_variables().items()}
    if model.restored.new:
        notices.append(f"written as they were initialised, without training: {', '.join(model.restored.new)}")
    if model.info.labels:
        notices.append(f"a release folder has no place for label names; keep them: {', '.join(model.info.labels)}")
    checkpoints.write_tensors(folder / CHECKPOINT, translate_back(tensors, names))
    files.write_atomically(
        folder / "checkpoint", f'model_checkpoint_path: "{CHECKPOINT}"\nall_model_checkpoint_paths: "{CHECKPOINT}"\n'
    )
    values = {key: value for key, value in config.to_dict().items() if key not in _OWN_KEYS}
    files.write_json(folder / checkpoints.CONFIG_FILE, values)
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
        for ours, theirs in VOCABULARY.items():
            if (folder / ours).is_file():
                (folder / ours).rename(folder / theirs)
    return notices


def _refuse(found: str, why: str) -> None:
    raise UserError(f"{found}: not to be expressed in a release checkpoint, as {why}")


def find_checkpoint(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path, list[str]]:
    """(folder, checkpoint prefix, notices) for a folder, a prefix or an .index file.

    Of several checkpoints the one that the `checkpoint` file names last is taken, by its base name: released folders
    hold absolute paths of other machines.
    """
    if not path.is_dir():
        prefix = path.with_suffix("") if path.suffix == ".index" else path
        return prefix.parent, prefix, []
    found = {file.name.removesuffix(".index"): file for file in sorted(path.glob("*.index"))}
    if not found:
        raise UserError(f"{path} has no checkpoint index (*.index); copy the whole checkpoint, index and data")
    name = next(iter(found)) if len(found) == 1 else _latest(path)
    if name not in found:
        listed = ", ".join(found)
        raise UserError(f"{path} holds several checkpoints: {listed}; give the path of one, without its ending")
    others = [other for other in found if other != name]
    notices = [f"taking {name}, the latest by the checkpoint file, and not {', '.join(others)}"] if others else []
    return path, path / name, notices


def _latest(folder: pathlib.Path) -> str:
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    match = re.search(r'^model_checkpoint_path: "(?:[^"]*[/\\\\])?([^"]+)"', text, re.MULTILINE)
    return match[1] if match else ""


def _config_file(folder: pathlib.Path) -> pathlib.Path:
    ours = folder / checkpoints.CONFIG_FILE
    tokenizer_settings = {folder / "tokenizer_config.json", folder / "generation_config.json"}
    found = [ours] if ours.is_file() else sorted(set(folder.glob("*config*.json")) - tokenizer_settings)
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise UserError(
            f"{folder} has no single model configuration: expected albert_config.json, found {names}; put it there or "
            "name it with --albert_config_file"
        )
    return found[0]


def _head_options(name: str, stored: dict[str, np.ndarray], path: pathlib.Path) -> dict[str, Any]:
    if name not in HEADS or HEADS[name][0].source not in stored:
        present = ", ".join(head or " or ".join(_ONE_ROW_HEADS) for head in heads_of(stored)) or "none"
        raise UserError(f"{path} has no {name} head: its heads are {present}; choose one of them")
    if name not in _NAMESAKES:
        return {}
    rows = len(np.atleast_1d(stored["output_weights"]))
    if (rows == 1) != (name in _ONE_ROW_HEADS):
        right = " or ".join(_ONE_ROW_HEADS) if rows == 1 else "classifier"
        raise UserError(f"{path} has output_weights of {rows} rows: not a {name} head; choose {right}")
    return {"num_labels": rows} if name == "classifier" else {}
