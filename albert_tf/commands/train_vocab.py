"""`albert_tf train_vocab`: a SentencePiece vocabulary from text files."""

from absl import flags


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command on `flag_values`."""
    flags.DEFINE_list(
        "input_file", None, "text to train on: files, folders or globs (.txt, .gz, .tar.gz)", flag_values=flag_values
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "folder for spiece.model, spiece.vocab and tokenizer_config.json; new or empty",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "vocab_size", 30_000, "number of pieces, the 13 special and set ones included", flag_values=flag_values
    )
    flags.DEFINE_bool("do_lower_case", True, "lower-case the text, now and when used", flag_values=flag_values)
    flags.DEFINE_bool(
        "keep_accents",
        False,
        "keep accents; else combining marks are dropped after compatibility decomposition",
        flag_values=flag_values,
    )
    flags.mark_flags_as_required(["input_file", "output_dir"], flag_values=flag_values)


def run(flags: flags.FlagValues) -> None:
    """Trains the vocabulary and prints where it is. Raises UserError for what the user can put right."""
    from albert_tf.pretraining.vocabulary import train_vocabulary

    tokenizer = train_vocabulary(
        flags.input_file,
        flags.output_dir,
        vocab_size=flags.vocab_size,
        do_lower_case=flags.do_lower_case,
        keep_accents=flags.keep_accents,
    )
    print(f"{tokenizer.path}: {tokenizer.vocab_size} pieces, SHA-256 {tokenizer.hash}")
