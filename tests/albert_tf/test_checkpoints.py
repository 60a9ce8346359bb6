"""A model folder holds a whole model at every moment, also while another one takes its place."""

import pathlib

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.conversion.names import POOLER
from albert_tf.errors import UserError

CONFIG = AlbertConfig(
    vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=8,
)  # fmt: skip


class Killed(BaseException):
    pass


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """As a run does with its best or newest model: the weights that model.json named are gone a moment later."""
    model, read_tensors = checkpoints.new_model(CONFIG, {}), checkpoints.read_tensors
    checkpoints.save_model(tmp_path, model, step=1)
    new = model.encoder.pooler.kernel.numpy() + 1

    def read(prefix):
        if prefix == tmp_path / "weights-1":
            model.encoder.pooler.kernel.assign(new)
            checkpoints.save_model(tmp_path, model, step=2)
        return read_tensors(prefix)

    monkeypatch.setattr(checkpoints, "read_tensors", read)
    np.testing.assert_array_equal(checkpoints.load_model(tmp_path).encoder.pooler.kernel, new)
    for file in tmp_path.glob("weights-2.*"):
        file.unlink()
    with pytest.raises(UserError, match="weights-2.index is missing"):
        checkpoints.load_model(tmp_path)


def test_a_pooler_called_untrained_comes_back_as_it_was_saved(tmp_path):
    """Who trains it in a loop of their own saves it with the description that came with the model."""
    info = checkpoints.ModelInfo(made_by={"new": list(POOLER)})
    checkpoints.save_model(tmp_path / "pretrained", checkpoints.new_model(CONFIG, {}, info=info))
    model = checkpoints.load_model(tmp_path / "pretrained")
    trained = {name: model.named_variables()[name].numpy() + 1 for name in POOLER}
    for name, value in trained.items():
        model.named_variables()[name].assign(value)
    checkpoints.save_model(tmp_path / "trained", model)
    again = checkpoints.load_model(tmp_path / "trained")
    for name, value in trained.items():
        np.testing.assert_array_equal(again.named_variables()[name], value)
    assert again.restored.new == POOLER and not set(again.restored.filled) & set(POOLER)


def test_a_name_that_would_switch_weight_decay_off_is_refused(tmp_path):
    checkpoints.save_model(tmp_path, checkpoints.new_model(CONFIG, {}))
    with pytest.raises(ValueError, match="name is 'debiased': variables with 'bias' in their names are left out of"):
        checkpoints.load_model(tmp_path, name="debiased")


def test_a_kill_while_the_same_step_is_written_again_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    """As when the seeds of a fine-tuning are run once more: their best model goes to the same folder each time."""

    def write_half(prefix, tensors):
        write_tensors(prefix, tensors)
        pathlib.Path(f"{prefix}.index").write_bytes(b"")
        raise Killed

    def kernel():
        return checkpoints.load_model(tmp_path).encoder.pooler.kernel.numpy()

    model = checkpoints.new_model(CONFIG, {})
    variable, write_tensors = model.encoder.pooler.kernel, checkpoints.write_tensors
    old, new = variable.numpy(), variable.numpy() + 1
    checkpoints.save_model(tmp_path, model)
    variable.assign(new)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints, "write_tensors", write_half)
        checkpoints.save_model(tmp_path, model)
    np.testing.assert_array_equal(kernel(), old)
    for _ in range(3):
        checkpoints.save_model(tmp_path, model)
        np.testing.assert_array_equal(kernel(), new)
        assert len(list(tmp_path.glob("weights-*"))) == 2  # of the one model
