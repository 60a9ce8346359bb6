"""How much of the sentence order do single words tell? `python -m benchmarks.sentence_order_cues --data_dir=DIR`

A linear classifier over word counts (A minus B) and the three words at either end of A and B, trained on the records
of DIR and scored on DIR/heldout. It cannot follow a thought from A to B, so whatever it reaches above 0.5 is a trace of
how the text was cut (lines as sentences, paragraphs as documents), which a model would learn in place of coherence.
"""

import argparse
import itertools
import pathlib

import numpy as np
import scipy.sparse
import tensorflow as tf
from sklearn.linear_model import LogisticRegression

from albert_tf.pretraining.records import RecordsInfo, read_payloads

_ENDS = 3  # tokens at each end of a segment


def read_pairs(folder: pathlib.Path, limit: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Segments A, segments B (token ids without [CLS] and [SEP]) and labels (1: swapped) of dynamic records."""
    info = RecordsInfo.read(folder)
    payloads = itertools.chain.from_iterable(read_payloads(folder / shard.name) for shard in info.shards)
    first, second, labels = [], [], []
    for payload in itertools.islice(payloads, limit):
        feature = tf.train.Example.FromString(payload).features.feature
        tokens = np.frombuffer(feature["tokens"].bytes_list.value[0], np.dtype(info.token_dtype).newbyteorder("<"))
        cut = feature["segment_a_length"].int64_list.value[0]
        first.append(tokens[1 : cut - 1])
        second.append(tokens[cut:-1])
        labels.append(feature["sentence_label"].int64_list.value[0])
    return first, second, np.array(labels)


def features(first: list[np.ndarray], second: list[np.ndarray], vocab_size: int) -> scipy.sparse.csr_matrix:
    """float32 [rows, 3 V]: counts over the segments, over their first and over their last tokens, each A minus B."""

    def counts(segments: list[np.ndarray]) -> scipy.sparse.csr_matrix:
        rows = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])
        columns = np.concatenate(segments)
        return scipy.sparse.csr_matrix(
            (np.ones(len(rows), np.float32), (rows, columns)), shape=(len(segments), vocab_size)
        )

    parts = (lambda x: x, lambda x: x[:_ENDS], lambda x: x[-_ENDS:])
    return scipy.sparse.hstack(
        [counts([part(x) for x in first]) - counts([part(x) for x in second]) for part in parts]
    ).tocsr()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=40_000, help="records to train and to score on, at most")
    options = parser.parse_args()
    vocab_size = RecordsInfo.read(options.data_dir).vocab_size
    *pairs, labels = read_pairs(options.data_dir, options.rows)
    classifier = LogisticRegression(C=0.01, max_iter=200).fit(features(*pairs, vocab_size), labels)
    *pairs, labels = read_pairs(options.data_dir / "heldout", options.rows)
    score = classifier.score(features(*pairs, vocab_size), labels)
    print(
        f"{options.data_dir}: single words tell the order of {score:.3f} of {len(labels)} held-out rows "
        f"(± {0.5 / len(labels) ** 0.5:.3f}; 0.5 by chance)"
    )


if __name__ == "__main__":
    main()
