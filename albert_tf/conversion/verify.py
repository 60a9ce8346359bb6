"""Does a model compute what its source computes? Same inputs to both, largest difference found."""

import pathlib
from typing import NamedTuple

import numpy as np

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.conversion import reference, saved_model
from albert_tf.conversion.names import Source
from albert_tf.errors import UserError

# Relative to the largest value of an output (at least 1). With random weights, albert_base to albert_xxlarge, float32
# stayed within 4e-6 of float64, and the smallest of real mistakes, the other form of gelu, began at 3e-4.
TOLERANCE = 5e-5


class Difference(NamedTuple):
    """The largest one of a comparison."""

    what: str  # what was compared with what
    output: str
    value: float  # absolute

    def __str__(self) -> str:
        return f"{self.what}: largest difference {self.value:.1e}, in {self.output}"


def sample_inputs(config: AlbertConfig) -> dict[str, np.ndarray]:
    """Three rows of random ids with two segments; the second and third row end in padding.

    Every tensor of a model takes part: rows of the word table at random, the first 16 positions, both segments.
    """
    rng = np.random.default_rng(0)
    length = min(16, config.max_position_embeddings)
    lengths = np.array([length, max(1, length - 3), max(1, length // 2)])
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    segments = (np.arange(length) >= lengths[:, None] // 2) & (mask == 1) & (config.type_vocab_size > 1)
    return {
        "input_ids": (rng.integers(0, config.vocab_size, (3, length)) * mask).astype(np.int32),
        "input_mask": mask,
        "segment_ids": segments.astype(np.int32),
        "masked_lm_positions": rng.integers(0, lengths[:, None], (3, 4)).astype(np.int32),
        "start_positions": (lengths // 2).astype(np.int32),
        "forbidden": (1 - segments * mask) * (np.arange(length) > 0),  # answers are in the second segment, or none
    }


def source_outputs(source: Source, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the stored tensors mean, computed from the source's own names in NumPy."""
    network = reference.NETWORKS[source.kind](source.stored, source.stored_config, source.heads)
    outputs = reference.forward(network, inputs)
    if source.untrained:
        outputs.pop("pooled_output", None)  # of a pooler that a target may leave out
    return outputs


def model_outputs(model: checkpoints.Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same of a built model; heads that end in choices give one row a choice."""
    import tensorflow as tf

    encoded = model.encoder({name: inputs[name] for name in ("input_ids", "input_mask", "segment_ids")})
    sequence, pooled = encoded["sequence_output"], encoded["pooled_output"]
    outputs = {"sequence_output": sequence, "pooled_output": pooled}
    for name, head in model.heads.items():
        if name == "masked_lm":
            at = tf.gather(sequence, inputs["masked_lm_positions"], batch_dims=1)
            outputs[name] = head(at, model.encoder.embeddings.word_embeddings)
        elif name == "conditional_span":
            logits = head(sequence, inputs["forbidden"], inputs["start_positions"])
            outputs[f"{name}.start"], outputs[f"{name}.end"] = logits["start_logits"], logits["end_logits"]
            outputs[f"{name}.answer"] = logits["answer_logits"][:, None]
        elif name == "span":
            outputs[name] = tf.stack(head(sequence), axis=-1)
        elif name == "multiple_choice":
            outputs[name] = head(pooled, num_choices=1)
        else:
            outputs[name] = head(sequence if name == "token_classifier" else pooled)
    return {name: value.numpy() for name, value in outputs.items()}


def check_model(source: Source, model: checkpoints.Model, inputs: dict[str, np.ndarray]) -> list[Difference]:
    """Compares a model with the source it was built from; a SavedModel is run as it is, too.

    Raises UserError where they differ, or where a weight is not a finite number, in whatever row of a table.
    """
    _check_finite(source)
    found = model_outputs(model, inputs)
    differences = [compare(source_outputs(source, inputs), found, "model and source (NumPy)")]
    if source.kind == "hub":
        ran = saved_model.run(source.path, inputs)
        if ran:
            differences.append(compare(ran, found, "model and SavedModel (run as it is)"))
        else:
            source.notices.append("the SavedModel has no signature that could be run: checked by its variables only")
    return differences


def _check_finite(source: Source) -> None:
    names = [name.source for name in source.names if name.source in source.stored]
    broken = [name for name in names if not np.isfinite(source.stored[name]).all()]
    if broken:
        more = f" and {len(broken) - 4} more" if len(broken) > 4 else ""
        raise UserError(
            f"{source.path} holds values that are not finite numbers, in {', '.join(broken[:4])}{more}; the weights "
            "are damaged, or training had diverged: take an earlier checkpoint"
        )


def compare(expected: dict[str, np.ndarray], found: dict[str, np.ndarray], what: str) -> Difference:
    """The largest difference over all outputs that are expected.

    Raises UserError where an output differs by more than TOLERANCE, is not finite, has another shape or is missing.
    """
    worst = (-1.0, "", 0.0)
    for name, right in expected.items():
        if name not in found or found[name].shape != right.shape:
            shape = list(found[name].shape) if name in found else "nothing"
            raise UserError(f"{what} do not agree: {name} is {shape}, expected {list(right.shape)}")
        value = float(np.max(np.abs(found[name] - right)))
        share = value / max(1.0, float(np.max(np.abs(right))))
        if not share <= TOLERANCE:  # also where it is not a number
            raise UserError(
                f"{what} do not agree: {name} differs by up to {value:.1e}, expected at most {TOLERANCE:.0e} of its "
                "largest value; the weights are damaged, or mean something else than their names say"
            )
        worst = max(worst, (share, name, value))
    return Difference(what, worst[1], worst[2])


def check_written(
    folder: pathlib.Path, kind: str, model: checkpoints.Model, expected: dict[str, np.ndarray], inputs: dict
) -> Difference:
    """Reads back what was written, in NumPy and by the target's names, and compares it with the source's outputs.

    Raises UserError where they differ.
    """
    from albert_tf.conversion import sources

    with sources.opened(folder, heads=tuple(model.heads)) as written:
        found = source_outputs(written, inputs)
    return compare(expected, found, f"written {kind} folder and source (NumPy)")
