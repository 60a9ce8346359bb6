"""pytorch_model.bin without PyTorch, and without running what a pickle may hold.

A pickle is a program. This reader lets it name a handful of globals, those that describe tensors, each replaced by a
function of ours; anything else is refused before it is looked up. Both forms of the file are read: the zip archive, and
the row of pickles that PyTorch wrote before version 1.6.
"""

import collections
import io
import pathlib
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert_tf.errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C  # first object of the older form
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_DAMAGED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    TypeError,
    AttributeError,
    RuntimeError,  # an encrypted archive, a method of compression that is not there
    zlib.error,
    OSError,
    MemoryError,
)


class _Storage(NamedTuple):
    """Where a tensor's numbers are; `key` names them in the file."""

    key: str
    dtype: str
    size: int  # numbers


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int  # numbers
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # numbers


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a saved state dict, in the dtypes of the file.

    Raises UserError where the file is damaged, or where its pickle asks for anything but tensors.
    """
    try:
        with open(path, "rb") as file:
            read = _read_archive if zipfile.is_zipfile(file) else _read_row
            file.seek(0)
            state, numbers = read(file, path)
            return _arrays(state, numbers, path)
    except _DAMAGED as error:
        reason = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise UserError(f"{path} is truncated or no PyTorch state dict ({reason}); copy it again") from error


def _read_archive(file: BinaryIO, path: pathlib.Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    archive = zipfile.ZipFile(io.BytesIO(file.read()))
    pickled = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(pickled) != 1:
        raise ValueError("no data.pkl inside")
    root = pickled[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("big-endian numbers")
    state = _Unpickler(io.BytesIO(archive.read(pickled[0])), path).load()
    return state, lambda storage: archive.read(f"{root}data/{storage.key}")


def _read_row(file: BinaryIO, path: pathlib.Path) -> tuple[Any, Callable[[_Storage], bytes]]:
    """Magic number, version, system, state, keys, then for each key a count and its numbers."""
    if _Unpickler(file, path).load() != _MAGIC:
        raise ValueError("another magic number")
    _version, system, state, keys = (_Unpickler(file, path).load() for _ in range(4))
    if not system.get("little_endian", True):
        raise ValueError("big-endian numbers")
    storages = {tensor.storage.key: tensor.storage for tensor in state.values() if isinstance(tensor, _Tensor)}
    numbers = {}
    for key in keys:
        (size,) = struct.unpack("<q", file.read(8))
        if key not in storages:
            raise ValueError(f"storage {key!r} belongs to no tensor")
        numbers[key] = file.read(size * _numpy_dtype(storages[key].dtype).itemsize)
    return state, lambda storage: numbers[storage.key]


def _arrays(state: Any, numbers: Callable[[_Storage], bytes], path: pathlib.Path) -> dict[str, np.ndarray]:
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise UserError(f"{path} holds no state dict: expected names and tensors; save model.state_dict()")
    odd = [name for name, tensor in state.items() if not isinstance(tensor, _Tensor)]
    if odd:
        raise UserError(f"{path}: {', '.join(odd[:3])} is no tensor: expected a state dict; save model.state_dict()")
    flat = {}
    for tensor in state.values():
        storage = tensor.storage
        if storage.key not in flat:
            flat[storage.key] = np.frombuffer(numbers(storage), _numpy_dtype(storage.dtype))
    return {name: _array(tensor, flat[tensor.storage.key]) for name, tensor in state.items()}


def _array(tensor: _Tensor, flat: np.ndarray) -> np.ndarray:
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    if min([tensor.offset, *tensor.shape, *tensor.strides], default=0) < 0:
        raise ValueError("a negative size")
    if 0 not in tensor.shape and tensor.offset + sum(steps) >= len(flat):
        raise ValueError("a tensor reaches beyond its numbers")
    strides = [stride * flat.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides, writeable=False)
    return np.ascontiguousarray(view).reshape(tensor.shape)


def _numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # comes with TensorFlow

    return np.dtype(ml_dtypes.bfloat16)


def _tensor(storage: _Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch", "Size"): tuple,
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: pathlib.Path) -> None:
        super().__init__(file, encoding="utf-8")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UserError(
                f"{self._path} holds code: its pickle asks for {module}.{name}, and only tensors are read; do not "
                "trust the file, or ask its maker for model.safetensors"
            )
        return _ALLOWED[module, name]

    def persistent_load(self, persistent_id: Any) -> _Storage:
        kind, dtype, key, _location, size, *view = persistent_id
        if kind != "storage" or any(view):
            raise ValueError("an unknown kind of storage")
        return _Storage(str(key), dtype, int(size))
