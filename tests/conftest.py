"""What all tests share: the slow switch, no network, one vocabulary, and the way to the material beside the project."""

import os
import pathlib
import socket

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The same threads on every machine, so that a test neither hogs a large one nor depends on its size.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

import pytest  # noqa: E402  the variables above must be set before anything imports TensorFlow

import albert_tf  # noqa: E402, F401  decides which Keras `tf.keras` is, whatever a test imports first

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests as well")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow") or "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session", autouse=True)
def offline():
    """Refuses connections beyond this machine: a test that needs the network is wrong."""
    connect = socket.socket.connect

    def connect_here(self, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests run offline: no connection to {address[0]}")
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """Golden outputs and real data, where they lie beside the project (or at ALBERT_TF_SHARED)."""
    folder = pathlib.Path(os.environ.get("ALBERT_TF_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder}; set ALBERT_TF_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def prose(tmp_path_factory) -> pathlib.Path:
    """A folder of text files: the topics of the language reference, some 250 KB of English."""
    from albert_tf.pretraining import prose

    folder = tmp_path_factory.mktemp("prose")
    for name, text in prose.topics().items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_spm(prose, tmp_path_factory) -> pathlib.Path:
    """spiece.model of 800 pieces, lower case, trained on `prose`; its folder is a tokeniser folder."""
    from albert_tf.pretraining.vocabulary import train_vocabulary

    folder = tmp_path_factory.mktemp("vocabulary") / "tiny_spm"
    train_vocabulary(str(prose), folder, vocab_size=800, report=lambda line: None)
    return folder / "spiece.model"


@pytest.fixture(scope="session")
def c_api():
    """A function that runs a signature of a SavedModel through TensorFlow's C library in a process of its own.

    (folder, signature name, {input: array}, op libraries) -> {output: array}; strings are arrays of bytes objects.
    """
    import json
    import subprocess
    import sys

    import numpy as np

    def packed(array):
        values = array.reshape(-1).tolist()
        is_text = array.dtype == object
        kind = "string" if is_text else str(array.dtype)
        return {"dtype": kind, "shape": array.shape, "values": [value.hex() for value in values] if is_text else values}

    def run(folder, signature, inputs, op_libraries=()):
        import tensorflow as tf
        from tensorflow.core.protobuf import saved_model_pb2

        stored = saved_model_pb2.SavedModel.FromString((pathlib.Path(folder) / "saved_model.pb").read_bytes())
        names = stored.meta_graphs[0].signature_def[signature]
        job = {
            "tensorflow": str(pathlib.Path(tf.__file__).parent),
            "op_libraries": list(op_libraries),
            "folder": str(folder),
            "inputs": {names.inputs[name].name: packed(value) for name, value in inputs.items()},
            "outputs": [output.name for output in names.outputs.values()],
        }
        program = str(pathlib.Path(__file__).with_name("c_api.py"))
        done = subprocess.run(
            [sys.executable, "-I", program], input=json.dumps(job), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-2000:]
        results = {}
        for name, array in zip(names.outputs, json.loads(done.stdout), strict=True):
            is_text = array["dtype"] == "string"
            values = [bytes.fromhex(value) for value in array["values"]] if is_text else array["values"]
            results[name] = np.array(values, object if is_text else array["dtype"]).reshape(array["shape"])
        return results

    return run
