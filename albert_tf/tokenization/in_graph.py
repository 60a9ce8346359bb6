"""The SentencePiece tokeniser as TensorFlow ops: strings to ids inside a graph, with the ids of the Python tokeniser.

Dropping combining marks makes normalisation a replacement of single code points, so one lookup table does it, made by
the very rules that the Python tokeniser runs. Cutting into pieces takes two ops of TensorFlow Text; all others belong
to TensorFlow itself.

Axes: B texts, C characters of a text, T pieces of a text. Flat vectors hold the values of all rows, one after another.
"""

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.tokenization.code_points import SPACE, UNCHANGED, code_point_tables, ragged_rows
from albert_tf.tokenization.tokenizer import Tokenizer
from albert_tf.tokenization.unigram import WORD_MARK, SentencePieceTokenizer

CAPITAL_SIGMA, SMALL_SIGMA, FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2


class GraphEncoding(NamedTuple):
    """Pieces of a batch of texts, and where each stands in the untouched text.

    ids, starts, ends: int32 [B, (T)]; starts and ends are a half-open range of characters (code points).
    characters: int32 [B, (C)], the untouched text; is_space: bool [B, (C)], whether each is white space.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    characters: tf.RaggedTensor
    is_space: tf.RaggedTensor


class GraphTokenizer(tf.Module):
    """A SentencePieceTokenizer as a part of a graph; it travels with the SavedModel, vocabulary included."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(name="tokenizer")
        require_sentencepiece(tokenizer)
        self.cls_id, self.sep_id, self.pad_id = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
        self.unk_id = tokenizer.unk_id
        self._lower = tokenizer.do_lower_case
        self._tables = code_point_tables(do_lower_case=self._lower, keep_accents=tokenizer.keep_accents)
        self._model = _SentencePieceModel(tokenizer.serialized)
        self._word_mark_id = tokenizer.piece_to_id(WORD_MARK)
        parts = tokenizer.piece_parts()  # of the few pieces that are cut once more; row 0 is for all others
        rows = np.zeros(tokenizer.vocab_size, np.int32)
        rows[list(parts)] = np.arange(1, len(parts) + 1)
        self._part_row = tf.constant(rows)
        self._part_ids = ragged_rows([[UNCHANGED], *(ids for ids, _ in parts.values())])
        self._part_tails = ragged_rows([[0], *(tails for _, tails in parts.values())])

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """string [B] -> string [B]: white space, accents and case as the Python tokeniser has them."""
        normalized, _ = self._normalized(_decoded(texts))
        return tf.strings.unicode_encode(normalized, "UTF-8")

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """string [B] -> ids int32 [B, (T)], as Tokenizer.encode gives them: no [CLS] or [SEP] is added."""
        ids = self._model.tokenize(self.normalize(texts))
        return ids.with_values(self._parts(ids.values)).merge_dims(1, 2)

    def encode_with_offsets(self, texts: tf.Tensor) -> GraphEncoding:
        """string [B] -> ids and offsets, as Tokenizer.encode_with_offsets gives them."""
        codes = _decoded(texts)
        normalized, origins = self._normalized(codes)
        ids, starts, ends = self._model.tokenize_with_offsets(tf.strings.unicode_encode(normalized, "UTF-8"))
        row = ids.value_rowids()
        first, last = self._piece_spans(normalized, row, ids.values, starts, ends)
        part_ids = self._parts(ids.values)
        first, last = _part_spans(first, last, tf.gather(self._part_tails, tf.gather(self._part_row, ids.values)))
        row = tf.gather(row, part_ids.value_rowids())
        invisible = tf.gather(self._tables.invisible.values, self._tables.invisible.rows(codes.values))
        first, last = _original_spans(codes, normalized, origins, row, (first, last), invisible == 0)
        base = tf.cast(tf.gather(codes.row_splits, row), tf.int32)
        ragged = ids.with_values(part_ids).merge_dims(1, 2)
        is_space = codes.with_values(self._is_space(codes.values))
        starts, ends = ragged.with_values(first - base), ragged.with_values(last - base)
        return GraphEncoding(ragged, starts, ends, codes, is_space)

    def _parts(self, flat_ids: tf.Tensor) -> tf.RaggedTensor:
        """Ids [T] -> the ids that each ends up as, [T, (parts)]: the release's rule on a digit and a comma."""
        parts = tf.gather(self._part_ids, tf.gather(self._part_row, flat_ids))
        same = tf.gather(flat_ids, parts.value_rowids())
        return parts.with_values(tf.where(parts.values == UNCHANGED, same, parts.values))

    def _is_space(self, flat_codes: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._tables.replacement.values, self._tables.replacement.rows(flat_codes)) == SPACE

    def _normalized(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Code points int32 [B, (C)] -> normalised ones, and for each of them the flat place that it came from."""
        entry = tf.gather(self._tables.replacement.values, self._tables.replacement.rows(codes.values))
        kept = tf.where(_kept(codes, entry == SPACE))[:, 0]
        replaced = tf.gather(self._tables.replacements, tf.gather(entry, kept))
        origins = tf.gather(kept, replaced.value_rowids())
        values = tf.where(replaced.values == UNCHANGED, tf.gather(codes.values, origins), replaced.values)
        rows = tf.gather(codes.value_rowids(), origins)
        normalized = tf.RaggedTensor.from_value_rowids(values, rows, nrows=codes.nrows(), validate=False)
        if self._lower:
            normalized = normalized.with_values(self._with_small_sigmas(normalized))
        return normalized, tf.cast(origins, tf.int32)

    def _with_small_sigmas(self, codes: tf.RaggedTensor) -> tf.Tensor:
        """Lower-cases capital sigma, the one letter whose small form depends on its neighbours (as str.lower does)."""
        values = codes.values
        sigma = values == CAPITAL_SIGMA

        def lowered() -> tf.Tensor:
            kinds = self._tables.sigma_context
            kind = tf.gather(kinds.values, kinds.rows(values))  # 0 other, 1 a letter with case, 2 looked through
            context = tf.where(kind != 2)[:, 0]
            before = tf.cumsum(tf.cast(kind != 2, tf.int32), exclusive=True)  # rank of the next character that counts
            rows = codes.value_rowids()
            last = tf.size(context) - 1

            def is_cased(rank: tf.Tensor) -> tf.Tensor:
                place = tf.gather(context, tf.clip_by_value(rank, 0, last))
                there = (rank >= 0) & (rank <= last) & (tf.gather(rows, place) == rows)
                return there & (tf.gather(kind, place) == 1)

            final = is_cased(before - 1) & ~is_cased(before + 1)
            return tf.where(sigma, tf.where(final, FINAL_SIGMA, SMALL_SIGMA), values)

        return tf.cond(tf.reduce_any(sigma), lowered, lambda: values)

    def _piece_spans(
        self, normalized: tf.RaggedTensor, row: tf.Tensor, ids: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Byte ranges within rows -> flat ranges of normalised characters; see unigram._normalized_spans."""
        codes = normalized.values
        widths = 1 + sum(tf.cast(codes >= least, tf.int32) for least in (0x80, 0x800, 0x10000))
        bytes_before = _counts(widths)
        base = tf.gather(bytes_before, tf.gather(normalized.row_splits, row))
        first = tf.searchsorted(bytes_before, starts + base)
        last = tf.searchsorted(bytes_before, ends + base)
        visible_before = _counts(tf.cast(~self._is_space(codes), tf.int32))
        blank = tf.gather(visible_before, first) == tf.gather(visible_before, last)
        is_first = tf.concat([tf.ones_like(row[:1]), row[1:] - row[:-1]], axis=0) > 0
        shared = ((first == last) & ~is_first) | ((ids != self._word_mark_id) & blank)
        row_end = tf.cast(tf.gather(normalized.row_splits, row + 1), tf.int32)
        return first, tf.where(shared, tf.minimum(last + 1, row_end), last)


def require_sentencepiece(tokenizer: Tokenizer | None) -> None:
    """Refuses what a graph cannot tokenise.

    Raises UserError without a tokeniser, or for one that is not SentencePiece.
    """
    if tokenizer is None:
        raise UserError("text export: the model has no tokeniser; put its spiece.model there, or use --signature=ids")
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise UserError(
            f"text export: {tokenizer.path.name} is a {tokenizer.kind} vocabulary, and only SentencePiece can be cut "
            "into pieces inside a graph; use --signature=ids and tokenise before the request"
        )


def packed(
    segments: list[tf.RaggedTensor], tokenizer: GraphTokenizer, max_seq_length: int | tf.Tensor
) -> dict[str, tf.Tensor]:
    """One or two texts' ids, int32 [B, (T)] each, -> the rows of `joined`, cut as tasks.text.shortened does."""
    room = max_seq_length - 1 - len(segments)
    lengths = [tf.cast(ids.row_lengths(), tf.int32) for ids in segments]
    keep = [tf.minimum(lengths[0], room)]
    if len(segments) == 2:
        keep = [tf.minimum(lengths[0], tf.maximum(room - lengths[1], room - room // 2))]
        keep.append(tf.minimum(lengths[1], room - keep[0]))
    return joined([beginning(ids, count) for ids, count in zip(segments, keep, strict=True)], tokenizer)


def joined(segments: list[tf.RaggedTensor], tokenizer: GraphTokenizer) -> dict[str, tf.Tensor]:
    """Ids int32 [B, (T)] -> [CLS] first [SEP] second [SEP]: input_ids, input_mask, segment_ids int32 [B, S]."""
    special = tf.ones([segments[0].nrows(), 1], tf.int32)
    parts, numbers = [special * tokenizer.cls_id], [special * 0]
    for number, ids in enumerate(segments):
        parts += [ids, special * tokenizer.sep_id]
        numbers += [ids * 0 + number, special * number]
    input_ids = tf.concat(parts, axis=1)
    return {
        "input_ids": dense(input_ids, tokenizer.pad_id),
        "input_mask": dense(tf.ones_like(input_ids), 0),
        "segment_ids": dense(tf.concat(numbers, axis=1), 0),
    }


def beginning(values: tf.RaggedTensor, count: tf.Tensor) -> tf.RaggedTensor:
    """The first `count` [B] values of each row."""
    places = tf.ragged.range(values.row_lengths())
    return tf.ragged.boolean_mask(values, places < tf.cast(count, places.dtype)[:, None])


def dense(rows: tf.RaggedTensor, padding: int) -> tf.Tensor:
    """[B, (N)] -> [B, S], S the longest row but at least 1, so that a batch without rows has a first token too."""
    padded = rows.to_tensor(padding)
    missing = tf.maximum(1 - tf.shape(padded)[1], 0)
    return tf.pad(padded, [[0, 0], [0, missing]], constant_values=padding)


def narrowed(flags: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Flat ranges narrowed until both ends stand at a True of `flags`; empty, at the end, where there is none."""
    places = tf.cast(tf.concat([tf.where(flags)[:, 0], [0]], axis=0), tf.int32)
    before = _counts(tf.cast(flags, tf.int32))
    first, last = tf.gather(before, start), tf.gather(before, end)
    found = first < last
    narrow_start = tf.gather(places, tf.where(found, first, 0))
    narrow_end = tf.gather(places, tf.where(found, last - 1, 0)) + 1
    return tf.where(found, narrow_start, end), tf.where(found, narrow_end, end)


def operation_library() -> str:
    """Path of the library with the SentencePiece ops, which a server must know before it loads a text export."""
    package = importlib.util.find_spec("tensorflow_text")
    if package is None:
        raise UserError("text export needs tensorflow-text: pip install tensorflow-text~=2.20.0")
    return os.path.join(package.submodule_search_locations[0], "python", "ops", "_sentencepiece_tokenizer.so")


@functools.cache
def _operations() -> Any:
    return tf.load_op_library(operation_library())


class _SentencePieceModel(tf.saved_model.experimental.TrackableResource):
    """The loaded vocabulary. TensorFlow Text has such a class, but importing that package loads twenty libraries."""

    def __init__(self, serialized: bytes) -> None:
        super().__init__()
        self._serialized = serialized
        _ = self.resource_handle  # made now, outside of any function

    def _create_resource(self) -> tf.Tensor:
        return _operations().sentencepiece_op(model=self._serialized)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """string [B] -> ids [B, (T)]."""
        values, splits = _operations().sentencepiece_tokenize_op(*self._inputs(texts), out_type=tf.int32)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """string [B] -> ids [B, (T)], and the flat byte range of each within its text."""
        operation = _operations().sentencepiece_tokenize_with_offsets_op
        values, splits, starts, ends = operation(*self._inputs(texts), out_type=tf.int32)
        ids = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)

    def _inputs(self, texts: tf.Tensor) -> tuple[Any, ...]:
        best_only, temperature, add_begin, add_end, reverse = 0, 1.0, False, False, False
        return self.resource_handle, texts, best_only, temperature, add_begin, add_end, reverse


def _decoded(texts: tf.Tensor) -> tf.RaggedTensor:
    """string [B] -> code points int32 [B, (C)]; what is not UTF-8 becomes U+FFFD."""
    return tf.strings.unicode_decode(texts, "UTF-8")


def _kept(codes: tf.RaggedTensor, space: tf.Tensor) -> tf.Tensor:
    """bool, flat: all but white space, and of a run of white space between two words the first character."""
    count = tf.cumsum(tf.cast(~space, tf.int32))
    at_splits = tf.gather(tf.concat([[0], count], axis=0), codes.row_splits)
    rows = codes.value_rowids()
    after_word = tf.concat([[False], ~space[:-1]], axis=0) & (count > tf.gather(at_splits, rows))
    return ~space | (after_word & (count < tf.gather(at_splits, rows + 1)))


def _part_spans(first: tf.Tensor, last: tf.Tensor, tails: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Ranges of pieces -> ranges of the parts that some are cut into; `tails` characters follow each part."""
    piece = tails.value_rowids()
    piece_first = tf.gather(first, piece)
    part_last = tf.maximum(tf.gather(last, piece) - tails.values, piece_first)
    previous = tf.concat([[0], part_last[:-1]], axis=0)
    begins = tf.concat([[True], piece[1:] != piece[:-1]], axis=0)[: tf.size(piece)]
    return tf.where(begins, piece_first, previous[: tf.size(piece)]), part_last


def _original_spans(
    codes: tf.RaggedTensor,
    normalized: tf.RaggedTensor,
    origins: tf.Tensor,
    row: tf.Tensor,
    span: tuple[tf.Tensor, tf.Tensor],
    visible: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Flat ranges of normalised characters -> flat ranges of the untouched text; see normalization.Aligned.

    Args:
      origins: int32, flat: where each normalised character came from.
      row: the text of each range.
      visible: bool, flat, for each character of the untouched text.
    """
    first, last = span
    row_starts, row_ends = (tf.cast(splits, tf.int32) for splits in (codes.row_splits[:-1], codes.row_splits[1:]))
    total = tf.size(codes.values)
    rows = normalized.value_rowids()
    first_origin = tf.gather(origins, tf.gather(normalized.row_splits, rows))
    starts = tf.where(origins == first_origin, tf.gather(row_starts, rows), origins)
    produces = tf.scatter_nd(origins[:, None], tf.ones_like(origins), [total]) > 0
    places = tf.concat([tf.cast(tf.where(produces)[:, 0], tf.int32), [total]], axis=0)
    following = tf.gather(places, tf.gather(tf.cumsum(tf.cast(produces, tf.int32)), origins))
    ends = tf.minimum(following, tf.gather(row_ends, rows))

    row_end = tf.gather(row_ends, row)
    at_end = first >= tf.cast(tf.gather(normalized.row_splits, row + 1), tf.int32)
    place = tf.where(at_end, row_end, tf.gather(tf.concat([starts, [total]], axis=0), first))
    empty = first >= last
    stop = tf.gather(tf.concat([ends, [0]], axis=0), tf.where(empty, tf.size(ends), last - 1))
    narrow_start, narrow_end = narrowed(visible, place, tf.where(empty, place, stop))
    return tf.where(empty, place, narrow_start), tf.where(empty, place, narrow_end)


def _counts(values: tf.Tensor) -> tf.Tensor:
    """[N] -> sums of the values before each place, and of all: [N + 1]."""
    return tf.concat([[0], tf.cumsum(values)], axis=0)
