"""Tables keep their rows as they are, and say where they are wrong."""

import pytest

from albert_tf.errors import UserError
from tasks.tables import read_table


def _file(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def test_tsv_has_no_quoting_and_only_newlines_end_rows(tmp_path):
    text = '\ufeffa\tb\r\n"one\t two \r\n\r\n   \nx\u2028y\u000bz\t"q"\n'
    table = read_table(_file(tmp_path, "t.tsv", text))
    assert table.columns == ("a", "b")
    assert [tuple(row.values.values()) for row in table.rows] == [('"one', " two "), ("x\u2028y\u000bz", '"q"')]
    assert [row.line for row in table.rows] == [2, 5]  # blank lines count as lines, not as rows


def test_csv_has_quoting(tmp_path):
    table = read_table(_file(tmp_path, "t.csv", 'a,b\n"x, y","two\nlines"\n\n"say ""hi""",z\n'))
    assert [tuple(row.values.values()) for row in table.rows] == [("x, y", "two\nlines"), ('say "hi"', "z")]
    assert [row.line for row in table.rows] == [2, 5]


def test_csv_holds_texts_of_any_length(tmp_path):
    text = "a long text, " * 20_000
    table = read_table(_file(tmp_path, "t.csv", f'a,b\n"{text}",x\n'))
    assert table.rows[0].values == {"a": text, "b": "x"}


def test_json_lines(tmp_path):
    table = read_table(_file(tmp_path, "t.jsonl", '{"a": "x", "b": 1}\n\n{"a": "y", "b": 2.5}\n'))
    assert [row.values for row in table.rows] == [{"a": "x", "b": "1"}, {"a": "y", "b": "2.5"}]
    assert [row.line for row in table.rows] == [1, 3]


def test_short_rows_are_left_out_only_on_request(tmp_path):
    path = _file(tmp_path, "t.tsv", "a\tb\n1\t2\n3\n4\t5\n")
    assert read_table(path, skip_short_rows=True).broken == (3,)
    with pytest.raises(UserError, match=r"t\.tsv:3: found 1 columns, expected 2 \(a, b\)"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.tsv", "a\tb\n1\t2\t3\n", r"t\.tsv:2: found 3 columns, expected 2"),
        ("t.tsv", "", "is empty"),
        ("t.tsv", "a\ta\n", "the column 'a' is there twice"),
        ("t.tsv", b"a\tb\n1\t2\n\xff\t1\n", r"t\.tsv:3: byte 0xff is not UTF-8"),
        ("t.csv", 'a,b\nx,"y\n', r"t\.csv:2: not valid CSV"),
        ("t.csv", "a,b\nx\n", r"t\.csv:2: found 1 columns"),
        ("t.jsonl", '{"a": 1}\n{"a": \n', r"t\.jsonl:2: not valid JSON"),
        ("t.jsonl", "[1]\n", r"t\.jsonl:1: found a JSON list"),
        ("t.xlsx", "a", "expected one of .tsv"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, name, data, message):
    with pytest.raises(UserError, match=message):
        read_table(_file(tmp_path, name, data))


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no file at"):
        read_table(tmp_path / "t.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        read_table(tmp_path / "folder.tsv")
