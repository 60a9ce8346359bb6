"""Exports of encoders: SavedModels on ids and text, TF-Hub's two models, TensorFlow Lite files."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints, files
from albert_tf.__main__ import main
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.export import hub, is_exported, lite, load_exported, saved_model, serving_files, signatures, versions
from albert_tf.export.clean_process import CleanProcess, compare
from albert_tf.tokenization import in_graph, load_tokenizer
from albert_tf.tokenization.in_graph import GraphTokenizer

CONFIG = AlbertConfig(
    vocab_size=800,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_hidden_groups=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    initializer_range=0.3,
    hidden_dropout_prob=0.1,
)
# What an export on ids asks of a server: TensorFlow's own ops. All are as old as TensorFlow 2, but for
# DisableCopyOnRead, which tf.saved_model.save puts beside the weights.
IDS_OPS = set(
    # The gradients of GELU and of biases, which come along as functions.
    "AddN BroadcastGradientArgs Sum TanhGrad "
    "AddV2 All AssignVariableOp Assert BatchMatMulV2 BiasAdd Cast ClipByValue ConcatV2 Const DisableCopyOnRead "
    "Equal GatherV2 GreaterEqual Identity IdentityN Less LessEqual LogicalAnd MatMul Max Maximum Mean "
    "MergeV2Checkpoints Min Minimum Mul NoOp Pack Pad PartitionedCall Placeholder Pow ReadVariableOp Reshape "
    "RestoreV2 Rsqrt SaveV2 Select SelectV2 Shape ShardedFilename Softmax SquaredDifference Squeeze "
    "StatefulPartitionedCall StaticRegexFullMatch StopGradient StridedSlice StringJoin Sub Tanh Transpose Unpack "
    "UnsortedSegmentSum VarHandleOp VarIsInitializedOp ExpandDims".split()
)


@pytest.fixture(scope="module")
def clean():
    with CleanProcess() as process:
        yield process


@pytest.fixture(scope="module")
def model(tiny_spm):
    import tf_keras

    tf_keras.utils.set_random_seed(3)
    return checkpoints.new_model(CONFIG, {"masked_lm": {}}, load_tokenizer(tiny_spm))


def write(folder, model, clean, which="both", precision="float32", tokenizer=None, **more):
    ids = signatures.ids_signature(model.config, lambda inputs: signatures.encoder_outputs(model, inputs))
    text = None
    if which != "ids":
        tokenizer = GraphTokenizer(model.tokenizer)
        text = signatures.encoder_text_signature(model, tokenizer, 32)
    with files.new_folder(folder) as partial:
        versions.write_saved_model_version(
            partial,
            model,
            ids,
            text,
            which=which,
            precision=precision,
            tokenizer=tokenizer,
            clean=clean,
            details=more,
        )
    return versions.named(ids, text, which)


@pytest.fixture(scope="module")
def ids_export(model, clean, tmp_path_factory):
    """(folder, signatures) of an export on ids."""
    folder = tmp_path_factory.mktemp("ids") / "1"
    return folder, write(folder, model, clean, "ids")


@pytest.fixture(scope="module")
def text_export(model, clean, tmp_path_factory):
    """(folder, signatures) of an export on text."""
    folder = tmp_path_factory.mktemp("text") / "1"
    return folder, write(folder, model, clean, "text")


def assert_close(found, expected, tolerance=2e-5):
    assert set(expected) <= set(found)
    for name, right in expected.items():
        np.testing.assert_allclose(found[name], right, atol=tolerance, err_msg=name)


def test_core_ops_only(ids_export):
    folder, _ = ids_export
    found = set(saved_model.operations(folder))
    assert found <= IDS_OPS, sorted(found - IDS_OPS)
    assert saved_model.custom_operations(sorted(found)) == []


def test_two_ops_of_tensorflow_text(text_export):
    folder, _ = text_export
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["ops"]["custom"] == ["SentencepieceOp", "SentencepieceTokenizeOp"]
    unicode_ops = [name for name in saved_model.operations(folder) if "nicode" in name or "UTF8" in name]
    assert unicode_ops == ["UnicodeDecode", "UnicodeEncode"]  # neither reads ICU's data for UTF-8


def test_the_c_library_runs_ids_without_any_op_library(ids_export, c_api):
    folder, made = ids_export
    for name, signature in made.items():
        assert_close(c_api(folder, name, signature.request), signature.expected)


def test_the_c_library_runs_text_with_the_sentencepiece_library(text_export, c_api):
    folder, made = text_export
    for name in ("serving_default", "text", "ids"):
        found = c_api(folder, name, made[name].request, [in_graph.operation_library()])
        assert_close(found, made[name].expected)


def test_any_batch_and_length(ids_export, model):
    """Against the model itself, at shapes that the export was not tried with."""
    folder, _ = ids_export
    exported = load_exported(folder)
    for batch, length in ((1, 1), (33, 7), (2, 48), (0, 5)):
        ids = np.random.default_rng(1).integers(5, 800, [batch, length], np.int32)
        inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": ids % 2}
        expected = model.encoder({name: tf.constant(value) for name, value in inputs.items()})
        found = exported.answer(inputs)
        for name in ("sequence_output", "pooled_output"):
            np.testing.assert_allclose(found[name], expected[name], atol=2e-5)


@pytest.mark.parametrize("signature", ["serving_default", "int64"])
@pytest.mark.parametrize(
    "change, message",
    [
        ({"input_ids": [[2, 800, 3]]}, "input_ids must be from 0 to 799"),
        ({"input_ids": [[2, -1, 3]]}, "input_ids must be from 0 to 799"),
        ({"segment_ids": [[0, 2, 0]]}, "segment_ids must be from 0 to 1"),
        ({"input_mask": [[1, 1]]}, "input_mask must have the shape of input_ids"),
        ({"segment_ids": [[0, 0]]}, "segment_ids must have the shape of input_ids"),
        ({name: [[1] * 49] for name in ("input_ids", "input_mask", "segment_ids")}, "the model reads 1 to 48 tokens"),
        ({name: [[]] for name in ("input_ids", "input_mask", "segment_ids")}, "the model reads 1 to 48 tokens"),
    ],
)
def test_requests_that_cannot_be_answered_are_told_why(signature, change, message, ids_export):
    function = tf.saved_model.load(str(ids_export[0])).signatures[signature]
    dtype = tf.int64 if signature == "int64" else tf.int32
    request = {"input_ids": [[2, 9, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]], **change}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(**{name: tf.constant(value, dtype) for name, value in request.items()})


def test_ids_beyond_int32_are_told_too(ids_export):
    function = tf.saved_model.load(str(ids_export[0])).signatures["int64"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_ids must be from 0 to 799"):
        ones = tf.ones([1, 1], tf.int64)
        function(input_ids=ones * (2**32 + 7), input_mask=ones, segment_ids=ones * 0)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision(precision, model, ids_export, clean, tmp_path):
    """Smaller on disk, float32 at its ends, and as near to float32 as its digits allow."""
    checkpoints.save_model(tmp_path / "model", model)
    half = checkpoints.load_model(tmp_path / "model", dtype=saved_model.POLICIES[precision])
    made = write(tmp_path / "1", half, clean, "ids", precision)
    found = clean.answers(tmp_path / "1", {"serving_default": made["serving_default"].request})["serving_default"]
    exact = ids_export[1]["serving_default"].expected
    assert all(value.dtype == np.float32 for value in found.values())
    assert 1e-5 < np.abs(found["sequence_output"] - exact["sequence_output"]).max() < 0.5
    sizes = [
        (folder / "variables/variables.data-00000-of-00001").stat().st_size
        for folder in (tmp_path / "1", ids_export[0])
    ]
    assert sizes[0] < 0.75 * sizes[1]


def test_numbered_versions(tmp_path):
    """Counted up from the greatest; while one is written, its name is no number."""
    target = tmp_path / "served"
    assert versions.version_folder(target, None).name == "1"
    for name in ("2", "10", "notes", "serving"):
        (target / name).mkdir(parents=True)
    final = versions.version_folder(target, None)
    assert final == target / "11"
    with files.new_folder(final) as partial:
        (partial / "saved_model.pb").write_bytes(b"half")
        assert partial.parent == target and not partial.name.isdigit()
        assert sorted(path.name for path in target.iterdir() if path.name.isdigit()) == ["10", "2"]
    assert (target / "11" / "saved_model.pb").is_file()
    with pytest.raises(UserError, match="10 exists already"):
        versions.version_folder(target, 10)


def test_settings_for_the_server(tmp_path):
    """Three files, kept once they are there; the one whose protocol buffer the serving API has is parsed with it."""
    written = serving_files.write_settings(tmp_path, "tiny")
    assert [path.rsplit("/", 1)[1] for path in written] == ["batching.config", "monitoring.config", "models.config"]
    assert "pad_variable_length_inputs: false" in (tmp_path / "serving" / "batching.config").read_text()
    assert serving_files.write_settings(tmp_path, "tiny") == []
    pytest.importorskip("tensorflow_serving")
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    models = model_server_config_pb2.ModelServerConfig()
    text_format.Parse((tmp_path / "serving" / "models.config").read_text(), models)
    assert models.model_config_list.config[0].base_path == "/models/tiny"


def test_a_damaged_or_foreign_export_is_named(ids_export, tmp_path):
    folder, _ = ids_export
    assert is_exported(folder) and is_exported(folder.parent) and not is_exported(tmp_path)
    with pytest.raises(UserError, match="is no export"):
        load_exported(tmp_path)
    values = json.loads((folder / "manifest.json").read_text())
    for change, message in (
        ({"format_version": 9}, "format_version 9"),
        ({"format": "hub"}, "format hub: only saved_model"),
        ({"labels": 5}, "found labels 5"),
        ({"task_options": []}, r"found task_options \[\]"),
        ({"do_lower_case": "x"}, "found do_lower_case 'x'"),
        ({"ops": [1]}, r"found ops \[1\]"),
        ({}, "is damaged"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({**values, **change}))
        with pytest.raises(UserError, match=message):
            load_exported(tmp_path)
    shutil.copytree(folder / "assets.extra", tmp_path / "assets.extra")
    (tmp_path / "manifest.json").write_text(json.dumps({**values, "vocabulary_hash": "0" * 64}))
    with pytest.raises(UserError, match="is not the vocabulary that the model was exported with"):
        load_exported(tmp_path)


def test_an_export_in_a_folder_whose_name_tensorflow_takes_for_a_pattern(ids_export, tmp_path):
    moved = shutil.copytree(ids_export[0], tmp_path / "served [1]" / "1")
    inputs = {"input_ids": [[2, 7, 3]], "input_mask": [[1, 1, 1]], "segment_ids": [[0, 0, 0]]}
    found, right = (load_exported(folder).answer(inputs) for folder in (moved.parent, ids_export[0]))
    assert found.keys() == right.keys()
    for name, value in right.items():
        np.testing.assert_array_equal(found[name], value)


def test_an_export_whose_graph_has_an_unknown_op_is_named(ids_export, tmp_path):
    shutil.copytree(ids_export[0], tmp_path / "export")
    graph = tmp_path / "export" / "saved_model.pb"
    graph.write_bytes(graph.read_bytes().replace(b"MatMul", b"MatMux"))
    with pytest.raises(UserError, match="the export .* is damaged .*MatMux"):
        load_exported(tmp_path / "export")


def test_comparison_refuses():
    right = {"logits": np.array([1.0, -1e30], np.float32), "label": np.array([b"a"], object)}
    assert compare({**right, "more": 1}, right, precision="float32", what="x") == 0
    for wrong, message in (
        ({"logits": right["logits"]}, "output label is nothing"),
        ({**right, "logits": np.array([1.001, -1e30], np.float32)}, "differs from the Python model's by 0.001"),
        ({**right, "logits": np.array([np.nan, -1e30], np.float32)}, "differs from the Python model's by nan"),
        ({**right, "logits": right["logits"][:1]}, r"output logits is \[1\], the Python model's is \[2\]"),
        ({**right, "label": np.array([b"b"], object)}, "output label differs"),
    ):
        with pytest.raises(UserError, match=message):
            compare(wrong, right, precision="float32", what="x")


def test_a_clean_process_tells_what_is_wrong(text_export, clean):
    folder, made = text_export
    with CleanProcess() as fresh:  # the other one may have loaded the library already
        with pytest.raises(UserError, match="does not run in a clean process: .*SentencepieceOp"):
            fresh.answers(folder, {"text": made["text"].request})
    with pytest.raises(UserError, match="does not run in a clean process"):
        clean.answers(folder / "nowhere", {})


@pytest.fixture(scope="module")
def hub_export(model, clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    hub.write_encoder(folder / "encoder", model, clean)
    hub.write_preprocessor(folder / "preprocessor", model, 16, clean)
    return folder


def test_hub_interface(hub_export, model):
    """What TF-Hub's convention names, with the model's numbers."""
    preprocessor = tf.saved_model.load(str(hub_export / "preprocessor"))
    encoder = tf.saved_model.load(str(hub_export / "encoder"))
    rows = preprocessor(tf.constant(["The river.", ""]))
    assert set(rows) == {"input_word_ids", "input_mask", "input_type_ids"}
    assert all(value.shape == [2, 16] and value.dtype == tf.int32 for value in rows.values())
    tokens = [preprocessor.tokenize(tf.constant([text])) for text in ("The river.", "A stone.")]
    assert tokens[0].to_list() == [model.tokenizer.encode("The river.")]
    pair = preprocessor.bert_pack_inputs(tokens, tf.constant(24))
    ids = [2, *model.tokenizer.encode("The river."), 3, *model.tokenizer.encode("A stone."), 3]
    assert pair["input_word_ids"][0].numpy().tolist() == ids + [0] * (24 - len(ids))
    assert preprocessor.bert_pack_inputs(tokens)["input_word_ids"].shape == [1, 16]

    found = encoder(rows)
    expected = model.encoder(
        {"input_ids": rows["input_word_ids"], "input_mask": rows["input_mask"], "segment_ids": rows["input_type_ids"]}
    )
    assert len(found["encoder_outputs"]) == 2
    for name in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5)
    for mine, right in zip(found["encoder_outputs"], expected["encoder_outputs"], strict=True):
        np.testing.assert_allclose(mine, right, atol=2e-5)
    trained, other = encoder(rows, training=True), encoder(rows, training=True)
    assert np.abs(trained["pooled_output"] - other["pooled_output"]).max() > 0  # dropout is on
    assert len(encoder.trainable_variables) == len(model.encoder.trainable_variables)


def test_hub_fine_tuning_halves_the_loss(hub_export):
    """64 examples through hub.KerasLayer: the gradients reach every variable of the encoder."""
    tensorflow_hub = pytest.importorskip("tensorflow_hub")
    import tf_keras

    tf_keras.utils.set_random_seed(5)
    words = (
        "the value of names in this list is a module".split()
    )  # whole pieces of the test vocabulary, as are the cues
    texts = [" ".join([*words[number % 7 :][:3], "class" if number % 2 else "function"]) for number in range(64)]
    preprocess = tensorflow_hub.KerasLayer(str(hub_export / "preprocessor"))
    encoder = tensorflow_hub.KerasLayer(str(hub_export / "encoder"), trainable=True)
    text = tf_keras.Input([], dtype=tf.string)
    logits = tf_keras.layers.Dense(2)(encoder(preprocess(text))["pooled_output"])
    classifier = tf_keras.Model(text, logits)
    assert len(encoder.trainable_variables) > 20
    before = [variable.numpy() for variable in encoder.trainable_variables]
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(tf_keras.optimizers.Adam(3e-3), loss)
    data = tf.constant(texts), tf.constant([number % 2 for number in range(64)])
    first = classifier.evaluate(*data, verbose=0)
    classifier.fit(*data, batch_size=16, epochs=10, verbose=0)
    assert classifier.evaluate(*data, verbose=0) < 0.5 * first
    moved = [np.abs(old - new.numpy()).max() for old, new in zip(before, encoder.trainable_variables, strict=True)]
    assert min(moved) > 0


def test_lite_files(model, tmp_path):
    """Built-in ops, any batch and length, float32 equal and int8 near; the weights are a quarter of this small file."""
    ids = signatures.ids_signature(model.config, lambda inputs: signatures.encoder_outputs(model, inputs), checks=False)
    report = lite.write_lite(tmp_path, model, ids)
    assert not [name for name in lite.operations(tmp_path / "model.tflite") if "Flex" in name or "CUSTOM" in name]
    assert max(report["float32"]["largest_difference"].values()) < 2e-5
    assert 1e-4 < max(report["int8_weights"]["largest_difference"].values()) < 0.5
    assert report["int8_weights"]["bytes"] < 0.6 * report["float32"]["bytes"]
    rows = np.array([[2, 9, 10, 11, 3]], np.int32)
    inputs = {"input_ids": rows, "input_mask": np.ones_like(rows), "segment_ids": rows * 0}
    expected = signatures.encoder_outputs(model, {name: tf.constant(value) for name, value in inputs.items()})
    found = lite.run(tmp_path / "model.tflite", inputs)
    np.testing.assert_allclose(found["sequence_output"], expected["sequence_output"], atol=2e-5)


def test_commands_for_what_lacks_a_tokeniser_or_has_wordpiece(tmp_path, capsys):
    """Ids export with a notice; text is refused by name; hub leaves the preprocessor out."""

    def command(**flags):
        return main(["albert_tf", "export", *(f"--{name}={value}" for name, value in flags.items())])

    small = CONFIG.replace(vocab_size=40, num_hidden_layers=1, num_hidden_groups=1)
    bare = tmp_path / "bare"
    checkpoints.save_model(bare, checkpoints.new_model(small, {}))
    assert command(model_dir=bare, export_dir=tmp_path / "out") == 0
    assert "NOTICE: the model has no tokeniser" in capsys.readouterr().err
    assert sorted(
        load_exported(tmp_path / "out").answer(
            {name: np.ones([1, 2], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
        )
    ) == ["pooled_output", "sequence_output"]
    assert command(model_dir=bare, export_dir=tmp_path / "text", signature="text") == 2
    assert "the model has no tokeniser" in capsys.readouterr().err

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    chinese = tmp_path / "chinese"
    checkpoints.save_model(chinese, checkpoints.new_model(small, {}, load_tokenizer(vocabulary)))
    assert command(model_dir=chinese, export_dir=tmp_path / "text", signature="both") == 2
    assert "vocab.txt is a wordpiece vocabulary" in capsys.readouterr().err
    assert command(model_dir=chinese, export_dir=tmp_path / "hub", format="hub") == 0
    assert "a wordpiece vocabulary: without a preprocessor" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "hub" / "1").iterdir()) == [
        "assets.extra",
        "encoder",
        "manifest.json",
    ]
    assert not (tmp_path / "text").exists() or not list((tmp_path / "text").iterdir())
