"""pytorch_model.bin without PyTorch: both forms of the file, every dtype, views, damage."""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from albert_tf.conversion import torch_files
from albert_tf.errors import UserError


class Storage:
    """Pickled by reference to its key, as PyTorch does it."""

    def __init__(self, key, array, kind):
        self.key, self.array, self.kind = key, array, kind


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.arguments = (storage, offset, shape, strides, False, collections.OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


@pytest.fixture
def torch_names(monkeypatch):
    """Stand-ins under PyTorch's names, so that a pickle refers to them."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "BFloat16Storage", "LongStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))

    def _rebuild_tensor_v2(*_):
        raise AssertionError("only its name is used")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils = utils
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return torch


def pickled(value, torch, legacy):
    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if isinstance(item, Storage):
                tail = (None,) if legacy else ()
                return ("storage", getattr(torch, item.kind), item.key, "cpu", item.array.size, *tail)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def write_archive(path, state, storages, torch):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", pickled(state, torch, legacy=False))
        file.writestr("model/byteorder", "little")
        for storage in storages:
            file.writestr(f"model/data/{storage.key}", storage.array.tobytes())


def write_row(path, state, storages, torch):
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True})
    with open(path, "wb") as file:
        file.write(b"".join(pickle.dumps(item, protocol=2) for item in head))
        file.write(pickled(state, torch, legacy=True))
        file.write(pickle.dumps([storage.key for storage in storages], protocol=2))
        for storage in storages:
            file.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())


def sample():
    """(state, storages, expected): a matrix, its transpose and a slice in one storage, half floats, whole numbers."""
    matrix = np.arange(12, dtype="<f4")
    shared = Storage("0", matrix, "FloatStorage")
    half = Storage("1", np.array([0.5, -2], "<f2"), "HalfStorage")
    brain = Storage("2", np.array([0x3FC0, 0xC000], "<u2"), "BFloat16Storage")  # 1.5, -2
    whole = Storage("3", np.arange(3, dtype="<i8"), "LongStorage")
    state = collections.OrderedDict(
        matrix=Tensor(shared, 0, (3, 4), (4, 1)),
        transposed=Tensor(shared, 0, (4, 3), (1, 4)),
        slice=Tensor(shared, 5, (2,), (1,)),
        half=Tensor(half, 0, (2,), (1,)),
        brain=Tensor(brain, 0, (2,), (1,)),
        whole=Tensor(whole, 0, (3,), (1,)),
        scalar=Tensor(shared, 7, (), ()),
        empty=Tensor(shared, 0, (0, 4), (4, 1)),
    )
    state._metadata = collections.OrderedDict({"": {"version": 1}})  # state dicts carry it
    expected = {
        "matrix": matrix.reshape(3, 4),
        "transposed": matrix.reshape(3, 4).T,
        "slice": matrix[5:7],
        "half": np.array([0.5, -2], "<f2"),
        "brain": np.array([1.5, -2], ml_dtypes.bfloat16),
        "whole": np.arange(3),
        "scalar": np.float32(7),
        "empty": np.zeros((0, 4), "<f4"),
    }
    return state, [shared, half, brain, whole], expected


@pytest.mark.parametrize("write", [write_archive, write_row])
def test_tensors_are_read_as_they_are(tmp_path, torch_names, write):
    state, storages, expected = sample()
    write(tmp_path / "model.bin", state, storages, torch_names)
    found = torch_files.read_tensors(tmp_path / "model.bin")
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name


@pytest.mark.parametrize("write", [write_archive, write_row])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_truncated_files_are_refused(tmp_path, torch_names, write, share):
    state, storages, _ = sample()
    path = tmp_path / "model.bin"
    write(path, state, storages, torch_names)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(UserError, match="truncated or no PyTorch state dict"):
        torch_files.read_tensors(path)


@pytest.mark.parametrize("tensor", [(10, (3,), (1,)), (0, (3, 4), (4, 2)), (-1, (1,), (1,)), (0, (2,), (-1,))])
def test_a_tensor_may_not_reach_beyond_its_storage(tmp_path, torch_names, tensor):
    storage = Storage("0", np.zeros(12, "<f4"), "FloatStorage")
    write_archive(tmp_path / "model.bin", {"x": Tensor(storage, *tensor)}, [storage], torch_names)
    with pytest.raises(UserError, match="negative|beyond"):
        torch_files.read_tensors(tmp_path / "model.bin")


@pytest.mark.parametrize("value", [[1, 2], {"x": 3}, {3: Tensor(Storage("0", np.zeros(1), "FloatStorage"), 0, (), ())}])
def test_anything_but_a_state_dict_is_refused(tmp_path, torch_names, value):
    write_archive(tmp_path / "model.bin", value, [], torch_names)
    with pytest.raises(UserError, match="state dict"):
        torch_files.read_tensors(tmp_path / "model.bin")


@pytest.mark.parametrize("name", ["builtins\neval", "torch\nload", "torch.storage\n_load_from_bytes", "os\nsystem"])
def test_no_other_global_is_even_looked_up(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "model.bin", "w") as file:
        file.writestr("model/data.pkl", b"c" + name.encode() + b"\n.")
    with pytest.raises(UserError, match="holds code"):
        torch_files.read_tensors(tmp_path / "model.bin")


def test_encrypted_archives_and_impossible_lengths_are_refused(tmp_path, torch_names):
    state, storages, _ = sample()
    path = tmp_path / "model.bin"
    write_archive(path, state, storages, torch_names)
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # of a member, of its entry in the list
        start = -1
        while (start := content.find(signature, start + 1)) >= 0:
            content[start + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="encrypted"):
        torch_files.read_tensors(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", b"\x96" + b"\xff" * 8 + b".")  # a byte array of 2^64 - 1 bytes
    with pytest.raises(UserError, match="truncated or no PyTorch state dict"):
        torch_files.read_tensors(path)
