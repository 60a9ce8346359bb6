import copy
import json

import pytest

from albert_tf.errors import UserError
from tasks.squad_data import GoldAnswer, official_files, read_questions

CONTEXT = "The brown fox lives in  Oxfordshire."
V1_DATA = {
    "data": [
        {
            "title": "Foxes",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {"id": "a", "question": "Where?", "answers": [{"text": "Oxfordshire", "answer_start": 24}]},
                        {"id": "b", "question": "Who?", "answers": [{"text": "The brown fox", "answer_start": 0}]},
                    ],
                }
            ],
        }
    ]
}
PLACE = "data[0].paragraphs[0].qas[1]: "


def written(folder, data):
    path = folder / "file.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def changed(change):
    """V1_DATA after `change` was called with its list of questions."""
    data = copy.deepcopy(V1_DATA)
    change(data["data"][0]["paragraphs"][0]["qas"])
    return data


def as_v2(qas):
    qas[0]["is_impossible"] = False
    qas[1] |= {"is_impossible": True, "answers": []}


def without_answers(qas):
    for qa in qas:
        del qa["answers"]


def test_version_1(tmp_path):
    first, second = read_questions(written(tmp_path, V1_DATA))
    assert (first.id, first.question, first.context, first.version) == ("a", "Where?", CONTEXT, "1.1")
    assert first.label == (GoldAnswer("Oxfordshire", 24),) and second.answers == (GoldAnswer("The brown fox", 0),)


def test_version_2_is_found_from_the_content(tmp_path):
    data = changed(as_v2) | {"version": "1.1"}  # what the file says of itself does not count
    questions = read_questions(written(tmp_path, data))
    assert [q.version for q in questions] == ["2.0", "2.0"] and questions[1].answers == ()
    by_empty_answers = read_questions(written(tmp_path, changed(lambda qas: qas[1].update(answers=[]))))
    assert by_empty_answers[0].version == "2.0"


def test_files_for_prediction_need_no_answers(tmp_path):
    questions = read_questions(written(tmp_path, changed(without_answers)))
    assert [(q.label, q.version) for q in questions] == [(None, None)] * 2
    empty = changed(lambda qas: [qa.update(answers=[]) for qa in qas])
    assert [q.label for q in read_questions(written(tmp_path, empty))] == [None, None]
    odd = changed(lambda qas: qas[1].update(answers=[{"text": "none", "answer_start": -1}], is_impossible=True))
    unlabelled = read_questions(written(tmp_path, odd), with_labels=False)
    assert [(q.label, q.version) for q in unlabelled] == [(None, None)] * 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "holds a list"),
        ({"items": []}, "has no data: found items"),
        ({"data": {}}, "data is {}, expected a list"),
        ({"data": []}, "has no questions"),
        ({"data": [{"title": "x"}]}, "data[0]: has no paragraphs: found title"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "data[0].paragraphs[0]: has no context"),
        ({"data": [{"paragraphs": [{"context": 5, "qas": []}]}]}, "context is 5, expected a text"),
        ({"data": [{"paragraphs": [{"context": "\ud800", "qas": []}]}]}, "half a character pair at 0"),
        (changed(lambda qas: qas.append("why?")), 'qas[2]: found "why?", expected an object'),
        (changed(lambda qas: qas[1].pop("question")), PLACE + "has no question"),
        (changed(lambda qas: qas[1].update(id=7)), PLACE + "id is 7, expected a text"),
        (changed(lambda qas: qas[1].update(id="a")), PLACE + "id 'a' is also at data[0].paragraphs[0].qas[0]"),
        (changed(lambda qas: qas[1].update(answers="fox")), 'answers is "fox", expected a list'),
        (changed(lambda qas: qas[1]["answers"].append({"text": "fox"})), "has no answer_start"),
        (
            changed(lambda qas: qas[1]["answers"][0].update(answer_start=1)),
            'qas[1]: (id \'b\') the answer "The brown fox" is not at answer_start 1: found "he brown fox " there',
        ),
        (changed(lambda qas: qas[1]["answers"][0].update(answer_start=-36)), "not at answer_start -36"),
        (changed(lambda qas: qas[1]["answers"][0].update(text="  ", answer_start=22)), "answer without text"),
        (
            changed(lambda qas: qas[0].update(is_impossible=False)),
            "mixes versions: 1 of 2 questions have is_imp",
        ),
        (changed(lambda qas: [as_v2(qas), qas[1].update(is_impossible=False)]), "is_impossible is false beside 0 answ"),
        (changed(lambda qas: [as_v2(qas), qas[0].update(is_impossible=True)]), "is_impossible is true beside 1 answ"),
        (changed(lambda qas: [as_v2(qas), qas[0].update(is_impossible="no")]), 'is_impossible is "no", expected true'),
    ],
)
def test_faults_are_named_with_their_place(tmp_path, data, message):
    path = written(tmp_path, data)
    with pytest.raises(UserError) as caught:
        read_questions(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match="no SQuAD file at"):
        read_questions(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"data": [')
    with pytest.raises(UserError, match="not valid JSON"):
        read_questions(tmp_path / "cut.json")


def test_official_names(tmp_path):
    def named(version):
        return {split: str(tmp_path / f"{split}-v{version}.json") for split in ("train", "dev")}

    assert official_files(tmp_path, "2.0") == named("2.0")
    assert official_files(tmp_path, None) == named("1.1")
    (tmp_path / "dev-v2.0.json").write_text("")
    assert official_files(tmp_path, None) == named("2.0")
    (tmp_path / "train-v1.1.json").write_text("")
    with pytest.raises(UserError, match="files of v1.1 and v2.0"):
        official_files(tmp_path, None)
