"""albert_tf inspect: what a model, records or run folder is, and whether it is whole."""

import dataclasses
import json
import pathlib
import re
import sys
from typing import TYPE_CHECKING

from absl import flags

from albert_tf import checkpoints, files
from albert_tf.commands import convert
from albert_tf.errors import UserError

if TYPE_CHECKING:
    from albert_tf.pretraining.records import RecordsInfo

_CHECKPOINTS = "checkpoints"  # of a run folder
_OF_MODELS = ("head", "hidden_act", "albert_config_file")  # flags that say how to read a model


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of the command."""
    convert.define_source_flags(flag_values)
    flag_values["model_dir"].help = "model of any kind, records folder or run folder"
    text = "also compute: a model against a plain NumPy pass over its source, records against their checksums"
    flags.DEFINE_boolean("verify", False, text, flag_values=flag_values)
    flags.mark_flags_as_required(["model_dir"], flag_values=flag_values)


def run(flag_values: flags.FlagValues) -> None:
    """Prints the description."""
    from albert_tf.pretraining import records

    path = pathlib.Path(flag_values.model_dir)
    if (path / records.DESCRIPTION).is_file():
        if given := [name for name in _OF_MODELS if getattr(flag_values, name) is not None]:
            raise UserError(f"--{given[0]} is for models, and {path} is a records folder: leave it out")
        _inspect_records(path, flag_values.verify)
        return
    if (path / _CHECKPOINTS).is_dir() or (path / "run.json").is_file():
        _inspect_run(path)
        if not (path / checkpoints.INFO_FILE).is_file():
            _line("model", "none saved yet")
            return
    _inspect_model(path, flag_values)


def _inspect_model(path: pathlib.Path, flag_values: flags.FlagValues) -> None:
    from albert_tf.conversion import sources, verify

    with sources.opened(path, **convert.source_arguments(flag_values)) as source:
        model = source.model()
        _line("kind", f"{source.kind} ({sources.KINDS[source.kind]})")
        _line("config", json.dumps(dataclasses.asdict(model.config)))
        for part, count in _parameters(model).items():
            _line(f"parameters of {part}", f"{count:,}")
        tokenizer = model.tokenizer
        if tokenizer is None:
            _line("tokeniser", "none")
        else:
            _line("tokeniser", f"{tokenizer.kind}, {tokenizer.vocab_size} pieces, SHA-256 {tokenizer.hash}")
            _line("text rules", f"do_lower_case {tokenizer.do_lower_case}, keep_accents {tokenizer.keep_accents}")
        _line("heads", ", ".join(f"{name} {options or ''}".strip() for name, options in source.heads.items()) or "none")
        _line("label names", ", ".join(model.info.labels) if model.info.labels else "none")
        for name in ("task", "max_seq_length", "sentence_objective", "preset"):
            if getattr(model.info, name) is not None:
                _line(name.replace("_", " "), getattr(model.info, name))
        if model.info.made_by:
            _line("made by", json.dumps({key: value for key, value in model.info.made_by.items() if key != "new"}))
        convert.print_restored(model.restored)
        _line("missing", ", ".join(_missing(model)) or "nothing")
        if flag_values.verify:
            for difference in verify.check_model(source, model, verify.sample_inputs(source.config)):
                print(difference)
        for notice in source.notices:
            print(f"notice: {notice}", file=sys.stderr)


def _parameters(model) -> dict[str, int]:
    """Parameters of each part, and of all."""
    counts: dict[str, int] = {}
    for name, variable in model.named_variables().items():
        head, *rest = name.split("/")
        part = f"{head}/{rest[0]}" if head == "encoder" else head
        counts[part] = counts.get(part, 0) + variable.shape.num_elements()
    encoder = sum(count for part, count in counts.items() if part.startswith("encoder/"))
    return {**counts, "the encoder": encoder, "all": sum(counts.values())}


def _missing(model) -> list[str]:
    """What a use of the model may want and the folder lacks."""
    missing = [] if model.tokenizer is not None else ["tokeniser"]
    labelled = {"classifier", "token_classifier"} & set(model.heads)
    if labelled and not model.info.labels:
        missing.append(f"label names of the {labelled.pop()}")
    if model.restored.new:
        missing.append(f"trained values of {', '.join(model.restored.new)}")
    return missing


def _inspect_records(path: pathlib.Path, verify: bool) -> None:
    from albert_tf.pretraining import records

    info = records.RecordsInfo.read(path)
    _line("kind", f"records folder ({info.masking} masking, objective {info.objective})")
    _line("records", f"{info.num_records:,} in {len(info.shards)} shards")
    for name, value in dataclasses.asdict(info).items():
        if name not in ("shards", "counts", "num_records", "masking", "objective"):
            _line(name, value)
    for name, value in info.counts.items():
        _line(f"counted {name}", value)
    heldout, held = path / "heldout", None
    if (heldout / records.DESCRIPTION).is_file():
        held = records.RecordsInfo.read(heldout)
        _line("held out", f"{held.num_records:,} records in {heldout.name}")
    if verify:
        _verify_records(path, info)
        verified = f"checksums of {info.num_records:,} records"
        if held is not None:
            _verify_records(heldout, held)
            verified += f", and of {held.num_records:,} held out"
        _line("verified", verified)


def _verify_records(path: pathlib.Path, info: "RecordsInfo") -> None:
    """Reads every record of a folder; raises UserError for the first that is damaged, or another number of them."""
    from albert_tf.pretraining import records

    for shard in info.shards:
        found = records.check_file(path / shard.name)
        if found != shard.num_records:
            raise UserError(
                f"{path / shard.name} has {found} records: expected {shard.num_records}; make the records again"
            )


def _inspect_run(path: pathlib.Path) -> None:
    names = (re.fullmatch(r"ckpt-(\d+)\.index", file.name) for file in (path / _CHECKPOINTS).glob("ckpt-*.index"))
    steps = sorted(int(name[1]) for name in names if name)
    _line("run", path)
    _line("checkpoints at step", ", ".join(map(str, steps)) or "none")
    metrics = path / "metrics.jsonl"
    if metrics.is_file():
        lines = metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        _line("last metrics", lines[-1] if lines else "none")
    settings = path / "run.json"
    if settings.is_file():
        for name, value in files.read_json(settings, "run description").items():
            _line(name, json.dumps(value))


def _line(name: str, value: object) -> None:
    print(f"{name}: {value}")
