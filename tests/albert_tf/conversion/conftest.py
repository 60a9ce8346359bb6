"""Random small models as the sources would store them."""

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.config import AlbertConfig
from albert_tf.conversion import huggingface_files, release

TINY = AlbertConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
)
_WRITE = {"release": release.write, "huggingface": huggingface_files.write, "native": checkpoints.save_model}


@pytest.fixture(scope="session")
def random_model():
    """random_model(heads, seed=, tokenizer=, info=, **settings): every value is random and matters."""

    def make(heads=None, *, seed=0, tokenizer=None, info=None, **settings):
        heads = {"masked_lm": {}, "sentence_order": {}} if heads is None else heads
        model = checkpoints.new_model(TINY.replace(**settings), heads, tokenizer, info=info)
        rng = np.random.default_rng(seed)
        for name, variable in model.named_variables().items():
            noise = 0.2 * rng.standard_normal(variable.shape)
            variable.assign(1 + noise if name.endswith("gamma") else noise)
        return model

    return make


@pytest.fixture
def write(tmp_path):
    """write(kind, model, name="source") -> folder in which that kind of source lies."""

    def write(kind, model, name="source"):
        folder = tmp_path / name
        folder.mkdir()
        _WRITE[kind](folder, model)
        return folder

    return write


@pytest.fixture
def refused(tmp_path, capsys):
    """refused(path, *flags) -> the one line with which `convert` refuses it."""

    def refused(path, *flags, to="native"):
        before = sorted(tmp_path.rglob("*"))
        output = tmp_path / "out"
        code = main(["albert_tf", "convert", f"--model_dir={path}", f"--output_dir={output}", f"--to={to}", *flags])
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert sorted(tmp_path.rglob("*")) == before
        return lines[0]

    return refused


@pytest.fixture
def released(write, random_model):
    return write("release", random_model())


@pytest.fixture
def face(write, random_model):
    return write("huggingface", random_model(), "face")
