"""What `albert_tf tokenize` prints, and what it says to wrong use."""

import json

import pytest

from albert_tf.__main__ import main
from albert_tf.tokenization import load_tokenizer


@pytest.fixture
def run(capsys):
    """Runs the command; returns exit code, standard output and standard error."""

    def call(*arguments):
        code = main(["albert_tf", "tokenize", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def test_table(run, tiny_spm):
    code, output, _ = run(f"--spm_model_file={tiny_spm}", "--text=The  (class)\x1b")
    tokenizer = load_tokenizer(tiny_spm)
    header, *rows = [line.split() for line in output.splitlines()]
    assert code == 0 and header == ["id", "offsets", "piece", "text"]
    assert rows[0] == [str(tokenizer.piece_to_id("▁the")), "0-3", "▁the", "The"]
    assert [row[0] for row in rows] == [str(i) for i in tokenizer.encode("The  (class)\x1b")]
    assert ["5", "5-6", "(", "("] in rows and "\x1b" not in output


def test_json_of_a_file(run, tiny_spm, tmp_path):
    (tmp_path / "text.txt").write_bytes("\ufeffThe [MASK].\r\n\nclass".encode())
    flags = (f"--model_dir={tiny_spm.parent}", f"--input_file={tmp_path / 'text.txt'}", "--output=json")
    code, output, _ = run(*flags, "--special_tokens")
    rows = [json.loads(line) for line in output.splitlines()]
    assert code == 0 and [row["text"] for row in rows] == ["The [MASK].", "", "class"]
    assert rows[0]["pieces"] == ["▁the", "[MASK]", "."] and rows[0]["offsets"] == [[0, 3], [4, 10], [10, 11]]
    assert rows[1]["ids"] == []
    assert 4 not in json.loads(run(*flags)[1].splitlines()[0])["ids"]


def test_case_is_kept_where_asked(run, tiny_spm):
    flags = (f"--spm_model_file={tiny_spm}", "--text=The", "--output=json")
    assert json.loads(run(*flags)[1])["pieces"] == ["▁the"]
    assert json.loads(run(*flags, "--nodo_lower_case")[1])["pieces"] == ["▁", "T", "he"]


def test_wrong_use_is_one_line(run, tiny_spm, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    spm = f"--spm_model_file={tiny_spm}"
    cases = {
        ("--text=a",): "give one of --spm_model_file, --vocab_file, --model_dir; found none",
        (spm, f"--vocab_file={vocab}", "--text=a"): "found --spm_model_file and --vocab_file",
        (spm,): "give either --text or --input_file",
        (spm, "--text=a", f"--input_file={vocab}"): "give either --text or --input_file",
        (spm, f"--input_file={tmp_path / 'absent'}"): "cannot read",
        (spm, f"--input_file={tmp_path}"): "cannot read",
        (spm, f"--input_file={tmp_path / 'latin1.txt'}"): "is not UTF-8 text",
        (f"--spm_model_file={vocab}", "--text=a"): "is a wordpiece vocabulary; expected a sentencepiece one",
        (f"--vocab_file={tiny_spm}", "--text=a"): "is a sentencepiece vocabulary; expected a wordpiece one",
        (f"--spm_model_file={tmp_path}", "--text=a"): "is a folder",
        (f"--model_dir={tmp_path / 'absent'}", "--text=a"): "does not exist",
    }
    for arguments, message in cases.items():
        code, output, errors = run(*arguments)
        assert (code, output, errors.count("\n")) == (2, "", 1), arguments
        assert message in errors
