"""The tokeniser inside a graph gives the ids and offsets of the Python tokeniser."""

import json
import random
import unicodedata

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.export.signatures import SAMPLE_TEXTS
from albert_tf.tokenization import code_points, load_tokenizer
from albert_tf.tokenization.in_graph import GraphTokenizer
from albert_tf.tokenization.normalization import sentencepiece_normalizer
from albert_tf.tokenization.unigram import parse_model

CASINGS = [(lower, accents) for lower in (True, False) for accents in (False, True)]


def encodings(tokenizer, texts):
    """The graph's (ids, offsets) of each text, and its ids without offsets."""
    graph = GraphTokenizer(tokenizer)
    data = tf.constant([text.encode("utf-8", "replace") for text in texts])
    spec = [tf.TensorSpec([None], tf.string)]
    found = tf.function(graph.encode_with_offsets, spec)(data)
    plain = tf.function(graph.encode, spec)(data).to_list()
    columns = (found.ids.to_list(), found.starts.to_list(), found.ends.to_list())
    rows = [(ids, list(zip(starts, ends, strict=True))) for ids, starts, ends in zip(*columns, strict=True)]
    return rows, plain


def random_texts(count, seed):
    """Strings of every script and sign, with the characters that rules care about among them."""
    choose = random.Random(seed)
    ranges = [(0x20, 0x250), (0x300, 0x370), (0x370, 0x400), (0, 0xD800), (0xE000, 0x11000), (0x1D400, 0x1D800)]
    special = "\u03a3\u03c3\u02b0'\u2028\xa0\x1f\x85\x00,12 \u0345\u1e9e\u0130\ufb01\u200b\ufeff"
    alphabet = [chr(choose.randrange(*choose.choice(ranges))) for _ in range(800)]
    return [
        "".join(choose.choice(special if choose.random() < 0.4 else alphabet) for _ in range(choose.randrange(30)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("lower, accents", CASINGS)
def test_random_texts(lower, accents, tiny_spm):
    tokenizer = load_tokenizer(tiny_spm, do_lower_case=lower, keep_accents=accents)
    texts = [
        *random_texts(400, seed=3),
        "",
        "  ",
        "\u039f\u0394\u039f\u03a3 \u03a3 \u03a3\u0391\u03a3.",
        "in 2012, 1,5,",
    ]
    rows, plain = encodings(tokenizer, texts)
    for text, (ids, offsets), again in zip(texts, rows, plain, strict=True):
        expected = tokenizer.encode_with_offsets(text)
        assert ids == again == expected.ids, ascii(text)
        assert offsets == expected.offsets, ascii(text)


def test_an_export_is_not_refused_for_two_equally_likely_ways_of_cutting_its_sample(tiny_spm, tmp_path):
    proto = parse_model(tiny_spm.read_bytes(), tiny_spm)
    known = {piece.piece for piece in proto.pieces}
    assert "0" in known and "000" not in known
    for piece in {"00", "11", "oo", "tt"} - known:  # "000" is "0 00" or "00 0"
        proto.pieces.add(piece=piece, score=-9.0)
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    tokenizer = load_tokenizer(tmp_path)
    rows, plain = encodings(tokenizer, SAMPLE_TEXTS)
    assert plain == [ids for ids, _ in rows] == tokenizer.encode_batch(SAMPLE_TEXTS)


@pytest.mark.parametrize("lower, accents", CASINGS)
def test_normalised_text(lower, accents, tiny_spm):
    """Also where the vocabulary knows none of the characters. NUL has a stand-in."""
    graph = GraphTokenizer(load_tokenizer(tiny_spm, do_lower_case=lower, keep_accents=accents))
    texts = random_texts(1500, seed=4)
    texts += [
        "\u039f\u0394\u039f\u03a3",
        "\u03a3",
        "\u0391\u03a3'\u03a3",
        "\u0391\u03a3\u0345 \u03a3\u0345\u0391",
        "\U0001d6ba\U0001d6b6",
    ]
    found = tf.function(graph.normalize, [tf.TensorSpec([None], tf.string)])(tf.constant([t.encode() for t in texts]))
    rule = sentencepiece_normalizer(do_lower_case=lower, keep_accents=accents)
    for text, normalized in zip(texts, found.numpy().tolist(), strict=True):
        assert normalized.decode() == rule(text).replace("\0", "\uf8ff"), ascii(text)


@pytest.mark.parametrize("lower", [True, False])
def test_golden_texts(lower, shared):
    """All golden rows with the real vocabulary; only the tie between equal scores that its README names may differ."""
    tokenizer = load_tokenizer(shared / "data" / "sentencepiece" / "30k-clean.model", do_lower_case=lower)
    lines = (shared / "golden" / "tokenization" / "tokenization.jsonl").read_text(encoding="utf-8").splitlines()
    golden = [json.loads(line) for line in lines]
    rows, plain = encodings(tokenizer, [row["text"] for row in golden])
    different = []
    for row, (ids, offsets), again in zip(golden, rows, plain, strict=True):
        expected = tokenizer.encode_with_offsets(row["text"])
        assert ids == again
        if ids != expected.ids:
            different.append(row["text"])
            continue
        assert ids == row["lower" if lower else "cased"]["orig_ids"] or ids == tokenizer.encode(row["text"])
        assert offsets == expected.offsets, ascii(row["text"])
    assert {unicodedata.normalize("NFKD", text).replace("\u0301", "") for text in different} <= {"ee\u0302e\u0308"}


def test_digits_before_a_comma_are_cut_again(tiny_spm):
    """The rule needs a piece that ends so; one is put into the vocabulary here."""
    from sentencepiece import sentencepiece_model_pb2

    from albert_tf.tokenization import SentencePieceTokenizer

    proto = sentencepiece_model_pb2.ModelProto.FromString(tiny_spm.read_bytes())
    for piece, score in (("\u25812,000,", -1.0), ("7,", -1.5)):
        proto.pieces.add(piece=piece, score=score)
    tokenizer = SentencePieceTokenizer(proto.SerializeToString(), tiny_spm)
    texts = ["2,000, stones", "a 2,000,", "x7,7, 7,"]
    assert {tokenizer.vocab_size - 2, tokenizer.vocab_size - 1} <= set(tokenizer.piece_parts())
    rows, _ = encodings(tokenizer, texts)
    for text, (ids, offsets) in zip(texts, rows, strict=True):
        expected = tokenizer.encode_with_offsets(text)
        assert (ids, offsets) == (expected.ids, expected.offsets)
        assert text[slice(*offsets[-1])] in (",", "stones"[-(offsets[-1][1] - offsets[-1][0]) :])


def test_bytes_that_are_not_utf8(tiny_spm):
    tokenizer = load_tokenizer(tiny_spm)
    ids = GraphTokenizer(tokenizer).encode(tf.constant([b"the \xff river"])).to_list()
    assert ids == [tokenizer.encode("the \ufffd river")]


def test_tables_leave_out_only_what_no_rule_knows():
    """Unassigned planes are not asked; a sample of them confirms it."""
    from albert_tf.tokenization.normalization import drop_accents

    for code in [*range(0x40000, 0xE0000, 997), *range(0xE1000, 0x110000, 997)]:
        character = chr(code)
        assert drop_accents(character) == character.lower() == character and not character.isspace()
        assert unicodedata.category(character) in ("Cn", "Co")
    tables = code_points.code_point_tables(do_lower_case=True, keep_accents=False)
    number = tf.gather(tables.replacement.values, tables.replacement.rows(tf.constant([0x41, 0x61, 0x20, 0xB4])))
    assert number.numpy()[1] == 0 and number.numpy()[2] == code_points.SPACE and number.numpy()[3] != code_points.SPACE
    assert tf.gather(tables.replacements, number).to_list()[0] == [0x61]


def test_other_tokenisers_are_refused_by_name(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nriver\n")
    with pytest.raises(UserError, match="vocab.txt is a wordpiece vocabulary, .* use --signature=ids"):
        GraphTokenizer(load_tokenizer(path))
    with pytest.raises(UserError, match="no tokeniser"):
        GraphTokenizer(None)
