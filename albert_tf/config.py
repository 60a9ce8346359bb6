"""The shape of a model: a frozen, validated configuration, the release's JSON, and the presets of the paper."""

import dataclasses
import difflib
import os
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")
SHARING = ("all", "attention", "feed_forward", "none")

# Above these a file is wrong, and trying would end in a hang or without memory instead of a message.
_LARGEST = {"num_hidden_layers": 1000, "num_hidden_groups": 1000, "inner_group_num": 100, "num_attention_heads": 10_000}
_LARGEST_SIZE = 10_000_000
# The release writes these keys and never reads them: accepted, and written for its tools.
_UNUSED_RELEASE_KEYS = {"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlbertConfig:
    """Sizes and choices of an ALBERT encoder (paper, section 3; names of the release's JSON).

    Layer i of L runs the blocks of group int(i / L * num_hidden_groups); a group has inner_group_num blocks.
    `sharing` names the sub-layers that all layers share, each with the LayerNorm after it (paper, table 4).

    Raises UserError where a value is not possible.
    """

    vocab_size: int = 30_000  # rows of the embedding table = pieces of the vocabulary
    embedding_size: int = 128  # E; no projection where E = H
    hidden_size: int = 768  # H
    num_hidden_layers: int = 12  # L
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    num_attention_heads: int = 12  # A
    intermediate_size: int = 3072  # width of the feed-forward sub-layer
    hidden_act: str = "gelu"  # "gelu" is the release's tanh form, "gelu_erf" the exact one
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    sharing: str = "all"
    layer_norm_epsilon: float = 1e-12

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_value(field.name, field.type, getattr(self, field.name))
        _check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        _check_choice("sharing", self.sharing, SHARING)
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}: "
                "every head needs the same whole size; change one of them"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise UserError(
                f"num_hidden_groups is {self.num_hidden_groups}: expected at most num_hidden_layers "
                f"{self.num_hidden_layers}, as a group without a layer would never be trained"
            )
        if self.sharing != "all" and (self.num_hidden_groups, self.inner_group_num) != (1, 1):
            raise UserError(
                f"sharing is {self.sharing!r} with num_hidden_groups {self.num_hidden_groups} and inner_group_num "
                f"{self.inner_group_num}: groups are a way of sharing all; set both to 1 or sharing to 'all'"
            )

    @property
    def head_size(self) -> int:
        """D = H / A."""
        return self.hidden_size // self.num_attention_heads

    @property
    def has_projection(self) -> bool:
        """Whether [E, H] projects the embeddings (left out where E = H)."""
        return self.embedding_size != self.hidden_size

    def group_of_layer(self, layer: int) -> int:
        """Group whose blocks run in `layer`: int(layer / L * G), in floating point as the release does it."""
        return int(layer / self.num_hidden_layers * self.num_hidden_groups)

    def replace(self, **changes: Any) -> "AlbertConfig":
        """A copy with some values changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All values, with the release's unused keys, ready for JSON."""
        return {**dataclasses.asdict(self), **_UNUSED_RELEASE_KEYS}

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "the configuration") -> "AlbertConfig":
        """Builds a configuration from the keys of the release's JSON and ours; any other key is refused by name."""
        if not isinstance(values, dict):
            raise UserError(
                f"{source} is {values!r}, expected a dictionary: presets are made by albert_tf.config.preset(NAME), "
                "files read by AlbertConfig.from_json(FILE), whole models by albert_tf.load_model(FOLDER)"
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known and key not in _UNUSED_RELEASE_KEYS:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
                raise UserError(f"{source} has the unknown key {key!r}; {hint}")
        required = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        missing = [key for key in required if key not in values]
        if missing:
            raise UserError(
                f"{source} lacks {', '.join(missing)}; expected the keys of the release's albert_config.json"
            )
        try:
            return cls(**{key: value for key, value in values.items() if key in known})
        except UserError as error:
            raise UserError(f"{source}: {error}") from error

    @classmethod
    def from_json(cls, path: str | os.PathLike) -> "AlbertConfig":
        """Reads albert_config.json."""
        return cls.from_dict(files.read_json(path, "model configuration"), source=str(path))

    def write_json(self, path: str | os.PathLike) -> None:
        """Writes albert_config.json."""
        files.write_json(path, self.to_dict())


def block_plan(config: AlbertConfig) -> tuple[list[tuple[int, int]], list[int]]:
    """Which sub-layers make each block, and which block runs at each step of the encoder.

    Returns (blocks as pairs of indices into the attention and the feed-forward sub-layers, block index per step); a
    step is one layer and inner group. AlbertConfig(num_hidden_layers=2) gives ([(0, 0)], [0, 0]).
    """
    count = config.num_hidden_layers
    if config.sharing == "all":
        inner = config.inner_group_num
        blocks = [(i, i) for i in range(config.num_hidden_groups * inner)]
        return blocks, [config.group_of_layer(layer) * inner + i for layer in range(count) for i in range(inner)]
    attention = [0 if config.sharing == "attention" else layer for layer in range(count)]
    feed_forward = [0 if config.sharing == "feed_forward" else layer for layer in range(count)]
    return list(zip(attention, feed_forward, strict=True)), list(range(count))


def _check_value(name: str, kind: type, value: Any) -> None:
    if kind is int:
        most = _LARGEST.get(name, _LARGEST_SIZE)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise UserError(f"{name} is {value!r}: expected a whole number from 1 to {most}")
    elif kind is float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise UserError(f"{name} is {value!r}: expected a number of at least 0")
        if name.endswith("dropout_prob") and value >= 1:
            raise UserError(f"{name} is {value!r}: expected a share from 0 to below 1")
        if name in ("initializer_range", "layer_norm_epsilon") and not 0 < value < 1:
            raise UserError(f"{name} is {value!r}: expected a number above 0 and below 1")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name} is {value!r}: expected one of {', '.join(choices)}")


def _albert(hidden: int, layers: int, heads: int, dropout: float) -> AlbertConfig:
    return AlbertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def _bert(hidden: int, layers: int, heads: int) -> AlbertConfig:
    return _albert(hidden, layers, heads, dropout=0.1).replace(embedding_size=hidden, sharing="none")


# Paper, table 1. Version 1 trains with dropout 0.1 (0 for xxlarge), version 2 with none.
PRESETS: dict[str, AlbertConfig] = {
    "albert_tiny": _albert(256, 4, 4, dropout=0.0),  # ours, for trials on a CPU
    "albert_base_v1": _albert(768, 12, 12, dropout=0.1),
    "albert_base_v2": _albert(768, 12, 12, dropout=0.0),
    "albert_large_v1": _albert(1024, 24, 16, dropout=0.1),
    "albert_large_v2": _albert(1024, 24, 16, dropout=0.0),
    "albert_xlarge_v1": _albert(2048, 24, 16, dropout=0.1),
    "albert_xlarge_v2": _albert(2048, 24, 16, dropout=0.0),
    "albert_xxlarge_v1": _albert(4096, 12, 64, dropout=0.0),
    "albert_xxlarge_v2": _albert(4096, 12, 64, dropout=0.0),
    "bert_base": _bert(768, 12, 12),
    "bert_large": _bert(1024, 24, 16),
}


def preset(name: str) -> AlbertConfig:
    """The configuration of a preset; albert_* without a version means v2.

    Raises UserError with the nearest names where there is none.
    """
    config = PRESETS.get(name) or PRESETS.get(f"{name}_v2")
    if config is None:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or list(PRESETS)
        raise UserError(f"unknown preset {name!r}; did you mean {', '.join(near)}?")
    return config
