"""Before any work: the settings of a run, its data opened, and everything that cannot work refused."""

import dataclasses
import os
import pathlib
from typing import Any

import tensorflow as tf

from albert_tf import checkpoints, costs, files, tokenization
from albert_tf.config import AlbertConfig, preset
from albert_tf.errors import UserError
from albert_tf.pretraining import addresses, record_source, served_dataset
from tpu import memory, strategy

SAMPLE = 1024  # training sequences that stand in for held-out ones where there are none
_SURELY_TOO_LARGE = 1.5  # times the machine's memory; the estimate is within 15 %, and some memory may be swapped


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings:
    """Everything a run depends on; the fields named in ADJUSTABLE may change when it is resumed."""

    data_dir: str
    output_dir: str
    preset: str | None
    model: AlbertConfig | None  # None: the preset with the vocabulary size of the records
    hidden_dropout: float | None
    attention_dropout: float | None
    init_checkpoint: str | None
    init_from_group0: bool = False  # start every group from the first one of init_checkpoint
    eval_data_dir: str | None
    eval_batch_size: int  # sequences
    num_train_steps: int
    train_batch_size: int  # sequences of one optimiser step, over all devices
    grad_accum_steps: int
    learning_rate: float
    num_warmup_steps: int
    optimizer: str
    bias_correction: bool
    weight_decay: float
    mixed_precision: str
    distribution: str
    tpu_name: str | None
    iterations_per_loop: int | None
    save_checkpoints_steps: int
    eval_every_steps: int
    keep_checkpoints: int
    max_seq_length: int | None
    max_predictions_per_seq: int | None
    tokenizer_file: str | None
    skip_corrupt_records: bool
    seed: int
    deterministic: bool
    jit_compile: str  # auto, true or false
    cluster_timeout: float  # seconds that workers wait for each other at the start
    stall_timeout: float  # seconds without any progress after which the run ends; 0: never
    recompute: bool
    data_service: str | None = None  # grpc://host:port of its dispatcher


# Where things lie is not compared: the records are known by their content, the model by its sizes. To go on without
# records that broke meanwhile is the user's explicit choice.
ADJUSTABLE = {
    *("data_dir", "output_dir", "eval_data_dir", "eval_batch_size", "num_train_steps"),
    *("distribution", "tpu_name", "iterations_per_loop", "save_checkpoints_steps", "eval_every_steps"),
    *("keep_checkpoints", "tokenizer_file", "jit_compile", "recompute", "max_seq_length", "skip_corrupt_records"),
    *("cluster_timeout", "stall_timeout", "data_service"),
}


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Where batches come from."""

    source: record_source.RecordSource
    tokenizer: tokenization.Tokenizer
    evaluation: record_source.RecordSource
    evaluation_name: str

    @property
    def fingerprint(self) -> str:
        """Tells the records to train on from all others, wherever they lie."""
        return _fingerprint(self.source)

    @property
    def evaluation_fingerprint(self) -> str:
        """The same of the records to evaluate on."""
        return _fingerprint(self.evaluation)


def _fingerprint(source: record_source.RecordSource) -> str:
    return files.fingerprint(dataclasses.asdict(source.info))[:12]


def check_places(tpu_name: str | None, **places: str | None) -> None:
    """Refuses paths that a remote TPU cannot read, before it is asked for: its own machines read the records."""
    if not strategy.is_remote_tpu(tpu_name):
        return
    for name, path in places.items():
        if path is not None and not path.startswith("gs://"):
            raise UserError(
                f"{name} is {path}, which the TPU {tpu_name!r} cannot read: expected gs://BUCKET/FOLDER, as a "
                "remote TPU reads the records itself; copy them there, or run on the TPU VM with --tpu_name=local"
            )


def open_data(settings: PretrainingSettings) -> PretrainingData:
    """Opens the records to train and to evaluate on, with their tokeniser. Raises UserError where that fails."""
    tokenizer = None
    if settings.tokenizer_file is not None:
        tokenizer = tokenization.load_tokenizer(settings.tokenizer_file)
    skip, data_dir = settings.skip_corrupt_records, settings.data_dir
    source = record_source.open_records(data_dir, tokenizer=tokenizer, skip_corrupt_records=skip)
    if settings.tokenizer_file is not None:  # a file alone does not tell the text rules, which the records do
        rules = {"do_lower_case": source.info.do_lower_case, "keep_accents": source.info.keep_accents}
        tokenizer = tokenization.load_tokenizer(settings.tokenizer_file, **rules)
    else:
        tokenizer = checkpoints.load_folder_tokenizer(addresses.with_small_files(data_dir), source.info)
    if tokenizer is None:
        raise UserError(
            f"{data_dir} has no tokeniser file: expected spiece.model or vocab.txt beside the records; copy "
            "it there or name it with --spm_model_file or --vocab_file"
        )
    held_out = settings.eval_data_dir
    if held_out is None and addresses.is_address(data_dir):
        held_out = f"{data_dir.rstrip('/')}/heldout" if addresses.has_folder(data_dir, "heldout") else None
    elif held_out is None and (pathlib.Path(data_dir) / "heldout").is_dir():
        held_out = str(pathlib.Path(data_dir) / "heldout")
    if held_out is None:
        return PretrainingData(
            source, tokenizer, source, f"a sample of {min(SAMPLE, source.num_records)} TRAINING sequences"
        )
    evaluation = record_source.open_records(held_out, tokenizer=tokenizer, skip_corrupt_records=skip)
    return PretrainingData(source, tokenizer, evaluation, f"{evaluation.num_records} held-out sequences")


def model_config(settings: PretrainingSettings, tokenizer: tokenization.Tokenizer) -> AlbertConfig:
    """The configuration to train: the one given or the preset at the vocabulary's size, with the dropouts asked for."""
    config = settings.model
    if config is None:
        config = preset(settings.preset).replace(vocab_size=tokenizer.vocab_size)
    changes = {
        "hidden_dropout_prob": settings.hidden_dropout,
        "attention_probs_dropout_prob": settings.attention_dropout,
    }
    return config.replace(**{name: value for name, value in changes.items() if value is not None})


def check(
    settings: PretrainingSettings, config: AlbertConfig, data: PretrainingData, where: tf.distribute.Strategy
) -> None:
    """Refuses what cannot work before anything slow is done."""
    if settings.data_service is not None:
        served_dataset.check_service(settings.data_service)
    record_source.check_records(
        data.source,
        config=config,
        tokenizer=data.tokenizer,
        global_batch_size=settings.train_batch_size,
        max_seq_length=settings.max_seq_length,
        max_predictions_per_seq=settings.max_predictions_per_seq,
    )
    _check_evaluation(config, data)
    parts = where.num_replicas_in_sync * settings.grad_accum_steps
    if settings.train_batch_size % parts:
        raise UserError(
            f"train_batch_size is {settings.train_batch_size}: expected a multiple of {where.num_replicas_in_sync} "
            f"replica(s) x {settings.grad_accum_steps} accumulation step(s) = {parts}"
        )
    if settings.eval_batch_size % where.num_replicas_in_sync:
        raise UserError(
            f"eval_batch_size is {settings.eval_batch_size}: expected a multiple of the {where.num_replicas_in_sync} "
            "replicas"
        )
    if settings.mixed_precision == "mixed_float16" and any("TPU" in device for device in where.extended.worker_devices):
        raise UserError("mixed_precision is mixed_float16 on a TPU, which has no float16: give mixed_bfloat16")
    if settings.num_warmup_steps > settings.num_train_steps:
        raise UserError(
            f"num_warmup_steps is {settings.num_warmup_steps}, num_train_steps {settings.num_train_steps}: the warm-up "
            "must end before the training; give fewer warm-up steps"
        )
    needed, own = step_memory(settings, config, data, where)["total"], machine_memory(where)
    if own is not None and needed > _SURELY_TOO_LARGE * own:
        raise UserError(
            f"{settings.train_batch_size // parts} sequences of {data.source.info.max_seq_length} tokens at a time "
            f"take about {needed / 2**30:,.1f} GiB, this machine has {own / 2**30:,.1f} GiB of memory: give a smaller "
            "--train_batch_size, more --grad_accum_steps, or --recompute"
        )


def _check_evaluation(config: AlbertConfig, data: PretrainingData) -> None:
    try:
        record_source.check_records(data.evaluation, config=config, tokenizer=data.tokenizer)
    except UserError as error:
        raise UserError(
            f"of the records to evaluate on, {os.path.dirname(data.evaluation.paths[0])}: {error}"
        ) from error
    trained, measured = data.source.info.objective, data.evaluation.info.objective
    if "none" not in (trained, measured) and trained != measured:
        raise UserError(
            f"the records have the objective {trained}, those to evaluate on {measured}: give an --eval_data_dir made "
            "with the same --objective; evaluate_pretraining measures a model on the other one"
        )


def step_memory(
    settings: PretrainingSettings, config: AlbertConfig, data: PretrainingData, where: tf.distribute.Strategy
) -> dict[str, int]:
    """memory.training_bytes of this run: what a step takes on one device."""
    info = data.source.info
    return memory.training_bytes(
        config,
        rows=settings.train_batch_size // where.num_replicas_in_sync // settings.grad_accum_steps,
        max_seq_length=info.max_seq_length,
        num_predictions=settings.max_predictions_per_seq or info.max_predictions_per_seq,
        mixed_precision=settings.mixed_precision,
        recompute=settings.recompute,
        accumulate=settings.grad_accum_steps > 1,
    )


def machine_memory(where: tf.distribute.Strategy) -> int | None:
    """Bytes of memory that the CPU of this machine computes in; None where other devices compute."""
    on_cpu = all("CPU" in device for device in where.extended.worker_devices)
    return costs.machine_memory() if on_cpu else None


def agreement(settings: PretrainingSettings, config: AlbertConfig, data: PretrainingData) -> str:
    """A fingerprint of all that the workers of a run must have in common, which paths need not be."""
    paths = ("data_dir", "output_dir", "eval_data_dir", "tokenizer_file", "init_checkpoint")
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name not in (*paths, "model")}
    spans = [[(span.first, span.count) for span in source.spans] for source in (data.source, data.evaluation)]
    records = [dataclasses.asdict(source.info) for source in (data.source, data.evaluation)]
    return files.fingerprint([values, config.to_dict(), data.tokenizer.hash, records, spans])


def identity(settings: PretrainingSettings, config: AlbertConfig, data: PretrainingData) -> dict[str, Any]:
    """What makes a run this run and no other."""
    values = {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if name not in ADJUSTABLE and name not in ("model", "hidden_dropout", "attention_dropout", "preset")
    }
    info = data.source.info
    values["max_predictions_per_seq"] = settings.max_predictions_per_seq or info.max_predictions_per_seq
    return {**values, "model": config.to_dict(), "records": data.fingerprint}
