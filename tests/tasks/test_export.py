"""Every task, exported: the answers are those of the Python path, for any text, in any process, wherever it lies."""

import json
import pathlib
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints, files
from albert_tf.__main__ import main
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.export import load_exported, saved_model, serving_files, versions
from albert_tf.export.clean_process import CleanProcess
from albert_tf.export.signatures import string_array
from albert_tf.tokenization import in_graph, load_tokenizer
from tasks import export
from tasks.catalog import make_task
from tasks.serving import serving_of

SQUAD = {"doc_stride": 16, "max_query_length": 10}
KINDS = {  # name -> (task, settings)
    "single": ("sst-2", {}),
    "pair": ("mnli", {}),
    "regression": ("sts-b", {}),
    "race": ("race", {"options": {"max_qa_length": 12}}),
    "tokens": ("tokens", {"labels": ("O", "B-PER", "I-PER")}),
    "squad1.1": ("squad1.1", {"options": SQUAD}),
    "squad2.0": ("squad2.0", {"options": SQUAD}),
    "squad2.0 plain": ("squad2.0", {"options": {**SQUAD, "span_head": "plain", "null_threshold": 0.9}}),
}
# An export takes some ten seconds: one task of each form (row, windows with a search, words) always, the others slow.
QUICK = ("single", "squad2.0", "tokens")
EVERY_KIND = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
ROUNDING = 2e-5


def make_model(folder, tokenizer_file, kind):
    """A model folder with a fresh encoder and head for one kind of task."""
    import tf_keras

    tf_keras.utils.set_random_seed(11)
    tokenizer = load_tokenizer(tokenizer_file)
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    name, settings = KINDS[kind]
    task = make_task(name, max_seq_length=40, **settings)
    info = checkpoints.ModelInfo(**task.describe())
    model = checkpoints.new_model(config, {task.head: task.head_options(0.0)}, tokenizer, info=info)
    for variable in model.heads[task.head].named_variables().values():  # zero biases would hide a lost one
        variable.assign_add(tf.random.stateless_normal(variable.shape, [1, 2], stddev=0.1))
    checkpoints.save_model(folder, model)


class Export:
    """A model folder, what it was loaded as, and its export."""

    def __init__(self, kind, root, tokenizer_file, clean):
        self.source = root / "source"
        make_model(self.source, tokenizer_file, kind)
        self.folder = root / "exports" / "1"
        self.clean = clean
        self.model, self.task, self.signatures = export_to(self.folder, self.source, clean)
        self.serving = serving_of(self.task, self.model)
        self.libraries = (in_graph.operation_library(),)
        tf.load_op_library(*self.libraries)
        self.loaded = tf.saved_model.load(str(self.folder))

    def requests(self):
        return {name: signature.request for name, signature in self.signatures.items()}


def export_to(folder, source, clean, which="both"):
    """Exports through the library, with a shared clean process; returns model, task and signatures."""
    model, task = export.load(source)
    ids, text, tokenizer = export.signatures(model, task, with_text=which != "ids")
    with files.new_folder(folder) as partial:
        versions.write_saved_model_version(
            partial,
            model,
            ids,
            text,
            which=which,
            precision="float32",
            tokenizer=tokenizer,
            warmup_name=None,
            clean=clean,
            details={},
        )
    return model, task, versions.named(ids, text, which)


@pytest.fixture(scope="module")
def clean():
    with CleanProcess() as process:
        yield process


@pytest.fixture(scope="module")
def exports(tiny_spm, tmp_path_factory, clean):
    """kind -> Export, made when first asked for."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Export(kind, tmp_path_factory.mktemp("export"), tiny_spm, clean)
        return made[kind]

    return of


def assert_same(found, expected, tolerance):
    for name, right in expected.items():
        assert found[name].shape == right.shape, name
        if right.dtype.kind == "f":
            scale = np.maximum(1, np.abs(right))
            np.testing.assert_allclose(found[name] / scale, right / scale, atol=tolerance, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], right, err_msg=name)


def answers(function, inputs):
    tensors = {name: tf.constant(value.tolist(), tf.string, value.shape) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in function(**tensors).items()}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_export_outlives_its_source(kind, exports, clean, tmp_path):
    """Moved, its model folder out of reach, reloaded with TensorFlow alone; saved once more: equal outputs."""
    one = exports(kind)
    shutil.copytree(one.folder, tmp_path / "moved")
    one.source.rename(tmp_path / "gone")
    one.folder.rename(tmp_path / "original")
    try:
        loaded = tf.saved_model.load(str(tmp_path / "moved"))
        tf.saved_model.save(loaded, str(tmp_path / "resaved"), signatures=dict(loaded.signatures))
        moved, resaved = (
            clean.answers(tmp_path / folder, one.requests(), libraries=one.libraries) for folder in ("moved", "resaved")
        )
    finally:
        (tmp_path / "gone").rename(one.source)
        (tmp_path / "original").rename(one.folder)
    assert set(moved) == {"serving_default", "int64", "text"}
    for name, answer in moved.items():
        assert_same(answer, one.signatures[name].expected, ROUNDING)
        assert_same(resaved[name], answer, 1e-6)
    assert_same(moved["int64"], moved["serving_default"], 0)


@pytest.mark.parametrize(
    "kind", [kind if kind == "single" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_an_export_can_be_made_again(kind, exports, clean, tmp_path):
    """Exporting changes nothing in the model folder, and the second export says what the first says."""
    one = exports(kind)
    before = {path.name: path.read_bytes() for path in one.source.iterdir()}
    _, _, made = export_to(tmp_path / "again", one.source, clean)  # checked against the Python model of this load
    for name, signature in one.signatures.items():
        assert_same(made[name].expected, signature.expected, 0)
    assert {path.name: path.read_bytes() for path in one.source.iterdir()} == before


def mixed_texts():
    """One hundred texts that break things."""
    texts = [
        "",
        " \t\n",
        " ".join(f"word{number % 37}" for number in range(2000)),
        "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467 fine \U0001f1e9\U0001f1ea",
        "a\x00b\x01\x1f\x7f c\x85d",
        "[MASK] is [CLS] not [SEP] special <pad> <unk>",
        "in 2,000, or 1,5, and 12,",
        "Caf\u00e9 na\u00efve \ufb01ve \u00bd \u212b \u01c4",
        "\u039f\u0394\u039f\u03a3 \u03a3\u0391\u03a3 \u03a3",
        "\u6771\u4eac\u306f \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
        "\u202eright to left\u202c \ufeff\u00ad",
        "e\u0301\u0302 \u0301",
        "x" * 3000,
        "``quoted'' \u201cquoted\u201d 'n' \u2014 \u00a3\u20ac",
        "\u00a0 no\u3000break\u2028line",
    ]
    choose = random.Random(5)
    pieces = [
        *"abc ,.\u00e9\u03a3\u6771\x07\U0001f642",
        "the ",
        "river ",
        "stone, ",
        "7,",
        "[MASK]",
        "\u2003",
        "__",
        "\u0301",
    ]
    while len(texts) < 100:
        texts.append("".join(choose.choice(pieces) for _ in range(choose.randrange(1, 40))))
    return texts


def mixed_inputs(serving, texts):
    """The texts as inputs of a task, each in another order."""
    inputs, shuffled = {}, random.Random(6)
    for name, shape in serving.text_inputs.items():
        columns = [list(texts) for _ in range(3 if len(shape) == 2 else 1)]
        for column in columns:
            shuffled.shuffle(column)
        if len(shape) == 2:
            columns = [[text[:200] for text in column] for column in columns]
        inputs[name] = [list(row) for row in zip(*columns, strict=True)] if len(shape) == 2 else columns[0]
    return inputs


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_one_hundred_mixed_requests(kind, exports):
    """None crashes, and each gets the answer of the Python path, whatever it is batched with."""
    one = exports(kind)
    function = one.loaded.signatures["text"]
    inputs = mixed_inputs(one.serving, mixed_texts())
    expected = one.serving.python_answers(inputs)
    start = 0
    for size in (1, 33, 0, 66):
        part = {name: string_array(rows[start : start + size]) for name, rows in inputs.items()}
        if size == 0:
            part = {
                name: np.zeros([0, *([3] * (len(shape) - 1))], object)
                for name, shape in one.serving.text_inputs.items()
            }
        found = answers(function, part)
        rows = {name: value[start : start + size] for name, value in expected.items()}
        if kind == "tokens":  # as wide as the text with most words, of the batch there and of all here
            width = found["labels"].shape[1]
            rows = {name: value[:, :width] for name, value in rows.items()}
        assert_same(found, rows, ROUNDING)
        start += size


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_padding_changes_nothing(kind, exports):
    one = exports(kind)
    function = one.loaded.signatures["serving_default"]
    request = {name: tf.constant(value) for name, value in one.signatures["serving_default"].request.items()}
    padded = {name: tf.pad(value, [[0, 0]] * (value.shape.rank - 1) + [[0, 7]]) for name, value in request.items()}
    short, long = function(**request), function(**padded)
    length = request["input_ids"].shape[-1]
    for name, value in short.items():
        if name.endswith("top_index") or name.endswith("top_log_probs"):
            # beyond the positions that are allowed, the candidates are any
            real = value.numpy() > -1e20 if name.endswith("log_probs") else np.zeros(value.shape, bool)
            np.testing.assert_allclose(long[name].numpy()[real], value.numpy()[real], atol=ROUNDING)
            continue
        wide = long[name]
        if wide.shape != value.shape:
            wide = wide[:, :length]
        if value.dtype.is_floating:
            np.testing.assert_allclose(wide, value, atol=ROUNDING, err_msg=name)
        elif kind != "tokens":  # at padding, labels are anything
            np.testing.assert_array_equal(wide, value, err_msg=name)


OUTPUTS = {
    "single": {"probabilities", "logits", "label", "classes"},
    "pair": {"probabilities", "logits", "label", "classes"},
    "regression": {"prediction", "logits"},
    "race": {"probabilities", "logits", "choice"},
    "tokens": {"probabilities", "logits", "labels"},
    "squad1.1": {"start_logits", "end_logits"},
    "squad2.0 plain": {"start_logits", "end_logits"},
    "squad2.0": {
        "start_logits",
        "end_logits",
        "answer_logits",
        *(f"{edge}_top_{what}" for edge in ("start", "end") for what in ("index", "log_probs")),
    },
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_names_that_clients_rely_on(kind, exports):
    function = exports(kind).loaded.signatures["serving_default"]
    assert set(function.structured_outputs) == OUTPUTS[kind]
    assert set(function.structured_input_signature[1]) == {"input_ids", "input_mask", "segment_ids"}


def test_labels_are_named(exports):
    found = answers(exports("single").loaded.signatures["text"], {"text": string_array(["a river", "a stone"])})
    assert found["classes"].tolist() == [[b"0", b"1"]] * 2
    assert found["label"].tolist() == [found["classes"][row][found["probabilities"][row].argmax()] for row in (0, 1)]


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if "squad" in str(kind)])
def test_answers_are_slices_of_the_context(kind, exports):
    context = "  The \ufb01rst river\u00a0ran past 2,000 stones. "
    inputs = {"question": string_array(["What ran?"]), "context": string_array([context])}
    found = answers(exports(kind).loaded.signatures["text"], inputs)
    start, end = found["start_char"][0], found["end_char"][0]
    assert found["answer"][0].decode() == (context[start:end] if start >= 0 else "")


@pytest.mark.slow
def test_a_model_that_refuses_gives_no_place(exports):
    one = exports("squad2.0 plain")
    inputs = one.serving.sample
    found = answers(one.loaded.signatures["text"], {name: string_array(rows) for name, rows in inputs.items()})
    refused = found["null_probability"] > 0.9  # the model's own threshold
    assert refused.any()
    assert (found["answer"][refused] == b"").all() and (found["start_char"][refused] == -1).all()


TEXT_OPS = {"SentencepieceOp", "SentencepieceTokenizeOp"}
OFFSET_OPS = {"SentencepieceOp", "SentencepieceTokenizeWithOffsetsOp"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_two_ops_of_tensorflow_text_and_no_more(kind, exports):
    one = exports(kind)
    custom = OFFSET_OPS if kind.startswith("squad") else TEXT_OPS
    operations = set(saved_model.operations(one.folder))
    manifest = json.loads((one.folder / "manifest.json").read_text())
    assert set(manifest["ops"]["custom"]) == custom
    assert not {name for name in operations if "NormalizeUTF8" in name or "CaseFold" in name or "Regex" in name} - {
        "StaticRegexReplace",
        "StaticRegexFullMatch",
    }


def test_protocol_buffers_of_tensorflow_serving(exports):
    """A PredictRequest through the signatures gives a PredictResponse with the Python model's numbers."""
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import predict_pb2

    one = exports("single")
    for name, signature in one.signatures.items():
        sent = serving_files.predict_request("tiny", name, signature.request).SerializeToString()
        request = predict_pb2.PredictRequest.FromString(sent)
        assert request.model_spec.signature_name == name
        inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        for key, value in one.loaded.signatures[name](**inputs).items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        received = predict_pb2.PredictResponse.FromString(response.SerializeToString())
        found = {key: tf.make_ndarray(value) for key, value in received.outputs.items()}
        assert_same(found, signature.expected, ROUNDING)


def test_the_c_library_answers_questions(exports, c_api):
    """TensorFlow's C library with nothing but the SentencePiece ops beside it."""
    one = exports("squad2.0")
    found = c_api(one.folder, "text", one.signatures["text"].request, one.libraries)
    assert_same(found, one.signatures["text"].expected, ROUNDING)


def command(name, **flags):
    return main(["albert_tf", name, *(f"--{flag}={value}" for flag, value in flags.items())])


SQUAD_FILE = {
    "version": "2.0",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The bird sat by the bridge. " * 6,
                    "qas": [
                        {"id": f"q{n}", "question": f"Where did the {w} sit?"} for n, w in enumerate(["bird", "", "x"])
                    ],
                }
            ],
        }
    ],
}
RACE_FILE = {
    "id": "high1.txt",
    "article": "A letter came to the market. " * 4,
    "questions": ["Where did _ come?", "What came"],
    "options": [["it", "the letter", "a bird", "nothing"], ["a letter", "music"]],
}


@pytest.mark.parametrize("kind", ["single", "tokens", "squad2.0", pytest.param("race", marks=pytest.mark.slow)])
def test_predict_takes_an_export(kind, exports, tmp_path):
    """The same file, up to rounding, as from the model folder; an export and the folder of its versions both do."""
    one = exports(kind)
    data = tmp_path / "data"
    data.mkdir()
    contents = {
        "single": ("test.tsv", "index\tsentence\n0\ta bright river\n1\t\n2\tstone 2,000,\n"),
        "race": ("1.txt", json.dumps(RACE_FILE)),
        "tokens": ("test.txt", "a\nriver\n\nstone\n"),
        "squad2.0": ("dev.json", json.dumps(SQUAD_FILE)),
    }
    name, text = contents[kind]
    (data / name).write_text(text)
    source = data if kind == "race" else data / name
    written = {}
    for model_dir in (one.source, one.folder, one.folder.parent):
        output = tmp_path / f"{model_dir.name}-predictions"
        assert command("predict", model_dir=model_dir, input_file=source, output_file=output) == 0
        written[model_dir] = output.read_text()
    assert "river" in written[one.source] or kind != "tokens"
    rounded = [re_rounded(text) for text in written.values()]
    assert rounded[0] == rounded[1] == rounded[2]


def re_rounded(text):
    """Decimal numbers cut to four digits."""
    import re

    return re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.4f}", text)


def test_the_command(tiny_spm, tmp_path, capsys):
    """Numbered versions, files beside them, warm-up requests, nothing left of a failure."""
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import prediction_log_pb2

    make_model(tmp_path / "model", tiny_spm, "single")
    target = tmp_path / "served"
    assert command("export", model_dir=tmp_path / "model", export_dir=target, signature="text", warmup=True) == 0
    assert "signatures serving_default, text, ids" in capsys.readouterr().out
    assert sorted(path.name for path in target.iterdir()) == ["1", "serving"]
    manifest = json.loads((target / "1" / "manifest.json").read_text())
    assert (manifest["task"], manifest["labels"], manifest["max_seq_length"]) == ("sst-2", ["0", "1"], 40)
    assert manifest["vocabulary_hash"] == load_tokenizer(tiny_spm).hash and manifest["do_lower_case"] is True
    assert set(manifest["check"]["largest_difference"]) == {"serving_default", "text", "ids"}
    assert manifest["versions"]["tensorflow"] == tf.__version__
    records = tf.data.TFRecordDataset(str(target / "1" / "assets.extra" / "tf_serving_warmup_requests"))
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    names = {log.predict_log.request.model_spec.signature_name for log in logs}
    assert names == {"serving_default", "text", "ids"}
    loaded = load_exported(target)
    assert loaded.path == target / "1"

    before = tuned = (target / "serving" / "batching.config").read_text() + "# tuned\n"
    (target / "serving" / "batching.config").write_text(tuned)
    assert command("export", model_dir=tmp_path / "model", export_dir=target, precision="bfloat16") == 0
    assert (target / "2" / "saved_model.pb").is_file()
    assert (target / "serving" / "batching.config").read_text() == before
    sizes = [(target / name / "variables" / "variables.data-00000-of-00001").stat().st_size for name in "12"]
    assert sizes[1] < sizes[0]
    assert command("export", model_dir=tmp_path / "model", export_dir=target, version=2) == 2
    assert "2 exists already" in capsys.readouterr().err


def test_a_wrong_export_is_refused(tiny_spm, tmp_path, monkeypatch, clean):
    """Where the exported graph does not say what the Python model says, nothing gets its final name."""
    make_model(tmp_path / "model", tiny_spm, "single")
    whole = saved_model.weights_read_once

    def spoilt(encoder):
        encoder.pooler.bias.assign_add(tf.ones_like(encoder.pooler.bias))
        return whole(encoder)

    monkeypatch.setattr(saved_model, "weights_read_once", spoilt)
    with pytest.raises(UserError, match="signature serving_default: output logits differs .* not exported"):
        export_to(tmp_path / "served" / "1", tmp_path / "model", clean, which="ids")
    assert not list((tmp_path / "served").glob("*"))


def test_a_converted_classifier_without_a_task(tiny_spm, tmp_path):
    make_model(tmp_path / "model", tiny_spm, "single")
    path = tmp_path / "model" / "model.json"
    values = {**json.loads(path.read_text()), "task": None, "labels": None, "task_options": {}}
    path.write_text(json.dumps(values))
    model, task = export.load(tmp_path / "model")
    assert (task.name, task.labels, model.info.task) == ("classification", ("0", "1"), "classification")


def test_wrong_use(tiny_spm, tmp_path, capsys, monkeypatch):
    make_model(tmp_path / "model", tiny_spm, "single")

    def refused(**flags):
        assert command("export", **{"model_dir": tmp_path / "model", "export_dir": tmp_path / "out", **flags}) == 2
        assert not [path for path in pathlib.Path(tmp_path / "out").glob("*")]
        return capsys.readouterr().err

    assert "--signature=text with --format=tflite" in refused(format="tflite", signature="text")
    assert "--precision=float16 with --format=hub" in refused(format="hub", precision="float16")
    assert "max_seq_length is 65: the model has 64 positions" in refused(max_seq_length=65)
    monkeypatch.setattr(
        serving_files, "require_serving_api", lambda: (_ for _ in ()).throw(UserError("--warmup needs it"))
    )
    assert "--warmup needs it" in refused(warmup=True)
    (tmp_path / "file").write_text("")
    assert "is a file: expected a folder" in refused(export_dir=tmp_path / "file")
    assert "one of * ? [ ] \\ in its name" in refused(export_dir=tmp_path / "a[1]")  # no server would find the weights
    assert not (tmp_path / "a[1]").exists()


def test_the_client_of_the_guide(exports):
    """The gRPC client of docs/serving.md, against a service on this machine that answers with the export."""
    pytest.importorskip("tensorflow_serving")
    from concurrent import futures

    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    one = exports("single")

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            for key, value in one.loaded.signatures[request.model_spec.signature_name](**inputs).items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            return response

    server = grpc.server(futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    client = guide.split("### gRPC\n\n```python\n")[1].split("```")[0]
    client = client.replace("localhost:8500", f"127.0.0.1:{port}")
    names = {}
    try:
        exec(client, names)
    finally:
        server.stop(None).wait()
    expected = one.serving.python_answers({"text": ["a bright river", "a dull stone"]})
    assert names["labels"] == [label.decode() for label in expected["label"]]
    np.testing.assert_allclose(names["probabilities"], expected["probabilities"], atol=ROUNDING)
