"""`albert_tf tokenize`: the pieces, ids and offsets of a text, as every other command sees them."""

import json
import os
from typing import TYPE_CHECKING

from absl import flags

from albert_tf.commands.lines import read_lines
from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.tokenization import Encoding, Tokenizer

_SOURCES = {"spm_model_file": "sentencepiece", "vocab_file": "wordpiece", "model_dir": None}


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command on `flag_values`."""
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model", flag_values=flag_values)
    flags.DEFINE_string("vocab_file", None, "WordPiece vocab.txt", flag_values=flag_values)
    flags.DEFINE_string("model_dir", None, "folder with a vocabulary: of a model, of records", flag_values=flag_values)
    flags.DEFINE_string("text", None, "text to tokenise", flag_values=flag_values)
    flags.DEFINE_string("input_file", None, "UTF-8 text file, tokenised line by line", flag_values=flag_values)
    flags.DEFINE_bool(
        "do_lower_case",
        None,
        "lower-case the text (default: as stored with the vocabulary, else true)",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "keep_accents",
        None,
        "keep accents (default: as stored with the vocabulary, else false)",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "special_tokens", False, "take [CLS], [SEP], [MASK] in the text as special tokens", flag_values=flag_values
    )
    flags.DEFINE_enum(
        "output", "table", ["table", "json"], "a table for each line of text, or a JSON object", flag_values=flag_values
    )


def run(flags: flags.FlagValues) -> None:
    """Prints every line's pieces. Raises UserError for what the user can put right."""
    tokenizer = _tokenizer(flags)
    if (flags.text is None) == (flags.input_file is None):
        raise UserError("give either --text or --input_file, one of the two")
    lines = iter([flags.text]) if flags.text is not None else read_lines(flags.input_file)
    show = _json if flags.output == "json" else _table
    for number, line in enumerate(lines):
        if number and show is _table:
            print()
        print(show(line, tokenizer.encode_with_offsets(line, special_tokens=flags.special_tokens)))


def _tokenizer(flags: flags.FlagValues) -> "Tokenizer":
    from albert_tf.tokenization import load_tokenizer

    given = [name for name in _SOURCES if getattr(flags, name) is not None]
    if len(given) != 1:
        found = " and ".join(f"--{name}" for name in given) or "none"
        raise UserError(f"give one of --spm_model_file, --vocab_file, --model_dir; found {found}")
    path, kind = getattr(flags, given[0]), _SOURCES[given[0]]
    if kind and os.path.isdir(path):
        raise UserError(f"--{given[0]} {path} is a folder; give the file, or the folder as --model_dir")
    tokenizer = load_tokenizer(path, do_lower_case=flags.do_lower_case, keep_accents=flags.keep_accents)
    if kind not in (None, tokenizer.kind):
        raise UserError(f"--{given[0]} {path} is a {tokenizer.kind} vocabulary; expected a {kind} one")
    return tokenizer


def _table(text: str, encoding: "Encoding") -> str:
    rows = [("id", "offsets", "piece", "text")]
    for piece_id, piece, (start, end) in zip(encoding.ids, encoding.pieces, encoding.offsets, strict=True):
        rows.append((str(piece_id), f"{start}-{end}", _printable(piece), _printable(text[start:end])))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip() for row in rows
    )


def _json(text: str, encoding: "Encoding") -> str:
    return json.dumps(
        {"text": text, "ids": encoding.ids, "pieces": encoding.pieces, "offsets": encoding.offsets}, ensure_ascii=False
    )


def _printable(text: str) -> str:
    """The text with control characters escaped, so that one cannot break the table or drive the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
