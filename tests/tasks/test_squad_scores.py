import json

import pytest

from tasks.squad_data import GoldAnswer, Question
from tasks.squad_scores import random_spans, score_v1, score_v2


def question(name, answers, context=""):
    return Question(name, "?", context, tuple(GoldAnswer(text, 0) for text in answers), None)


@pytest.fixture(scope="module")
def golden(shared):
    return json.loads((shared / "golden/metrics/metrics.json").read_text())


def questions_of(case):
    return [question(entry["id"], entry["answers"]) for entry in case["questions"]]


def test_v1_equals_the_original_script(golden):
    assert len(golden["squad_v1"]) == 24
    for case in golden["squad_v1"]:
        scores = score_v1(case["predictions"], questions_of(case))
        assert scores == case["albert_original"], case["name"]
        assert scores["f1"] == pytest.approx(100 * case["tf_models_official"]["final_f1"], rel=1e-15)


def test_v2_equals_the_official_script_and_the_original(golden):
    assert len(golden["squad_v2"]) == 20
    for case in golden["squad_v2"]:
        nulls = case["na_probs"] or dict.fromkeys(case["predictions"], 0.0)
        official = case["tf_models_official"]
        scores = score_v2(case["predictions"], nulls, questions_of(case), 1.0)
        for name in ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"):
            assert scores.get(name) == official.get(name), case["name"]
        tuned = score_v2(case["predictions"], nulls, questions_of(case), None)
        above = [null for null in nulls.values() if null > official["final_f1_thresh"]]
        assert official["final_f1_thresh"] <= tuned["null_threshold"] <= min(above, default=1)
        assert tuned["f1"] == pytest.approx(official["final_f1"], abs=1e-9), case["name"]
        for threshold in (1.0, 0.5) if "albert_original" in case else ():
            expected = case["albert_original"][f"na_prob_thresh={threshold}"]
            scores = score_v2(case["predictions"], nulls, questions_of(case), threshold)
            for name in ("exact", "f1", "best_exact", "best_f1"):
                assert scores[name] == expected[name], (case["name"], threshold, name)


def test_threshold_is_inclusive_and_chosen_for_f1():
    questions = [question("a", ["x"]), question("b", ["y"]), question("c", []), question("d", [])]
    texts = {"a": "x", "b": "y z", "c": "p", "d": "q"}
    nulls = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.9}
    scores = score_v2(texts, nulls, questions, None)
    # answering a alone: 1 + 0 + 1 + 1; up to b: 1 + 2/3 + 0 + 1; all: 1 + 2/3
    assert scores["null_threshold"] == pytest.approx(0.2) and scores["f1"] == 75.0 == scores["best_f1"]
    assert scores["HasAns_f1"] == 50.0 and scores["NoAns_exact"] == 100.0
    assert score_v2(texts, nulls, questions, 0.4)["f1"] == pytest.approx(100 * (1 + 2 / 3 + 0 + 1) / 4)


def test_random_spans_keep_the_number_of_words():
    asked = [question(str(i), ["w"], context="one two three four") for i in range(20)]
    spans = random_spans(["a b"] * 20, asked)
    assert set(spans) == {"one two", "two three", "three four"}
    assert spans == random_spans(["a b"] * 20, asked)
    assert random_spans([""], [question("x", [])]) == [""]
