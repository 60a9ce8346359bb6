import doctest
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.encoder import AlbertEncoder
from albert_tf.optimization import create_optimizer

TINY = AlbertConfig(
    vocab_size=60,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=20,
    initializer_range=0.3,
)
NAMES = ("input_ids", "input_mask", "segment_ids")
TOLERANCE = 2e-5  # separates right from wrong: see the golden files' description


def make_inputs(batch=3, length=11, seed=0, vocab_size=60):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, length + 1, batch)
    lengths[0] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    return {
        "input_ids": rng.integers(5, vocab_size, (batch, length)).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(length) >= lengths[:, None] // 2).astype(np.int32) * mask,
    }


def numpy_forward(config, weights, inputs):
    """The paper's encoder in float64, written apart from the layers."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}

    def norm(x, name):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + config.layer_norm_epsilon) * w[f"{name}/gamma"] + w[f"{name}/beta"]

    def dense(x, name):
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    ids, mask = inputs["input_ids"], inputs["input_mask"].astype(np.float64)
    batch, length = ids.shape
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    x = w["embeddings/word_embeddings"][ids] + w["embeddings/position_embeddings"][:length]
    x = norm(x + w["embeddings/segment_embeddings"][inputs["segment_ids"]], "embeddings/layer_norm")
    x = dense(x, "embeddings/projection") if config.has_projection else x
    outputs = []
    for layer in range(config.num_hidden_layers):
        attention = 0 if config.sharing in ("all", "attention") else layer
        feed_forward = 0 if config.sharing in ("all", "feed_forward") else layer
        name = f"attention_{attention}"
        q, k, v = (
            dense(x, f"{name}/{part}").reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size) - 10000 * (1 - mask)[:, None, None, :]
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        context = (probabilities @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = norm(x + dense(context, f"{name}/output"), f"{name}/layer_norm")
        name = f"feed_forward_{feed_forward}"
        x = norm(x + dense(gelu(dense(x, f"{name}/intermediate")), f"{name}/output"), f"{name}/layer_norm")
        outputs.append(x)
    return outputs, np.tanh(dense(x[:, 0], "pooler"))


@pytest.mark.parametrize("sharing", ["all", "attention", "feed_forward", "none"])
@pytest.mark.parametrize("embedding", [8, 16])
def test_equals_numpy(sharing, embedding):
    config = TINY.replace(sharing=sharing, embedding_size=embedding)
    encoder = AlbertEncoder(config)
    inputs = make_inputs()
    outputs = encoder(inputs)
    for variable in encoder.trainable_variables:  # biases and scales away from 0 and 1
        variable.assign_add(tf.random.stateless_normal(variable.shape, [7, variable.shape.num_elements()]) * 0.1)
    outputs = encoder(inputs)
    expected, pooled = numpy_forward(config, encoder.named_variables(), inputs)
    for ours, theirs in zip(outputs["encoder_outputs"], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)


@pytest.mark.parametrize("model", ["tiny_shared", "tiny_groups", "tiny_nofactor"])
def test_equals_the_reference_release(shared, model):
    folder = shared / "golden" / "tf1" / model
    loaded = checkpoints.load_model(folder)
    assert not loaded.restored.new and not loaded.restored.unused
    files = sorted(folder.glob("io*.npz"))
    assert files
    for file in files:
        golden = np.load(file)
        tolerance = 5e-4 if "allmasked" in file.name else TOLERANCE
        outputs = loaded.encoder({name: golden[name] for name in NAMES}, return_attention_probs=True)
        layers = [golden[name] for name in sorted(golden.files) if name.startswith("encoder_layer_")]
        for ours, theirs in zip(outputs["encoder_outputs"], layers, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=tolerance, err_msg=file.name)
        np.testing.assert_allclose(outputs["pooled_output"], golden["pooled_output"], atol=tolerance)
        np.testing.assert_allclose(np.stack(outputs["attention_probs"]), golden["attention_probs"], atol=tolerance)


def test_last_layer_only_at_used_positions_is_exact():
    encoder = AlbertEncoder(TINY)
    inputs = make_inputs()
    positions = np.array([[1, 5, 0], [2, 2, 0], [0, 1, 3]], np.int32)
    full = encoder(inputs)
    part = encoder({**inputs, "output_positions": positions})
    expected = np.take_along_axis(full["sequence_output"].numpy(), positions[..., None], axis=1)
    np.testing.assert_allclose(part["sequence_output"], expected, atol=1e-6)
    np.testing.assert_allclose(part["pooled_output"], full["pooled_output"], atol=1e-6)
    none = encoder({**inputs, "output_positions": np.zeros([3, 0], np.int32)})
    assert none["sequence_output"].shape == (3, 0, 16)
    np.testing.assert_allclose(none["pooled_output"], full["pooled_output"], atol=1e-6)


def test_gradients_at_used_positions_are_exact():
    encoder = AlbertEncoder(TINY)
    inputs = make_inputs()
    positions = np.array([[1, 5], [2, 2], [0, 1]], np.int32)

    def gradients(**more):
        with tf.GradientTape() as tape:
            outputs = encoder({**inputs, **more})
            hidden = outputs["sequence_output"]
            if not more:
                hidden = tf.gather(hidden, positions, batch_dims=1)
            loss = tf.reduce_sum(tf.sin(hidden)) + tf.reduce_sum(outputs["pooled_output"] ** 2)
        return tape.gradient(loss, list(encoder.named_variables().values()))

    for ours, theirs in zip(gradients(output_positions=positions), gradients(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_padding_does_not_change_the_answer():
    encoder = AlbertEncoder(TINY)
    inputs = make_inputs(batch=2, length=7)
    inputs["input_mask"][:] = 1
    padded = {name: np.pad(value, [[0, 0], [0, 6]]) for name, value in inputs.items()}
    np.testing.assert_allclose(encoder(padded)["sequence_output"][:, :7], encoder(inputs)["sequence_output"], atol=1e-5)


def test_mask_and_segments_are_optional():
    encoder = AlbertEncoder(TINY)
    ids = make_inputs()["input_ids"]
    explicit = encoder({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
    np.testing.assert_allclose(encoder(ids)["sequence_output"], explicit["sequence_output"], atol=1e-6)
    for short in (np.uint8, np.uint16, np.int64):
        inputs = {"input_ids": ids.astype(short), "input_mask": None, "segment_ids": np.zeros_like(ids, short)}
        np.testing.assert_allclose(encoder(inputs)["sequence_output"], explicit["sequence_output"], atol=1e-6)


def test_wrong_inputs_are_named():
    encoder = AlbertEncoder(TINY)
    ids = np.zeros([3, 4], np.int32)  # 4 heads and 4 tokens: a mask [S] would pass for one value a head
    for name in ("input_mask", "segment_ids", "position_ids", "sequence_ids"):
        for shape in ([4], [3, 1], [3, 5], [3, 4, 4], [2, 4]):
            with pytest.raises(
                ValueError, match=rf"{name} has shape \({shape[0]},.* expected that of input_ids, \(3, 4\)"
            ):
                encoder({"input_ids": ids, name: np.ones(shape, np.int32)})
    for name in ("input_ids", "segment_ids"):
        with pytest.raises(TypeError, match=f"{name} is a KerasTensor of Keras 3.*import tf_keras"):
            encoder({"input_ids": ids, name: keras.Input([None])})
        with pytest.raises(ValueError, match=f"{name} holds float32.*int32"):
            encoder({"input_ids": ids, name: tf_keras.Input([None])})  # float32, as Keras has it by default
    with pytest.raises(ValueError, match="called with attention_mask, input_ids: .*rename"):
        encoder({"input_ids": ids, "attention_mask": np.ones([3, 4], np.float32)})
    with pytest.raises(ValueError, match="21 tokens a row, the model has 20 positions"):
        encoder(np.zeros([1, 21], np.int32))
    assert encoder({"input_ids": np.zeros([1, 21], np.int32), "position_ids": np.ones([1, 21], np.int32)})
    assert encoder({"input_ids": ids, "position_ids": np.arange(4)[None]})["pooled_output"].shape == (3, 16)
    with pytest.raises(ValueError, match="attention_mask"):
        encoder({"input_ids": np.zeros([1, 3], np.int32), "attention_mask": np.ones([1, 3])})
    with pytest.raises(ValueError, match="rank 1"):
        encoder(np.zeros([3], np.int32))
    with pytest.raises(ValueError, match="rank 3: .*a dict of them by name"):
        encoder([ids, np.ones_like(ids), np.zeros_like(ids)])
    with pytest.raises((TypeError, ValueError), match="training is a tensor: .*'input_mask'"):
        encoder(ids, tf.ones_like(ids))
    with pytest.raises((TypeError, ValueError), match="training is a tensor: expected True or False"):
        tf.function(lambda training: encoder(ids, training=training))(tf.constant(True))


def test_ragged_and_sparse_inputs_are_refused_by_name():
    encoder = AlbertEncoder(TINY)
    ragged = tf.ragged.constant([[2, 7, 3], [2, 3]])
    for given in (ragged, {"input_ids": ragged}, {"input_ids": tf_keras.Input([None], dtype=tf.int32, ragged=True)}):
        with pytest.raises((TypeError, ValueError), match="input_ids is a RaggedTensor: expected a dense .*input_mask"):
            encoder(given)
    with pytest.raises((TypeError, ValueError), match="segment_ids is a SparseTensor"):
        encoder({"input_ids": ragged.to_tensor(), "segment_ids": ragged.to_sparse()})


def test_one_layout_of_sequences_serves_all_rows():
    """Also where the last layer runs at some positions only."""
    encoder = AlbertEncoder(TINY)
    ids, positions = make_inputs(length=6)["input_ids"], np.array([[1, 5], [2, 3], [0, 4]], np.int32)
    layout = np.array([[1, 1, 1, 2, 2, 2]], np.int32)
    expected = encoder({"input_ids": ids, "sequence_ids": np.repeat(layout, 3, axis=0)})["sequence_output"].numpy()
    halves = [encoder({"input_ids": ids[:, part], "position_ids": np.arange(6)[None, part]}) for part in np.s_[:3, 3:]]
    np.testing.assert_allclose(np.concatenate([h["sequence_output"] for h in halves], 1), expected, atol=1e-5)
    inputs = {"input_ids": ids, "sequence_ids": layout}
    np.testing.assert_allclose(encoder(inputs)["sequence_output"], expected, atol=1e-6)
    part = encoder({**inputs, "output_positions": positions})["sequence_output"]
    np.testing.assert_allclose(part, np.take_along_axis(expected, positions[..., None], axis=1), atol=1e-6)


def test_dropout_follows_the_seed_alone():
    config = TINY.replace(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    encoder = AlbertEncoder(config)
    inputs = make_inputs()
    seeded = {**inputs, "dropout_seed": np.array([1, 2], np.int32)}
    first = encoder(seeded, training=True)["sequence_output"]
    np.testing.assert_array_equal(first, encoder(seeded, training=True)["sequence_output"])
    other = encoder({**inputs, "dropout_seed": np.array([1, 3], np.int32)}, training=True)["sequence_output"]
    assert np.abs(first - other).max() > 0.1
    free = [encoder(inputs, training=True)["sequence_output"].numpy() for _ in range(2)]
    assert np.abs(free[0] - free[1]).max() > 0.1
    np.testing.assert_array_equal(encoder(inputs)["sequence_output"], encoder(seeded)["sequence_output"])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_finite_and_keeps_float32_where_it_matters(policy):
    plain = AlbertEncoder(TINY)
    half = AlbertEncoder(TINY, dtype=policy)
    inputs = make_inputs()
    inputs["input_mask"][1] = 0  # a row of padding only
    plain(inputs), half(inputs)
    for ours, theirs in zip(half.named_variables().values(), plain.named_variables().values(), strict=True):
        assert ours.dtype == tf.float32
        ours.assign(theirs)
    with tf.GradientTape() as tape:
        outputs = half(inputs, return_attention_probs=True)
        loss = tf.reduce_sum(tf.cast(outputs["sequence_output"], tf.float32) ** 2)
    assert outputs["sequence_output"].dtype == policy.removeprefix("mixed_")
    assert outputs["attention_probs"][0].dtype == tf.float32
    difference = tf.cast(outputs["sequence_output"], tf.float32) - plain(inputs)["sequence_output"]
    assert np.abs(difference).max() < (0.2 if policy == "mixed_bfloat16" else 0.03)
    for gradient in tape.gradient(loss, half.trainable_variables):
        assert gradient is None or np.isfinite(tf.convert_to_tensor(gradient)).all()


def test_functional_model_fits_saves_loads_and_clones(tmp_path):
    tf_keras.utils.set_random_seed(0)
    inputs = {name: tf_keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    outputs = tf_keras.layers.Dense(2)(AlbertEncoder(TINY)(inputs)["pooled_output"])
    model = tf_keras.Model(inputs, outputs)
    model.compile("adam", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batch = make_inputs(batch=8)
    history = model.fit(batch, np.arange(8) % 2, epochs=20, batch_size=4, verbose=0)
    assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
    expected = model.predict(batch, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(batch, verbose=0), expected, atol=1e-6)
    clone = tf_keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(batch, verbose=0), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_functional_masked_language_model_is_saved_and_cloned_with_its_tie(tmp_path):
    made = checkpoints.new_model(TINY, {"masked_lm": {}})
    inputs = {name: tf_keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    outputs = made.encoder(inputs, return_word_embeddings=True)
    assert "word_embeddings" not in made.encoder(inputs)
    model = tf_keras.Model(inputs, made.heads["masked_lm"](outputs["sequence_output"], outputs["word_embeddings"]))
    batch, labels = make_inputs(), make_inputs(seed=1)["input_ids"]
    before = model.predict(batch, verbose=0)
    hidden = made.encoder(batch)["sequence_output"]
    direct = made.heads["masked_lm"](hidden, made.encoder.embeddings.word_embeddings)
    np.testing.assert_allclose(before, direct, atol=1e-5)
    copies = [tf_keras.models.clone_model(model)]
    copies[0].set_weights(model.get_weights())
    for name in ("model.keras", "model.h5", "model"):
        model.save(tmp_path / name)
        copies.append(tf_keras.models.load_model(tmp_path / name))

    def trained(model):
        model.compile(tf_keras.optimizers.SGD(0.1), tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(batch, labels, verbose=0)
        return model.predict(batch, verbose=0)

    after = trained(model)
    assert np.abs(after - before).max() > 1e-3
    for copy in copies:
        np.testing.assert_allclose(copy.predict(batch, verbose=0), before, atol=1e-5)
        np.testing.assert_allclose(trained(copy), after, atol=1e-4)  # the table moved by both its gradients


def test_two_loaded_models_stand_in_one_functional_model(tmp_path):
    for seed, folder in enumerate(("query", "passage")):
        tf_keras.utils.set_random_seed(seed)
        checkpoints.save_model(tmp_path / folder, checkpoints.new_model(TINY, {"classifier": {"num_labels": 3}}))
    towers, inputs = [], []
    for folder in ("query", "passage"):
        loaded = checkpoints.load_model(tmp_path / folder, name=folder)
        assert (loaded.encoder.name, loaded.heads["classifier"].name) == (folder, f"{folder}_classifier")
        inputs.append(tf_keras.Input([None], dtype=tf.int32))
        towers.append(loaded.heads["classifier"](loaded.encoder(inputs[-1])["pooled_output"]))
    model = tf_keras.Model(inputs, tf_keras.layers.Dot(1)(towers))
    batch = [make_inputs()["input_ids"]] * 2
    expected = model.predict(batch, verbose=0)
    model.save(tmp_path / "both.keras")
    again = tf_keras.models.load_model(tmp_path / "both.keras")
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_saved_keras_models_load_in_a_new_process_as_the_guide_says(tmp_path):
    inputs = {name: tf_keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(2)(AlbertEncoder(TINY)(inputs)["pooled_output"]))
    model.compile(create_optimizer("lamb", learning_rate=1e-3, num_train_steps=9), "mse")
    batch = make_inputs()
    model.fit(batch, np.zeros([3, 2]), verbose=0)
    np.savez(tmp_path / "batch.npz", expected=model.predict(batch, verbose=0), **batch)
    for name in ("classifier.keras", "classifier.h5", "classifier"):
        model.save(tmp_path / name)
    guide = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(import tf_keras\n.*?)^```", guide, re.DOTALL | re.MULTILINE)
    check = """
import numpy as np
batch = dict(np.load("batch.npz"))
expected = batch.pop("expected")
for name in ("classifier.keras", "classifier.h5", "classifier"):
    classifier = tf_keras.models.load_model(name)
    np.testing.assert_allclose(classifier.predict(batch, verbose=0), expected, atol=1e-6)
    assert classifier.optimizer.learning_rate.num_train_steps == 9
    classifier.fit(batch, expected, verbose=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code + check], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_blocks_are_shared_objects():
    encoder = AlbertEncoder(TINY)
    encoder.build(None)
    assert len(encoder.blocks) == 1 and encoder.layer_blocks == [0, 0, 0]
    free = AlbertEncoder(TINY.replace(sharing="attention"))
    assert len({id(block.attention) for block in free.blocks}) == 1
    assert len({id(block.feed_forward) for block in free.blocks}) == 3


def test_the_example_of_the_docstring_and_plain_lists():
    names = {"AlbertEncoder": AlbertEncoder, "AlbertConfig": AlbertConfig}
    (example,) = doctest.DocTestFinder(recurse=False).find(AlbertEncoder, "AlbertEncoder", False, names)
    assert doctest.DocTestRunner().run(example) == (0, 3)
    small = AlbertEncoder(TINY)
    listed = small([[2, 51, 7, 3]])["pooled_output"]
    np.testing.assert_array_equal(listed, small(np.array([[2, 51, 7, 3]]))["pooled_output"])
    with pytest.raises(ValueError, match="input_ids has rank 1"):
        small({"input_ids": [2, 51, 7, 3]})
