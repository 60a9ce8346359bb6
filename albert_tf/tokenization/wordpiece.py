"""WordPiece for `vocab.txt` models, with the rules of BERT that the Chinese releases use."""

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from albert_tf.errors import UserError
from albert_tf.tokenization.normalization import wordpiece_normalizer
from albert_tf.tokenization.tokenizer import Encoding, Tokenizer, trim_invisible

CONTINUES = "##"
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_WORD_LENGTH = 200  # longer words are unknown, as in BERT
_CACHED_WORDS = 1 << 17


class WordPieceTokenizer(Tokenizer):
    """One piece a line; words are cut greedily, the longest known beginning first."""

    kind = "wordpiece"
    file_name = "vocab.txt"

    def __init__(self, data: bytes, path: pathlib.Path, *, do_lower_case: bool = True, keep_accents: bool = False):
        """Reads a vocabulary from the bytes of its file; `path` is named in errors.

        Raises UserError where it is not UTF-8 text or lacks a special piece.
        """
        normalizer = wordpiece_normalizer(do_lower_case=do_lower_case, keep_accents=keep_accents)
        super().__init__(data, path, normalizer, (do_lower_case, keep_accents))
        self._pieces = read_pieces(data, path)
        self._ids = {piece: piece_id for piece_id, piece in enumerate(self._pieces)}
        missing = [piece for piece in SPECIAL_PIECES if piece not in self._ids]
        if missing:
            raise UserError(
                f"{path} lacks {', '.join(missing)}: a WordPiece vocabulary has one piece a line, these too; take the "
                "whole vocab.txt of the model"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[x] for x in SPECIAL_PIECES)
        self._longest = max(map(len, self._pieces))
        self._words: dict[str, list[tuple[int, int]]] = {}

    def pieces(self) -> list[str]:
        return self._pieces

    def piece_to_id(self, piece: str) -> int:
        return self._ids.get(piece, self.unk_id)

    def decode(self, ids: Sequence[int]) -> str:
        silent = {self.pad_id, self.cls_id, self.sep_id, self.mask_id}
        text = " ".join(self.id_to_piece(int(piece_id)) for piece_id in ids if int(piece_id) not in silent)
        return text.replace(f" {CONTINUES}", "")

    def starts_word(self) -> np.ndarray:
        return np.array([not piece.startswith(CONTINUES) for piece in self._pieces], dtype=bool)

    def _encode_parts(self, texts: Iterable[str]) -> list[list[int]]:
        return [self._encode_part(text, False) for text in texts]

    def _encode_part(self, text: str, follows_special: bool) -> list[int]:
        return [piece_id for word in self._normalize(text).split() for piece_id, _ in self._cut(word)]

    def _encode_part_with_offsets(self, text: str, follows_special: bool) -> Encoding:
        aligned = self._normalize.aligned(text)
        encoding = Encoding([], [], [])
        position = 0
        for word in aligned.text.split():
            start = position = aligned.text.index(word, position)
            for piece_id, length in self._cut(word):
                end = start + length
                encoding.ids.append(piece_id)
                encoding.pieces.append(self._pieces[piece_id])
                encoding.offsets.append(trim_invisible(text, aligned.starts[start], aligned.ends[end - 1]))
                start = end
            position += len(word)
        return encoding

    def _cut(self, word: str) -> list[tuple[int, int]]:
        """(id, length in characters) of the pieces of a word; one unknown piece where some part of it is unknown."""
        pieces = self._words.get(word)
        if pieces is None:
            pieces = self._longest_matches(word)
            if len(self._words) < _CACHED_WORDS:
                self._words[word] = pieces
        return pieces

    def _longest_matches(self, word: str) -> list[tuple[int, int]]:
        unknown = [(self.unk_id, len(word))]
        if len(word) > _MAX_WORD_LENGTH:
            return unknown
        pieces, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                piece_id = self._ids.get((CONTINUES if start else "") + word[start:end])
                if piece_id is not None:
                    break
            else:
                return unknown
            pieces.append((piece_id, end - start))
            start = end
        return pieces


def read_pieces(data: bytes, path: pathlib.Path) -> list[str]:
    """Lines of a vocab.txt. Raises UserError where it is not UTF-8."""
    try:
        lines = data.decode("utf-8-sig").split("\n")  # not splitlines: a vocabulary may list U+2028 or U+0085
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a WordPiece vocabulary: byte {error.start} is not UTF-8; copy the file again"
        ) from error
    if lines[-1] == "":
        lines.pop()
    return [line.strip() for line in lines]
