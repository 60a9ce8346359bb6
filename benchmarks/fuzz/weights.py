"""Weights: TensorFlow checkpoints, safetensors, PyTorch's pickles and archives of models, damaged or lying."""

import io
import json
import pathlib
import struct
import tarfile

from benchmarks.fuzz import mutations
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.questions import odd_member
from benchmarks.fuzz.workshop import Workshop

# How often, what is damaged, below which folder.
_PLANS = [
    (4, "model", "weights-0.index"),
    (3, "model", "weights-0.data-00000-of-00001"),
    (3, "release", "model.ckpt-best.index"),
    (2, "release", "model.ckpt-best.data-00000-of-00001"),
    (3, "model", "tensors"),
    (8, "face", "model.safetensors"),
    (6, "torch", "pytorch_model.bin"),
    (4, "archives", "release.tar.gz"),
    (2, "export", "1/saved_model.pb"),
    (1, "export", "1/variables/variables.index"),
]
_COMMANDS = [
    "inspect --model_dir={}",
    "convert --model_dir={} --output_dir=out/converted --to=native",
    "fill_mask --model_dir={} --text=[MASK]",
    "embed --model_dir={} --input_file=@texts/lines.txt --output_file=out/vectors.npy",
]


def make(shop: Workshop) -> list[str]:
    """A model whose weights are damaged or do not fit, and a command that reads them."""
    rng = shop.rng
    _, folder, file = rng.choices(_PLANS, [plan[0] for plan in _PLANS])[0]
    place = shop.take(folder)
    if file == "tensors":
        _write_odd_tensors(shop, shop.path(folder))
    elif file == "release.tar.gz":
        place = f"{place}/{file}"
        if rng.random() < 0.4:
            shop.damage(f"{folder}/{file}")
        else:
            _write_archive(shop, shop.path(folder) / file)
    elif file == "model.safetensors" and rng.random() < 0.7:
        _damage_header(shop, shop.path(folder) / file)
    else:
        shop.damage(f"{folder}/{file}")
    if folder == "export":
        return filled(shop, "predict --model_dir={} --input_file=@tables/rows.tsv --output_file=out/answers.tsv", place)
    return filled(shop, rng.choice(_COMMANDS), place)


def _write_odd_tensors(shop: Workshop, folder: pathlib.Path) -> None:
    """A whole checkpoint in which a tensor has another shape, type, name or numbers that are none."""
    import numpy as np

    from albert_tf import checkpoints

    rng = shop.rng
    tensors = checkpoints.read_tensors(folder / "weights-0")
    name = rng.choice(sorted(tensors))
    value = tensors.pop(name)
    odd = [None, value[..., None], value[:1], value[:0], value.astype(np.int32), value.astype(np.float16)]
    odd += [value * np.nan, np.full_like(value, np.inf), np.full_like(value, 1e38), value.astype(np.complex64)]
    odd += [np.array("x"), np.float32(3), value.astype(bool), np.zeros((0, 0), np.float32), value.astype(np.float64)]
    chosen = odd[rng.randrange(len(odd))]
    if chosen is not None:
        tensors[rng.choice((name, name, name, f"{name}_", "unknown", "encoder/" + "x" * 300))] = chosen
    checkpoints.write_tensors(folder / "weights-0", tensors)


def _damage_header(shop: Workshop, path: pathlib.Path) -> None:
    """Changes what a safetensors file says of itself: the header's length, shapes, offsets, types."""
    rng = shop.rng
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.25:
        claimed = rng.choice((0, 1, size - 1, size + 1, len(data), 1 << 31, 1 << 40, (1 << 64) - 1))
        path.write_bytes(struct.pack("<Q", claimed) + header + body)
        return
    described = json.loads(header)
    name = rng.choice([name for name in described if name != "__metadata__"])
    tensor = described[name]
    kind = rng.randrange(5)
    if kind == 0:
        tensor["shape"] = rng.choice(
            ([1 << 40], [1 << 31, 1 << 31], [-1, 5], [], [0], ["a"], None, tensor["shape"] * 2)
        )
    elif kind == 1:
        end = rng.choice((1 << 50, -1, 0, tensor["data_offsets"][1] + 4, None, "x"))
        tensor["data_offsets"] = [tensor["data_offsets"][0], end]
    elif kind == 2:
        tensor["dtype"] = rng.choice(("F16", "I64", "BF16", "X99", None, 5, "F64", "BOOL", "F8_E4M3"))
    elif kind == 3:
        described[rng.choice((f"{name}x", "x" * 400, "\x1b[31m"))] = described.pop(name)
    else:
        described = mutations.altered(rng, described, mutations.ODD)
    header = json.dumps(described).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)


def _write_archive(shop: Workshop, path: pathlib.Path) -> None:
    """An archive of a release checkpoint with an odd member first or last."""
    odd = odd_member(shop, "albert/odd")
    first = shop.rng.random() < 0.5
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        if first:
            archive.addfile(odd)
        archive.add(shop.material / "release", "albert")
        if not first:
            archive.addfile(odd)
    path.write_bytes(packed.getvalue())
