"""`albert_tf embed`: n lines in, n vectors out, each the one that the line has by itself."""

import json
import os
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import tf_keras

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.commands import embed, lines
from albert_tf.config import AlbertConfig
from albert_tf.tokenization import load_tokenizer

CONFIG = AlbertConfig(
    vocab_size=800, embedding_size=8, hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=32, inner_group_num=2, initializer_range=0.5,
)  # fmt: skip
LINES = [
    "the name of a module",
    "",
    "x",
    "a longer line " * 20,
    "the name of a module",
    "  spaces  ",
    "ünïcode ﬁ",
    "last",
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, tiny_spm):
    folder = tmp_path_factory.mktemp("embed") / "model"
    tf_keras.utils.set_random_seed(1)  # rounding is amplified by some draws of such large weights more than by others
    checkpoints.save_model(folder, checkpoints.new_model(CONFIG, {}, load_tokenizer(tiny_spm)))
    return folder


@pytest.fixture
def embedded(tmp_path, model_dir, capsys):
    """embedded(text, *flags, name="out.npy") -> vectors as read back."""

    def embedded(data, *flags, name="out.npy"):
        (tmp_path / "in.txt").write_bytes(data if isinstance(data, bytes) else data.encode())
        files = [f"--input_file={tmp_path / 'in.txt'}", f"--output_file={tmp_path / name}"]
        assert main(["albert_tf", "embed", f"--model_dir={model_dir}", *files, *flags]) == 0, capsys.readouterr().err
        if name.endswith(".npy"):
            return np.load(tmp_path / name)
        return np.array([json.loads(line) for line in (tmp_path / name).read_text().splitlines()], np.float32)

    return embedded


def expected(model_dir, pooling, layer):
    """Line by line, without padding."""
    model = checkpoints.load_model(model_dir)
    rows = []
    for line in LINES:
        ids = [model.tokenizer.cls_id, *model.tokenizer.encode(line)[:30], model.tokenizer.sep_id]
        outputs = model.encoder({"input_ids": np.array([ids])})
        hidden = outputs["encoder_outputs"][2 * (layer if layer > 0 else 4 + layer) - 1][0].numpy()
        rows.append({"cls": hidden[0], "mean": hidden.mean(0), "pooled": outputs["pooled_output"][0].numpy()}[pooling])
    return np.stack(rows)


@pytest.mark.parametrize(("pooling", "layer"), [("mean", -1), ("cls", -1), ("pooled", -1), ("mean", 1), ("cls", -2)])
def test_each_line_has_its_own_vector_in_the_order_of_the_input(embedded, model_dir, pooling, layer):
    found = embedded("\n".join(LINES) + "\n", f"--pooling={pooling}", f"--layer={layer}", "--batch_tokens=64")
    assert found.dtype == np.float32 and found.shape == (len(LINES), 12)
    np.testing.assert_allclose(found, expected(model_dir, pooling, layer), atol=2e-5)
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_json_lines_hold_the_same_numbers(embedded):
    text = "\n".join(LINES)
    np.testing.assert_array_equal(embedded(text, name="out.jsonl"), embedded(text))


def test_json_lines_are_made_one_at_a_time():
    """A window of them all at once took 4 GB with a base model."""
    vectors = np.random.default_rng(0).random((2000, 500), np.float32)
    tracemalloc.start()
    size = sum(len(line) for line in embed._json_lines(vectors))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 < size


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_windows_are_written_one_after_the_other(embedded, model_dir, tmp_path, monkeypatch, name):
    monkeypatch.setattr(embed, "_WINDOW", 3)
    found = embedded("\n".join(LINES), name=name)
    np.testing.assert_allclose(found, expected(model_dir, "mean", -1), atol=2e-5)
    if name == "out.npy":
        np.save(tmp_path / "whole.npy", found)
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_lines_are_not_held_in_memory(embedded, model_dir, tmp_path, monkeypatch, capsys):
    """But those of a pipe, which come only once; a file that changes meanwhile is told."""
    monkeypatch.setattr(embed, "_WINDOW", 3)
    alive, most = weakref.WeakSet(), []

    class Line(str):
        pass

    def read_lines(path):
        for text in lines.read_lines(path):
            line = Line(text)
            alive.add(line)
            most.append(len(alive))
            yield line

    monkeypatch.setattr(embed, "read_lines", read_lines)
    found = embedded("\n".join(LINES * 5))
    assert max(most) <= 8 and len(found) == 5 * len(LINES)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("\n".join(LINES * 5)))
    writer.start()
    np.testing.assert_array_equal(embedded("", f"--input_file={tmp_path / 'pipe'}"), found)
    writer.join()
    monkeypatch.setattr(embed, "_counted", lambda path: (9, lines.read_lines(path)))
    files = [f"--input_file={tmp_path / 'in.txt'}", f"--output_file={tmp_path / 'less.npy'}"]
    (tmp_path / "in.txt").write_text("one\n" * 8)
    assert main(["albert_tf", "embed", f"--model_dir={model_dir}", *files]) == 2
    assert "in.txt had 9 lines and now has 8" in capsys.readouterr().err and not (tmp_path / "less.npy").exists()


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"one", 1), (b"one\n", 1), (b"\n", 1), (b"a\r\nb\r\n", 2), (b"a\n\n\nb", 4), ("a\u2028b\x0bc\x85d".encode(), 1)],
)
def test_lines_are_counted_as_an_editor_does(embedded, data, count):
    assert len(embedded(data)) == count


def test_batches_hold_every_row_once_and_respect_the_limit():
    rng = np.random.default_rng(0)
    tokens = [[int(i) + 5] * int(rng.integers(2, 31)) for i in range(200)]
    seen = []
    for rows, ids, mask in embed.batches(tokens, batch_tokens=100, max_length=30, pad_id=0):
        assert ids.size <= 100 and (ids.shape[1] % 8 == 0 or ids.shape[1] == 30)
        for row, line, here in zip(rows, ids, mask, strict=True):
            assert list(line[here == 1]) == tokens[row] and not line[here == 0].any()
        seen += list(rows)
    assert sorted(seen) == list(range(200))


def test_text_that_the_vocabulary_does_not_know_is_told(embedded, model_dir, capsys):
    """An unknown run of characters is one token, behind the mark of its word."""
    embedded("a line\n" * 100 + "\u6771\u4eac\n" * 5)
    assert "unknown" not in capsys.readouterr().err
    known = len(load_tokenizer(model_dir).encode("a line"))
    embedded("a line\n" * 2 + "\u6771\u4eac\n" * 5, "--batch_tokens=8")
    share = 5 / (2 * known + 10)
    told = f"in.txt: {share:.1%} of the tokens are unknown to {model_dir}"
    assert told in capsys.readouterr().err


def test_wrong_use_is_one_line_and_writes_nothing(tmp_path, model_dir, capsys):
    (tmp_path / "in.txt").write_bytes(b"good\n\xff\xfe bad\n")
    (tmp_path / "ok.txt").write_text("good\n")
    (tmp_path / "texts.jsonl").write_text("good\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder.npy").mkdir()
    cases = [
        ("in.txt", "out.npy", [], "in.txt line 2 is not UTF-8 text"),
        ("empty.txt", "out.npy", [], "is empty"),
        ("none.txt", "out.npy", [], "cannot read"),
        ("ok.txt", "out.txt", [], "ends in .npy or .jsonl"),
        ("ok.txt", "out.npy", ["--layer=4"], "3 layers"),
        ("ok.txt", "out.npy", ["--layer=0"], "3 layers"),
        ("ok.txt", "out.npy", ["--layer=1", "--pooling=pooled"], "last layer only"),
        ("ok.txt", "out.npy", ["--max_seq_length=33"], "32 positions"),
        ("ok.txt", "no/such/out.npy", [], "cannot write"),
        ("ok.txt", "folder.npy", [], "it is a folder"),
        ("texts.jsonl", "texts.jsonl", [], "is the file that is read"),
    ]
    for name, output, flags, words in cases:
        files = [f"--input_file={tmp_path / name}", f"--output_file={tmp_path / output}"]
        assert main(["albert_tf", "embed", f"--model_dir={model_dir}", *files, *flags]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert words in error, error
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "empty.txt",
        "folder.npy",
        "in.txt",
        "ok.txt",
        "texts.jsonl",
    ]


def test_vectors_that_are_not_numbers_are_refused(tmp_path, model_dir, capsys, monkeypatch):
    monkeypatch.setattr(embed, "_WINDOW", 2)  # they are in the second window
    model = checkpoints.load_model(model_dir)
    table = model.encoder.embeddings.word_embeddings
    (piece,) = model.tokenizer.encode("the")
    table.assign(np.where(np.arange(table.shape[0])[:, None] == piece, np.nan, table))
    checkpoints.save_model(tmp_path / "model", model)
    (tmp_path / "in.txt").write_text("a good line\na\nb\nthe line\n")
    files = [f"--input_file={tmp_path / 'in.txt'}", f"--output_file={tmp_path / 'out.npy'}"]
    assert main(["albert_tf", "embed", f"--model_dir={tmp_path / 'model'}", *files]) == 2
    assert "1 of 2 vectors are not finite numbers" in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.txt", "model"]


def test_pooler_without_training_is_refused():
    model = checkpoints.new_model(CONFIG, {})
    model.restored = checkpoints.Restored(new=("encoder/pooler/kernel",))
    with pytest.raises(embed.UserError, match="never trained"):
        embed.encoder_function(model, pooling="pooled", layer=-1)
    assert embed.encoder_function(model, pooling="mean", layer=3)
