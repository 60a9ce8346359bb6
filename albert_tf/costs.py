"""What a model costs, by arithmetic alone: parameters, floating-point operations, bytes exchanged, time of a step.

Only the products of matrices count as operations (2 for a multiplication and its addition): everything else together is
a few per cent of them. The counts follow the code: the last layer runs only at the positions that a head reads.

Axes: B rows, S sequence, P predictions, H hidden, E embedding, V vocabulary.
"""

import contextlib
import os
import pathlib
from collections.abc import Collection
from typing import NamedTuple

from albert_tf.config import AlbertConfig, block_plan
from albert_tf.errors import UserError

PRETRAINING_HEADS = ("masked_lm", "sentence_order")
LAYER_PARTS = ("query_key_value", "scores", "context", "attention_output", "feed_forward")  # run again by recomputation
_FLOAT32 = 4  # bytes


class BlockCounts(NamedTuple):
    """How often the sub-layers exist, and how often a block runs."""

    attentions: int
    feed_forwards: int
    steps: int  # layers times inner groups


def block_counts(config: AlbertConfig) -> BlockCounts:
    """AlbertConfig(num_hidden_layers=12) gives (1, 1, 12)."""
    blocks, steps = block_plan(config)
    attentions, feed_forwards = (len(set(parts)) for parts in zip(*blocks, strict=True))
    return BlockCounts(attentions, feed_forwards, len(steps))


def parameters(config: AlbertConfig, heads: Collection[str] = PRETRAINING_HEADS) -> dict[str, int]:
    """Parameters of each part; the encoder's parts come with its pooler. The tied table counts once."""
    width, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    plan = block_counts(config)
    counts = {
        "embeddings": rows * embedding + 2 * embedding,
        "embedding_projection": embedding * width + width if config.has_projection else 0,
        "attention": plan.attentions * (4 * (width * width + width) + 2 * width),
        "feed_forward": plan.feed_forwards * (width * inner + inner + inner * width + width + 2 * width),
        "pooler": width * width + width,
    }
    if "masked_lm" in heads:
        counts["masked_lm"] = width * embedding + embedding + 2 * embedding + config.vocab_size
    if "sentence_order" in heads:
        counts["sentence_order"] = 2 * width + 2
    return counts


def check_weights_fit(config: AlbertConfig) -> None:
    """Refuses sizes whose weights alone, in float32, are more than this machine's memory. Raises UserError."""
    needed, memory = 4 * sum(parameters(config, ()).values()), machine_memory()
    if memory is not None and needed > memory:
        raise UserError(
            f"a model of vocab_size {config.vocab_size}, hidden_size {config.hidden_size}, intermediate_size "
            f"{config.intermediate_size} has {needed / 1e9:,.1f} GB of weights, this machine {memory / 1e9:,.1f} GB of "
            "memory; correct the configuration"
        )


def machine_memory(control_group: str | os.PathLike = "/sys/fs/cgroup") -> int | None:
    """Bytes of memory that this machine has, or this container may take of it; None where the system does not tell."""
    known = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        known.append(int(pathlib.Path(control_group, "memory.max").read_text()))
    return min(known, default=None)


def layer_parameters(config: AlbertConfig) -> int:
    """Parameters of one block, whether shared or not."""
    counts, plan = parameters(config, ()), block_counts(config)
    return counts["attention"] // plan.attentions + counts["feed_forward"] // plan.feed_forwards


def forward_flops(
    config: AlbertConfig,
    *,
    rows: int,
    length: int,
    output_positions: int | None = None,
    heads: Collection[str] = (),
) -> dict[str, int]:
    """Floating-point operations of one pass over B `rows` of S `length` tokens, by part.

    output_positions: how many positions of a row are read beside the first token (P in pretraining, 0 where only the
    pooled output is); None runs the last layer everywhere.
    """
    width, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    steps = block_counts(config).steps
    last = length if output_positions is None else 1 + output_positions
    everywhere = rows * length * steps  # token positions of all layers
    asked = rows * (length * (steps - 1) + last)  # those that ask; in the last layer only the ones that are read
    attention = 2 * asked * length * width  # every head's share added up
    flops = {
        "embedding_projection": 2 * rows * length * embedding * width if config.has_projection else 0,
        "query_key_value": 2 * (asked + 2 * everywhere) * width * width,
        "scores": attention,
        "context": attention,
        "attention_output": 2 * asked * width * width,
        "feed_forward": 4 * asked * width * inner,
        "pooler": 2 * rows * width * width,
    }
    predictions = rows * (length if output_positions is None else output_positions)
    if "masked_lm" in heads:
        flops["masked_lm"] = 2 * predictions * embedding * (width + config.vocab_size)
    if "sentence_order" in heads:
        flops["sentence_order"] = 2 * rows * width * 2
    return flops


def training_flops(
    config: AlbertConfig,
    *,
    rows: int,
    length: int,
    predictions: int,
    heads: Collection[str] = PRETRAINING_HEADS,
    recompute: bool = False,
) -> dict[str, int]:
    """Floating-point operations of a pretraining step, forward and backward, by part.

    The backward pass makes two products of the same size for each one of the forward pass: the gradients of both
    factors. Recomputation runs the layers forward once more.
    """
    forward = forward_flops(config, rows=rows, length=length, output_positions=predictions, heads=heads)
    if "sentence_order" not in heads:
        forward["pooler"] = 0  # nobody reads it
    flops = {part: 3 * count for part, count in forward.items()}
    if recompute:
        flops["recomputation"] = sum(forward[part] for part in LAYER_PARTS)
    return flops


def gradient_bytes(config: AlbertConfig, heads: Collection[str] = PRETRAINING_HEADS) -> int:
    """Bytes of one set of gradients, float32 and dense under every policy: what the devices add up in a step."""
    return _FLOAT32 * sum(parameters(config, heads).values())


class StepTime(NamedTuple):
    """Seconds of one optimiser step; nothing overlaps, as the trainer exchanges whole gradients."""

    compute: float
    exchange: float
    update: float

    @property
    def total(self) -> float:
        return self.compute + self.exchange + self.update


def step_time(
    *,
    device_flops: float,
    flop_rate: float,
    exchanged_bytes: float,
    devices: int,
    bandwidth: float,
    update_seconds: float = 0.0,
) -> StepTime:
    """Predicts a step from what a device computes and what it exchanges.

    device_flops: operations of one device's share; flop_rate: what a device really reaches, operations a second.
    bandwidth: bytes a second that a device sends while it receives as many. A ring all-reduce over n devices sends each
    gradient 2 (n - 1) / n times from every device (Patarasuk and Yuan 2009). update_seconds: the optimiser's.
    """
    exchange = 2 * (devices - 1) / devices * exchanged_bytes / bandwidth
    return StepTime(device_flops / flop_rate, exchange, update_seconds)
