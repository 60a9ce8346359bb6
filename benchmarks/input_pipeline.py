"""Sequences a second out of the input pipeline: reading, parsing and masking, without any model.

    python -m benchmarks.input_pipeline --lengths=128,512 --batch_size=256 --seconds=10

Writes random records of full length to a temporary folder, reads them through `pretraining_dataset` as
training does, and prints a table: sequences/s, tokens/s, and processor time per sequence.
"""

import argparse
import os
import pathlib
import platform
import tempfile
import time
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402

from albert_tf.pretraining import records  # noqa: E402
from albert_tf.pretraining.examples import encode_examples  # noqa: E402

VOCAB = 30_000
TOKENIZER = SimpleNamespace(
    pad_id=0,
    unk_id=1,
    cls_id=2,
    sep_id=3,
    mask_id=4,
    vocab_size=VOCAB,
    starts_word=lambda: np.random.default_rng(0).random(VOCAB) < 0.8,  # real text: about 8 pieces in 10 begin a word
    hash="0" * 64,
)


def write_records(folder: pathlib.Path, *, length: int, number: int) -> None:
    """Writes `number` full rows of random pieces in four shards, as create_pretraining_data frames them."""
    rng = np.random.default_rng(length)
    shards = []
    for index in range(4):
        tokens = rng.integers(5, VOCAB, (number // 4, length), dtype=np.uint16)
        tokens[:, 0], tokens[:, [length // 2, -1]] = TOKENIZER.cls_id, TOKENIZER.sep_id
        payloads = encode_examples(
            {
                "tokens": [row.tobytes() for row in tokens],
                "segment_a_length": np.full((len(tokens), 1), length // 2 + 1),
                "sentence_label": rng.integers(2, size=(len(tokens), 1)),
            }
        )
        name = records.shard_name(index, 4)
        data = b"".join(records.frame(payloads))
        (folder / name).write_bytes(data)
        shards.append(records.Shard(name, len(payloads), len(data)))
    records.RecordsInfo(
        masking="dynamic",
        max_seq_length=length,
        max_predictions_per_seq=round(0.15 * length),
        masked_lm_prob=0.15,
        do_whole_word_mask=True,
        ngram=3,
        favor_shorter_ngram=True,
        objective="sop",
        token_dtype="uint16",
        vocab_size=VOCAB,
        vocabulary_hash=TOKENIZER.hash,
        tokenizer_kind="sentencepiece",
        do_lower_case=True,
        keep_accents=False,
        random_seed=0,
        dupe_factor=1,
        short_seq_prob=0.0,
        num_records=sum(shard.num_records for shard in shards),
        shards=tuple(shards),
        counts={},
        code_version="benchmark",
    ).write(folder)


def measure(folder: pathlib.Path, *, batch_size: int, seconds: float) -> tuple[float, float]:
    """Gives (sequences a second, processor seconds a sequence), the first ten batches apart."""
    from albert_tf.pretraining.dataset import Batching, pretraining_dataset
    from albert_tf.pretraining.record_source import open_records

    batching = Batching(tokenizer=TOKENIZER, global_batch_size=batch_size, seed=1)
    dataset = pretraining_dataset(open_records(folder), batching)
    batches = iter(dataset)
    for _ in range(10):
        next(batches)
    count, begin, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += batch_size
    return count / (time.perf_counter() - begin), (time.process_time() - processor) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="128,512", help="tokens a sequence, comma separated")
    parser.add_argument("--batch_size", type=int, default=256, help="sequences a batch")
    parser.add_argument("--records", type=int, default=40_000, help="records to write, and to go round over")
    parser.add_argument("--seconds", type=float, default=10, help="how long to measure each length")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, batch {options.batch_size}")
    print(f"{'length':>7} {'sequences/s':>12} {'tokens/s':>12} {'CPU us/sequence':>16}")
    for length in map(int, options.lengths.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            write_records(pathlib.Path(folder), length=length, number=options.records)
            rate, cost = measure(pathlib.Path(folder), batch_size=options.batch_size, seconds=options.seconds)
        print(f"{length:>7} {rate:>12,.0f} {rate * length:>12,.0f} {cost * 1e6:>16.1f}")


if __name__ == "__main__":
    main()
