"""Random small models: release -> native -> Hugging Face -> native, and nothing has changed."""

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.conversion import verify
from albert_tf.conversion.convert import convert

_QUICK = 6  # of 50
_HEADS = (
    {"masked_lm": {}, "sentence_order": {}},
    {"masked_lm": {}},
    {"classifier": {"num_labels": 3}},
    {"regression": {}},
    {"multiple_choice": {}},
    {"span": {}},
    {},
)


def random_settings(seed):
    """Sizes that have nothing in common, groups that do and do not divide the layers, E = H now and then."""
    rng = np.random.default_rng(seed)
    heads = int(rng.integers(1, 4))
    hidden = heads * int(rng.integers(1, 6))
    layers = int(rng.integers(1, 8))
    return {
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "embedding_size": hidden if seed % 4 == 0 else int(rng.integers(1, 12)),
        "num_hidden_layers": layers,
        "num_hidden_groups": int(rng.integers(1, layers + 1)),
        "inner_group_num": int(rng.integers(1, 4)),
        "intermediate_size": int(rng.integers(1, 20)),
        "hidden_act": ("gelu", "relu", "tanh", "linear")[seed % 4 if seed % 8 < 4 else 0],
        "vocab_size": int(rng.integers(2, 90)),
        "max_position_embeddings": int(rng.integers(1, 40)),
        "type_vocab_size": int(rng.integers(1, 4)),
        "initializer_range": 0.03,
        "hidden_dropout_prob": 0.1 * (seed % 2),
    }


@pytest.mark.parametrize(
    "seed", [*range(_QUICK), *(pytest.param(i, marks=pytest.mark.slow) for i in range(_QUICK, 50))]
)
def test_round_trip(tmp_path, write, random_model, seed):
    heads = _HEADS[seed % len(_HEADS)]
    model = random_model(heads, seed=seed, **random_settings(seed))
    source = write("release", model)
    convert(source, tmp_path / "native", "native", heads=tuple(heads))
    convert(tmp_path / "native", tmp_path / "face", "huggingface")
    convert(tmp_path / "face", tmp_path / "back", "native")
    back = checkpoints.load_model(tmp_path / "back")
    assert back.config == model.config and back.heads.keys() == heads.keys() and not back.restored.new
    for name, variable in model.named_variables().items():
        np.testing.assert_array_equal(back.named_variables()[name], variable, err_msg=name)
    inputs = verify.sample_inputs(model.config)
    expected, found = verify.model_outputs(model, inputs), verify.model_outputs(back, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_random_settings_cover_what_they_should():
    all_settings = [random_settings(seed) for seed in range(50)]
    assert any(s["embedding_size"] == s["hidden_size"] for s in all_settings)
    assert any(s["num_hidden_layers"] % s["num_hidden_groups"] for s in all_settings)
    assert any(s["num_hidden_groups"] > 1 and s["inner_group_num"] > 1 for s in all_settings)
    assert {s["hidden_act"] for s in all_settings} == {"gelu", "relu", "tanh", "linear"}
