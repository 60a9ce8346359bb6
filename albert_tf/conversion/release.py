"""Names of the public TensorFlow 1 release beside ours, as data used in both directions."""

import os
import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.encoder import block_plan
from albert_tf.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Name(NamedTuple):
    """One tensor: its name in the source, ours, and whether the source stores the transpose."""

    source: str
    ours: str
    transposed: bool = False


# Optimiser state and counters, which no model folder keeps.
SKIPPED = r"/(adam|lamb)_[mv]$|^global_step$|^beta[12]_power$"

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
    # Three heads with the same names: which one it is, the file cannot tell.
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


def encoder_names(config: AlbertConfig) -> list[Name]:
    """Every tensor of an encoder whose sharing the release can express (all, in groups)."""
    names = [*_EMBEDDINGS, *(_PROJECTION if config.has_projection else ())]
    for block, (attention, feed_forward) in enumerate(block_plan(config)[0]):
        group, inner = divmod(block, config.inner_group_num)
        source = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
        names += [Name(f"{source}/{n.source}", f"encoder/attention_{attention}/{n.ours}") for n in _ATTENTION]
        names += [Name(f"{source}/{n.source}", f"encoder/feed_forward_{feed_forward}/{n.ours}") for n in _FEED_FORWARD]
    return [*names, *_POOLER]


def load(path: str | os.PathLike, *, heads: Iterable[str] | None = None, dtype: Any = None) -> checkpoints.Model:
    """Loads a release checkpoint: a folder, a prefix (…/model.ckpt-best) or its .index file.

    The pretraining heads come along where the file has them; a task head, whose kind the file cannot tell, only where
    `heads` names it.

    Raises UserError where there is no checkpoint or configuration, or they do not belong together.
    """
    folder, prefix = find_checkpoint(pathlib.Path(path))
    config = AlbertConfig.from_json(_config_file(folder))
    tokenizer = checkpoints.load_folder_tokenizer(folder)
    checkpoints.check_vocabulary(config, tokenizer, None, folder)
    stored = checkpoints.read_tensors(prefix)
    if heads is None:
        heads = [name for name in ("masked_lm", "sentence_order") if HEADS[name][0].source in stored]
    options = {name: _head_options(name, stored, prefix) for name in heads}
    model = checkpoints.new_model(config, options, tokenizer, dtype=dtype)
    names = [*encoder_names(config), *(name for head in options for name in HEADS[head])]
    tensors, skipped = translate(stored, names)
    model.restored = checkpoints.assign(model, tensors, source=str(prefix), skipped=skipped)
    return model


def translate(
    stored: dict[str, "np.ndarray"], names: Iterable[Name]
) -> tuple[dict[str, "np.ndarray"], tuple[str, ...]]:
    """(tensors under our names, names skipped by rule); what nobody asked for keeps the source's name."""
    table = {name.source: name for name in names}
    skipped = tuple(source for source in stored if source not in table and re.search(SKIPPED, source))
    tensors = {}
    for source, value in stored.items():
        if source in table:
            tensors[table[source].ours] = value.T if table[source].transposed else value
        elif source not in skipped:
            tensors[source] = value
    return tensors, skipped


def find_checkpoint(path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """(folder, checkpoint prefix) for a folder, a prefix or an .index file.

    Paths inside a `checkpoint` file are not followed: released folders hold absolute paths of other machines.
    """
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise UserError(f"{path} is no model folder: expected one checkpoint (*.index), found {names}; name one")
        return path, found[0].with_suffix("")
    if path.suffix == ".index":
        path = path.with_suffix("")
    if not path.with_name(f"{path.name}.index").is_file():
        raise UserError(f"no model at {path}: expected a model folder or a checkpoint prefix; check the path")
    return path.parent, path


def _config_file(folder: pathlib.Path) -> pathlib.Path:
    found = sorted(folder.glob("*config*.json"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise UserError(f"{folder} has no single model configuration: expected albert_config.json, found {names}")
    return found[0]


def _head_options(name: str, stored: dict[str, "np.ndarray"], prefix: pathlib.Path) -> dict[str, Any]:
    first = HEADS[name][0].source
    if first not in stored:
        raise UserError(f"{prefix} has no {name} head: {first} is not among its tensors; choose another head")
    return {"num_labels": len(stored[first])} if name == "classifier" else {}
