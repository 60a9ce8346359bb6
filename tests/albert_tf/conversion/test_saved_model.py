"""TF-Hub modules: variables under "module/", tokeniser and configuration in assets, and the graph run as it is."""

import math
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compat import v1

from albert_tf import checkpoints
from albert_tf.conversion import release, saved_model, sources, verify
from albert_tf.conversion.convert import convert
from albert_tf.conversion.names import translate_back
from albert_tf.errors import UserError


def graph_outputs(weights, config, ids, mask, segments, positions):
    """The release's graph for one shared block, from its variables by name: what a TF-Hub module computes."""

    def dense(x, name):
        return tf.einsum("bsn,nm->bsm", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]

    def norm(x, name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-12) * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def gelu(x):
        return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def heads(x):
        shape = tf.shape(x)
        return tf.reshape(x, [shape[0], shape[1], config.num_attention_heads, config.head_size])

    table, at = weights["bert/embeddings/word_embeddings"], "bert/encoder/transformer/group_0/inner_group_0"
    x = tf.gather(table, ids) + tf.gather(weights["bert/embeddings/token_type_embeddings"], segments)
    x = norm(x + weights["bert/embeddings/position_embeddings"][: tf.shape(ids)[1]], "bert/embeddings/LayerNorm")
    x = dense(x, "bert/encoder/embedding_hidden_mapping_in")
    hide = -10000.0 * (1.0 - tf.cast(mask, tf.float32))[:, None, None, :]
    for _ in range(config.num_hidden_layers):
        query, key, value = (heads(dense(x, f"{at}/attention_1/self/{part}")) for part in ("query", "key", "value"))
        scores = tf.einsum("bqad,bkad->baqk", query, key) / math.sqrt(config.head_size) + hide
        mixed = tf.reshape(tf.einsum("baqk,bkad->bqad", tf.nn.softmax(scores), value), tf.shape(x))
        x = norm(x + dense(mixed, f"{at}/attention_1/output/dense"), f"{at}/LayerNorm")
        inner = gelu(dense(x, f"{at}/ffn_1/intermediate/dense"))
        x = norm(x + dense(inner, f"{at}/ffn_1/intermediate/output/dense"), f"{at}/LayerNorm_1")
    pooled = tf.tanh(dense(x[:, :1], "bert/pooler/dense")[:, 0])
    taken = gelu(dense(tf.gather(x, positions, batch_dims=1), "cls/predictions/transform/dense"))
    taken = norm(taken, "cls/predictions/transform/LayerNorm")
    logits = tf.einsum("bpe,ve->bpv", taken, table) + weights["cls/predictions/output_bias"]
    return {"sequence_output": x, "pooled_output": pooled}, tf.reshape(logits, [-1, config.vocab_size])


def write_module(folder, model, tokenizer_file, prefix="module/", change=None):
    """A TF-Hub module of the release: two graphs, three signatures, old-style variables, assets."""
    config = model.config
    names = [*release.encoder_names(config), *release.HEADS["masked_lm"]]
    tensors = translate_back({name: v.numpy() for name, v in model.named_variables().items()}, names)
    builder = v1.saved_model.Builder(str(folder))
    with v1.Graph().as_default(), v1.Session() as session:
        weights = {n: v1.get_variable(prefix + n, initializer=t, use_resource=False) for n, t in tensors.items()}
        if change:
            weights = change(weights)
        ids, mask, segments, positions = (v1.placeholder(tf.int32, [None, None]) for _ in range(4))
        tokens, logits = graph_outputs(weights, config, ids, mask, segments, positions)
        inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        predict = v1.saved_model.predict_signature_def
        casing = v1.saved_model.build_tensor_info(tf.constant(False))
        signatures = {
            "tokens": predict(inputs, tokens),
            "mlm": predict({**inputs, "mlm_positions": positions}, {**tokens, "mlm_logits": logits}),
            "tokenization_info": v1.saved_model.build_signature_def({}, {"do_lower_case": casing}, "info"),
        }
        session.run(v1.global_variables_initializer())
        builder.add_meta_graph_and_variables(session, [], signatures)
        builder.add_meta_graph(["train"], signatures)
        builder.save()
    (folder / "assets").mkdir()
    config.write_json(folder / "assets" / "albert_config.json")
    shutil.copy(tokenizer_file, folder / "assets" / "30k-clean.model")
    return folder


@pytest.fixture
def model(random_model):
    return random_model({"masked_lm": {}}, vocab_size=800)


@pytest.fixture
def module(tmp_path, model, tiny_spm):
    return write_module(tmp_path / "module", model, tiny_spm)


def test_module_converts_and_is_compared_with_itself(tmp_path, module, model):
    report = convert(module, tmp_path / "native", "native")
    assert report.kind == "hub" and report.heads == ("masked_lm",)
    ran = [difference for difference in report.differences if "run as it is" in difference.what]
    assert len(ran) == 1 and ran[0].value < 2e-5
    loaded = checkpoints.load_model(tmp_path / "native")
    for name, variable in model.named_variables().items():
        np.testing.assert_array_equal(loaded.named_variables()[name], variable, err_msg=name)
    assert loaded.tokenizer.vocab_size == 800
    assert loaded.tokenizer.do_lower_case is False  # as the module's tokenization_info says


def test_every_signature_that_can_run_takes_part(module, model):
    inputs = verify.sample_inputs(model.config)
    assert set(saved_model.run(module, inputs)) == {"sequence_output", "pooled_output", "masked_lm"}


def test_module_whose_graph_computes_something_else_is_refused(tmp_path, model, tiny_spm):
    """The variables are right and so is the NumPy pass: only running the module shows it."""

    def swapped(weights):
        one, other = ("bert/encoder/transformer/group_0/inner_group_0/" + name for name in ("LayerNorm", "LayerNorm_1"))
        parts = ("gamma", "beta")
        swap = {f"{one}/{p}": weights[f"{other}/{p}"] for p in parts} | {
            f"{other}/{p}": weights[f"{one}/{p}"] for p in parts
        }
        return {**weights, **swap}

    module = write_module(tmp_path / "module", model, tiny_spm, change=swapped)
    with pytest.raises(UserError, match="SavedModel .run as it is. do not agree"):
        convert(module, tmp_path / "native", "native")
    assert not (tmp_path / "native").exists()


def test_savedmodel_without_the_prefix_of_tf_hub(tmp_path, model, tiny_spm):
    module = write_module(tmp_path / "plain", model, tiny_spm, prefix="")
    assert convert(module, tmp_path / "native", "native").kind == "hub"


def test_module_without_a_configuration_asks_for_it(tmp_path, module, model):
    (module / "assets" / "albert_config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="--albert_config_file"):
        sources.load(module)
    report = convert(module, tmp_path / "native", "native", config_file=tmp_path / "elsewhere.json")
    assert report.heads == ("masked_lm",)


@pytest.mark.parametrize("change", [lambda graph: b"no graph", lambda graph: graph.replace(b"value:0", b"eulav:0", 1)])
def test_damaged_graph_is_named(module, tmp_path, change):
    graph = module / "saved_model.pb"
    graph.write_bytes(change(graph.read_bytes()))
    with pytest.raises(UserError, match="SavedModel .* truncated or damaged"):
        convert(module, tmp_path / "native", "native")


def test_folder_whose_name_tensorflow_takes_for_a_pattern(module, tmp_path):
    module.rename(tmp_path / "module [1]*")
    assert convert(tmp_path / "module [1]*", tmp_path / "native", "native").kind == "hub"


def test_tensorflow_2_savedmodel_is_refused(tmp_path):
    holder = tf.Module()
    holder.variable = tf.Variable([1.0])
    tf.saved_model.save(holder, str(tmp_path / "other"))
    with pytest.raises(UserError, match="TensorFlow 2 SavedModel"):
        sources.load(tmp_path / "other")
