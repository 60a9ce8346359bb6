"""Tokenisation equals the original's recorded outputs, and a plain transcription of its rules on everything else."""

import json
import pickle
import random
import unicodedata

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from albert_tf.errors import UserError
from albert_tf.tokenization import SentencePieceTokenizer, WordPieceTokenizer, find_vocabulary, load_tokenizer

REAL_SHA256 = "fefb02b667a6c5c2fe27602d28e5fb3428f66ab89c7d6f388e7c8d44a02d0336"
FRAGMENTS = (
    ["hello", "World", " ", "  ", "\u00a0", "\u200b", "\r\n", "\n", "\t", "ﬁ", "ﬃx", "１２３", "2012,", "5,000,", "1,"]
    + [
        "e\u0301",
        "\u0301",
        "É",
        "İ",
        "Σ",
        "ΑΣ",
        "½",
        "…",
        "你好",
        "日本",
        "한국",
        "ç",
        "\x00",
        "\x07",
        "\xad",
        "\u200d",
    ]
    + ["👩\u200d👧", "[MASK]", "[CLS]", "—", "“", "'", "``", "¨", "\ufeff", "\ufffd", "a\u0300\u0316", "ſ", "ⅷ", "㎏"]
    + ["$1,", "\u2028", "\ufe0f", "ำ", "ﷺ", "\u2581", "\u2585", "\ud800"]
)


def random_texts(count: int, seed: int = 7) -> list[str]:
    """Half awkward fragments, half arbitrary code points."""
    draw = random.Random(seed)
    texts = ["".join(draw.choice(FRAGMENTS) for _ in range(draw.randint(0, 12))) for _ in range(count // 2)]
    for _ in range(count - len(texts)):
        top = draw.choice([0x7F, 0x24F, 0xFFFF, 0x1FFFF])
        texts.append("".join(chr(draw.randint(0, top)) for _ in range(draw.randint(0, 12))))
    return texts


def release_ids(processor, text: str, lower: bool) -> list[int]:
    """The release's preprocessing and digit-comma rule, one string at a time."""
    text = " ".join("".join(c if not 0xD800 <= ord(c) < 0xE000 else "\ufffd" for c in text).split())
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    ids = []
    for piece, piece_id in zip(
        processor.encode(text.lower() if lower else text, out_type=str),
        processor.encode(text.lower() if lower else text, out_type=int),
        strict=True,
    ):
        if len(piece) > 1 and piece.endswith(",") and piece[-2].isdigit() and piece_id != 1:
            parts = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if not piece.startswith("▁") and parts[0].startswith("▁"):
                parts = parts[1:] if parts[0] == "▁" else [parts[0][1:], *parts[1:]]
            ids += [processor.piece_to_id(part) for part in [*parts, ","]]
        else:
            ids.append(piece_id)
    return ids


def bert_words(text: str, lower: bool) -> list[str]:
    """BERT's basic tokeniser, one step after another over the whole text."""
    kept = []
    for character in text:
        if character in "\t\n\r" or unicodedata.category(character) == "Zs":
            kept.append(" ")
        elif character != "\ufffd" and unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
            is_ideograph = any(low <= character <= high for low, high in ("㐀䶿", "一\u9fff", "\uf900\ufaff"))
            kept.append(f" {character} " if is_ideograph else character)
    words = "".join(kept).split()
    if lower:
        words = [unicodedata.normalize("NFD", word.lower()) for word in words]
        words = ["".join(c for c in word if unicodedata.category(c) != "Mn") for word in words]
    spaced = ""
    for character in " ".join(words):
        ascii_sign = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
        is_sign = ascii_sign or unicodedata.category(character).startswith("P")
        spaced += f" {character} " if is_sign else character
    return spaced.split()


def model_file(folder, pieces: dict[str, float], **changes):
    """Writes a small SentencePiece model without a trainer, so that its pieces are known. Returns its path."""
    proto = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for piece, kind in zip(
        ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
        [kinds.CONTROL, kinds.UNKNOWN] + [kinds.CONTROL] * 3,
        strict=True,
    ):
        proto.pieces.add(piece=changes.get(piece, piece), score=0.0, type=changes.get(f"{piece} type", kind))
    for piece, score in pieces.items():
        proto.pieces.add(piece=piece, score=score, type=kinds.NORMAL)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    proto.normalizer_spec.name = "identity"
    path = folder / "spiece.model"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def comma_model(tmp_path):
    pieces = {"▁": -1.0, "▁20": -2.0, "20": -2.5, "12": -2.0, "▁2012,": -0.5, "2012,": -1.0, ",": -3.0, "▁in": -1.0}
    return model_file(tmp_path, {**pieces, **{character: -9.0 for character in "0123456789in"}})


@pytest.fixture
def wordpiece(tmp_path):
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "un",
        "##aff",
        "##able",
        "cafe",
        ",",
        "我",
        "们",
        "##s",
        "σ",
    ]
    (tmp_path / "wordpiece").mkdir()
    (tmp_path / "wordpiece/vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return load_tokenizer(tmp_path / "wordpiece")


@pytest.mark.parametrize("casing", ["lower", "cased"])
def test_equals_the_original_on_every_golden_row(shared, casing):
    tokenizer = load_tokenizer(shared / "data/sentencepiece/30k-clean.model", do_lower_case=casing == "lower")
    with open(shared / "golden/tokenization/tokenization.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    batch = tokenizer.encode_batch([row["text"] for row in rows])
    assert len(rows) == 451
    for row, ids in zip(rows, batch, strict=True):
        golden, encoding = row[casing], tokenizer.encode_with_offsets(row["text"])
        assert ids == tokenizer.encode(row["text"]) == encoding.ids == golden["orig_ids"], row["id"]
        assert encoding.pieces == golden["orig_pieces"], row["id"]
        assert tokenizer._normalize(row["text"]) == golden["preprocessed"], row["id"]


def test_real_vocabulary(shared, tmp_path):
    tokenizer = load_tokenizer(shared / "data/sentencepiece/30k-clean.model")
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.hash) == ("sentencepiece", 30000, REAL_SHA256)
    assert [tokenizer.id_to_piece(i) for i in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.save(tmp_path)
    listing = (shared / "data/sentencepiece/30k-clean.vocab").read_text(encoding="utf-8")
    assert (tmp_path / "spiece.vocab").read_text(encoding="utf-8") == listing


def test_word_starts_equal_the_token_boundaries_of_the_original(shared):
    starts = load_tokenizer(shared / "data/sentencepiece/30k-clean.model").starts_word()
    compared = 0
    for name in ("seq128_pred20", "seq512_pred77"):
        for row in json.loads((shared / f"golden/data/{name}.first20.json").read_text(encoding="utf-8")):
            ids = np.array(row["input_ids"])
            real = np.array(row["masked_lm_weights"]) > 0
            ids[np.array(row["masked_lm_positions"])[real]] = np.array(row["masked_lm_ids"])[real]
            inside = np.array(row["input_mask"]) == 1
            assert np.array_equal(starts[ids[inside]], np.array(row["token_boundary"])[inside] == 1)
            compared += inside.sum()
    assert compared > 9_000


@pytest.mark.parametrize("lower", [True, False])
def test_sentencepiece_equals_the_rules_written_out(tiny_spm, lower):
    tokenizer = load_tokenizer(tiny_spm, do_lower_case=lower)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tiny_spm))
    texts = random_texts(2000)
    expected = [release_ids(processor, text, lower) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    assert [tokenizer.encode(text) for text in texts] == expected


def test_digit_comma_rule(comma_model):
    tokenizer = load_tokenizer(comma_model)
    shown = tokenizer.encode_with_offsets("in  2012,")
    assert shown.pieces == ["▁in", "▁20", "12", ","]
    assert shown.offsets == [(0, 2), (4, 6), (6, 8), (8, 9)]
    assert tokenizer.encode("in  2012,") == shown.ids == tokenizer.encode_batch(["in  2012,"])[0]
    # without a word mark before, none may appear: "2012," inside a word
    inner = tokenizer.encode_with_offsets("i2012,")
    assert [piece.replace("▁", "_") for piece in inner.pieces[-3:]] == ["20", "12", ","]


@pytest.mark.parametrize("settings", [(True, False), (False, False), (True, True)])
def test_offsets_point_into_the_untouched_text(tiny_spm, settings):
    check_offsets(load_tokenizer(tiny_spm, do_lower_case=settings[0], keep_accents=settings[1]))


def test_wordpiece_offsets_point_into_the_untouched_text(wordpiece):
    check_offsets(wordpiece)


def check_offsets(tokenizer):
    leaves_nothing = ([], [tokenizer.piece_to_id("▁")])
    for text in random_texts(1500):
        for special in (False, True):
            encoding = tokenizer.encode_with_offsets(text, special_tokens=special)
            assert encoding.ids == tokenizer.encode(text, special_tokens=special), repr(text)
            starts, ends = [start for start, _ in encoding.offsets], [end for _, end in encoding.offsets]
            assert len(encoding.ids) == len(encoding.pieces) == len(starts)
            assert starts == sorted(starts) and ends == sorted(ends), repr(text)
            covered = {i for start, end in encoding.offsets for i in range(start, end)}
            for i in set(range(len(text))) - covered:
                invisible = text[i].isspace() or unicodedata.category(text[i]) in ("Cc", "Cf")
                assert invisible or tokenizer.encode(text[i]) in leaves_nothing, (text, i)
            assert all(
                not text[i : i + 1].isspace()
                for start, end in encoding.offsets
                if start < end
                for i in (start, end - 1)
            )


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("a  b", ["a", "b"]),
        ("a\u00a0b", ["a", "b"]),
        ("a\u200bb", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        (" \t a \n", ["a"]),
        ("ａ b", ["ａ", "b"]),
        ("a\u0301 b", ["a\u0301", "b"]),
        ("\u0301a b", ["\u0301a", "b"]),
        ("\ufeffa b", ["a", "b"]),
    ],
)
def test_slices_of_awkward_text(tmp_path, tiny_spm, text, slices):
    tokenizer = load_tokenizer(tiny_spm)
    found = [text[start:end] for start, end in tokenizer.encode_with_offsets(text).offsets]
    assert [piece for piece in found if piece] == slices


def test_special_text_is_literal_unless_asked_for(tiny_spm):
    tokenizer = load_tokenizer(tiny_spm)
    assert not {2, 3, 4} & set(tokenizer.encode("[CLS] a [MASK]. [SEP]"))
    ids = tokenizer.encode("the [MASK]. a[MASK]b [MASK] the", special_tokens=True)
    assert [tokenizer.id_to_piece(i) for i in ids] == ["▁the", "[MASK]", ".", "▁a", "[MASK]", "b", "[MASK]", "▁the"]
    assert tokenizer.encode("", special_tokens=True) == []


def test_word_starts_beyond_english(tmp_path):
    expected = {
        "▁the": True, "ing": False, "mr.": False, ".": True, "'s": True, "7": True, "é": False, "ами": False,
        "σ": False, "한국": False, "中": True, "の": True, "カ": True, "ไทย": True, "☺": True,
        "e\u0301": False, "<": True,
    }  # fmt: skip
    starts = load_tokenizer(model_file(tmp_path, dict.fromkeys(expected, -1.0))).starts_word()
    assert starts.dtype == bool and starts[:5].all()
    assert dict(zip(expected, starts[5:].tolist(), strict=True)) == expected


def test_wordpiece_rules(wordpiece):
    cases = {
        "UNAFFABLE, Café": ["un", "##aff", "##able", ",", "cafe"],
        "我们x": ["我", "们", "[UNK]"],
        "Σ": ["σ"],
        "uns unx": ["un", "##s", "[UNK]"],
        "[MASK]": ["[UNK]"] * 3,
        "un" + "s" * 250: ["[UNK]"],
        "\x00un\u00adaff\ufffd": ["un", "##aff"],
        "": [],
    }
    for text, pieces in cases.items():
        assert wordpiece.encode_with_offsets(text).pieces == pieces
        assert [wordpiece.id_to_piece(i) for i in wordpiece.encode_batch([text])[0]] == pieces
    assert wordpiece.encode("un [MASK]我", special_tokens=True) == [5, 4, 10]
    assert wordpiece.encode_with_offsets("Cafe\u0301 我们").offsets == [(0, 5), (6, 7), (7, 8)]
    assert wordpiece.decode([2, 5, 6, 7, 9, 3]) == "unaffable ,"
    assert wordpiece.starts_word().tolist() == [True] * 6 + [False] * 2 + [True] * 4 + [False, True]
    assert (wordpiece.pad_id, wordpiece.unk_id, wordpiece.cls_id, wordpiece.sep_id, wordpiece.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_words_equal_the_rules_written_out(wordpiece, lower):
    tokenizer = load_tokenizer(wordpiece.path, do_lower_case=lower)
    for text in random_texts(2000):
        # a final sigma before a control character: BERT drops the control first, here it ends the word
        text = text.replace("Σ", "") if lower else text
        assert tokenizer._normalize(text).split() == bert_words(text, lower), repr(text)


def test_accents_and_case_can_be_kept(comma_model, wordpiece):
    assert load_tokenizer(comma_model)._normalize("É ﬁ") == "e fi"
    assert load_tokenizer(comma_model, do_lower_case=False)._normalize("É ﬁ") == "E fi"
    assert load_tokenizer(comma_model, keep_accents=True)._normalize("É ﬁ") == "é ﬁ"
    assert load_tokenizer(wordpiece.path, keep_accents=True)._normalize("É") == "é"
    assert load_tokenizer(wordpiece.path, do_lower_case=False)._normalize("É") == "É"


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_save_load_and_pickle_keep_everything(kind, tiny_spm, wordpiece, tmp_path):
    path = tiny_spm if kind == "sentencepiece" else wordpiece.path
    tokenizer = load_tokenizer(path, do_lower_case=False, keep_accents=True)
    (tmp_path / "copy").mkdir()
    tokenizer.save(tmp_path / "copy")
    for again in (load_tokenizer(tmp_path / "copy"), pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is {"sentencepiece": SentencePieceTokenizer, "wordpiece": WordPieceTokenizer}[kind]
        assert (again.hash, again.do_lower_case, again.keep_accents) == (tokenizer.hash, False, True)
        assert again.encode("The Café, [MASK]", special_tokens=True) == tokenizer.encode(
            "The Café, [MASK]", special_tokens=True
        )


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_one_text_is_no_batch(kind, tiny_spm, wordpiece):
    tokenizer = load_tokenizer(tiny_spm) if kind == "sentencepiece" else wordpiece
    with pytest.raises(TypeError, match="a single text.*list of texts"):
        tokenizer.encode_batch("the bird")
    assert tokenizer.encode_batch(text for text in ["the bird"]) == [tokenizer.encode("the bird")]


def test_decode_and_lookups(tiny_spm):
    tokenizer = load_tokenizer(tiny_spm)
    ids = tokenizer.encode("the name of the class.")
    assert tokenizer.decode([2, *np.array(ids), 3, 0]) == "the name of the class."
    assert tokenizer.piece_to_id("no such piece") == tokenizer.unk_id == 1
    assert [tokenizer.piece_to_id(piece) for piece in tokenizer.pieces()] == list(range(tokenizer.vocab_size))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.id_to_piece(tokenizer.vocab_size)


def test_wrong_files_get_one_clear_line(tiny_spm, tmp_path):
    data = tiny_spm.read_bytes()
    files = {
        "empty": (b"", "is empty"),
        "blank": (b"\n \n", "is empty"),
        "text": (b"Once upon a time.\n", "neither a SentencePiece model nor"),
        "noise": (random.Random(0).randbytes(4096), "neither a SentencePiece model nor"),
        "noise_after_tag": (b"\n" + random.Random(0).randbytes(4096), "not a whole SentencePiece model"),
        "cut": (data[:-100], "not a whole SentencePiece model"),
        "cut_early": (data[:300], "not a whole SentencePiece model"),
        "pieces_only": (b"\n\x0c\n\x05<pad>\x15\0\0\0\0", "its end is missing"),
        "listing": (b"<pad>\t0\n<unk>\t0\n", "give the .model file"),
        "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        "latin1": ("[UNK]\n[CLS]\né\n".encode("latin-1"), "not UTF-8"),
        "few": (b"[UNK]\n[CLS]\nthe\n", r"lacks \[PAD\], \[SEP\], \[MASK\]"),
    }
    for name, (content, message) in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=message) as error:
            load_tokenizer(path)
        assert "\n" not in str(error.value) and "; " in str(error.value), name  # and what to do
    with pytest.raises(UserError, match="does not exist"):
        load_tokenizer(tmp_path / "absent")


def test_special_pieces_are_pinned(tmp_path):
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    pieces = {"▁a": -1.0, "b": -2.0}
    with pytest.raises(UserError, match=r"has '<s>' at id 2, where ALBERT needs \[CLS\]"):
        load_tokenizer(model_file(tmp_path, pieces, **{"[CLS]": "<s>"}))
    with pytest.raises(UserError, match=r"holds \[MASK\] as a USER_DEFINED piece"):
        load_tokenizer(model_file(tmp_path, pieces, **{"[MASK] type": kinds.USER_DEFINED}))
    assert load_tokenizer(model_file(tmp_path, pieces, **{"<pad>": "[PAD]"})).pad_id == 0


def test_folders(tiny_spm, wordpiece, tmp_path):
    folder = tmp_path / "model"
    (folder / "assets").mkdir(parents=True)
    with pytest.raises(UserError, match="no vocabulary in"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="tokenizer.json alone is not enough"):
        load_tokenizer(folder)
    (folder / "assets/30k-clean.model").write_bytes(tiny_spm.read_bytes())
    assert load_tokenizer(folder).path == folder / "assets/30k-clean.model"
    (folder / "spiece.model").write_bytes(tiny_spm.read_bytes())
    assert load_tokenizer(folder).path == folder / "spiece.model"
    (folder / "vocab.txt").write_bytes(wordpiece.path.read_bytes())
    with pytest.raises(UserError, match=r"several vocabularies \(spiece.model, vocab.txt\)"):
        load_tokenizer(folder)


def test_one_of_several_vocabularies(tiny_spm, wordpiece, tmp_path):
    """The one asked for by hash, or that the settings beside them name; copies of one are no choice."""
    folder = tmp_path / "model"
    folder.mkdir()
    model, vocab = folder / "spiece.model", folder / "vocab_chinese.txt"
    model.write_bytes(tiny_spm.read_bytes())
    (folder / "30k-clean.model").write_bytes(tiny_spm.read_bytes())
    assert find_vocabulary(folder).suffix == ".model"
    vocab.write_bytes(wordpiece.path.read_bytes())
    with pytest.raises(UserError, match="30k-clean.model, spiece.model, vocab_chinese.txt.*cannot tell"):
        find_vocabulary(folder)
    assert find_vocabulary(folder, vocabulary_hash=wordpiece.hash) == vocab
    with pytest.raises(UserError, match="cannot tell"):
        find_vocabulary(folder, vocabulary_hash="0" * 64)
    settings = folder / "tokenizer_config.json"
    settings.write_text('{"tokenizer_class": "BertTokenizerFast"}')
    assert find_vocabulary(folder) == vocab == load_tokenizer(folder).path
    settings.write_text('{"tokenizer_class": "AlbertTokenizer"}')
    assert find_vocabulary(folder).suffix == ".model"
    settings.write_text(f'{{"vocabulary_hash": "{wordpiece.hash}", "tokenizer_class": "AlbertTokenizer"}}')
    assert find_vocabulary(folder) == vocab
    assert find_vocabulary(folder / "none") is None


def test_settings_beside_the_file(tiny_spm, tmp_path):
    load_tokenizer(tiny_spm, do_lower_case=False).save(tmp_path)
    assert not load_tokenizer(tmp_path).do_lower_case
    assert load_tokenizer(tmp_path, do_lower_case=True).do_lower_case
    (tmp_path / "spiece.model").write_bytes(model_file(tmp_path, {"▁a": -1.0}).read_bytes())
    with pytest.raises(UserError, match="is not the vocabulary that"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(UserError, match="expected true or false"):
        load_tokenizer(tmp_path)
