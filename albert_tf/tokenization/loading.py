"""From a file or folder to the right tokeniser, told apart by content."""

import os
import pathlib
import re

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization.tokenizer import SETTINGS_FILE, Tokenizer
from albert_tf.tokenization.unigram import SentencePieceTokenizer
from albert_tf.tokenization.wordpiece import WordPieceTokenizer

_LARGEST_FILE = 1 << 28  # bytes; vocabularies have a few million, so more is a corpus given by mistake
_LISTING_LINE = re.compile(rb"[^\n]*\t-?[0-9.e+-]+\r?\n")


def load_tokenizer(
    folder_or_file: str | os.PathLike, *, do_lower_case: bool | None = None, keep_accents: bool | None = None
) -> Tokenizer:
    """Reads a SentencePiece model or a WordPiece vocabulary, given as a file or as the folder that holds it.

    Casing and accents not given come from the `tokenizer_config.json` beside the file, else text is lower-cased and
    accents are dropped, as in the release.

    Raises UserError where nothing is found, more than one is found, or the file is not a whole, usable vocabulary.
    """
    path = _find_file(pathlib.Path(folder_or_file))
    data = _read(path)
    stored = _stored_settings(path)
    lower = stored.get("do_lower_case", True) if do_lower_case is None else do_lower_case
    kept = stored.get("keep_accents", stored.get("strip_accents") is False)
    accents = kept if keep_accents is None else keep_accents
    tokenizer = _class_for(data, path)(data, path, do_lower_case=lower, keep_accents=accents)
    if stored.get("vocabulary_hash", tokenizer.hash) != tokenizer.hash:
        raise UserError(
            f"{path} is not the vocabulary that {path.with_name(SETTINGS_FILE)} was written for (SHA-256 "
            f"{tokenizer.hash[:12]}..., expected {stored['vocabulary_hash'][:12]}...); put the two that belong together"
        )
    return tokenizer


def find_vocabulary(folder: pathlib.Path, *, vocabulary_hash: str | None = None) -> pathlib.Path | None:
    """The vocabulary file in a folder, or in its assets as TF-Hub has them; None where there is none.

    Of several it is the one with `vocabulary_hash`, else the one that tokenizer_config.json names by hash or class.

    Raises UserError where several are there and nothing says which is meant.
    """
    for place in (folder, folder / "assets"):
        found = sorted({*place.glob("*.model"), *place.glob("vocab*.txt")})  # Chinese releases have vocab_chinese.txt
        meant = found if len(found) < 2 else _meant(found, vocabulary_hash)
        if len(meant) != min(len(found), 1):
            names = ", ".join(file.name for file in found)
            raise UserError(
                f"{place} holds several vocabularies ({names}): cannot tell which is meant; name the file, or keep one"
            )
        if meant:
            return meant[0]
    return None


def _meant(found: list[pathlib.Path], vocabulary_hash: str | None) -> list[pathlib.Path]:
    """Those of several vocabulary files that were asked for or that the settings beside them name, copies left out."""
    settings = _stored_settings(found[0])
    wanted = vocabulary_hash or settings.get("vocabulary_hash")
    suffixes = {"AlbertTokenizer": ".model", "BertTokenizer": ".txt"}
    suffix = suffixes.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))
    by_hash = {files.sha256(file): file for file in reversed(found)}
    if wanted is not None:
        return [by_hash[wanted]] if wanted in by_hash else []
    return [file for file in by_hash.values() if suffix in (None, file.suffix)]


def _find_file(path: pathlib.Path) -> pathlib.Path:
    if not path.exists():
        raise UserError(f"no vocabulary at {path}: it does not exist; check the path")
    found = find_vocabulary(path) if path.is_dir() else path
    if found is None:
        hint = "; its tokenizer.json alone is not enough" if (path / "tokenizer.json").exists() else ""
        raise UserError(f"no vocabulary in {path}: expected spiece.model, another *.model or vocab.txt{hint}")
    return found


def _read(path: pathlib.Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise UserError(f"{path} has {size:,} bytes, too many for a vocabulary; give a .model file or a vocab.txt")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the vocabulary {path}: {error.strerror}; check the path and its rights"
        ) from error
    if not data.strip():
        raise UserError(f"the vocabulary {path} is empty; copy or download it again")
    return data


def _stored_settings(path: pathlib.Path) -> dict:
    """Settings beside the vocabulary; Hugging Face uses the same file name and keys, but for BERT's strip_accents."""
    settings_path = path.with_name(SETTINGS_FILE)
    if not settings_path.exists():
        return {}
    settings = files.read_json(settings_path, "tokeniser settings")
    for key in ("do_lower_case", "keep_accents"):
        if not isinstance(settings.get(key, False), bool):
            raise UserError(f"{settings_path} has {key}={settings[key]!r}; expected true or false")
    if not isinstance(settings.get("vocabulary_hash", ""), str):
        raise UserError(f"{settings_path} has a vocabulary_hash that is not text; remove the key or restore the file")
    return settings


def _class_for(data: bytes, path: pathlib.Path) -> type[Tokenizer]:
    """The kind of a vocabulary file, by its content. Raises UserError for anything else."""
    if data.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, not the vocabulary; run git lfs pull")
    if _LISTING_LINE.match(data):
        raise UserError(f"{path} is SentencePiece's listing of pieces and scores; give the .model file beside it")
    lines = {line.strip() for line in data.split(b"\n")}
    if {b"[UNK]", b"[CLS]"} & lines:
        return WordPieceTokenizer
    if data[:1] == b"\n":  # field 1, the first piece: how every SentencePiece model begins
        return SentencePieceTokenizer
    raise UserError(
        f"{path} is neither a SentencePiece model nor a WordPiece vocab.txt with [UNK] and [CLS] in it; check the "
        "path, or copy the file again"
    )
