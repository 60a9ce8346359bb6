"""More pieces, more layers, more groups, from weights that exist."""

import logging

import numpy as np
import pytest

import albert_tf
from albert_tf import checkpoints
from albert_tf.conversion import verify
from albert_tf.errors import UserError


def values(model):
    return {name: variable.numpy() for name, variable in model.named_variables().items()}


def test_resize_vocabulary_keeps_old_rows(random_model, tmp_path):
    model = random_model()
    grown = albert_tf.resize_vocabulary(model, 70)
    assert grown.config == model.config.replace(vocab_size=70)
    before, after = values(model), values(grown)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name][: len(value)], value, err_msg=name)
    assert after["encoder/embeddings/word_embeddings"].shape == (70, 8)
    assert after["masked_lm/output_bias"].shape == (70,)
    assert np.std(after["encoder/embeddings/word_embeddings"][60:]) > 0
    inputs = verify.sample_inputs(model.config)
    old, new = verify.model_outputs(model, inputs), verify.model_outputs(grown, inputs)
    np.testing.assert_array_equal(new["sequence_output"], old["sequence_output"])
    np.testing.assert_allclose(new["masked_lm"][..., :60], old["masked_lm"], atol=1e-5)
    checkpoints.save_model(tmp_path / "grown", grown)
    assert checkpoints.load_model(tmp_path / "grown").config.vocab_size == 70


def test_resize_vocabulary_keeps_the_precision(random_model, write):
    model = albert_tf.load_model(write("native", random_model()), dtype="mixed_bfloat16")
    grown = albert_tf.resize_vocabulary(model, 70)
    assert grown.encoder({"input_ids": np.array([[2, 5, 3]])})["sequence_output"].dtype == "bfloat16"
    assert grown.heads["masked_lm"].compute_dtype == "bfloat16"


@pytest.mark.parametrize("name", [None, "query"])
def test_resize_vocabulary_keeps_the_names_of_layers(random_model, write, name):
    model = albert_tf.load_model(write("native", random_model()), name=name)
    grown = albert_tf.resize_vocabulary(model, 70)
    assert [grown.encoder.name, *(head.name for head in grown.heads.values())] == [
        model.encoder.name,
        *(head.name for head in model.heads.values()),
    ]
    assert grown.encoder.name == (name or "albert_encoder")


def test_resize_vocabulary_keeps_what_is_switched(random_model):
    model = random_model()
    model.encoder.recompute = True
    model.encoder.embeddings.trainable = False
    model.encoder.feed_forwards[0].layer_norm.trainable = False
    grown = albert_tf.resize_vocabulary(model, 70)
    assert grown.encoder.recompute

    def trained(model):
        parts = {id(variable) for part in (model.encoder, *model.heads.values()) for variable in part.trainable_weights}
        return [name for name, variable in model.named_variables().items() if id(variable) in parts]

    assert trained(grown) == trained(model)
    assert set(model.named_variables()) - set(trained(model)) > {"encoder/embeddings/word_embeddings"}


def test_resize_vocabulary_refuses_to_lose_rows_and_to_move_pieces(random_model, tiny_spm):
    with pytest.raises(UserError, match="vocab_size 59 is below the present 60"):
        albert_tf.resize_vocabulary(random_model(), 59)
    tokenizer = albert_tf.load_tokenizer(tiny_spm)
    assert albert_tf.resize_vocabulary(random_model(), 800, tokenizer).tokenizer is tokenizer
    with pytest.raises(UserError, match="800 pieces: expected vocab_size 900"):
        albert_tf.resize_vocabulary(random_model(), 900, tokenizer)


def test_deeper_shared_model_starts_from_a_shallower_one(random_model, write, caplog):
    shallow, deep = random_model(), random_model(seed=1, num_hidden_layers=6)
    with caplog.at_level(logging.WARNING):
        restored = checkpoints.initialise_from(deep, write("release", shallow))
    assert "3 layers, the model has 6" in caplog.text
    assert not restored.new
    np.testing.assert_equal(values(deep), values(shallow))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_groups": 3},
        {"num_hidden_groups": 2, "num_hidden_layers": 5},
        {"sharing": "none"},
        {"sharing": "feed_forward", "num_hidden_layers": 4},
    ],
)
def test_grouped_model_starts_from_group_0_only_when_asked(random_model, write, settings):
    source = random_model(num_hidden_groups=2)
    model = random_model(seed=1, **settings)
    folder = write("native", source)
    with pytest.raises(UserError, match="--init_from_group0"):
        checkpoints.initialise_from(model, folder)
    assert not checkpoints.initialise_from(model, folder, from_group0=True).new
    before = values(source)
    for name, value in values(model).items():
        parts = name.split("/")
        if parts[1].startswith(("attention_", "feed_forward_")):
            parts[1] = parts[1].rpartition("_")[0] + "_0"
        np.testing.assert_array_equal(value, before["/".join(parts)], err_msg=name)


def test_inner_groups_keep_their_place(random_model, write):
    source = random_model(inner_group_num=2)
    model = random_model(seed=1, inner_group_num=2, num_hidden_groups=2)
    checkpoints.initialise_from(model, write("native", source), from_group0=True)
    before, after = values(source), values(model)
    for block in range(4):
        name = "encoder/attention_{}/query/kernel"
        np.testing.assert_array_equal(after[name.format(block)], before[name.format(block % 2)])


@pytest.mark.parametrize(
    "settings", [{"num_attention_heads": 2}, {"hidden_act": "relu"}, {"layer_norm_epsilon": 1e-6}, {"vocab_size": 61}]
)
def test_settings_that_no_shape_shows_have_to_agree(random_model, write, settings):
    (name,) = settings
    with pytest.raises(UserError, match=f"the weights have {name}"):
        checkpoints.initialise_from(random_model(**settings), write("native", random_model()))


def test_the_untrained_pooler_stays_new(random_model, write, tmp_path):
    from albert_tf.conversion.convert import convert

    model = random_model({"masked_lm": {}})
    model.restored = checkpoints.Restored(new=("encoder/pooler/kernel", "encoder/pooler/bias"))
    convert(write("huggingface", model), tmp_path / "native", "native")
    started = random_model(seed=1)
    restored = checkpoints.initialise_from(started, tmp_path / "native")
    assert set(restored.new) == {
        "encoder/pooler/kernel", "encoder/pooler/bias", "sentence_order/kernel", "sentence_order/bias"
    }  # fmt: skip


def test_encoder_can_be_frozen(random_model, write):
    model = albert_tf.load_model(write("huggingface", random_model()))
    assert model.encoder.trainable_variables
    model.encoder.trainable = False
    assert not model.encoder.trainable_variables
    model.encoder.trainable = True
    assert len(model.encoder.trainable_variables) == len(model.encoder.named_variables())
