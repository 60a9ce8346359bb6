"""One chunk of documents -> serialized, framed records: the work of one process, a function of seed and chunk alone."""

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable

import numpy as np

from albert_tf.pretraining.examples import encode_examples
from albert_tf.pretraining.masking import MaskingRule, MaskingVocabulary, mask_rows
from albert_tf.pretraining.records import frame
from albert_tf.pretraining.sentences import split_text
from albert_tf.pretraining.sequences import Sequence, SequenceRule, TokenDocument, make_sequences
from albert_tf.tokenization import Tokenizer

# Masked at once, padding included: a whole chunk, unless its documents are so short that rows are mostly padding.
_STATIC_POSITIONS = 1 << 21


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Whole documents (or parts of very long ones) that one process turns into records."""

    number: int
    heldout: bool
    input_format: str
    texts: list[tuple[int, str]]  # document's number in the corpus, text
    partners: list[tuple[int, str]]  # other documents, for NSP's random text only


@dataclasses.dataclass(frozen=True)
class ChunkRecords:
    """Records of a chunk: by bucket, their framed bytes and their number; and what was counted."""

    number: int
    heldout: bool
    buckets: dict[int, tuple[bytes, int]]
    counts: Counter


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordRule:
    """All that decides the records of a chunk, beside its text and the tokeniser."""

    sequences: SequenceRule
    masking: MaskingRule
    static: bool
    token_dtype: str
    dupe_factor: int
    seed: int
    num_buckets: tuple[int, int]  # for training and for held-out records


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """The T tokens of a chunk laid end to end."""

    ids: np.ndarray  # int32 [T]
    starts_word: np.ndarray  # bool [T]
    documents: list[TokenDocument]
    partners: list[TokenDocument]


def chunk_worker(tokenizer: Tokenizer, rule: RecordRule) -> Callable[[Chunk], ChunkRecords]:
    """Gives the function that turns chunks into records."""
    starts_word = tokenizer.starts_word()
    vocabulary = MaskingVocabulary.of(tokenizer)

    def work(chunk: Chunk) -> ChunkRecords:
        counts: Counter = Counter()
        tokens = _tokenize(chunk, tokenizer, starts_word, counts)
        least = 1 if rule.sequences.objective == "none" else 2
        counts["skipped_documents"] += sum(d.bounds[-1] - d.bounds[0] < least for d in tokens.documents)
        rng = random.Random(f"{rule.seed}:{chunk.number}")
        arrays_rng = np.random.default_rng([rule.seed, chunk.number, 1])
        payloads: list[bytes] = []
        for _ in range(rule.dupe_factor):
            sequences = list(
                make_sequences(
                    tokens.documents,
                    tokens.starts_word,
                    rule.sequences,
                    rng=rng,
                    counts=counts,
                    partners=tokens.partners,
                )
            )
            _count_rows(sequences, counts)
            if rule.static:
                step = max(1, _STATIC_POSITIONS // rule.sequences.max_seq_length)
                for begin in range(0, len(sequences), step):
                    rows = sequences[begin : begin + step]
                    payloads += _static_payloads(rows, tokens, tokenizer, rule, vocabulary=vocabulary, rng=arrays_rng)
            else:
                payloads += _dynamic_payloads(sequences, tokens.ids, tokenizer, rule.token_dtype)
        buckets = _deal(frame(payloads), rule.num_buckets[chunk.heldout], arrays_rng)
        return ChunkRecords(chunk.number, chunk.heldout, buckets, counts)

    return work


def _tokenize(chunk: Chunk, tokenizer: Tokenizer, starts_word: np.ndarray, counts: Counter) -> _Tokens:
    texts = [*chunk.texts, *chunk.partners]
    split = [split_text(text, chunk.input_format) for _, text in texts]
    encoded = tokenizer.encode_batch(list(itertools.chain.from_iterable(split)))
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int32, int(lengths.sum()))
    ends = np.concatenate([[0], np.cumsum(lengths)])  # ends[i]: where sentence i begins
    documents, sentence = [], 0
    for (index, _), sentences in zip(texts, split, strict=True):
        bounds = np.unique(ends[sentence : sentence + len(sentences) + 1]).tolist()  # sentences without a token vanish
        documents.append(TokenDocument(bounds, index))
        sentence += len(sentences)
    own = len(chunk.texts)
    documents, partners = documents[:own], [partner for partner in documents[own:] if len(partner.bounds) > 1]
    num_tokens = documents[-1].bounds[-1]
    counts.update(
        sentences=sum(map(len, split[:own])),
        tokens=num_tokens,
        unknown_tokens=int((ids[:num_tokens] == tokenizer.unk_id).sum()),
    )
    return _Tokens(ids, starts_word[ids], documents, partners)


def _count_rows(sequences: list[Sequence], counts: Counter) -> None:
    counts["records"] += len(sequences)
    counts["row_tokens"] += sum(sequence.length for sequence in sequences)
    counts["swapped"] += sum(sequence.label for sequence in sequences)


def _deal(records: list[bytes], num_buckets: int, rng: np.random.Generator) -> dict[int, tuple[bytes, int]]:
    """Gives each record a pseudo-random bucket."""
    dealt: dict[int, list[bytes]] = {}
    for bucket, record in zip(rng.integers(num_buckets, size=len(records)).tolist(), records, strict=True):
        dealt.setdefault(bucket, []).append(record)
    return {bucket: (b"".join(parts), len(parts)) for bucket, parts in sorted(dealt.items())}


def _dynamic_payloads(
    sequences: list[Sequence], ids: np.ndarray, tokenizer: Tokenizer, token_dtype: str
) -> list[bytes]:
    """Rows without masks: ids packed small, and how long the first segment is."""
    packed = ids.astype(np.dtype(token_dtype).newbyteorder("<"))
    cls, sep = (np.array([i], packed.dtype).tobytes() for i in (tokenizer.cls_id, tokenizer.sep_id))

    def segment(span: tuple[int, int]) -> bytes:
        return packed[span[0] : span[1]].tobytes() + sep

    return encode_examples(
        {
            "tokens": [cls + segment(s.first) + (segment(s.second) if s.second else b"") for s in sequences],
            "segment_a_length": np.array([[s.segment_a_length] for s in sequences], np.int64),
            "sentence_label": np.array([[s.label] for s in sequences], np.int64),
        }
    )


def _static_payloads(
    sequences: list[Sequence],
    tokens: _Tokens,
    tokenizer: Tokenizer,
    rule: RecordRule,
    *,
    vocabulary: MaskingVocabulary,
    rng: np.random.Generator,
) -> list[bytes]:
    """Masked and padded rows under the release's feature names."""
    input_ids = np.full((len(sequences), rule.sequences.max_seq_length), tokenizer.pad_id, np.int32)
    boundary = np.zeros_like(input_ids)  # 1 where a word begins, and at [CLS] and [SEP]
    for row, starts, sequence in zip(input_ids, boundary, sequences, strict=True):
        row[0] = tokenizer.cls_id
        place = 1
        for begin, end in filter(None, (sequence.first, sequence.second)):
            stop = place + end - begin
            row[place:stop], starts[place:stop] = tokens.ids[begin:end], tokens.starts_word[begin:end]
            row[stop] = tokenizer.sep_id
            starts[stop] = 1
            place = stop + 1
        starts[0] = 1
    lengths = np.array([sequence.length for sequence in sequences])[:, None]
    columns = np.arange(input_ids.shape[1])
    real = columns < lengths
    second = (columns >= np.array([sequence.segment_a_length for sequence in sequences])[:, None]) & real
    masked = mask_rows(input_ids, lengths[:, 0], rule.masking, vocabulary=vocabulary, rng=rng)
    return encode_examples(
        {
            "input_ids": masked.input_ids,
            "input_mask": real,
            "segment_ids": second,
            "token_boundary": boundary,
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.ids,
            "masked_lm_weights": masked.weights,
            "next_sentence_labels": np.array([[sequence.label] for sequence in sequences]),
        }
    )
