"""`albert_tf fill_mask`: what a pretrained model would put in the place of each [MASK]."""

import json
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from albert_tf.commands.lines import read_lines
from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model

MASK = "[MASK]"
SEPARATOR = " ||| "


class Filled(NamedTuple):
    """The answer to one text."""

    candidates: list[list[tuple[str, float]]]  # for each [MASK] in order: pieces with probabilities, the best first
    text: str  # with the best piece in every place, as the tokeniser reads it back


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command on `flag_values`."""
    flags.DEFINE_string(
        "model_dir", None, "Model with a masked LM head and a tokeniser, of any kind.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "text", None, f"Text with {MASK} in it; '{SEPARATOR}' parts two segments.", flag_values=flag_values
    )
    flags.DEFINE_string("input_file", None, "UTF-8 text file instead, one such text a line.", flag_values=flag_values)
    flags.DEFINE_integer("top_k", 5, "Pieces to show for each place.", lower_bound=1, flag_values=flag_values)
    flags.DEFINE_enum(
        "output", "table", ["table", "json"], "A table a text, or one JSON object a line.", flag_values=flag_values
    )
    flags.mark_flag_as_required("model_dir", flag_values)


def run(given: flags.FlagValues) -> None:
    """Prints the pieces for each place and the filled text.

    Raises UserError for a text without a place to fill or too long, or a model that cannot fill it.
    """
    if (given.text is None) == (given.input_file is None):
        raise UserError("give either --text or --input_file, one of the two")
    texts = [("--text", given.text)] if given.text is not None else _lines(given.input_file)
    for where, text in texts:
        if MASK not in text:
            raise UserError(
                f"{where} has no {MASK}: found {text[:60]!r}; write {MASK} where a piece is to be filled in"
            )
    from albert_tf.checkpoints import load_model

    model = load_model(given.model_dir)
    _check_model(model, given.model_dir)
    sequences = [_sequence(model, text, where) for where, text in texts]
    for number, ((_, text), sequence) in enumerate(zip(texts, sequences, strict=True)):
        filled = _fill(model, *sequence, top_k=given.top_k)
        if given.output == "json":
            answer = {"text": text, "filled": filled.text, "candidates": filled.candidates}
            print(json.dumps(answer, ensure_ascii=False))
        else:
            print("\n" * bool(number) + _table(filled))


def fill_mask(model: "Model", text: str, *, top_k: int = 5) -> Filled:
    """The most likely pieces for every [MASK] of a text; " ||| " in it parts two segments.

    Raises UserError where the text has no [MASK] or is too long, or the model has no masked LM head or tokeniser.
    """
    _check_model(model, "the model")
    if MASK not in text:
        raise UserError(f"the text has no {MASK}: found {text[:60]!r}; write {MASK} where a piece is to be filled in")
    return _fill(model, *_sequence(model, text, "the text"), top_k=top_k)


def _check_model(model: "Model", name: str) -> None:
    if "masked_lm" not in model.heads or any(new.startswith("masked_lm/") for new in model.restored.new):
        heads = ", ".join(model.heads) or "none"
        raise UserError(f"{name} has no trained masked LM head (heads: {heads}): give a pretraining model")
    if model.tokenizer is None:
        raise UserError(
            f"{name} has no tokeniser: put the spiece.model or vocab.txt it was trained with into its folder"
        )


def _sequence(model: "Model", text: str, where: str) -> tuple[list[int], list[int]]:
    """Token ids and segment ids of [CLS] A [SEP] (B [SEP])."""
    tokenizer = model.tokenizer
    parts = text.split(SEPARATOR)
    if len(parts) > 2:
        raise UserError(f"{where} has {len(parts)} segments parted by {SEPARATOR.strip()}: expected one or two")
    if len(parts) > model.config.type_vocab_size:
        raise UserError(f"{where} has two segments, the model knows one (type_vocab_size): drop {SEPARATOR.strip()}")
    ids, segments = [tokenizer.cls_id], [0]
    for number, part in enumerate(parts):
        tokens = [*tokenizer.encode(part, special_tokens=True), tokenizer.sep_id]
        ids, segments = ids + tokens, segments + [number] * len(tokens)
    longest = model.config.max_position_embeddings
    if len(ids) > longest:
        raise UserError(f"{where} has {len(ids)} tokens with [CLS] and [SEP], the model takes {longest}: shorten it")
    return ids, segments


def _fill(model: "Model", ids: list[int], segments: list[int], *, top_k: int) -> Filled:
    import tensorflow as tf

    tokenizer = model.tokenizer
    places = [position for position, token in enumerate(ids) if token == tokenizer.mask_id]
    inputs = {"input_ids": [ids], "segment_ids": [segments], "output_positions": [places]}
    outputs = model.encoder({name: tf.constant(value, tf.int32) for name, value in inputs.items()}, training=False)
    logits = model.heads["masked_lm"](outputs["sequence_output"], model.encoder.embeddings.word_embeddings)[0]
    logits = logits[:, : tokenizer.vocab_size]  # the table may have more rows than there are pieces
    if not tf.reduce_all(tf.math.is_finite(logits)):
        raise UserError(
            "the model's scores are not finite numbers: its weights are damaged, or the training had diverged; take "
            "another checkpoint"
        )
    probabilities, best = tf.math.top_k(tf.nn.softmax(logits), min(top_k, tokenizer.vocab_size))
    candidates = [
        [(tokenizer.id_to_piece(int(piece)), float(share)) for piece, share in zip(*place, strict=True)]
        for place in zip(best.numpy(), probabilities.numpy(), strict=True)
    ]
    filled = list(ids)
    for position, piece in zip(places, best.numpy()[:, 0], strict=True):
        filled[position] = int(piece)
    second = segments.index(1) if 1 in segments else len(ids)
    text = SEPARATOR.join(tokenizer.decode(part) for part in (filled[:second], filled[second:]) if part)
    return Filled(candidates, text)


def _table(filled: Filled) -> str:
    lines = [filled.text]
    for number, candidates in enumerate(filled.candidates, start=1):
        shown = "  ".join(f"{piece} {share:.3f}" for piece, share in candidates)
        lines.append(f"  {MASK} {number}:  {shown}" if len(filled.candidates) > 1 else f"  {MASK}:  {shown}")
    return "\n".join(lines)


def _lines(path: str) -> list[tuple[str, str]]:
    """(place for messages, text) of every line that is not blank."""
    texts = [(f"{path} line {number}", line) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    if not texts:
        raise UserError(f"{path} has no text: expected one text with {MASK} a line")
    return texts
