"""albert_tf embed: one vector for each line of text."""

import dataclasses
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from albert_tf import files
from albert_tf.commands.lines import read_lines
from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model
    from albert_tf.tokenization import Tokenizer

_WINDOW = 1 << 16  # lines that are sorted by length and held in memory together
_FORMATS = (".npy", ".jsonl")


@dataclasses.dataclass
class _Counts:
    """What was met so far; tokens are those of the text, without [CLS] and [SEP]."""

    tokens: int = 0
    unknown: int = 0
    cut: int = 0  # lines


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "model of any kind, with its tokeniser", flag_values=flag_values)
    flags.DEFINE_string("input_file", None, "UTF-8 text, one text a line", flag_values=flag_values)
    text = ".npy (float32 [lines, hidden]) or .jsonl (one list of numbers a line), in the order of the input"
    flags.DEFINE_string("output_file", None, text, flag_values=flag_values)
    text = "cls: the first token; mean: over all tokens; pooled: the pooler's output"
    flags.DEFINE_enum("pooling", "mean", ["cls", "mean", "pooled"], text, flag_values=flag_values)
    text = "layer to read: 1 is the first, -1 the last, -2 the one before"
    flags.DEFINE_integer("layer", -1, text, flag_values=flag_values)
    text = "tokens of a line, [CLS] and [SEP] included; longer lines are cut; default: the model's"
    flags.DEFINE_integer("max_seq_length", None, text, lower_bound=2, flag_values=flag_values)
    text = "tokens of one batch, padding included"
    flags.DEFINE_integer("batch_tokens", 4096, text, lower_bound=1, flag_values=flag_values)
    flags.mark_flags_as_required(["model_dir", "input_file", "output_file"], flag_values=flag_values)


def run(flag_values: flags.FlagValues) -> None:
    """Embeds the lines and prints what was done."""
    output = pathlib.Path(flag_values.output_file)
    files.check_output_file(output, flag_values.input_file)
    if output.suffix not in _FORMATS:
        raise UserError(f"--output_file={output}: expected a name that ends in {' or '.join(_FORMATS)}")
    count, lines = _counted(flag_values.input_file)
    if not count:
        raise UserError(f"--input_file {flag_values.input_file} is empty: expected one text a line")
    from albert_tf import checkpoints, tokenization

    model = checkpoints.load_model(flag_values.model_dir, heads=())
    length = _checked_length(model, flag_values.max_seq_length)
    encode = encoder_function(model, pooling=flag_values.pooling, layer=flag_values.layer)
    started, counts = time.perf_counter(), _Counts()
    with files.writing(output) as file:
        if output.suffix == ".npy":
            shape = (count, model.config.hidden_size)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        done = 0
        while texts := list(itertools.islice(lines, min(_WINDOW, count - done))):
            window = _tokens(model.tokenizer, texts, length, counts)
            vectors = np.zeros((len(window), model.config.hidden_size), "<f4")
            for rows, ids, mask in batches(window, flag_values.batch_tokens, length, model.tokenizer.pad_id):
                vectors[rows] = encode(ids, mask)
            _check_finite(vectors)
            file.writelines([vectors.data] if output.suffix == ".npy" else _json_lines(vectors))
            done += len(texts)
            print(f"{done} of {count} lines", file=sys.stderr)
        if done < count:
            raise UserError(f"{flag_values.input_file} had {count} lines and now has {done}: it changed; run again")
    tokenization.warn_of_unknown(counts.unknown / max(counts.tokens, 1), model.tokenizer, flag_values.input_file)
    if counts.cut:
        print(f"notice: {counts.cut} lines were cut to {length} tokens", file=sys.stderr)
    seconds = time.perf_counter() - started
    print(f"{count} vectors of {model.config.hidden_size} numbers in {output}; {seconds:.1f} s")


def _counted(path: str) -> tuple[int, Iterator[str]]:
    """The number of lines, and the lines: read a second time, or held where a pipe gives them only once."""
    if not os.path.isfile(path):
        lines = list(read_lines(path))
        return len(lines), iter(lines)
    return sum(1 for _ in read_lines(path)), read_lines(path)


def batches(
    tokens: list[list[int]], batch_tokens: int, max_length: int, pad_id: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(row numbers [B], ids int32 [B, S], mask int32 [B, S]), rows of like length together, longest first.

    S is a multiple of 8 (at most max_length), so that few different shapes occur; B * S is at most batch_tokens,
    or B is 1.
    """
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    begin = 0
    while begin < len(order):
        length = min(-(-len(tokens[order[begin]]) // 8) * 8, max_length)
        rows = order[begin : begin + max(1, batch_tokens // length)]
        begin += len(rows)
        ids = np.full((len(rows), length), pad_id, np.int32)
        mask = np.zeros((len(rows), length), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(tokens[row])] = tokens[row]
            mask[i, : len(tokens[row])] = 1
        yield np.array(rows), ids, mask


def encoder_function(model: "Model", *, pooling: str, layer: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A function of ids and mask int32 [B, S] that gives float32 [B, H].

    Raises UserError for a layer that is not there, or a pooled output that means nothing.
    """
    import tensorflow as tf

    count, inner = model.config.num_hidden_layers, model.config.inner_group_num
    if layer == 0 or not -count <= layer <= count:
        raise UserError(f"--layer={layer}: the model has {count} layers; expected 1 to {count}, or -1 to -{count}")
    index = (layer if layer > 0 else count + 1 + layer) * inner - 1  # of the layer's last block
    if pooling == "pooled" and index != count * inner - 1:
        raise UserError(f"--pooling=pooled with --layer={layer}: the pooler reads the last layer only; drop --layer")
    if pooling == "pooled" and "encoder/pooler/kernel" in model.restored.new:
        raise UserError("--pooling=pooled: the pooler of this model was never trained; choose mean or cls")
    integers = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[integers, integers])
    def encode(ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        outputs = model.encoder({"input_ids": ids, "input_mask": mask})
        hidden = tf.cast(outputs["encoder_outputs"][index], tf.float32)
        if pooling == "pooled":
            return tf.cast(outputs["pooled_output"], tf.float32)
        if pooling == "cls":
            return hidden[:, 0]
        weights = tf.cast(mask, tf.float32)[:, :, None]
        return tf.reduce_sum(hidden * weights, axis=1) / tf.reduce_sum(weights, axis=1)

    return lambda ids, mask: encode(ids, mask).numpy()


def _checked_length(model, asked: int | None) -> int:
    if model.tokenizer is None:
        raise UserError("--model_dir has no tokeniser: put its spiece.model or vocab.txt into the folder")
    most = model.config.max_position_embeddings
    if asked is not None and asked > most:
        raise UserError(f"--max_seq_length={asked}: the model has {most} positions; give at most that")
    return asked or min(model.info.max_seq_length or most, most)


def _tokens(tokenizer: "Tokenizer", lines: list[str], max_length: int, counts: _Counts) -> list[list[int]]:
    """[CLS] line [SEP] for each line."""
    encoded = tokenizer.encode_batch(lines)
    counts.cut += sum(len(ids) > max_length - 2 for ids in encoded)
    kept = [ids[: max_length - 2] for ids in encoded]
    counts.tokens += sum(map(len, kept))
    counts.unknown += sum(ids.count(tokenizer.unk_id) for ids in kept)
    return [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in kept]


def _check_finite(vectors: np.ndarray) -> None:
    if broken := np.count_nonzero(~np.isfinite(vectors).all(axis=1)):
        raise UserError(
            f"{broken} of {len(vectors)} vectors are not finite numbers: the weights of --model_dir are damaged, or "
            "the training had diverged; take another checkpoint"
        )


def _json_lines(vectors: np.ndarray) -> Iterator[bytes]:
    """A line for each vector; one at a time, as a number takes forty bytes on the way."""
    return (f"{json.dumps(vector.tolist())}\n".encode("ascii") for vector in vectors)
