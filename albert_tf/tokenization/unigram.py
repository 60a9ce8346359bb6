"""SentencePiece unigram models with the release's rules around them (PAPER: vocabulary of the English releases)."""

import functools
import pathlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization.normalization import Aligned, sentencepiece_normalizer
from albert_tf.tokenization.tokenizer import Encoding, Tokenizer, trim_invisible

WORD_MARK = "\u2581"
SPECIAL_PIECES = (("<pad>", "[PAD]"), ("<unk>",), ("[CLS]",), ("[SEP]",), ("[MASK]",))  # spellings, by id

# Signs that the release lets stand inside a word ("mr." in one piece); alone, each begins a word.
_INNER_SIGNS = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~\u00a3\u20ac')
# First words of the Unicode names of letters that are written without spaces between words.
_UNSPACED_SCRIPTS = frozenset(
    "CJK HIRAGANA KATAKANA HALFWIDTH BOPOMOFO THAI LAO KHMER MYANMAR TIBETAN YI TAI JAVANESE BALINESE".split()
)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with pieces 0 to 4 as in the release: padding, unknown, [CLS], [SEP], [MASK]."""

    kind = "sentencepiece"
    file_name = "spiece.model"
    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)

    def __init__(self, data: bytes, path: pathlib.Path, *, do_lower_case: bool = True, keep_accents: bool = False):
        """Reads a model from the bytes of its file; `path` is named in errors.

        Raises UserError where the bytes are not a whole model, or the special pieces are not where they belong.
        """
        normalizer = sentencepiece_normalizer(do_lower_case=do_lower_case, keep_accents=keep_accents)
        super().__init__(data, path, normalizer, (do_lower_case, keep_accents))
        proto = parse_model(data, path)
        _check_special_pieces(proto, path)
        self._processor = _load_processor(data, path)
        self._pieces = [piece.piece for piece in proto.pieces]
        self._splits = self._digit_comma_splits()
        self._split_ids = frozenset(self._splits)

    def pieces(self) -> list[str]:
        return self._pieces

    def piece_to_id(self, piece: str) -> int:
        return self._processor.piece_to_id(piece)

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode([int(piece_id) for piece_id in ids])

    def starts_word(self) -> np.ndarray:
        starts = np.fromiter((_starts_word(piece) for piece in self._pieces), dtype=bool, count=len(self._pieces))
        starts[: len(SPECIAL_PIECES)] = True
        return starts

    def piece_parts(self) -> dict[int, tuple[list[int], list[int]]]:
        """Pieces that are cut once more: the ids of the parts, and how many characters of the piece follow each."""
        result = {}
        for piece_id, parts in self._splits.items():
            lengths = [len(part.replace(WORD_MARK, "")) for part in parts]
            # A word mark of its own stands for nothing: it ends where the piece begins.
            tails = [
                sum(lengths[number + 1 :]) if length else len(self._pieces[piece_id])
                for number, length in enumerate(lengths)
            ]
            result[piece_id] = ([self.piece_to_id(part) for part in parts], tails)
        return result

    def save(self, folder: str | pathlib.Path) -> None:
        super().save(folder)
        files.write_atomically(pathlib.Path(folder) / "spiece.vocab", vocabulary_listing(self._data, self.path))

    def _encode_parts(self, texts: Iterable[str]) -> list[list[int]]:
        rows = self._processor.encode([self._normalize(text) for text in texts], out_type=int, num_threads=1)
        untouched = self._split_ids.isdisjoint
        return [row if untouched(row) else self._split_row(row) for row in rows]

    def _encode_part(self, text: str, follows_special: bool) -> list[int]:
        processor = self._processor_after(text, follows_special)
        row = processor.encode(self._normalize(text), out_type=int)
        return row if self._split_ids.isdisjoint(row) else self._split_row(row)

    def _encode_part_with_offsets(self, text: str, follows_special: bool) -> Encoding:
        aligned = self._normalize.aligned(text)
        processor = self._processor_after(text, follows_special)
        parsed = sentencepiece_pb2.SentencePieceText.FromString(
            processor.encode(aligned.text, out_type="serialized_proto")
        )
        encoding = Encoding([], [], [])
        for piece, (start, end) in zip(parsed.pieces, _normalized_spans(parsed, aligned.text), strict=True):
            parts = [(piece.id, piece.piece, start, end)]
            if piece.id in self._split_ids:
                parts = self._split_piece(piece.id, aligned.text[start:end], start)
            for part_id, part, first, last in parts:
                encoding.ids.append(part_id)
                encoding.pieces.append(part)
                encoding.offsets.append(_original_span(text, aligned, first, last))
        return encoding

    def _processor_after(self, text: str, follows_special: bool) -> sentencepiece.SentencePieceProcessor:
        """Right after "[MASK]" no word begins: "[MASK]." ends in the piece ".", where "." alone has a word mark."""
        return self._continuing_processor if follows_special and not text[:1].isspace() else self._processor

    @functools.cached_property
    def _continuing_processor(self) -> sentencepiece.SentencePieceProcessor:
        proto = parse_model(self._data, self.path)
        proto.normalizer_spec.add_dummy_prefix = False
        return _load_processor(proto.SerializeToString(), self.path)

    def _digit_comma_splits(self) -> dict[int, list[str]]:
        """The release's rule on pieces that end in a digit and a comma ("2012,"): cut again, the comma on its own."""
        splits = {}
        for piece_id, piece in enumerate(self._pieces):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                parts = self._processor.encode(piece[:-1].replace(WORD_MARK, ""), out_type=str)
                if not piece.startswith(WORD_MARK) and parts and parts[0].startswith(WORD_MARK):
                    parts = parts[1:] if parts[0] == WORD_MARK else [parts[0][1:], *parts[1:]]
                splits[piece_id] = [*parts, ","]
        return splits

    def _split_row(self, row: list[int]) -> list[int]:
        ids = []
        for piece_id in row:
            parts = self._splits.get(piece_id)
            ids.extend([piece_id] if parts is None else map(self.piece_to_id, parts))
        return ids

    def _split_piece(self, piece_id: int, surface: str, offset: int) -> list[tuple[int, str, int, int]]:
        """(id, piece, start, end) of what a piece is cut into, given its normalised text and where that begins."""
        result, position = [], 0
        for part in self._splits[piece_id]:
            start = position
            for character in part.replace(WORD_MARK, ""):
                # the model's own normalisation may have removed something in between, or changed the character
                position = surface.find(character, position) + 1 or position
            result.append((self.piece_to_id(part), part, offset + start, offset + position))
        return result


def parse_model(data: bytes, path: pathlib.Path) -> sentencepiece_model_pb2.ModelProto:
    """The parts of a SentencePiece model file. Raises UserError where the bytes are not a whole one."""
    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError; naming it would tie us to the package
        raise UserError(f"{path} is not a whole SentencePiece model: {error}; copy or download it again") from error
    if not proto.pieces or not proto.HasField("trainer_spec"):
        raise UserError(f"{path} is not a whole SentencePiece model: its end is missing; copy or download it again")
    return proto


def vocabulary_listing(data: bytes, path: pathlib.Path) -> str:
    """The text of spiece.vocab: a piece, a tab and its score a line, as SentencePiece's own trainer writes it."""
    return "".join(f"{piece.piece}\t{piece.score:g}\n" for piece in parse_model(data, path).pieces)


def _load_processor(data: bytes, path: pathlib.Path) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"SentencePiece cannot load {path}: {error}; copy or download it again") from error
    return processor


def _check_special_pieces(proto: sentencepiece_model_pb2.ModelProto, path: pathlib.Path) -> None:
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    wanted_types = [kinds.CONTROL, kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, kinds.CONTROL]
    for piece_id, (spellings, wanted) in enumerate(zip(SPECIAL_PIECES, wanted_types, strict=True)):
        piece = proto.pieces[piece_id] if piece_id < len(proto.pieces) else None
        if piece is None or piece.piece not in spellings:
            found = "nothing" if piece is None else repr(piece.piece)
            raise UserError(
                f"{path} has {found} at id {piece_id}, where ALBERT needs {spellings[0]} (ids 0 to 4 are "
                "<pad>, <unk>, [CLS], [SEP], [MASK]); train a vocabulary with albert_tf train_vocab"
            )
        if piece.type != wanted:
            raise UserError(
                f"{path} holds {piece.piece} as a {kinds.Type.Name(piece.type)} piece, expected "
                f"{kinds.Type.Name(wanted)} so that ordinary text cannot produce it; "
                "train a vocabulary with albert_tf train_vocab"
            )


def _starts_word(piece: str) -> bool:
    """The release's whole-word rule, widened to other languages.

    As in the release, a piece goes on with a word if it has no word mark and consists of letters and listed signs. The
    release knows only the letters a to z and makes every other piece a word; here letters and marks of any script that
    puts spaces between words count, so that accented, Greek or Cyrillic words are masked whole too. Digits, and letters
    of unspaced scripts (Chinese, Japanese, Thai and others), still begin a word each.
    """
    if piece.startswith((WORD_MARK, "<")) or piece in _INNER_SIGNS:
        return True
    return not all(character in _INNER_SIGNS or _is_spaced_letter(character) for character in piece)


@functools.cache
def _is_spaced_letter(character: str) -> bool:
    if unicodedata.category(character)[0] not in "LM":
        return False
    return unicodedata.name(character, "CJK").split()[0] not in _UNSPACED_SCRIPTS


def _character_positions(text: str) -> Sequence[int]:
    """Byte position in UTF-8 -> character position, for the bytes that begin a character and for the end."""
    if text.isascii():
        return range(len(text) + 1)
    positions = []
    for index, character in enumerate(text):
        positions.extend([index] * len(character.encode()))
    return [*positions, len(text)]


def _normalized_spans(parsed: sentencepiece_pb2.SentencePieceText, text: str) -> list[tuple[int, int]]:
    """Character ranges of the pieces in `text`.

    Where the model's own normalisation makes several pieces of one character (a ligature, with accents kept),
    SentencePiece gives the character to the last piece alone; here a piece left without any has that character too.
    """
    characters = _character_positions(text)
    spans = []
    for piece in parsed.pieces:
        start, end = characters[piece.begin], characters[piece.end]
        if (start == end and spans) or (piece.piece != WORD_MARK and not piece.surface.strip()):
            end = min(end + 1, len(text))  # the word mark before the whole text stays empty
        spans.append((start, end))
    return spans


def _original_span(text: str, aligned: Aligned, start: int, end: int) -> tuple[int, int]:
    """Range of the original for a range of the normalised text; an empty one stays empty, where it stands."""
    if start < end:
        return trim_invisible(text, aligned.starts[start], aligned.ends[end - 1])
    place = aligned.starts[start] if start < len(aligned.starts) else len(text)
    return place, place
