"""Other sentence pairs out of the same records, so that a model can be measured on the objective it was not trained on.

The paper (section 4.6) measures a model trained on next-sentence prediction on sentence order, and the reverse.
Rows are dicts: tokens int32 [B, S], length int32 [B] (real tokens), first_length int32 [B] (positions of segment 0,
[CLS] A [SEP]), sentence_labels int32 [B], sentence_weights float32 [B].

Letters: B rows of one window, S sequence.
"""

import tensorflow as tf

from albert_tf.errors import UserError


def repair_rows(rows: dict[str, tf.Tensor], *, real: tf.Tensor, records_objective: str, objective: str) -> dict:
    """Gives rows whose pairs and labels belong to `objective`.

    sop -> nsp: swapped pairs are put in order; of every four rows the last two exchange their second segments (cut to
    the room there) and get label 1. Rows are a random sample of the corpus, so the exchanged parts are from other
    documents but for chance. nsp -> sop: consecutive pairs, every other row swapped with label 1; random pairs have
    no order and get weight 0. `real` bool [B] marks rows that are more than padding: only those exchange.

    Raises UserError where the records hold no sentence pairs.
    """
    if objective == records_objective:
        return rows
    if "none" in (records_objective, objective):
        raise UserError(
            f"cannot measure {objective} on records made with the objective {records_objective}: they hold no pairs; "
            "make records with --objective=sop or nsp"
        )
    return _next_sentence(rows, real) if objective == "nsp" else _sentence_order(rows)


def _next_sentence(rows: dict[str, tf.Tensor], real: tf.Tensor) -> dict[str, tf.Tensor]:
    index = tf.range(tf.size(rows["length"]))
    partner = tf.bitwise.bitwise_xor(index, 1)
    partner_is_real = tf.gather(tf.pad(real, [[0, 1]]), tf.minimum(partner, tf.size(real)))
    exchanged = (tf.bitwise.bitwise_and(index, 2) > 0) & real & partner_is_real
    first, second = _segments_in_order(rows, swapped=rows["sentence_labels"] == 1)
    source = tf.where(exchanged, partner, index)
    second = {key: tf.gather(value, source) for key, value in second.items()}
    return _compose(rows, first, second, labels=tf.cast(exchanged, tf.int32), weights=rows["sentence_weights"])


def _sentence_order(rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    swapped = tf.range(tf.size(rows["length"])) % 2 == 1
    first, second = _segments_in_order(rows, swapped=swapped)
    weights = tf.where(rows["sentence_labels"] == 0, rows["sentence_weights"], 0.0)
    return _compose(rows, first, second, labels=tf.cast(swapped, tf.int32), weights=weights)


def _segments_in_order(rows: dict[str, tf.Tensor], *, swapped: tf.Tensor) -> tuple[dict, dict]:
    """Gives both segments without special tokens, exchanged where asked: row, begin and size, int32 [B] each."""
    index = tf.range(tf.size(rows["length"]))
    a = {"row": index, "begin": tf.ones_like(index), "size": rows["first_length"] - 2}
    b = {"row": index, "begin": rows["first_length"], "size": rows["length"] - rows["first_length"] - 1}
    first = {key: tf.where(swapped, b[key], a[key]) for key in a}
    second = {key: tf.where(swapped, a[key], b[key]) for key in a}
    return first, second


def _compose(rows: dict, first: dict, second: dict, *, labels: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
    """Builds [CLS] first [SEP] second [SEP]; what does not fit is cut off the end of the second segment."""
    tokens = rows["tokens"]
    size = tokens.shape[1]
    middle = first["size"] + 1  # column of the first [SEP]
    end = middle + 1 + tf.minimum(second["size"], size - 2 - middle)  # column of the last one
    columns = tf.range(size)
    in_first = columns < middle[:, tf.newaxis]
    source_row = tf.where(in_first, first["row"][:, tf.newaxis], second["row"][:, tf.newaxis])
    offset = tf.where(in_first, (first["begin"] - 1)[:, tf.newaxis], (second["begin"] - 1 - middle)[:, tf.newaxis])
    source = tf.stack([source_row, tf.clip_by_value(columns + offset, 0, size - 1)], axis=-1)
    body = tf.gather_nd(tokens, source)
    separator = tf.gather(tokens, rows["length"] - 1, axis=1, batch_dims=1)[:, tf.newaxis]
    is_separator = (columns == middle[:, tf.newaxis]) | (columns == end[:, tf.newaxis])
    body = tf.where(is_separator, separator, body)
    body = tf.where(columns == 0, tokens[:, :1], body)
    return {
        **rows,
        "tokens": tf.where(columns <= end[:, tf.newaxis], body, 0),
        "length": end + 1,
        "first_length": middle + 1,
        "sentence_labels": labels,
        "sentence_weights": weights,
    }
