"""Shuffled shards from a stream of framed records, in bounded memory.

Each record goes to a pseudo-random bucket, a temporary file small enough to be shuffled in memory; a shard is made of
one bucket or more, each shuffled. So a shard is a random sample of the corpus in random order.
"""

import os
import pathlib
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from albert_tf.pretraining.records import Shard, shard_name

BUCKET_BYTES = 16 << 20  # aimed at; a bucket of more than twice that is shuffled in blocks
_BUFFER_BYTES = 8 << 20  # held before all buckets are appended to


class ShardWriter:
    """Takes framed records by bucket and ends as shards with their final names in `folder`."""

    def __init__(self, folder: pathlib.Path, *, num_shards: int, num_buckets: int):
        """num_buckets: a multiple of num_shards; bucket b belongs to shard b % num_shards."""
        self._folder, self._num_shards, self._num_buckets = folder, num_shards, num_buckets
        self._waiting: dict[int, list[bytes]] = {}
        self._held = 0
        self._num_records = [0] * num_shards
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, buckets: dict[int, tuple[bytes, int]]) -> None:
        """Takes (framed records, their number) for each bucket that has any."""
        for bucket, (data, number) in buckets.items():
            self._waiting.setdefault(bucket, []).append(data)
            self._held += len(data)
            self._num_records[bucket % self._num_shards] += number
        if self._held > _BUFFER_BYTES:
            self._flush()

    def finish(self, seed: int) -> tuple[Shard, ...]:
        """Shuffles and writes the shards; the buckets vanish."""
        self._flush()
        return tuple(self._write_shard(shard, seed) for shard in range(self._num_shards))

    def _flush(self) -> None:
        for bucket, parts in self._waiting.items():
            with open(self._bucket(bucket), "ab") as file:
                file.writelines(parts)
        self._waiting, self._held = {}, 0

    def _write_shard(self, shard: int, seed: int) -> Shard:
        name = shard_name(shard, self._num_shards)
        with open(self._folder / name, "wb") as file:
            for bucket in range(shard, self._num_buckets, self._num_shards):
                path = self._bucket(bucket)
                if path.exists():
                    with open(path, "rb") as unsorted:
                        file.writelines(shuffled(unsorted, seed, bucket))
                    path.unlink()
            file.flush()
            os.fsync(file.fileno())
            return Shard(name, self._num_records[shard], file.tell())

    def _bucket(self, bucket: int) -> pathlib.Path:
        return self._folder / f"bucket-{bucket:05d}"


def num_buckets(num_shards: int, expected_bytes: int) -> int:
    """Buckets for the bytes expected: a multiple of num_shards."""
    return num_shards * max(1, -(-expected_bytes // (num_shards * BUCKET_BYTES)))


def shuffled(file: BinaryIO, seed: int, bucket: int) -> Iterator[bytes]:
    """Framed records of a bucket in random order (blocks of a large one after each other)."""
    rng = np.random.default_rng([seed, bucket, 2])  # 2: apart from the generators of chunks
    for records in _blocks(file):
        yield from (records[i] for i in rng.permutation(len(records)))


def _blocks(file: BinaryIO) -> Iterator[list[bytes]]:
    """Framed records, as many at a time as may be held."""
    records, held = [], 0
    while header := file.read(12):
        record = header + file.read(struct.unpack_from("<Q", header)[0] + 4)
        records.append(record)
        held += len(record)
        if held > 2 * BUCKET_BYTES:
            yield records
            records, held = [], 0
    yield records
