"""Vocabularies: SentencePiece models, WordPiece lists, damaged in bytes or in what they say; and odd texts to cut."""

import random

from benchmarks.fuzz import mutations
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.workshop import Workshop

_CREATE = "create_pretraining_data --input_file=@texts/prose.txt --output_dir=out/records --num_workers=1"
_UNIGRAM = [
    (6, "tokenize --spm_model_file={} --text="),
    (1, "tokenize --spm_model_file={} --output=json --special_tokens --text="),
    (1, f"{_CREATE} --spm_model_file={{}}"),
]
_WORDPIECE = [
    (6, "tokenize --vocab_file={} --text="),
    (1, "tokenize --vocab_file={} --output=json --keep_accents --nodo_lower_case --text="),
    (1, f"{_CREATE} --max_unknown_share=1 --vocab_file={{}}"),
]
_TEXTS = [
    "The list is empty.",
    "",
    " ",
    "[MASK] [CLS]",
    "2012, 3,4",
    "a\u0301\u0301\u0301",
    "\u4e2d\u6587",
    "\ufb01ne",
    "x" * 5000,
    "\udcff",
]


def make(shop: Workshop) -> list[str]:
    """A damaged vocabulary, or an odd text for a whole one."""
    rng = shop.rng
    unigram = rng.random() < 0.65
    name = "vocab/spiece.model" if unigram else "wordpiece/vocab.txt"
    place, kind = shop.take(name), rng.random()
    if kind < 0.5 and unigram:
        path = shop.path(name)
        path.write_bytes(_odd_model(rng, path.read_bytes()))
    elif kind < 0.5:
        shop.garble(name)
    elif kind < 0.9:
        shop.damage(name)
    plans = _UNIGRAM if unigram else _WORDPIECE
    command = filled(shop, rng.choices([plan for _, plan in plans], [share for share, _ in plans])[0], place)
    if command[-1] == "--text=":
        odd = "".join(rng.choice(mutations.ODD_CHARACTERS[1:] + "aeinorst ") for _ in range(30))  # no NUL in arguments
        command[-1] += rng.choice((*_TEXTS, odd, odd))
    return command


def _odd_model(rng: random.Random, data: bytes) -> bytes:
    """A whole model file that says something odd."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    piece = model.pieces[rng.randrange(len(model.pieces))]
    kind = rng.randrange(7)
    if kind == 0:
        piece.piece = rng.choice(
            ("", " ", "\u2581", "[CLS]", "<unk>", model.pieces[7].piece, "x" * 5000, "\0", "<0x41>", "a\n")
        )
    elif kind == 1:
        piece.score = rng.choice((float("nan"), float("inf"), -float("inf"), 1e38, 0.0))
    elif kind == 2:
        piece.type = rng.choice((1, 2, 3, 4, 5, 6))
    elif kind == 3:
        del model.pieces[rng.choice((0, 2, 5, 50)) :]
    elif kind == 4:
        spec = model.normalizer_spec
        spec.precompiled_charsmap = rng.choice(
            (b"", b"x", mutations.damaged(rng, spec.precompiled_charsmap), rng.randbytes(99))
        )
    elif kind == 5:
        spec = model.trainer_spec
        field = rng.choice(("unk_id", "bos_id", "eos_id", "pad_id", "model_type", "vocab_size"))
        setattr(
            spec, field, rng.choice((1, 2, 3, 4)) if field == "model_type" else rng.choice((-1, 0, 4, 7, 2**31 - 1))
        )
    else:
        model.normalizer_spec.ClearField(rng.choice(("precompiled_charsmap", "add_dummy_prefix", "name")))
        model.normalizer_spec.add_dummy_prefix = rng.random() < 0.5
        model.normalizer_spec.escape_whitespaces = rng.random() < 0.5
        model.normalizer_spec.remove_extra_whitespaces = rng.random() < 0.5
    return model.SerializeToString()
