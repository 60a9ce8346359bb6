"""Weights from one kind of folder to another, every tensor accounted for and the result compared with the source."""

import dataclasses
import pathlib

import albert_tf
from albert_tf import checkpoints, files
from albert_tf.conversion import huggingface_files, release, sources, verify
from albert_tf.conversion.names import POOLER, Source
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a conversion did."""

    kind: str  # of the source
    heads: tuple[str, ...]
    restored: checkpoints.Restored
    differences: tuple[verify.Difference, ...]
    notices: tuple[str, ...]


def convert(
    model_dir: pathlib.Path,
    output_dir: pathlib.Path,
    to: str,
    *,
    heads: tuple[str, ...] | None = None,
    label_names: tuple[str, ...] | None = None,
    hidden_act: str | None = None,
    config_file: pathlib.Path | None = None,
) -> Report:
    """Writes the model at `model_dir`, of any kind, as a new folder of the kind `to`; arguments as `sources.opened`.

    Raises UserError, and writes nothing, where the source is damaged or incomplete, has a tensor that belongs to
    nothing known (unless `heads` says what to take), cannot be expressed in the target, or computes something else
    than what was made of it.
    """
    files.check_new_folder(output_dir)
    with sources.opened(
        model_dir, heads=heads, label_names=label_names, hidden_act=hidden_act, config_file=config_file
    ) as source:
        model = source.model()
        _check_accounts(source, model.restored, chosen=heads is not None)
        inputs = verify.sample_inputs(source.config)
        differences = verify.check_model(source, model, inputs)
        model.info = _described(model, source, model_dir)
        with files.new_folder(output_dir) as folder:
            notices = _write(folder, to, model)
            expected = verify.source_outputs(source, inputs)
            differences.append(verify.check_written(folder, to, model, expected, inputs))
    return Report(
        kind=source.kind,
        heads=tuple(model.heads),
        restored=model.restored,
        differences=tuple(differences),
        notices=(*source.notices, *notices),
    )


def _check_accounts(source: Source, restored: checkpoints.Restored, *, chosen: bool) -> None:
    unknown = [name for name in restored.unused if name not in source.other_tensors]
    if unknown and not chosen:
        more = f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""
        raise UserError(
            f"{source.path} has {len(unknown)} tensors that belong to nothing known: {', '.join(unknown[:6])}{more}; "
            f"to leave them out, say what to take: --head={','.join(source.heads) or 'none'}"
        )
    if fresh := [name for name in restored.new if name not in POOLER]:
        raise UserError(f"{source.path} has no trained values for {', '.join(fresh)}; choose other heads with --head")


def _described(model: checkpoints.Model, source: Source, path: pathlib.Path) -> checkpoints.ModelInfo:
    made_by = {
        "command": "convert",
        "albert_tf": albert_tf.__version__,
        "source": {"kind": source.kind, "name": path.name},
        "new": list(model.restored.new),  # never trained: what a later load reports as such
    }
    return dataclasses.replace(model.info, made_by=made_by)


def _write(folder: pathlib.Path, to: str, model: checkpoints.Model) -> list[str]:
    if to == "huggingface":
        return huggingface_files.write(folder, model)
    if to == "release":
        return release.write(folder, model)
    checkpoints.save_model(folder, model)
    return []
