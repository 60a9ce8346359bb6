"""The driver of create_pretraining_data: a corpus in, a folder of records out.

This process reads the corpus, cuts it into chunks of whole documents by a rule that knows nothing of workers, and
writes what comes back in chunk order. So the records depend on files, settings and seed, and on nothing else.
"""

import dataclasses
import math
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from albert_tf import __version__
from albert_tf.errors import UserError
from albert_tf.files import new_folder
from albert_tf.pretraining.chunks import Chunk, RecordRule, chunk_worker
from albert_tf.pretraining.corpus import Corpus
from albert_tf.pretraining.masking import MaskingRule
from albert_tf.pretraining.plan import PARTNER_CHARS, Part, holds_out_files, plan_chunks
from albert_tf.pretraining.progress import Progress
from albert_tf.pretraining.records import DESCRIPTION, MASKINGS, RecordsInfo, Shard
from albert_tf.pretraining.sequences import SequenceRule
from albert_tf.pretraining.shards import ShardWriter, num_buckets
from albert_tf.pretraining.worker_pool import ordered_map
from albert_tf.tokenization import Tokenizer

HELDOUT = "heldout"
_SHARD_BYTES = 64 << 20  # aimed at where the number of shards is not given
_MAX_WORKERS = 1000  # processes; more is a slip that would take the machine down
_JUDGED_TOKENS = 50_000  # from so many on, the share of unknown tokens may stop the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreationSettings:
    """What the records are to be; the command's flags of the same names say more."""

    max_seq_length: int = 512
    max_predictions_per_seq: int | None = None  # None: masked_lm_prob of the length
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = True
    ngram: int = 3
    favor_shorter_ngram: bool = True
    objective: str = "sop"
    masking: str = "dynamic"
    dupe_factor: int = 1
    short_seq_prob: float = 0.1
    num_shards: int | None = None  # None: by the size of the corpus
    random_seed: int = 12345
    heldout_fraction: float = 0.0
    max_unknown_share: float = 0.05

    def __post_init__(self) -> None:
        if self.masking not in MASKINGS:
            raise UserError(f"unknown masking: {self.masking!r}; expected {' or '.join(MASKINGS)}")
        for name in ("dupe_factor", "num_shards"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= 10_000:
                raise UserError(f"{name} is {value}; expected 1 to 10000")
        if not 0 <= self.random_seed < 2**63:
            raise UserError(f"random_seed is {self.random_seed}; expected 0 to {2**63 - 1}")
        if not 0 <= self.heldout_fraction < 1:
            raise UserError(f"heldout_fraction is {self.heldout_fraction}; expected 0 or more and below 1")
        if not 0 <= self.max_unknown_share <= 1:
            raise UserError(f"max_unknown_share is {self.max_unknown_share}; expected a share between 0 and 1")
        self.sequence_rule()
        if self.masking_rule().max_predictions_per_seq > self.max_seq_length:
            raise UserError(
                f"max_predictions_per_seq is {self.max_predictions_per_seq}; expected at most max_seq_length, "
                f"{self.max_seq_length}"
            )

    def sequence_rule(self) -> SequenceRule:
        """How rows are cut. Raises UserError for values that are not possible."""
        return SequenceRule(
            max_seq_length=self.max_seq_length, short_seq_prob=self.short_seq_prob, objective=self.objective
        )

    def masking_rule(self) -> MaskingRule:
        """How rows are masked. Raises UserError for values that are not possible."""
        predictions = self.max_predictions_per_seq
        if predictions is None:
            predictions = max(1, round(self.max_seq_length * self.masked_lm_prob))
        return MaskingRule(
            max_predictions_per_seq=predictions,
            masked_lm_prob=self.masked_lm_prob,
            ngram=self.ngram,
            favor_shorter_ngram=self.favor_shorter_ngram,
            do_whole_word_mask=self.do_whole_word_mask,
        )


def create_records(
    corpus: Corpus,
    tokenizer: Tokenizer,
    output_dir: str | os.PathLike,
    *,
    settings: CreationSettings,
    num_workers: int = 0,
    log: TextIO | None = None,
) -> tuple[RecordsInfo, RecordsInfo | None]:
    """Writes a records folder, with held-out records in it where asked for, and gives the descriptions of both.

    num_workers: processes that tokenise; 0 means one for each core. Progress goes to `log` (standard error).

    Raises UserError where nothing comes out, too much of the text is unknown to the tokeniser, a worker dies, or the
    folder cannot be made; then nothing is left under the final name.
    """
    if not 0 <= num_workers <= _MAX_WORKERS:
        raise UserError(f"num_workers is {num_workers}; expected 1 to {_MAX_WORKERS}, or 0 for all cores")
    check_output(output_dir)
    with new_folder(output_dir) as folder:
        splits = splits_of(corpus, settings)
        writers: dict[bool, ShardWriter] = {}
        progress = Progress(corpus, log or sys.stderr)
        work = (tokenizer, record_rule(tokenizer, settings, splits))
        for result in ordered_map(chunk_worker, work, _chunks(corpus, settings, splits), num_workers or _num_cores()):
            split = splits[result.heldout]
            if result.heldout not in writers:
                writers[result.heldout] = split.writer(folder)
            writers[result.heldout].add(result.buckets)
            split.counts.update(result.counts)
            check_unknown(splits, settings, _JUDGED_TOKENS)
            progress.show(sum(split.counts["records"] for split in splits))
        progress.show(sum(split.counts["records"] for split in splits), final=True)
        check_unknown(splits, settings, 1)
        splits[0].counts.update(
            files=corpus.num_texts,
            invalid_characters=corpus.invalid_characters,
            null_characters=corpus.null_characters,
        )
        infos: list[RecordsInfo | None] = [None, None]
        for heldout in (False, True) if splits[1].wanted else (False,):
            splits[heldout].check(settings)
            shards = writers[heldout].finish(settings.random_seed)
            infos[heldout] = splits[heldout].describe(tokenizer, settings, shards)
            tokenizer.save(splits[heldout].folder(folder))
            infos[heldout].write(splits[heldout].folder(folder))
        return infos[0], infos[1]


def record_rule(tokenizer: Tokenizer, settings: CreationSettings, splits: "Sequence[Split]") -> RecordRule:
    """All that decides the records of a chunk beside its text."""
    return RecordRule(
        sequences=settings.sequence_rule(),
        masking=settings.masking_rule(),
        static=settings.masking == "static",
        token_dtype=_token_dtype(tokenizer),
        dupe_factor=settings.dupe_factor,
        seed=settings.random_seed,
        num_buckets=(splits[0].num_buckets, splits[1].num_buckets),
    )


def check_output(output_dir: str | os.PathLike) -> None:
    """Raises UserError where the folder holds something, saying what."""
    folder = pathlib.Path(output_dir)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if (folder / DESCRIPTION).is_file():
        raise UserError(f"{folder} already holds finished records; use them, remove the folder, or name another")
    raise UserError(f"{folder} exists and holds something other than records; name a new or empty folder")


class Split:
    """The training or the held-out part of what is made: how many shards and buckets, and what was counted."""

    def __init__(self, corpus: Corpus, settings: CreationSettings, heldout: bool):
        share = settings.heldout_fraction if heldout else 1 - settings.heldout_fraction
        per_char = 1.6 if settings.masking == "static" else 0.6  # bytes of records for a character of English text
        expected = int(share * corpus.expected_chars * settings.dupe_factor * per_char)
        shards = settings.num_shards * share if settings.num_shards else expected / _SHARD_BYTES
        self.heldout = heldout
        self.name = "held-out" if heldout else "training"
        self.wanted = not heldout or settings.heldout_fraction > 0
        self.num_shards = settings.num_shards if settings.num_shards and not heldout else max(1, round(shards))
        self.num_buckets = num_buckets(self.num_shards, expected)
        self.counts: Counter = Counter()
        self._last_document = -1

    def count(self, part: Part) -> None:
        """Counts a part of the text; the parts of one document count once."""
        self.counts["documents"] += part.index != self._last_document
        self.counts["characters"] += part.num_chars
        self._last_document = part.index

    def folder(self, records_dir: pathlib.Path) -> pathlib.Path:
        """Where the shards of this part of the records lie."""
        return records_dir / HELDOUT if self.heldout else records_dir

    def writer(self, records_dir: pathlib.Path) -> ShardWriter:
        """What takes the records of this part; makes their folder."""
        return ShardWriter(self.folder(records_dir), num_shards=self.num_shards, num_buckets=self.num_buckets)

    def check(self, settings: CreationSettings) -> None:
        """Raises UserError where there are no records, or too few."""
        counts = self.counts
        skipped = ", ".join(f"{number} {name}" for name, number in counts.items() if name.startswith("skipped"))
        found = f"{counts['documents']} documents, {counts['sentences']} sentences, {counts['tokens']} tokens"
        if not counts["documents"] and self.heldout:
            raise UserError(
                f"no document to hold out: heldout_fraction {settings.heldout_fraction} asks for one in "
                f"{math.ceil(1 / settings.heldout_fraction)}, there are fewer; raise it or give more text"
            )
        if settings.objective == "nsp" and counts["skipped_no_partner"] and not counts["swapped"]:
            raise UserError(f"objective nsp needs text of another document: {self.name} text has {found}; use sop")
        if not counts["records"]:
            raise UserError(f"no {self.name} records: found {found} (skipped: {skipped or 'nothing'}); give more text")
        if counts["records"] < self.num_shards:
            raise UserError(
                f"too many shards: {counts['records']} {self.name} records for {self.num_shards}; lower --num_shards"
            )

    def describe(self, tokenizer: Tokenizer, settings: CreationSettings, shards: Sequence[Shard]) -> RecordsInfo:
        """What records.json is to say."""
        same = {field.name for field in dataclasses.fields(RecordsInfo)}
        return RecordsInfo(
            **{name: value for name, value in dataclasses.asdict(settings).items() if name in same}
            | dataclasses.asdict(settings.masking_rule()),
            token_dtype=_token_dtype(tokenizer),
            vocab_size=tokenizer.vocab_size,
            vocabulary_hash=tokenizer.hash,
            tokenizer_kind=tokenizer.kind,
            do_lower_case=tokenizer.do_lower_case,
            keep_accents=tokenizer.keep_accents,
            num_records=self.counts["records"],
            shards=tuple(shards),
            counts=dict(sorted(self.counts.items())),
            code_version=__version__,
        )


def splits_of(corpus: Corpus, settings: CreationSettings) -> tuple[Split, Split]:
    """The training and the held-out part, in the order of False and True."""
    return Split(corpus, settings, False), Split(corpus, settings, True)


def _chunks(corpus: Corpus, settings: CreationSettings, splits: Sequence[Split]) -> Iterator[Chunk]:
    again = Corpus(corpus.files, corpus.input_format)
    groups = plan_chunks(corpus.documents(), settings, by_file=holds_out_files(corpus), again=again.documents)
    for group in groups:
        for document in group.parts:
            splits[group.heldout].count(document)
        texts = [(document.index, document.text) for document in group.parts]
        partners = [(document.index, document.text[:PARTNER_CHARS]) for document in group.partners]
        yield Chunk(group.number, group.heldout, corpus.input_format, texts, partners)


def check_unknown(splits: Sequence[Split], settings: CreationSettings, at_least: int) -> None:
    """Raises UserError where the vocabulary does not know the text, once `at_least` tokens were seen."""
    tokens, unknown = (sum(split.counts[name] for split in splits) for name in ("tokens", "unknown_tokens"))
    if tokens >= at_least and unknown > settings.max_unknown_share * tokens:
        raise UserError(
            f"the vocabulary does not know the text: {unknown / tokens:.1%} of the first {tokens} tokens are unknown, "
            f"expected at most {settings.max_unknown_share:.1%}; use a vocabulary of this language, casing and script"
        )


def _token_dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 65_536 else "uint32"


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
