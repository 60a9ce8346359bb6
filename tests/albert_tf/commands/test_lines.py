"""One way to read lines, for every command that takes them."""

import pytest

from albert_tf.commands.lines import read_lines
from albert_tf.errors import UserError


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"a\n\n\nb\n", ["a", "", "", "b"]),
        (b"\xef\xbb\xbfa\r\nb\rc\r\n", ["a", "b\rc"]),
        (b"a\n\xef\xbb\xbfb", ["a", "\ufeffb"]),  # a mark is one at the beginning only
        ("a\u2028b\x0bc\x85d\x1ce".encode(), ["a\u2028b\x0bc\x85d\x1ce"]),
    ],
)
def test_lines_are_those_of_an_editor(tmp_path, data, lines):
    (tmp_path / "text").write_bytes(data)
    assert list(read_lines(tmp_path / "text")) == lines


def test_lines_come_one_after_the_other_until_one_is_wrong(tmp_path):
    (tmp_path / "text").write_bytes(b"good\n\xff\xfe bad\n")
    lines = read_lines(tmp_path / "text")
    assert next(lines) == "good"
    with pytest.raises(UserError, match="text line 2 is not UTF-8 text .invalid start byte.; convert the file"):
        next(lines)
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="cannot read"):
            next(read_lines(path))
