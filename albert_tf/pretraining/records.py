"""Folders of records: the description records.json, and TFRecord framing without TensorFlow.

A TFRecord file is a row of: length uint64, masked CRC-32C of the length, payload, masked CRC-32C of the payload. The
checksums are computed for many records at once in NumPy, so that workers need no TensorFlow.
"""

import dataclasses
import os
import pathlib
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError

DESCRIPTION = "records.json"
FORMAT_VERSION = 1
OBJECTIVES = ("sop", "nsp", "none")
MASKINGS = ("dynamic", "static")
_LONGEST_ROW = 65_536  # tokens; more is damage
_HEADER, _FOOTER = 12, 4  # bytes before and after a payload


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of a records folder."""

    name: str
    num_records: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class RecordsInfo:
    """What records.json says about the records beside it."""

    masking: str
    max_seq_length: int  # tokens
    max_predictions_per_seq: int  # tokens
    masked_lm_prob: float
    do_whole_word_mask: bool
    ngram: int  # words
    favor_shorter_ngram: bool
    objective: str
    token_dtype: str  # of the bytes in `tokens`: "uint16" or "uint32"
    vocab_size: int
    vocabulary_hash: str  # Tokenizer.hash
    tokenizer_kind: str
    do_lower_case: bool
    keep_accents: bool
    random_seed: int
    dupe_factor: int
    short_seq_prob: float
    num_records: int
    shards: tuple[Shard, ...]
    counts: dict[str, float]  # documents, sentences, tokens, what was skipped
    code_version: str
    format_version: int = FORMAT_VERSION

    def write(self, folder: str | os.PathLike) -> None:
        """Writes records.json. Raises UserError where the folder cannot be written to."""
        files.write_json(pathlib.Path(folder) / DESCRIPTION, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: str | os.PathLike, size_of: Callable[[str], int | None] | None = None) -> "RecordsInfo":
        """Reads the description of a records folder. size_of: see `validate`.

        Raises UserError where it is missing, damaged, of another format, or does not fit the shards beside it.
        """
        path = pathlib.Path(folder) / DESCRIPTION
        value = files.read_json(path, "records description")
        version = value.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(f"{path} has format version {version!r}; expected {FORMAT_VERSION}; make the records again")
        names = {field.name for field in dataclasses.fields(cls)}
        if wrong := sorted(names ^ set(value)):
            raise UserError(f"{path} is damaged: missing or unknown {', '.join(wrong)}; make the records again")
        keys = {field.name for field in dataclasses.fields(Shard)}
        shards = value["shards"]
        if not isinstance(shards, list) or not all(isinstance(one, dict) and set(one) == keys for one in shards):
            raise UserError(
                f"{path} is damaged: its list of shards is not one of {sorted(keys)}; make the records again"
            )
        info = cls(**{**value, "shards": tuple(Shard(**shard) for shard in shards)})
        wrong = [field for part in (info, *info.shards) for field in _misfits(part)]
        if wrong or not isinstance(info.counts, dict):
            found = wrong[0] if wrong else f"counts {info.counts!r}"
            raise UserError(f"{path} is damaged: found {found}; make the records again")
        for shard in info.shards:  # elsewhere is none of our business
            if shard.name in ("", ".", "..") or "/" in shard.name or "\0" in shard.name:
                raise UserError(f"{path} is damaged: {shard.name!r} is no name of a file beside it; make it again")
        info.validate(folder, size_of)
        return info

    def validate(self, folder: str | os.PathLike, size_of: Callable[[str], int | None] | None = None) -> None:
        """Checks values and the sizes of the shards. Raises UserError naming what differs.

        size_of: (name) -> bytes of a shard that is not in `folder`, None where it is nowhere.
        """
        path = pathlib.Path(folder) / DESCRIPTION
        for name, allowed in (
            ("masking", MASKINGS),
            ("objective", OBJECTIVES),
            ("token_dtype", ("uint16", "uint32")),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"{path}: {name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}; make the "
                    "records again"
                )
        for name, least, most in (
            ("max_seq_length", 1, _LONGEST_ROW),
            ("max_predictions_per_seq", 1, self.max_seq_length),
            ("vocab_size", 1, 2**31 - 1),
            ("random_seed", 0, 2**63 - 1),
        ):
            if not least <= getattr(self, name) <= most:
                raise UserError(
                    f"{path}: {name} is {getattr(self, name)}; expected {least} to {most}; make the records again"
                )
        if any(shard.num_records < 0 for shard in self.shards):
            raise UserError(f"{path} is damaged: a shard has fewer than no records; make the records again")
        for shard in self.shards:
            file = pathlib.Path(folder) / shard.name
            if (size := size_of(shard.name) if size_of else file.stat().st_size if file.is_file() else None) is None:
                raise UserError(f"no records file {file}: {DESCRIPTION} lists it; copy it or make the records again")
            if size != shard.num_bytes:
                raise UserError(
                    f"{file} is truncated or replaced: {size} bytes, expected {shard.num_bytes}; copy it again"
                )
        if (total := sum(shard.num_records for shard in self.shards)) != self.num_records:
            raise UserError(
                f"{path} is damaged: its shards have {total} records together, it says {self.num_records}; make the "
                "records again"
            )

    def paths(self, folder: str | os.PathLike) -> list[str]:
        """The paths of the shards in their folder."""
        return [os.path.join(folder, shard.name) for shard in self.shards]


def _misfits(part: RecordsInfo | Shard) -> list[str]:
    """Plain fields that JSON gave a value of another kind."""
    kinds = {int: int, float: (int, float), bool: bool, str: str}
    values = [(field, getattr(part, field.name)) for field in dataclasses.fields(part) if field.type in kinds]
    return [
        f"{field.name} {value!r}"
        for field, value in values
        if not isinstance(value, kinds[field.type]) or isinstance(value, bool) != (field.type is bool)
    ]


def shard_name(number: int, total: int) -> str:
    """File name of shard `number` (from 0) of `total`."""
    return f"records-{number:05d}-of-{total:05d}.tfrecord"


# Framing


def frame(payloads: Sequence[bytes]) -> list[bytes]:
    """Payloads with TFRecord header and footer around each."""
    lengths = [struct.pack("<Q", len(payload)) for payload in payloads]
    length_crcs, payload_crcs = _masked_crcs(lengths), _masked_crcs(payloads)
    return [
        b"".join((length, struct.pack("<I", length_crc), payload, struct.pack("<I", payload_crc)))
        for length, length_crc, payload, payload_crc in zip(lengths, length_crcs, payloads, payload_crcs, strict=True)
    ]


def read_payloads(path: str | os.PathLike, *, check: bool = True) -> Iterator[bytes]:
    """Payloads of one TFRecord file in order, without TensorFlow; check=False skips the payloads' checksums (faster).

    Raises UserError that names file and byte offset of the first damaged or truncated record; a broken frame only
    after all payloads before it.
    """
    try:
        with open(path, "rb") as file:
            for batch, offsets in _framed(file, path):
                payloads = [payload for payload, _ in batch]
                if check:
                    stored = np.array([crc for _, crc in batch], np.uint32)
                    wrong = np.flatnonzero(_masked_crcs(payloads) != stored)
                    if wrong.size:
                        raise _damaged(path, offsets[wrong[0]], "its checksum does not match its content")
                yield from payloads
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the file and its rights") from error


def check_file(path: str | os.PathLike) -> int:
    """Number of records of a TFRecord file whose framing and checksums are all right; raises as read_payloads does."""
    return sum(1 for _ in read_payloads(path))


def _framed(file, path, batch_bytes: int = 1 << 22) -> Iterator[tuple[list[tuple[bytes, int]], list[int]]]:
    """Lists of (payload, stored checksum) and of their byte offsets, about batch_bytes at a time, damage last."""
    size = os.fstat(file.fileno()).st_size
    offset, batch, offsets, held, damage = 0, [], [], 0, None
    while header := file.read(_HEADER):
        if len(header) < _HEADER:
            damage = f"the file ends inside it, at byte {size}"
            break
        length, length_crc = struct.unpack("<QI", header)
        if _masked_crc(header[:8]) != length_crc:
            damage = "its length does not match the checksum"
            break
        if offset + _HEADER + length + _FOOTER > size:
            damage = f"the file ends inside it, at byte {size}"
            break
        body = file.read(length + _FOOTER)
        batch.append((body[:-_FOOTER], struct.unpack("<I", body[-_FOOTER:])[0]))
        offsets.append(offset)
        offset, held = offset + _HEADER + length + _FOOTER, held + length
        if held > batch_bytes:
            yield batch, offsets
            batch, offsets, held = [], [], 0
    if batch:
        yield batch, offsets
    if damage:
        raise _damaged(path, offset, damage)


def _damaged(path, offset: int, why: str) -> UserError:
    return UserError(f"{path} is damaged: the record at byte offset {offset} is wrong ({why}); copy or make it again")


# CRC-32C


def _crc_table() -> np.ndarray:
    """[65536] uint32: the checksum's state after two bytes, from the low half of the state XOR the bytes."""
    table = np.arange(65536, dtype=np.uint32)
    for _ in range(16):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


_TABLE = _crc_table()


def _masked_crc(payload: bytes) -> int:
    """TFRecord's rotated CRC-32C of one short payload."""
    state = 0xFFFFFFFF
    for byte in payload:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    crc = state ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _masked_crcs(payloads: Sequence[bytes]) -> np.ndarray:
    """TFRecord's rotated CRC-32C of each payload, uint32 [number]; groups of like length advance together."""
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    crcs = np.empty(len(payloads), np.uint32)
    order = np.argsort(lengths, kind="stable")
    short = np.searchsorted(lengths[order], 4)
    for i in order[:short]:
        crcs[i] = _masked_crc(payloads[i])
    for group in np.array_split(order[short:], -(-(len(order) - short) // 512) or 1):
        if group.size:
            crcs[group] = _group_crcs([payloads[i] for i in group], lengths[group])
    return crcs


def _group_crcs(payloads: list[bytes], lengths: np.ndarray) -> np.ndarray:
    """The same for payloads of at least 4 bytes, two bytes of all of them a step.

    The rows end together: a state of zero does not see leading zero bytes, so it starts at zero and the usual start
    value is laid over each payload's first four bytes instead.
    """
    width = int(lengths.max() + 1) // 2 * 2
    rows = np.frombuffer(b"".join(payload.rjust(width, b"\0") for payload in payloads), np.uint8)
    rows = rows.reshape(len(payloads), width).copy()
    rows[np.arange(len(rows))[:, None], width - lengths[:, None] + np.arange(4)] ^= 0xFF
    state = np.zeros(len(rows), np.uint32)
    for pair in np.ascontiguousarray(rows.view("<u2").T):  # [number] uint16
        state = _TABLE[(state ^ pair) & 0xFFFF] ^ (state >> 16)
    crcs = ~state
    return ((crcs >> 15) | (crcs << 17)) + np.uint32(0xA282EAD8)
