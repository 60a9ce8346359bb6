"""`albert_tf create_pretraining_data`: text files in, a folder of records for pretraining out."""

import sys
from typing import TYPE_CHECKING

from absl import flags

from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.pretraining.corpus import Corpus
    from albert_tf.pretraining.creation import CreationSettings
    from albert_tf.pretraining.records import RecordsInfo
    from albert_tf.tokenization import Tokenizer

_RUNNERS = ["local", "DirectRunner", "FlinkRunner", "SparkRunner", "DataflowRunner", "PortableRunner"]


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags; they carry the release's names where it has them."""
    _define_input(flag_values)
    _define_records(flag_values)
    _define_machinery(flag_values)
    flags.mark_flags_as_required(["input_file", "output_dir"], flag_values=flag_values)


def _define_input(values: flags.FlagValues) -> None:
    text, boolean, choice = flags.DEFINE_string, flags.DEFINE_boolean, flags.DEFINE_enum
    text("input_file", None, "text files: paths, folders or globs, comma-separated", flag_values=values)
    text("output_dir", None, "folder to make: shards, records.json, the tokeniser, heldout/", flag_values=values)
    text("spm_model_file", None, "SentencePiece model (the file or its folder)", flag_values=values)
    text("vocab_file", None, "WordPiece vocabulary, vocab.txt, instead of a model", flag_values=values)
    boolean(
        "do_lower_case",
        None,
        "lower-case the text (default: as stored with the vocabulary, else true)",
        flag_values=values,
    )
    boolean(
        "keep_accents", None, "keep accents (default: as stored with the vocabulary, else false)", flag_values=values
    )
    choice(
        "input_format",
        "auto",
        ["auto", "paragraphs", "sentences"],
        "paragraphs: lines are joined, a blank line ends a paragraph, a file is a document that headings part further; "
        "sentences: one a line, a blank line between documents; auto: decided from a sample, and told",
        flag_values=values,
    )
    flags.DEFINE_float(
        "heldout_fraction",
        0.0,
        "share of the documents (of the files, where these are books with headings) written to heldout/ instead",
        flag_values=values,
    )
    flags.DEFINE_float(
        "max_unknown_share", 0.05, "stop where more of the tokens are unknown to the vocabulary", flag_values=values
    )


def _define_records(values: flags.FlagValues) -> None:
    integer, share, boolean, choice = flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_boolean, flags.DEFINE_enum
    integer("max_seq_length", 512, "tokens in a row, [CLS] and [SEP] included", flag_values=values)
    integer(
        "max_predictions_per_seq",
        None,
        "most masked tokens in a row (default: masked_lm_prob of max_seq_length, 77 of 512)",
        flag_values=values,
    )
    share("masked_lm_prob", 0.15, "share of a row's tokens to mask", flag_values=values)
    boolean("do_whole_word_mask", True, "mask whole words, not single pieces", flag_values=values)
    integer("ngram", 3, "longest run of words masked together", flag_values=values)
    boolean("favor_shorter_ngram", True, "n words with probability ~ 1/n; false: the reverse", flag_values=values)
    choice(
        "objective",
        "sop",
        ["sop", "nsp", "none"],
        "sop: two consecutive segments, half swapped; nsp: the second from another document, half the time; none: one",
        flag_values=values,
    )
    choice(
        "masking",
        "dynamic",
        ["dynamic", "static"],
        "dynamic: masks come later, anew each epoch; static: masked here, under the release's feature names",
        flag_values=values,
    )
    integer("dupe_factor", 1, "times the corpus is gone through, cut and masked differently", flag_values=values)
    share("short_seq_prob", 0.1, "share of rows that aim at a length drawn from 2 to the longest", flag_values=values)
    integer("num_shards", None, "files to write (default: about 64 MB each)", flag_values=values)
    integer("random_seed", 12345, "decides everything random", flag_values=values)


def _define_machinery(values: flags.FlagValues) -> None:
    """The records do not depend on any of these."""
    flags.DEFINE_integer("num_workers", 0, "processes of --runner=local (0: one for each core)", flag_values=values)
    flags.DEFINE_enum(
        "runner",
        "local",
        _RUNNERS,
        "local: processes of this machine; the others are Apache Beam's (pip install '.[beam]')",
        flag_values=values,
    )
    flags.DEFINE_string(
        "beam_options",
        "",
        "flags for the Beam runner in one text, such as --beam_options='--direct_running_mode=multi_processing "
        "--direct_num_workers=2'",
        flag_values=values,
    )


def run(options: flags.FlagValues) -> None:
    """Creates the records and prints a summary.

    Raises UserError for unusable input, vocabulary, sizes or output folder; then nothing is left under the final name.
    """
    from albert_tf.pretraining.corpus import Corpus
    from albert_tf.pretraining.creation import CreationSettings, check_output

    names = ("max_seq_length", "max_predictions_per_seq", "masked_lm_prob", "do_whole_word_mask", "ngram")
    names += ("favor_shorter_ngram", "objective", "masking", "dupe_factor", "short_seq_prob", "num_shards")
    names += ("random_seed", "heldout_fraction", "max_unknown_share")
    settings = CreationSettings(**{name: getattr(options, name) for name in names})
    check_output(options.output_dir)
    _check_runner(options)
    tokenizer = _load_tokenizer(options)
    if options.runner == "local":
        corpus = Corpus(options.input_file, options.input_format)
    else:
        from albert_tf.pretraining.beam_files import BeamStorage

        corpus = Corpus(options.input_file, options.input_format, BeamStorage())
    print(f"input format: {corpus.input_format} ({corpus.reason})", file=sys.stderr)
    infos = _create(options, corpus, tokenizer, settings)
    if corpus.damaged:
        print(_damage(corpus), file=sys.stderr)
    for name, info in zip(("training", "held-out"), infos, strict=True):
        if info is not None:
            print(summary(name, info))
    print(f"records: {options.output_dir}")


def _check_runner(options: flags.FlagValues) -> None:
    """Raises UserError where Beam is missing, or flags do not go with the runner."""
    if options.runner == "local":
        if options.beam_options:
            raise UserError("--beam_options is given, but --runner is local: name a Beam runner or drop it")
        return
    if options.num_workers:
        raise UserError(
            f"--num_workers={options.num_workers} is for --runner=local: say how many workers {options.runner} is to "
            "use in --beam_options (--direct_num_workers, --parallelism, --num_workers, ...)"
        )
    try:
        import apache_beam  # noqa: F401  only whether it is there
    except ImportError as error:
        raise UserError(
            f"--runner={options.runner} needs Apache Beam, which cannot be imported ({error}): "
            "pip install '.[beam]' in the project's folder"
        ) from error


def _create(
    options: flags.FlagValues, corpus: "Corpus", tokenizer: "Tokenizer", settings: "CreationSettings"
) -> tuple["RecordsInfo", "RecordsInfo | None"]:
    if options.runner == "local":
        from albert_tf.pretraining.creation import create_records

        return create_records(corpus, tokenizer, options.output_dir, settings=settings, num_workers=options.num_workers)
    from albert_tf.pretraining.beam import create_records_with_beam

    return create_records_with_beam(
        corpus,
        tokenizer,
        options.output_dir,
        settings=settings,
        runner=options.runner,
        beam_options=options.beam_options,
    )


def _load_tokenizer(options: flags.FlagValues):
    from albert_tf.tokenization import load_tokenizer

    if bool(options.spm_model_file) == bool(options.vocab_file):
        found = "both" if options.vocab_file else "neither"
        raise UserError(f"one vocabulary is needed: found {found} of --spm_model_file and --vocab_file; give one")
    tokenizer = load_tokenizer(
        options.spm_model_file or options.vocab_file,
        do_lower_case=options.do_lower_case,
        keep_accents=options.keep_accents,
    )
    kind, flag = ("sentencepiece", "spm_model_file") if options.spm_model_file else ("wordpiece", "vocab_file")
    if tokenizer.kind != kind:
        raise UserError(
            f"--{flag} {tokenizer.path} is a {tokenizer.kind} vocabulary: expected {kind}; use the other flag"
        )
    return tokenizer


def _damage(corpus) -> str:
    files = ", ".join(corpus.damaged[:3]) + (" ..." if len(corpus.damaged) > 3 else "")
    return (
        f"{corpus.invalid_characters} invalid UTF-8 characters were replaced, in {len(corpus.damaged)} files: {files}"
    )


def summary(name: str, info: "RecordsInfo") -> str:
    """What was found and made, in a few lines."""
    counts = info.counts
    tokens, rows = max(1, counts["tokens"]), info.num_records
    lines = [
        f"{name}: {rows} records in {len(info.shards)} shards, {sum(s.num_bytes for s in info.shards) / 1e6:.1f} MB",
        f"  from {counts['documents']} documents, {counts['sentences']} sentences, {tokens} tokens, "
        f"{counts['unknown_tokens'] / tokens:.2%} of them unknown",
        f"  rows use {counts['row_tokens'] / (rows * info.max_seq_length):.1%} of {info.max_seq_length} positions; "
        f"{counts.get('short_targets', 0) / max(1, counts['targets']):.1%} drawn short",
    ]
    if info.objective != "none":
        label = "swapped" if info.objective == "sop" else "random"
        lines.append(f"  {label}: {counts['swapped'] / rows:.1%} of the rows")
    skipped = {name: counts[name] for name in counts if name.startswith(("skipped", "tokens_")) and counts[name]}
    if skipped:
        lines.append("  " + ", ".join(f"{name.replace('_', ' ')}: {number}" for name, number in skipped.items()))
    return "\n".join(lines)
