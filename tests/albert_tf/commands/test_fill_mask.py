"""What fill_mask answers, against logits taken by hand, and what it says to wrong use."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.commands.fill_mask import fill_mask
from albert_tf.config import AlbertConfig
from albert_tf.tokenization import load_tokenizer

CONFIG = AlbertConfig(
    vocab_size=804,  # more rows than pieces: the rest must never be offered
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=24,
    initializer_range=0.5,
)


@pytest.fixture(scope="module")
def model(tiny_spm):
    made = checkpoints.new_model(CONFIG, {"masked_lm": {}}, load_tokenizer(tiny_spm))
    for name, variable in made.named_variables().items():
        random = np.random.default_rng(sum(name.encode()))
        variable.assign(random.normal(1.0 if name.endswith("gamma") else 0.0, 0.5, variable.shape))
    made.heads["masked_lm"].output_bias.assign(tf.one_hot(803, 804) * 100)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    checkpoints.save_model(folder, model)
    return folder


@pytest.fixture
def run(capsys):
    """Runs the command; returns exit code, standard output and standard error."""

    def call(*arguments):
        code = main(["albert_tf", "fill_mask", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def expected(model, ids, segments, places):
    """For each place: pieces by falling probability, and the probabilities."""
    outputs = model.encoder({"input_ids": tf.constant([ids]), "segment_ids": tf.constant([segments])})
    hidden = tf.gather(outputs["sequence_output"][0], places)[None]
    logits = model.heads["masked_lm"](hidden, model.encoder.embeddings.word_embeddings)[0, :, :800].numpy()
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.argsort(-logits, axis=-1), shares / shares.sum(-1, keepdims=True)


def test_pieces_and_probabilities(model):
    tokenizer = model.tokenizer
    filled = fill_mask(model, "The [MASK] of a Class is [MASK].", top_k=4)
    ids = [2, *tokenizer.encode("The"), 4, *tokenizer.encode("of a Class is"), 4, *tokenizer.encode("."), 3]
    ids = [i for i in ids if i != tokenizer.piece_to_id("▁")]  # a full stop of its own begins no word after [MASK]
    places = [position for position, i in enumerate(ids) if i == 4]
    order, shares = expected(model, ids, [0] * len(ids), places)
    assert len(filled.candidates) == 2
    for candidates, best, share in zip(filled.candidates, order, shares, strict=True):
        assert [piece for piece, _ in candidates] == [tokenizer.id_to_piece(int(i)) for i in best[:4]]
        np.testing.assert_allclose([p for _, p in candidates], share[best[:4]], rtol=1e-4)
    for place, best in zip(places, order, strict=True):
        ids[place] = int(best[0])
    assert filled.text == tokenizer.decode(ids)


def test_two_segments(model):
    tokenizer = model.tokenizer
    a, b = tokenizer.encode("a class"), tokenizer.encode("it is")
    ids = [2, *a, 3, *b, 4, 3]
    order, _ = expected(model, ids, [0] * (len(a) + 2) + [1] * (len(b) + 2), [len(ids) - 2])
    filled = fill_mask(model, "a class ||| it is [MASK]", top_k=1)
    assert filled.candidates[0][0][0] == tokenizer.id_to_piece(int(order[0, 0]))
    assert filled.text.startswith("a class ||| it is")


def test_two_segments_for_a_model_of_one(run, model, tmp_path):
    one = checkpoints.new_model(CONFIG.replace(type_vocab_size=1), {"masked_lm": {}}, model.tokenizer)
    checkpoints.save_model(tmp_path / "one", one)
    code, output, said = run(f"--model_dir={tmp_path / 'one'}", "--text=a class ||| it is [MASK]")
    assert code == 2 and output == "" and "--text has two segments, the model knows one" in said.splitlines()[-1]
    assert fill_mask(one, "it is [MASK]").candidates


def test_table_and_json(run, folder, model, tmp_path):
    (tmp_path / "texts").write_text("The [MASK].\n\nA [MASK] or [MASK].\n")
    code, output, _ = run(f"--model_dir={folder}", f"--input_file={tmp_path / 'texts'}", "--top_k=2", "--output=json")
    answers = [json.loads(line) for line in output.splitlines()]
    assert code == 0 and [len(answer["candidates"]) for answer in answers] == [1, 2]
    direct = fill_mask(model, "The [MASK].", top_k=2)
    assert answers[0]["filled"] == direct.text and answers[0]["text"] == "The [MASK]."
    assert [piece for piece, _ in answers[0]["candidates"][0]] == [piece for piece, _ in direct.candidates[0]]
    code, output, _ = run(f"--model_dir={folder}", "--text=The [MASK].", "--top_k=2")
    (first, p), (second, q) = direct.candidates[0]
    assert code == 0 and output == f"{direct.text}\n  [MASK]:  {first} {p:.3f}  {second} {q:.3f}\n"


def test_a_model_that_computes_no_numbers_fills_nothing(run, folder, tmp_path):
    broken = checkpoints.load_model(folder)
    broken.encoder.embeddings.word_embeddings.assign(broken.encoder.embeddings.word_embeddings * np.nan)
    checkpoints.save_model(tmp_path / "broken", broken)
    code, output, said = run(f"--model_dir={tmp_path / 'broken'}", "--text=The [MASK].", "--output=json")
    assert code == 2 and output == "" and "are not finite numbers" in said.splitlines()[-1]


def test_wrong_use_is_one_line(run, folder, model, tmp_path):
    (tmp_path / "texts").write_text("The [MASK].\nNothing to fill.\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin1").write_bytes(b"caf\xe9 [MASK]")
    checkpoints.save_model(tmp_path / "mute", dataclasses.replace(model, tokenizer=None))
    bare = dataclasses.replace(model, heads={}, info=dataclasses.replace(model.info, heads={}))
    checkpoints.save_model(tmp_path / "bare", bare)
    given = f"--model_dir={folder}"
    cases = {
        ("--text=[MASK]",): "missing --model_dir",
        (given,): "give either --text or --input_file",
        (given, "--text=[MASK]", "--input_file=x"): "give either --text or --input_file",
        (given, "--text=The [mask]"): "--text has no [MASK]: found 'The [mask]'",
        (given, f"--input_file={tmp_path / 'texts'}"): "texts line 2 has no [MASK]",
        (given, f"--input_file={tmp_path / 'empty'}"): "has no text",
        (given, f"--input_file={tmp_path / 'latin1'}"): "is not UTF-8",
        (given, f"--input_file={tmp_path / 'absent'}"): "cannot read",
        (given, f"--text=[MASK] {'word ' * 40}"): "the model takes 24: shorten it",
        (given, "--text=a ||| b ||| [MASK]"): "has 3 segments",
        (given, "--text=[MASK]", "--top_k=0"): "--top_k=0: expected a positive integer",
        (f"--model_dir={tmp_path / 'mute'}", "--text=[MASK]"): "has no tokeniser",
        (f"--model_dir={tmp_path / 'bare'}", "--text=[MASK]"): "has no trained masked LM head (heads: none)",
        (f"--model_dir={tmp_path / 'absent'}", "--text=[MASK]"): "absent",
    }
    for arguments, words in cases.items():
        code, output, errors = run(*arguments)
        assert (code, output) == (2, "") and words in errors.splitlines()[-1], (arguments, errors)
