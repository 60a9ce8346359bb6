"""Rows of one and two texts, cut as the release cuts them."""

import itertools
import types

import pytest

from albert_tf.errors import UserError
from tasks.catalog import make_task
from tasks.text import TextExample, shortened, text_feature

TOKENIZER = types.SimpleNamespace(cls_id=2, sep_id=3, encode=lambda text: [10 + len(word) for word in text.split()])


def _one_token_at_a_time(first, second, room):
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return [first, second]


def test_pairs_are_cut_from_the_longer():
    for a, b, room in itertools.product(range(8), range(8), range(2, 12)):
        texts = [list(range(a)), list(range(b))]
        assert shortened(texts, room) == _one_token_at_a_time(*texts, room), (a, b, room)


def test_single_texts_are_cut_at_the_end():
    assert shortened([[1, 2, 3]], 2) == [[1, 2]]


def test_rows():
    pair = text_feature([[7, 8], [9]], TOKENIZER, 16)
    assert pair["input_ids"].tolist() == [2, 7, 8, 3, 9, 3]
    assert pair["segment_ids"].tolist() == [0, 0, 0, 0, 1, 1]
    single = text_feature([[7, 8, 9, 10]], TOKENIZER, 5)
    assert single["input_ids"].tolist() == [2, 7, 8, 9, 3]
    assert single["segment_ids"].tolist() == [0] * 5
    assert text_feature([[], []], TOKENIZER, 8)["input_ids"].tolist() == [2, 3, 3]


def test_features_have_the_label_where_it_is_known():
    task = make_task("rte", max_seq_length=8)
    with_label = task.featurise(TextExample("0", ("a bb", "ccc"), "not_entailment"), TOKENIZER)[0]
    assert with_label["label"] == 1 and with_label["input_ids"].tolist() == [2, 11, 12, 3, 13, 3]
    assert "label" not in task.featurise(TextExample("0", ("a", "b")), TOKENIZER)[0]


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("tsv", "id\tpremise\tclaim\tverdict\nq1\tone\ttwo\tyes\nq2\tthree\tfour\tno\n"),
        ("csv", 'id,premise,claim,verdict\nq1,one,two,yes\nq2,"three",four,no\n'),
        (
            "jsonl",
            '{"id": "q1", "premise": "one", "claim": "two", "verdict": "yes"}\n'
            '{"id": "q2", "premise": "three", "claim": "four", "verdict": "no"}\n',
        ),
    ],
)
def test_own_tables(tmp_path, ending, content):
    path = tmp_path / f"mine.{ending}"
    path.write_text(content)
    options = {"text_columns": ["premise", "claim"], "label_column": "verdict"}
    task = make_task("classification", options=options)
    examples = task.read(path)
    assert examples == [TextExample("q1", ("one", "two"), "yes"), TextExample("q2", ("three", "four"), "no")]
    assert task.learned_from(examples).labels == ("no", "yes")


@pytest.mark.parametrize("name", ["classification", "regression"])
def test_columns_named_later_are_the_ones_that_are_read(tmp_path, name):
    """As `predict --text_columns=body` does, where the file also has the column of the training data."""
    path = tmp_path / "mine.tsv"
    path.write_text("text\tbody\tlabel\tgrade\nold\tnew\t1\t2\n")
    task = make_task(name).replace(options={"text_columns": ["body"], "label_column": "grade"})
    (example,) = task.read(path)
    assert example.texts == ("new",) and float(example.label) == 2


def test_numbers_as_labels_are_ordered_as_numbers():
    task = make_task("classification")
    examples = [TextExample(str(i), ("a",), label) for i, label in enumerate(["10", "9", "2"])]
    assert task.learned_from(examples).labels == ("2", "9", "10")
    equal = ("+1", "01", "1", "1.0", "1.00", "1e0", "nan")  # the same order in every process, or no run could go on
    assert task.learned_from([TextExample("0", ("a",), label) for label in equal]).labels == equal


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("regression", "text\tlabel\na\thigh\n", {}, r":2: the label is 'high', expected a number"),
        ("regression", "text\tlabel\na\tnan\n", {}, r":2: the label is 'nan', expected a number"),
        ("classification", "text\tlabel\na\tx\nb\t \n", {}, r":3: the label is empty"),
        ("classification", "sentence\tlabel\na\tb\n", {}, r":1: no column 'text', found sentence, label"),
        ("classification", "text\tlabel\n", {}, "has no rows"),
        ("classification", "text\tlabel\n", {"text_columns": ["a", "b", "c"]}, "one or two text columns"),
        ("classification", "text\tlabel\n", {"label_column": "text"}, "one or two text columns"),
        ("classification", "text\tlabel\n", {"doc_stride": 4}, "has no setting doc_stride"),
    ],
)
def test_wrong_own_tables(tmp_path, name, content, options, message):
    path = tmp_path / "mine.tsv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        make_task(name, options=options).read(path)


@pytest.mark.parametrize(
    ("name", "labels", "content"),
    [
        ("classification", ("x", "y"), "text\tlabel\na\t\nb\tnew\n"),
        ("rte", None, "index\tsentence1\tsentence2\tlabel\n0\ta\tc\t?\n1\tb\td\t\n"),
        ("regression", None, "text\tlabel\na\thigh\nb\tnan\n"),
    ],
)
def test_labels_that_are_not_wanted_are_not_looked_at(tmp_path, name, labels, content):
    path = tmp_path / "mine.tsv"
    path.write_text(content)
    task = make_task(name, labels=labels)
    with pytest.raises(UserError, match=r"mine\.tsv:2: .*label"):
        task.read(path)
    examples = task.read(path, with_labels=False)
    assert [(example.texts[0], example.label) for example in examples] == [("a", None), ("b", None)]


def test_json_lines_without_a_key(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"label": "y"}\n')
    with pytest.raises(UserError, match=r"mine\.jsonl:2: the object has no 'text'"):
        make_task("classification").read(path)
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n')
    with pytest.raises(UserError, match=r"mine\.jsonl:2: the object has no 'label'"):
        make_task("classification").read(path)
    assert len(make_task("classification").read(path, with_labels=False)) == 2


def test_one_label_is_not_a_classification():
    with pytest.raises(UserError, match=r"1 different labels \('x'\)"):
        make_task("classification").learned_from([TextExample("0", ("a",), "x")])
