"""Names as data: one row per tensor, what a source calls it and what we call it, read in both directions."""

import dataclasses
import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig

if TYPE_CHECKING:
    from albert_tf.tokenization import Tokenizer

POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


class Name(NamedTuple):
    """One tensor: its name in the source, ours, and whether the source stores the transpose."""

    source: str
    ours: str
    transposed: bool = False


def translate(
    stored: dict[str, np.ndarray], names: Iterable[Name], skipped: str = r"$^"
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """(tensors under our names, names skipped by the rule `skipped`); what nobody asked for keeps the source's name."""
    table = {name.source: name for name in names}
    left_out = tuple(source for source in stored if source not in table and re.search(skipped, source))
    tensors = {}
    for source, value in stored.items():
        if source in table:
            tensors[table[source].ours] = value.T if table[source].transposed else value
        elif source not in left_out:
            tensors[source] = value
    return tensors, left_out


def translate_back(tensors: dict[str, np.ndarray], names: Iterable[Name]) -> dict[str, np.ndarray]:
    """Our tensors under the names of the target, each contiguous."""
    return {
        name.source: np.ascontiguousarray(tensors[name.ours].T if name.transposed else tensors[name.ours])
        for name in names
        if name.ours in tensors
    }


@dataclasses.dataclass(kw_only=True)
class Source:
    """Stored weights with all that is needed to build a model from them, and to check it."""

    kind: str  # "native", "release", "hub" or "huggingface"
    path: pathlib.Path  # for messages
    config: AlbertConfig
    stored_config: dict[str, Any]  # as the source words it
    stored: dict[str, np.ndarray]  # under the source's names
    names: list[Name]
    skipped: str = r"$^"  # rule for what no model keeps
    heads: dict[str, dict[str, Any]]  # those to take -> options of heads.make_head
    other_tensors: tuple[str, ...] = ()  # of heads that are not taken
    tokenizer: "Tokenizer | None"
    info: checkpoints.ModelInfo = dataclasses.field(default_factory=checkpoints.ModelInfo)
    may_be_new: tuple[str, ...] = ()  # our variables that this source never has
    untrained: tuple[str, ...] = ()  # our variables that it has as they were initialised: they count as new
    notices: list[str] = dataclasses.field(default_factory=list)

    def model(self, dtype: Any = None, name: str | None = None) -> checkpoints.Model:
        """Builds the model as checkpoints.new_model does. Raises UserError where values are missing or do not fit."""
        tensors, skipped = translate(self.stored, self.names, self.skipped)
        checkpoints.check_sizes(self.config, tensors, str(self.path))
        how = {"info": self.info, "dtype": dtype, "name": name}
        model = checkpoints.new_model(self.config, self.heads, self.tokenizer, **how)
        restored = checkpoints.assign(
            model, tensors, source=str(self.path), skipped=skipped, may_be_new=self.may_be_new
        )
        _initialise(model, restored.new)
        new = (*restored.new, *(name for name in restored.filled if name in self.untrained))
        filled = tuple(name for name in restored.filled if name not in self.untrained)
        model.restored = dataclasses.replace(restored, filled=filled, new=new)
        return model


def _initialise(model: checkpoints.Model, names: Iterable[str]) -> None:
    """Gives kernels without values the same start every time, so that a conversion can be repeated to the bit."""
    import tensorflow as tf

    variables = model.named_variables()
    for name in names:
        if variables[name].shape.rank == 2:
            start = tf.random.stateless_truncated_normal(variables[name].shape, seed=[0, 0])
            variables[name].assign(start * model.config.initializer_range)
