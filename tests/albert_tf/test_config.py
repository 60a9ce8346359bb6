import json

import pytest

from albert_tf import config as configs
from albert_tf import costs
from albert_tf.config import PRESETS, AlbertConfig, block_plan, preset
from albert_tf.encoder import AlbertEncoder
from albert_tf.errors import UserError

# Encoder with pooler at 30,000 pieces, from the paper's sizes by hand: (V + 514) E + 2 E, E H + H where E differs from
# H, per block 4 (H^2 + H) + 2 H + 8 H^2 + 4 H + H + 2 H, pooler H^2 + H.
PARAMETERS = {
    "albert_tiny": 4_794_624,
    "albert_base_v1": 11_683_584,
    "albert_base_v2": 11_683_584,
    "albert_large_v1": 17_683_968,
    "albert_large_v2": 17_683_968,
    "albert_xlarge_v1": 58_724_864,
    "albert_xlarge_v2": 58_724_864,
    "albert_xxlarge_v1": 222_595_584,
    "albert_xxlarge_v2": 222_595_584,
    "bert_base": 109_081_344,
    "bert_large": 334_607_360,
}


def test_every_preset_has_its_parameter_count_pinned():
    assert set(PARAMETERS) == set(PRESETS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_by_arithmetic(name):
    assert sum(costs.parameters(PRESETS[name], heads=()).values()) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["albert_tiny", "albert_base_v2"])
def test_parameter_counts_of_built_encoders(name):
    encoder = AlbertEncoder(PRESETS[name])
    encoder.build(None)
    assert encoder.count_params() == PARAMETERS[name]
    assert sum(v.shape.num_elements() for v in encoder.named_variables().values()) == PARAMETERS[name]


# Paper, parameters of ALBERT-base by sharing, in millions.
@pytest.mark.parametrize(
    ("embedding", "sharing", "millions"),
    [(768, "all", 31), (768, "attention", 83), (768, "feed_forward", 57), (768, "none", 108)]
    + [(128, "all", 12), (128, "attention", 64), (128, "feed_forward", 38), (128, "none", 89)],
)
def test_sharing_variants_have_the_papers_sizes(embedding, sharing, millions):
    config = preset("albert_base").replace(embedding_size=embedding, sharing=sharing)
    # The paper rounds its figures down or up; one million is more than either.
    assert sum(costs.parameters(config, heads=()).values()) / 1e6 == pytest.approx(millions, abs=1.1)
    built = AlbertEncoder(config.replace(vocab_size=100))
    built.build(None)
    assert built.count_params() == sum(costs.parameters(config.replace(vocab_size=100), heads=()).values())


def test_versions_differ_in_dropout():
    assert preset("albert_base") is PRESETS["albert_base_v2"]
    assert preset("albert_base_v1").hidden_dropout_prob == 0.1
    assert preset("albert_xxlarge_v1").attention_probs_dropout_prob == 0.0
    assert preset("albert_large").hidden_dropout_prob == 0.0


def test_groups_need_not_divide_layers():
    config = AlbertConfig(num_hidden_layers=5, num_hidden_groups=3, inner_group_num=2)
    assert [config.group_of_layer(layer) for layer in range(5)] == [0, 0, 1, 1, 2]
    assert block_plan(config)[1] == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5]


def test_group_of_layer_is_the_releases_floating_point_formula():
    config = AlbertConfig(num_hidden_layers=22, num_hidden_groups=22, num_attention_heads=12)
    formula = [int(layer / 22 * 22) for layer in range(22)]
    assert [config.group_of_layer(layer) for layer in range(22)] == formula
    assert formula != list(range(22))  # where floating point and whole numbers part


def test_release_json_round_trip(tmp_path):
    release = {
        "attention_probs_dropout_prob": 0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0,
        "embedding_size": 128,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "net_structure_type": 0,
        "gap_size": 0,
        "num_memory_blocks": 0,
        "inner_group_num": 1,
        "down_scale_factor": 1,
        "type_vocab_size": 2,
        "vocab_size": 30000,
    }
    (tmp_path / "release.json").write_text(json.dumps(release))
    config = AlbertConfig.from_json(tmp_path / "release.json")
    assert config == preset("albert_base_v2")
    config.write_json(tmp_path / "ours.json")
    written = json.loads((tmp_path / "ours.json").read_text())
    assert {key: written[key] for key in release} == release
    assert set(written) - set(release) == {"sharing", "layer_norm_epsilon"}
    assert AlbertConfig.from_json(tmp_path / "ours.json") == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 100}, ["hidden_size 100", "num_attention_heads 12"]),
        ({"vocab_size": 0}, ["vocab_size", "0", "from 1 to"]),
        ({"vocab_size": 1.5}, ["vocab_size", "1.5", "whole number"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "1.0"]),
        ({"hidden_dropout_prob": float("nan")}, ["hidden_dropout_prob", "nan"]),
        ({"layer_norm_epsilon": 0.0}, ["layer_norm_epsilon"]),
        ({"hidden_act": "swish"}, ["swish", "gelu_erf"]),
        ({"sharing": "some"}, ["some", "feed_forward"]),
        ({"num_hidden_groups": 13}, ["num_hidden_groups", "13", "12"]),
        ({"sharing": "none", "num_hidden_groups": 2}, ["sharing", "num_hidden_groups 2"]),
    ],
)
def test_impossible_values_are_refused_by_name(values, words):
    with pytest.raises(UserError) as caught:
        AlbertConfig(**values)
    assert all(word in str(caught.value) for word in words)


def test_unknown_and_missing_keys_are_refused_by_name():
    values = preset("albert_tiny").to_dict()
    with pytest.raises(UserError, match="'hiden_size'.*'hidden_size'"):
        AlbertConfig.from_dict({**values, "hiden_size": 3})
    with pytest.raises(UserError, match="'albert_base', expected a dictionary"):
        AlbertConfig.from_dict("albert_base")
    del values["vocab_size"]
    with pytest.raises(UserError, match="lacks vocab_size"):
        AlbertConfig.from_dict(values)
    with pytest.raises(UserError, match="albert_base_v2"):
        configs.preset("albert-base")


def test_configuration_is_frozen():
    with pytest.raises(AttributeError):
        preset("albert_base").hidden_size = 3
