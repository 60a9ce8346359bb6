"""`albert_tf evaluate_pretraining`: a pretraining model measured on records, also on the sentence objective it was not
trained on (paper, section 4.6)."""

from typing import TYPE_CHECKING

from absl import flags

from albert_tf import files
from albert_tf.errors import UserError
from tpu.device_flags import define_device_flags

if TYPE_CHECKING:
    from albert_tf.checkpoints import Model
    from albert_tf.pretraining.record_source import RecordSource
    from albert_tf.tokenization import Tokenizer

AS_TRAINED = "as_trained"


def define_flags(flag_values: flags.FlagValues) -> None:
    text, integer, choice = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_enum
    text("model_dir", None, "model with a masked LM head, of any kind; a run folder is one", flag_values=flag_values)
    text("data_dir", None, "records folder, or TFRecord files of the release", flag_values=flag_values)
    choice(
        "sentence_objective",
        AS_TRAINED,
        [AS_TRAINED, "sop", "nsp"],
        "task of the sentence pairs: sop (in order or swapped), nsp (next or from elsewhere), or the model's own",
        flag_values=flag_values,
    )
    integer("eval_batch_size", 64, "sequences of one step", lower_bound=1, flag_values=flag_values)
    integer("num_records", None, "read only so many sequences; default: all", lower_bound=1, flag_values=flag_values)
    integer(
        "max_predictions_per_seq",
        None,
        "masked tokens a sequence at most; default: the records'",
        lower_bound=1,
        flag_values=flag_values,
    )
    define_device_flags(flag_values)
    text("spm_model_file", None, "SentencePiece model, where model and records do not hold it", flag_values=flag_values)
    text("vocab_file", None, "WordPiece vocab.txt, where model and records do not hold it", flag_values=flag_values)
    text("output_file", None, "JSON file to write the measurements to", flag_values=flag_values)
    for name in ("model_dir", "data_dir"):
        flags.mark_flag_as_required(name, flag_values)


def run(given: flags.FlagValues) -> None:
    """Prints a table, and writes it as JSON where asked to.

    Raises UserError where the model cannot be measured or does not fit the records.
    """
    if given.spm_model_file and given.vocab_file:
        raise UserError("--spm_model_file and --vocab_file are both given: a model has one vocabulary; drop one")
    files.check_output_file(given.output_file)
    from albert_tf import checkpoints
    from albert_tf.pretraining import record_source
    from albert_tf.pretraining.dataset import Batching
    from tpu import data_errors, evaluation, preflight, strategy

    preflight.check_places(given.tpu_name, data_dir=given.data_dir)
    where = strategy.one_process_strategy(given.distribution, tpu_name=given.tpu_name)
    with where.scope():
        model = checkpoints.load_model(given.model_dir, dtype=given.mixed_precision)
    tokenizer = _tokenizer(given, model)
    source = record_source.open_records(given.data_dir, tokenizer=tokenizer)
    rows = tokenizer.vocab_size  # the model's table may be larger than its vocabulary
    record_source.check_records(
        source,
        config=model.config.replace(vocab_size=rows),
        tokenizer=tokenizer,
        max_predictions_per_seq=given.max_predictions_per_seq,
    )
    objective = _objective(given.sentence_objective, model, source, given.model_dir)
    batching = Batching(
        tokenizer=tokenizer,
        global_batch_size=given.eval_batch_size,
        max_predictions_per_seq=given.max_predictions_per_seq,
    )
    batches = evaluation.batches(source, batching, where, num_records=given.num_records, sentence_objective=objective)
    with data_errors.named_by_file(source):
        metrics = evaluation.PretrainingEvaluator(model, batches, where).evaluate()
    measured = min(given.num_records or source.num_records, source.num_records)
    print(table(metrics, f"{measured:,} sequences of {source.info.max_seq_length} tokens", objective))
    if given.output_file:
        context = {"model_dir": given.model_dir, "data_dir": given.data_dir, "sequences": measured}
        context |= {"sentence_objective": objective, "made_by": model.info.made_by}
        files.write_json(given.output_file, {**context, **metrics})


def table(metrics: dict[str, float], data: str, objective: str | None) -> str:
    """The measurements as text: losses in nats, accuracies as shares beside what guessing reaches."""
    rows = [
        ("", "loss", "accuracy", "by guessing", "measured on"),
        (
            "masked LM",
            f"{metrics['masked_lm_loss']:.4f}",
            f"{metrics['masked_lm_accuracy']:.4f}",
            f"{metrics['masked_lm_baseline_accuracy']:.4f}",
            f"{metrics['masked_lm_predictions']:,} masked tokens; guessing: always the commonest of them",
        ),
    ]
    if "sentence_order_accuracy" in metrics:
        rows.append(
            (
                {"sop": "sentence order", "nsp": "next sentence"}[objective],
                f"{metrics['sentence_order_loss']:.4f}",
                f"{metrics['sentence_order_accuracy']:.4f} ± {metrics['sentence_order_error']:.4f}",
                "0.5000",
                f"{metrics['sentence_order_pairs']:,} pairs; ± one binomial standard error",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([data, *lines])


def _tokenizer(given: flags.FlagValues, model: "Model") -> "Tokenizer":
    """The model's tokeniser; one that a flag names, or that lies beside the records, has to be the same."""
    from albert_tf import checkpoints, tokenization
    from albert_tf.pretraining import addresses

    named, own = given.spm_model_file or given.vocab_file, model.tokenizer
    if named:
        casing = {} if own is None else {"do_lower_case": own.do_lower_case, "keep_accents": own.keep_accents}
        tokenizer = tokenization.load_tokenizer(named, **casing)
    else:
        tokenizer = own or checkpoints.load_folder_tokenizer(addresses.with_small_files(given.data_dir))
    if tokenizer is None:
        raise UserError(
            f"neither {given.model_dir} nor {given.data_dir} holds a tokeniser file: name it with --spm_model_file or "
            "--vocab_file"
        )
    expected = own.hash if own is not None else model.info.vocabulary_hash
    checkpoints.check_vocabulary(model.config, tokenizer, expected, tokenizer.path)
    return tokenizer


def _objective(asked: str, model: "Model", source: "RecordSource", model_dir: str) -> str | None:
    """The sentence objective to measure, or None where there is none. Raises UserError naming what is missing."""
    heads = ", ".join(model.heads) or "none"
    untrained = {name.split("/")[0] for name in model.restored.new}
    if "masked_lm" not in model.heads or "masked_lm" in untrained:
        raise UserError(f"{model_dir} has no trained masked LM head (heads: {heads}): give a pretraining model")
    has_head = "sentence_order" in model.heads and "sentence_order" not in untrained
    if asked == AS_TRAINED:
        trained = model.info.sentence_objective or "sop"  # the release and its ports do not say: they train sop
        if not has_head or trained == "none" or source.info.objective == "none":
            model.heads.pop("sentence_order", None)
            return None
        return trained
    if not has_head:
        raise UserError(
            f"{model_dir} has no trained sentence-order head (heads: {heads}): leave out --sentence_objective={asked}"
        )
    return asked
