import json

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.errors import UserError
from tasks import squad
from tasks.catalog import make_task
from tasks.features import Features, make_features
from tasks.squad_data import Question

SMALL = {"max_seq_length": 40, "options": {"max_query_length": 8, "doc_stride": 10, "max_answer_length": 5}}


def golden_run(shared, name, head, task):
    """(outputs, batch, golden arrays) of a reference head through the task's forward."""
    folder = shared / "golden/tf1/heads" / name
    model = checkpoints.load_model(folder, heads=[head])
    golden = dict(np.load(folder / "io.npz"))
    names = ("input_ids", "input_mask", "segment_ids", "start_position", "end_position")
    batch = {key: golden[key if key in golden else f"{key}s"] for key in names}
    return task.forward(model, batch), batch, golden


def test_golden_v1_logits_and_loss(shared):
    task = make_task("squad1.1")
    outputs, batch, golden = golden_run(shared, "squad_v1", "span", task)
    np.testing.assert_allclose(outputs["start_logits"], golden["predict_start_log_prob"], atol=2e-5)
    np.testing.assert_allclose(outputs["end_logits"], golden["predict_end_log_prob"], atol=2e-5)
    unmasked = {**batch, "input_mask": np.ones_like(batch["input_mask"])}  # the release's loss counts padding in
    assert np.mean(task.loss(outputs, unmasked)) == pytest.approx(float(golden["train_loss"]), abs=1e-5)
    assert np.mean(task.loss(outputs, batch)) != pytest.approx(float(golden["train_loss"]), abs=1e-3)


def test_golden_v2_logits_beams_and_loss(shared):
    task = make_task("squad2.0")
    outputs, batch, golden = golden_run(shared, "squad_v2", "conditional_span", task)
    forbidden = squad.forbidden_positions(batch["segment_ids"], batch["input_mask"])
    np.testing.assert_array_equal(forbidden, golden["p_mask"])
    np.testing.assert_array_equal(batch["start_position"] == 0, golden["is_impossible"])
    allowed = golden["p_mask"] == 0
    for edge in ("start", "end"):
        found = np.where(allowed, outputs[f"{edge}_log_probs"], 0)
        np.testing.assert_allclose(found, np.where(allowed, golden[f"train_{edge}_log_probs"], 0), atol=2e-5)
        np.testing.assert_array_equal(outputs[f"{edge}_top_index"], golden[f"predict_{edge}_top_index"])
        np.testing.assert_allclose(
            outputs[f"{edge}_top_log_probs"], golden[f"predict_{edge}_top_log_probs"], rtol=1e-6, atol=2e-5
        )
    np.testing.assert_allclose(outputs["answer_logits"], golden["predict_cls_logits"], atol=2e-5)
    assert np.mean(task.loss(outputs, batch)) == pytest.approx(float(golden["train_loss"]), abs=1e-5)


def test_the_loss_does_not_depend_on_padding():
    rng = np.random.default_rng(0)
    logits = {f"{edge}_logits": rng.normal(size=(2, 9)).astype(np.float32) for edge in ("start", "end")}
    batch = {"input_mask": np.ones((2, 9), np.int32), "start_position": np.array([3, 0]), "end_position": [4, 0]}
    task = make_task("squad1.1")
    expected = 0
    for edge in ("start", "end"):
        log_probs = logits[f"{edge}_logits"] - np.log(np.exp(logits[f"{edge}_logits"]).sum(1, keepdims=True))
        expected -= 0.5 * log_probs[[0, 1], batch[f"{edge}_position"]]
    np.testing.assert_allclose(task.loss(logits, batch), expected, rtol=1e-5)
    padded = {name: np.pad(value, [(0, 0), (0, 6)], constant_values=7.0) for name, value in logits.items()}
    batch["input_mask"] = np.pad(batch["input_mask"], [(0, 0), (0, 6)])
    np.testing.assert_allclose(task.loss(padded, batch), expected, rtol=1e-5)


# ---- settings -------------------------------------------------------------------------------------------------------


def test_recipes_and_options():
    first, second = make_task("SQuAD1.1"), make_task("squad2.0")
    assert (first.recipe.learning_rate, first.recipe.num_train_steps, first.max_seq_length) == (5e-5, 3649, 384)
    assert (second.recipe.learning_rate, second.recipe.num_train_steps, second.max_seq_length) == (3e-5, 8144, 512)
    assert {**first.options, **second.options} == {
        "doc_stride": 128,
        "max_query_length": 64,
        "max_answer_length": 30,
        "n_best_size": 20,
        "span_head": "conditional",
        "start_n_top": 5,
        "end_n_top": 5,
        "null_threshold": None,
    }
    assert second.head == "conditional_span" and second.head_options(0.1) == {"dropout_rate": 0.1}
    with pytest.raises(UserError, match="span_head is 'plain': this model's is conditional"):
        second.replace(options={"span_head": "plain"})
    plain = make_task("squad2.0", options={"span_head": "plain"})
    assert plain.head == "span" and plain.has_null and plain.head_options(0.1) == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("squad1.1", {"doc_stride": 0}, "doc_stride is 0: expected a whole number of at least 1"),
        ("squad1.1", {"n_best_size": -1}, "n_best_size is -1"),
        ("squad1.1", {"max_answer_length": 2.5}, "max_answer_length is 2.5"),
        ("squad1.1", {"doc_stride": 318}, "doc_stride is 318, but a window may have as few as 317 tokens"),
        ("squad1.1", {"max_query_length": 381}, "max_seq_length 384 leaves no room for the passage beside 381"),
        ("squad1.1", {"start_n_top": 5}, "has no setting start_n_top"),
        ("squad2.0", {"end_n_top": 0}, "end_n_top is 0"),
        ("squad2.0", {"span_head": "both"}, "span_head is 'both': expected conditional or plain"),
        ("squad2.0", {"null_threshold": 1.5}, "null_threshold is 1.5"),
    ],
)
def test_impossible_settings_are_refused(name, options, message):
    with pytest.raises(UserError) as caught:
        make_task(name, options=options)
    assert message in str(caught.value)


def squad_file(folder, questions, name="file.json"):
    """`questions`: (id, question, context, answer texts); a v2.0 file where one has none."""
    two = not all(answers for *_, answers in questions)
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": identity,
                    "question": question,
                    "answers": [{"text": text, "answer_start": context.index(text)} for text in answers],
                    **({"is_impossible": not answers} if two else {}),
                }
            ],
        }
        for identity, question, context, answers in questions
    ]
    path = folder / name
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


CONTEXT = "A name refers to an object, and a block binds a name until the block ends. It is found by its nearest scope."
ONE = [("a", "Who refers?", CONTEXT, ["A name"]), ("b", "What binds?", CONTEXT, ["a block", "block"])]


def place(text):
    """Its characters in CONTEXT."""
    return CONTEXT.index(text), CONTEXT.index(text) + len(text)


RIGHT = {0: place("A name"), 1: place("a block")}
TWO = [*ONE, ("c", "Who asks?", CONTEXT, [])]


def test_versions_do_not_mix(tmp_path):
    first, second = squad_file(tmp_path, ONE, "1.json"), squad_file(tmp_path, TWO, "2.json")
    assert len(make_task("squad1.1").read(first)) == 2 and len(make_task("squad2.0").read(second)) == 3
    with pytest.raises(UserError, match="2.json is SQuAD v2.0: task squad1.1 takes v1.1"):
        make_task("squad1.1").read(second)
    with pytest.raises(UserError, match="1.json is SQuAD v1.1: task squad2.0 takes v2.0"):
        make_task("squad2.0").read(first)


def test_task_squad_takes_the_version_of_the_data(tmp_path):
    task = make_task("SQuAD", options={"doc_stride": 100, "start_n_top": 3})
    learned = task.learned_from(task.read(squad_file(tmp_path, TWO)))
    assert learned.name == "squad2.0" and learned.max_seq_length == 512 and learned.recipe == squad.RECIPES["2.0"]
    assert learned.options["doc_stride"] == 100 and learned.options["start_n_top"] == 3
    asked = make_task("squad", max_seq_length=384)  # which is also what v1.1 would have without asking
    assert asked.learned_from(asked.read(squad_file(tmp_path, TWO))).max_seq_length == 384
    plain = squad.make("squad", max_seq_length=128, options={"doc_stride": 30})
    learned = plain.learned_from(plain.read(squad_file(tmp_path, ONE)))
    assert (learned.name, learned.max_seq_length, learned.options["doc_stride"]) == ("squad1.1", 128, 30)
    with pytest.raises(UserError, match="has no setting start_n_top"):
        task.learned_from(plain.read(squad_file(tmp_path, ONE)))


# ---- predictions ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tiny_spm):
    from albert_tf.tokenization import load_tokenizer

    return load_tokenizer(tiny_spm)


def span_outputs(features: Features, wanted: dict, padded_to: int, noise: float = 0.0) -> list[dict]:
    """Start and end logits that prefer some characters: {example number: (start, end)}; the others have no answer."""
    rng = np.random.default_rng(0)
    outputs = []
    for number, feature in enumerate(features):
        start, end = (noise * rng.normal(size=(2, padded_to))).astype(np.float32)
        span = wanted.get(int(features.example_index[number]))
        if span is None:
            start[0] = end[0] = 9
        offsets, shift = feature["offsets"], int(feature["context_start"])
        if span is not None and len(offsets) and offsets[0, 0] <= span[0] and span[1] <= offsets[-1, 1]:
            start[shift + np.flatnonzero(offsets[:, 1] > span[0])[0]] += 9
            end[shift + np.flatnonzero(offsets[:, 0] < span[1])[-1]] += 9
        outputs.append({"start_logits": start, "end_logits": end})
    return outputs


def test_v1_predictions_scores_and_files(tmp_path, tokenizer):
    task = make_task("squad1.1", **SMALL)
    questions = task.read(squad_file(tmp_path, ONE))
    features = make_features(task, questions, tokenizer)
    assert len(features) > 2  # several windows a question
    outputs = span_outputs(features, RIGHT, padded_to=64)
    predictions = task.predictions(outputs, features, questions)
    assert [p.best_text for p in predictions] == ["A name", "a block"]
    assert task.metrics(predictions, questions) == {"exact_match": 100.0, "f1": 100.0, "unreachable": 0.0}
    names = [path.rsplit("/", 1)[1] for path in task.write_predictions(tmp_path, predictions, questions)]
    assert names == ["predictions.json", "nbest_predictions.json"]
    assert json.loads((tmp_path / "predictions.json").read_text()) == {"a": "A name", "b": "a block"}
    n_best = json.loads((tmp_path / "nbest_predictions.json").read_text())["b"]
    assert n_best[0]["text"] == CONTEXT[n_best[0]["start_char"] : n_best[0]["end_char"]] == "a block"
    assert sum(entry["probability"] for entry in n_best) == pytest.approx(1) and len(n_best) <= 20
    ensemble = task.combined([predictions, predictions])
    assert [p.best_text for p in ensemble] == ["A name", "a block"]


def test_gold_answers_out_of_reach_are_counted(tmp_path, tokenizer):
    task = make_task("squad1.1", **SMALL)
    asked = [*ONE, ("c", "Everything?", CONTEXT, [CONTEXT]), ("d", "Long?", CONTEXT, [CONTEXT[:25], "object"])]
    questions = task.read(squad_file(tmp_path, asked))
    features = make_features(task, questions, tokenizer)
    predictions = task.predictions(span_outputs(features, {}, padded_to=64), features, questions)
    assert [p.reachable for p in predictions] == [True, True, False, True]  # d by its second answer
    assert task.remarks(features, questions) == [
        "1 of 4 questions have an answer that no window holds; they train as unanswerable"
    ]
    assert make_task("squad1.1").remarks(make_features(make_task("squad1.1"), questions, tokenizer), questions) == []
    assert task.metrics(predictions, questions)["unreachable"] == 1.0
    short = make_task("squad1.1", **{**SMALL, "options": {**SMALL["options"], "max_answer_length": 1}})
    predictions = short.predictions(span_outputs(features, {}, padded_to=64), features, questions)
    assert [p.reachable for p in predictions] == [False, True, False, True]


@pytest.mark.parametrize("span_head", ["plain", "conditional"])
def test_v2_threshold_is_tuned_saved_and_used(tmp_path, tokenizer, span_head):
    options = {**SMALL["options"], "span_head": span_head}
    task = make_task("squad2.0", max_seq_length=40, options=options)
    questions = task.read(squad_file(tmp_path, TWO))
    features = make_features(task, questions, tokenizer)
    outputs = span_outputs(features, RIGHT, padded_to=64)
    owner = features.example_index.tolist()
    if span_head == "conditional":
        first = [number == 0 or owner[number - 1] != owner[number] for number in range(len(owner))]
        logits = [(3.0 if e == 2 else 1.0) + (0 if best else 2) for e, best in zip(owner, first, strict=True)]
        assert len(set(logits)) == 3  # the least of a question's windows counts
        outputs = [beams_of(*pair) for pair in zip(outputs, logits, strict=True)]
        expected = [1 / (1 + np.exp(-1))] * 2 + [1 / (1 + np.exp(-3))]
    else:
        expected = [1 / (1 + np.exp(18))] * 2 + [1 / (1 + np.exp(-18))]
    predictions = task.predictions(outputs, features, questions)
    np.testing.assert_allclose([p.null_probability for p in predictions], expected, rtol=1e-5)
    scores = task.metrics(predictions, questions)
    assert scores["f1"] == scores["exact"] == scores["best_f1"] == scores["NoAns_f1"] == 100.0
    tuned = task.calibrated(predictions, questions)
    assert (
        tuned.options["null_threshold"] == pytest.approx((expected[0] + expected[2]) / 2)
        and task.options["null_threshold"] is None
    )
    assert tuned.calibrated(predictions[:1], questions[:1]).options == tuned.options  # one that is given stays
    again = make_task(tuned.name, max_seq_length=40, options=tuned.describe()["task_options"])
    again.write_predictions(tmp_path / "p.json", predictions, questions)
    assert json.loads((tmp_path / "p.json").read_text()) == {"a": "A name", "b": "a block", "c": ""}
    nulls = json.loads((tmp_path / "null_odds_p.json").read_text())
    assert list(nulls.values()) == [p.null_probability for p in predictions]
    assert (tmp_path / "nbest_p.json").is_file()
    from official.nlp.tools import squad_evaluate_v2_0

    data = json.loads((tmp_path / "file.json").read_text())["data"]
    written = json.loads((tmp_path / "p.json").read_text())
    for official in (squad_evaluate_v2_0.evaluate(data, written), squad_evaluate_v2_0.evaluate(data, written, nulls)):
        assert official["f1"] == official["exact"] == 100.0


def beams_of(output: dict, answer_logit: float, count: int = 3) -> dict:
    """Beams that follow independent start and end logits."""
    start = np.argsort(-output["start_logits"], kind="stable")[:count]
    end = np.argsort(-output["end_logits"], kind="stable")[:count]
    return {
        "start_top_index": start,
        "start_top_log_probs": output["start_logits"][start],
        "end_top_index": np.tile(end, count),
        "end_top_log_probs": np.tile(output["end_logits"][end], count),
        "answer_logits": np.float32(answer_logit),
    }


def test_all_null_gives_empty_answers_with_a_score(tmp_path, tokenizer):
    task = make_task("squad2.0", max_seq_length=40, options={**SMALL["options"], "span_head": "plain"})
    questions = task.read(squad_file(tmp_path, [*TWO, ("e", "", "", [])]))
    features = make_features(task, questions, tokenizer)
    predictions = task.predictions(span_outputs(features, {}, padded_to=40), features, questions)
    assert task.answer_texts(predictions) == [""] * 4 and predictions[3].null_probability == 1.0
    assert task.metrics(predictions, questions)["f1"] == 50.0
    assert "the same answer ''" in task.degenerate(predictions, questions)


def test_degenerate_runs_are_called_so(tmp_path, tokenizer):
    task = make_task("squad1.1", **SMALL)
    questions = task.read(squad_file(tmp_path, ONE))
    features = make_features(task, questions, tokenizer)
    good = task.predictions(span_outputs(features, RIGHT, 64), features, questions)
    assert task.degenerate(good, questions) is None
    bad = task.predictions(span_outputs(features, {0: place("until"), 1: place("nearest")}, 64), features, questions)
    assert [p.best_text for p in bad] == ["until", "nearest"]
    assert "a random span of the passage" in task.degenerate(bad, questions)


@pytest.mark.parametrize("articles", [5, pytest.param(None, marks=pytest.mark.slow)], ids=["5 articles", "all"])
def test_real_dev_set_scores_as_the_official_script_does(shared, tmp_path, articles):
    """The questions of dev-v1.1.json, answered by a predictor that is right about two times in three."""
    from official.nlp.tools import squad_evaluate_v1_1

    from albert_tf.tokenization import load_tokenizer

    data = json.loads((shared / "data/SQuAD/dev-v1.1.json").read_text())["data"][:articles]
    path = tmp_path / "dev-v1.1.json"
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    task = make_task("squad1.1")
    questions = task.read(path)
    assert len(questions) == sum(len(paragraph["qas"]) for article in data for paragraph in article["paragraphs"])
    features = make_features(task, questions, load_tokenizer(shared / "data/sentencepiece/30k-clean.model"))
    wanted = {
        number: (question.answers[0].start, question.answers[0].start + len(question.answers[0].text) - number % 2)
        for number, question in enumerate(questions)
        if number % 3
    }
    predictions = task.predictions(span_outputs(features, wanted, 384, noise=2.0), features, questions)
    for prediction, question in zip(predictions, questions, strict=True):
        assert all(question.context[p.start : p.end] == p.text for p in prediction.proposals)
    scores = task.metrics(predictions, questions)
    task.write_predictions(tmp_path / "predictions.json", predictions, questions)
    written = json.loads((tmp_path / "predictions.json").read_text())
    official = squad_evaluate_v1_1.evaluate(data, written)
    assert scores["exact_match"] == 100 * official["exact_match"] and scores["f1"] == 100 * official["final_f1"]
    assert 40 < scores["exact_match"] < scores["f1"] < 80 and scores["unreachable"] < 20


def test_questions_need_not_be_labelled(tokenizer):
    task = make_task("squad2.0", **SMALL)
    questions = [Question("a", "Who?", CONTEXT, None, None)]
    features = make_features(task, questions, tokenizer)
    assert "start_position" not in features.columns
    outputs = [beams_of(output, -1.0) for output in span_outputs(features, {0: (2, 6)}, 40)]
    (prediction,) = task.predictions(outputs, features, questions)
    assert prediction.best_text == "name" and prediction.reachable is None
