"""Models of other sizes from weights that exist: more pieces, more layers, more groups."""

import dataclasses
import re

import numpy as np
import tf_keras

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig, block_plan
from albert_tf.errors import UserError
from albert_tf.tokenization import Tokenizer

# Rows for pieces, beside ours: what grows with the vocabulary.
_BY_PIECE = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")
# Settings that change no variable's shape; the rest must be equal for weights to fit.
_FREE = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "num_hidden_layers")
_SHARING = ("num_hidden_groups", "sharing")
_ENCODER = "albert_encoder"  # its name where it was given none; its heads are then named without it


def resize_vocabulary(
    model: checkpoints.Model, vocab_size: int, tokenizer: Tokenizer | None = None
) -> checkpoints.Model:
    """A model with more pieces: old rows of the table and of the masked LM bias are kept, and the configuration grows.

    New rows come from the initialiser (biases are 0) and want training. `tokenizer` is the new one, whose first pieces
    are the old ones; without it the model keeps its tokeniser and has spare rows.

    Raises UserError where the vocabulary would shrink, or the tokeniser does not go on where the old one ends.
    """
    old_size = model.config.vocab_size
    if vocab_size < old_size:
        raise UserError(f"vocab_size {vocab_size} is below the present {old_size}: rows would be lost; give more")
    if tokenizer is not None:
        _check_continues(model.tokenizer, tokenizer, vocab_size)
    config = model.config.replace(vocab_size=vocab_size)
    info = dataclasses.replace(model.info, preset=None)
    name = model.encoder.name
    how = {"info": info, "dtype": model.encoder.dtype_policy, "name": None if name == _ENCODER else name}
    made = checkpoints.new_model(config, model.info.heads, tokenizer or model.tokenizer, **how)
    old = {name: variable.numpy() for name, variable in model.named_variables().items()}
    for name, variable in made.named_variables().items():
        if name in _BY_PIECE:
            variable.assign(np.concatenate([old[name], variable.numpy()[old_size:]]))
        else:
            variable.assign(old[name])
    made.restored = model.restored
    _copy_switches(model, made)
    return made


def _copy_switches(old: checkpoints.Model, new: checkpoints.Model) -> None:
    """What may be set on a model beside its weights: recomputation, and which layers are trained."""
    new.encoder.recompute = old.encoder.recompute
    for before, after in zip((old.encoder, *old.heads.values()), (new.encoder, *new.heads.values()), strict=True):
        for mine, yours in zip((before, *before.submodules), (after, *after.submodules), strict=True):
            if isinstance(mine, tf_keras.layers.Layer):
                yours.trainable = mine.trainable  # sets what is inside as well, which comes later


def _check_continues(old: Tokenizer | None, new: Tokenizer, vocab_size: int) -> None:
    if new.vocab_size != vocab_size:
        raise UserError(f"the tokeniser has {new.vocab_size} pieces: expected vocab_size {vocab_size}")
    if old is None:
        return
    before, after = old.pieces(), new.pieces()[: old.vocab_size]
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if changed:
        i = changed[0]
        raise UserError(
            f"the new tokeniser has {after[i]!r} as piece {i}, the old one {before[i]!r}: rows are kept by id, so the "
            "old pieces must come first and in their order"
        )


def fit(
    tensors: dict[str, np.ndarray], source: AlbertConfig, target: AlbertConfig, *, from_group0: bool = False
) -> tuple[dict[str, np.ndarray], str | None]:
    """Tensors of a `source` model as a start for a `target` model; returns what to tell the user, too.

    Where only the number of layers differs and everything is shared, the weights fit as they are (paper, table of
    depths: each depth started from a shallower one). `from_group0` starts every group, or every layer that does not
    share, from the source's first group.

    Raises UserError naming the setting in which the two do not fit.
    """
    free = (*_FREE, *(_SHARING if from_group0 else ()))
    for field in dataclasses.fields(AlbertConfig):
        theirs, ours = getattr(source, field.name), getattr(target, field.name)
        if field.name not in free and theirs != ours:
            hint = "; --init_from_group0 starts every group from the first" if field.name in _SHARING else ""
            raise UserError(f"the weights have {field.name} {theirs!r}, the new model {ours!r}: they do not fit{hint}")
    if from_group0:
        return _spread(tensors, source, target), "every group starts from group 0 of the weights (--init_from_group0)"
    if source.num_hidden_layers == target.num_hidden_layers:
        return tensors, None
    if (source.sharing, source.num_hidden_groups) != ("all", 1):
        raise UserError(
            f"the weights have {source.num_hidden_layers} layers, the new model {target.num_hidden_layers}: that fits "
            "only where all layers share one group; --init_from_group0 starts every group from the first"
        )
    return tensors, (
        f"the weights come from {source.num_hidden_layers} layers, the model has {target.num_hidden_layers}: all of "
        "them share the same block, so it fits"
    )


def _spread(tensors: dict[str, np.ndarray], source: AlbertConfig, target: AlbertConfig) -> dict[str, np.ndarray]:
    block = re.compile(r"encoder/(attention|feed_forward)_(\d+)/(.*)")
    spread = {name: value for name, value in tensors.items() if not block.fullmatch(name)}
    attentions, feed_forwards = zip(*block_plan(target)[0], strict=True)
    counts = {"attention": 1 + max(attentions), "feed_forward": 1 + max(feed_forwards)}
    for name, value in tensors.items():
        match = block.fullmatch(name)
        if match and int(match[2]) < source.inner_group_num:  # of group 0
            for i in range(int(match[2]), counts[match[1]], source.inner_group_num):
                spread[f"encoder/{match[1]}_{i}/{match[3]}"] = value
    return spread
