"""`albert_tf train_vocab` passes its flags on; what training does is tested beside vocabulary.py."""

from albert_tf.__main__ import main
from albert_tf.tokenization import load_tokenizer


def train(*arguments) -> int:
    return main(["albert_tf", "train_vocab", *map(str, arguments)])


def test_flags_reach_the_vocabulary(prose, tmp_path, capsys):
    first, second = sorted(prose.iterdir())[:2]
    flags = (f"--input_file={first},{second}", f"--output_dir={tmp_path / 'v'}", "--vocab_size=150")
    assert train(*flags, "--nodo_lower_case", "--keep_accents") == 0
    tokenizer = load_tokenizer(tmp_path / "v")
    assert (tokenizer.vocab_size, tokenizer.do_lower_case, tokenizer.keep_accents) == (150, False, True)
    assert any(any(letter.isupper() for letter in piece) for piece in tokenizer.pieces()[13:])
    output, errors = capsys.readouterr()
    assert output == f"{tmp_path / 'v/spiece.model'}: 150 pieces, SHA-256 {tokenizer.hash}\n"
    assert "of 2 texts" in errors


def test_wrong_use_is_one_line(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("few words")
    for arguments, message in {
        (f"--output_dir={tmp_path / 'v'}",): "input_file",
        (f"--input_file={tmp_path / '*.md'}", f"--output_dir={tmp_path / 'v'}"): "no input file at",
        (f"--input_file={tmp_path / 'text.txt'}", f"--output_dir={tmp_path / 'v'}", "--vocab_size=0"): "too small",
        (
            f"--input_file={tmp_path / 'text.txt'}",
            f"--output_dir={tmp_path / 'v'}",
            "--vocab_size=3000000000",
        ): "too large",
        (f"--input_file={tmp_path / 'text.txt'}", f"--output_dir={tmp_path / 'v'}"): "it can carry",
    }.items():
        assert train(*arguments) == 2
        output, errors = capsys.readouterr()
        assert output == "" and message in errors.splitlines()[-1]
        assert not (tmp_path / "v").exists()
