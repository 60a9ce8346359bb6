"""Data creation on Apache Beam: the records of creation.py, byte for byte, on as many machines as a runner has.

    files -> measured -> (plan, on one machine) -> read again, dealt to chunks -> records, dealt to buckets
          -> buckets, shuffled -> shards

Which documents make up a chunk depends on all text before it, so the files are read twice: first for the lengths, from
which the plan follows by the rule that the local path follows as well, then for the text. Chunks become records by the
same function as in the local path. Steps may be run again after a failure: what they write has a name of its own each
time, and only names that a finished step gave on are used.
"""

import contextlib
import dataclasses
import functools
import io
import json
import logging
import os
import shlex
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TextIO

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from albert_tf.errors import UserError
from albert_tf.pretraining import beam_files
from albert_tf.pretraining.chunks import Chunk, RecordRule, chunk_worker
from albert_tf.pretraining.corpus import Corpus, Storage
from albert_tf.pretraining.creation import (
    HELDOUT,
    CreationSettings,
    Split,
    check_output,
    check_unknown,
    record_rule,
    splits_of,
)
from albert_tf.pretraining.plan import PARTNER_CHARS, holds_out_files, plan_chunks
from albert_tf.pretraining.records import RecordsInfo, Shard, shard_name
from albert_tf.pretraining.shards import shuffled
from albert_tf.tokenization import Tokenizer

_FACTS = "facts"  # a step's second output: what the end has to know, as pairs of kind and value


class _Place(NamedTuple):
    """Where a part of the text is found again, and what the plan has to know of it."""

    index: int
    file_index: int
    num_chars: int
    file: int
    place: int  # number of the part in its file


class _Use(NamedTuple):
    """What a part of a file is read for."""

    place: int
    chunk: int
    heldout: bool
    partner: bool


@dataclasses.dataclass(frozen=True)
class _Measured:
    """One file: for each part (document, text, characters), numbered from 0, and what reading it found."""

    file: int
    parts: list[tuple[int, int, int]]
    facts: dict[str, Any]
    error: str | None = None


def create_records_with_beam(
    corpus: Corpus,
    tokenizer: Tokenizer,
    output_dir: str | os.PathLike,
    *,
    settings: CreationSettings,
    runner: str,
    beam_options: str = "",
    log: TextIO | None = None,
) -> tuple[RecordsInfo, RecordsInfo | None]:
    """Like `create_records`, on a Beam runner; text and folder must be within reach of all its workers.

    corpus: made with beam_files.BeamStorage. beam_options: the runner's own flags, as on a command line.

    Raises UserError as `create_records` does, and where the options are wrong or the pipeline fails.
    """
    options = _options(runner, beam_options)
    check_output(output_dir)
    log = log or sys.stderr
    print(f"{runner}: {len(corpus.files)} files, {corpus.num_bytes / 1e6:.1f} MB", file=log, flush=True)
    with beam_files.output_folder(str(output_dir)) as folder:
        work = f"{folder}/work"
        beam_files.make_folder(work)
        splits = splits_of(corpus, settings)
        _run(runner, options, lambda pipeline: _build(pipeline, corpus, tokenizer, settings, splits, work=work))
        with beam_files.open_file(f"{work}/{_FACTS}.json") as file:
            shards = _learn(json.load(file), corpus, splits)
        check_unknown(splits, settings, 1)
        wanted = [split for split in splits if split.wanted]
        for split in wanted:
            split.check(settings)
        infos: list[RecordsInfo | None] = [None, None]
        for split in reversed(wanted):  # the training records' description makes the folder whole: it comes last
            infos[split.heldout] = _put(split, shards, folder, tokenizer, settings)
        FileSystems.delete([work])
        return infos[0], infos[1]


def _options(runner: str, text: str) -> PipelineOptions:
    """Raises UserError where Beam does not take the options."""
    said = io.StringIO()
    try:
        given = shlex.split(text)
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(given, runner=runner)
            unknown = set(options.get_all_options(retain_unknown_options=True)) - set(
                PipelineOptions([]).get_all_options()
            )
    except (ValueError, SystemExit) as error:
        reason = (said.getvalue().strip().splitlines() or [str(error)])[-1]
        raise UserError(f"--beam_options={text!r} cannot be read ({reason}); see the runner's documentation") from error
    if any(flag.split("=")[0] == "--runner" for flag in given):
        raise UserError("--beam_options names a runner: give it with --runner instead")
    if unknown and runner == "DirectRunner":  # others hand unknown ones on to their job server
        raise UserError(f"unknown in --beam_options: {', '.join(sorted(unknown))}; see Beam's DirectOptions")
    return options


def _run(runner: str, options: PipelineOptions, build) -> None:
    # DirectRunner's portable part by itself: the whole first tries to download another runner.
    chosen = FnApiRunner() if runner == "DirectRunner" else runner
    try:
        pipeline = beam.Pipeline(runner=chosen, options=options)
        build(pipeline)
        state = pipeline.run().wait_until_finish()
    except Exception as error:
        logging.getLogger(__name__).debug("the pipeline failed", exc_info=True)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UserError(
            f"the pipeline failed on {runner} ({reason}): nothing was written; check --beam_options and the workers"
        ) from error
    if state not in (None, PipelineState.DONE):
        raise UserError(f"the pipeline ended as {state} on {runner}: nothing was written; see the runner's log")


def _build(
    pipeline: beam.Pipeline,
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: CreationSettings,
    splits: tuple[Split, Split],
    *,
    work: str,
) -> None:
    rule = record_rule(tokenizer, settings, splits)
    num_shards = [split.num_shards for split in splits]
    reading = {"input_format": corpus.input_format, "storage": corpus.storage}
    plan = (
        pipeline
        | "files" >> beam.Create(list(enumerate(corpus.files)))
        | "spread files" >> beam.Reshuffle()
        | "measure" >> beam.MapTuple(functools.partial(_measure, **reading))
        | "all" >> beam.combiners.ToList()
        | "plan"
        >> beam.FlatMap(_plan, corpus.files, settings, by_file=holds_out_files(corpus)).with_outputs(
            _FACTS, main="orders"
        )
    )
    made = (
        plan.orders
        | "spread orders" >> beam.Reshuffle()
        | "read" >> beam.FlatMapTuple(functools.partial(_read, **reading))
        | "chunks" >> beam.GroupByKey()
        | "records" >> beam.ParDo(_MakeRecords(tokenizer, rule, corpus.input_format)).with_outputs(_FACTS, main="dealt")
    )
    shards = (
        made.dealt
        | "buckets" >> beam.GroupByKey()
        | "shuffle"
        >> beam.MapTuple(functools.partial(_write_bucket, num_shards=num_shards, seed=settings.random_seed, work=work))
        | "shards" >> beam.GroupByKey()
        | "join" >> beam.MapTuple(functools.partial(_join_buckets, work=work))
    )
    counts = made[_FACTS] | "count" >> beam.CombinePerKey(_total) | "counts" >> beam.MapTuple(_counts_fact)
    (
        (plan[_FACTS], counts, shards)
        | "facts" >> beam.Flatten()
        | "all facts" >> beam.combiners.ToList()
        | "write facts" >> beam.Map(_write_facts, f"{work}/{_FACTS}.json")
    )


def _measure(file: int, path: str, *, input_format: str, storage: Storage) -> _Measured:
    try:
        text = Corpus([path], input_format, storage)
        parts = [(document.index, document.file_index, document.num_chars) for document in text.documents()]
    except UserError as error:
        return _Measured(file, [], {}, str(error))
    found = {"files": text.num_texts, "damaged": text.damaged}
    found |= {"invalid_characters": text.invalid_characters, "null_characters": text.null_characters}
    return _Measured(file, parts, found)


def _plan(measured: list[_Measured], paths: list[str], settings: CreationSettings, *, by_file: bool) -> Iterator[Any]:
    """Gives (path, number of its first document, uses) for each file, and facts."""
    measured = sorted(measured, key=lambda each: each.file)
    if errors := [each.error for each in measured if each.error]:
        yield beam.pvalue.TaggedOutput(_FACTS, ("error", errors[0]))
        return
    firsts = [0]
    for each in measured:
        firsts.append(firsts[-1] + (each.parts[-1][0] + 1 if each.parts else 0))
    uses: list[list[_Use]] = [[] for _ in measured]
    counts: list[Counter] = [Counter(), Counter()]
    last = [-1, -1]
    for group in plan_chunks(
        _places(measured, firsts), settings, by_file=by_file, again=lambda: _places(measured, firsts)
    ):
        for partner, places in ((False, group.parts), (True, group.partners)):
            for place in places:
                uses[place.file].append(_Use(place.place, group.number, group.heldout, partner))
        for place in group.parts:
            counts[group.heldout]["documents"] += place.index != last[group.heldout]
            counts[group.heldout]["characters"] += place.num_chars
            last[group.heldout] = place.index
    for heldout in (False, True):
        yield beam.pvalue.TaggedOutput(_FACTS, ("counts", [heldout, dict(counts[heldout])]))
    for each in measured:
        yield beam.pvalue.TaggedOutput(_FACTS, ("text", {"file": each.file, **each.facts}))
        if uses[each.file]:
            yield paths[each.file], each.file, firsts[each.file], uses[each.file]


def _places(measured: list[_Measured], firsts: list[int]) -> Iterator[_Place]:
    """All parts of the corpus in order, documents and texts numbered through."""
    texts = 0
    for each, first in zip(measured, firsts, strict=False):
        for place, (index, file_index, num_chars) in enumerate(each.parts):
            yield _Place(first + index, texts + file_index, num_chars, each.file, place)
        texts += each.facts["files"]


def _read(
    path: str, file: int, first: int, uses: list[_Use], *, input_format: str, storage: Storage
) -> Iterator[tuple[tuple[int, bool], tuple]]:
    """Gives ((chunk, held out), (partner?, file, place, document, text)) for each use of a part."""
    by_place: dict[int, list[_Use]] = {}
    for use in uses:
        by_place.setdefault(use.place, []).append(use)
    for place, document in enumerate(Corpus([path], input_format, storage).documents()):
        for use in by_place.get(place, ()):
            text = document.text[:PARTNER_CHARS] if use.partner else document.text
            yield (use.chunk, use.heldout), (use.partner, file, place, first + document.index, text)


class _MakeRecords(beam.DoFn):
    """One chunk -> ((held out, bucket), (chunk, framed records, their number)), and what was counted."""

    def __init__(self, tokenizer: Tokenizer, rule: RecordRule, input_format: str):
        self._tokenizer, self._rule, self._input_format = tokenizer, rule, input_format

    def setup(self) -> None:
        self._work = chunk_worker(self._tokenizer, self._rule)

    def process(self, element: tuple[tuple[int, bool], Iterable[tuple]]) -> Iterator[Any]:
        (number, heldout), found = element
        texts: tuple[list, list] = ([], [])
        for partner, _, _, index, text in sorted(found, key=lambda part: part[:3]):
            texts[partner].append((index, text))
        result = self._work(Chunk(number, heldout, self._input_format, *texts))
        yield beam.pvalue.TaggedOutput(_FACTS, (heldout, dict(result.counts)))
        for bucket, (data, count) in result.buckets.items():
            yield (heldout, bucket), (number, data, count)


def _total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _counts_fact(heldout: bool, counts: dict[str, int]) -> tuple[str, Any]:
    return "counts", [heldout, counts]


def _write_bucket(
    key: tuple[bool, int], parts: Iterable[tuple[int, bytes, int]], *, num_shards: list[int], seed: int, work: str
) -> tuple[tuple[bool, int], tuple[int, str, int]]:
    heldout, bucket = key
    parts = sorted(parts)  # by chunk, as the local path appends them
    path = f"{work}/bucket-{uuid.uuid4().hex}"
    with beam_files.create_file(path) as file:
        file.write(b"".join(shuffled(io.BytesIO(b"".join(data for _, data, _ in parts)), seed, bucket)))
    return (heldout, bucket % num_shards[heldout]), (bucket, path, sum(count for _, _, count in parts))


def _join_buckets(key: tuple[bool, int], buckets: Iterable[tuple[int, str, int]], *, work: str) -> tuple[str, Any]:
    heldout, shard = key
    path, num_records, num_bytes = f"{work}/shard-{uuid.uuid4().hex}", 0, 0
    with beam_files.create_file(path) as file:
        for _, part, count in sorted(buckets):
            num_records += count
            num_bytes += beam_files.copy_into(part, file)
    return "shard", [heldout, shard, path, num_records, num_bytes]


def _write_facts(facts: list[tuple[str, Any]], path: str) -> None:
    with beam_files.create_file(path) as file:
        file.write(json.dumps(facts).encode("ascii"))


def _learn(facts: list, corpus: Corpus, splits: tuple[Split, Split]) -> dict[tuple[bool, int], tuple[str, int, int]]:
    """Takes in what the pipeline found and gives its shards: (path, records, bytes) by (held out, number)."""
    by_kind: dict[str, list] = {"error": [], "counts": [], "text": [], "shard": []}
    for kind, value in facts:
        by_kind[kind].append(value)
    if by_kind["error"]:
        raise UserError(by_kind["error"][0])
    for heldout, counts in by_kind["counts"]:
        splits[heldout].counts.update(counts)
    texts = sorted(by_kind["text"], key=lambda text: text["file"])
    names = ("files", "invalid_characters", "null_characters")
    splits[0].counts.update({name: sum(text[name] for text in texts) for name in names})
    corpus.invalid_characters = splits[0].counts["invalid_characters"]
    corpus.damaged = [name for text in texts for name in text["damaged"]]
    return {(heldout, shard): (path, records, size) for heldout, shard, path, records, size in by_kind["shard"]}


def _put(
    split: Split,
    shards: dict[tuple[bool, int], tuple[str, int, int]],
    folder: str,
    tokenizer: Tokenizer,
    settings: CreationSettings,
) -> RecordsInfo:
    """Gives the shards of a split their names and writes the tokeniser and the description beside them."""
    place = f"{folder}/{HELDOUT}" if split.heldout else folder
    beam_files.make_folder(place)
    listed = []
    for number in range(split.num_shards):
        name = shard_name(number, split.num_shards)
        made = shards.get((split.heldout, number))
        if made is None:  # no record fell to it
            beam_files.create_file(f"{place}/{name}").close()
        else:
            FileSystems.rename([made[0]], [f"{place}/{name}"])
        listed.append(Shard(name, *(made[1:] if made else (0, 0))))
    info = split.describe(tokenizer, settings, listed)

    def write(scratch) -> None:
        tokenizer.save(scratch)
        info.write(scratch)

    beam_files.write_small_files(place, write)
    return info
