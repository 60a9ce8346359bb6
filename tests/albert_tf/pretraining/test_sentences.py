import time

import pytest

from albert_tf.pretraining.sentences import MAX_SENTENCE_CHARS, split_paragraph, split_text


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He met Mr. Hall and Dr. Lee. They left.", ["He met Mr. Hall and Dr. Lee.", "They left."]),
        ('"Well?" he said. "So do I." They left.', ['"Well?" he said.', '"So do I."', "They left."]),
        ("J. K. Jerome wrote it. So do I. We agree.", ["J. K. Jerome wrote it.", "So do I.", "We agree."]),
        ("It stops at 5 p.m. on Monday. Then no more.", ["It stops at 5 p.m. on Monday.", "Then no more."]),
        ("See No. 7 and Fig. 3 first. No. That is wrong.", ["See No. 7 and Fig. 3 first.", "No.", "That is wrong."]),
        ("Wait... what? Wait... Then he ran…", ["Wait... what?", "Wait...", "Then he ran…"]),
        ("1. First item. 2. Second item.", ["1. First item.", "2. Second item."]),
        ("(So it is.) “Is it?” Yes.", ["(So it is.)", "“Is it?”", "Yes."]),
        ("今日は。はい！「そう。」と言う", ["今日は。", "はい！", "「そう。」", "と言う"]),
        ("हम आए। तुम गए॥ ठीक", ["हम आए।", "तुम गए॥", "ठीक"]),
        ("هل جاء؟ نعم۔ ثم", ["هل جاء؟", "نعم۔", "ثم"]),
        ("pi is 3.14159. e is 2.718.", ["pi is 3.14159. e is 2.718."]),  # a lower-case letter never begins one
        ("  spaced\n out \t text.  ", ["spaced out text."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_split_paragraph(paragraph, expected):
    assert split_paragraph(paragraph) == expected


def test_paragraphs_join_wrapped_lines():
    text = "The first line\ngoes on, well-\nknown and long.\nNext one.\n   \nNew paragraph without an end\n\nLast."
    assert split_text(text, "paragraphs") == [
        "The first line goes on, well-known and long.",
        "Next one.",
        "New paragraph without an end",
        "Last.",
    ]


def test_sentences_are_lines():
    assert split_text("One. Two.\n\n  three \n", "sentences") == ["One. Two.", "three"]


def test_no_sentence_is_endless():
    words = "word " * 5000
    for text, kind in ((words, "paragraphs"), (words, "sentences"), ("x" * 20_000, "paragraphs")):
        pieces = split_text(text, kind)
        assert max(map(len, pieces)) <= MAX_SENTENCE_CHARS
        assert "".join(pieces).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("text", [".", "\n", " ", '."', ". ' ", "((", "\n \n", "-\n", "。", "A. ", "? a"])
def test_no_text_is_slow(text):
    start = time.process_time()
    split_text(text * (200_000 // len(text)), "paragraphs")
    assert time.process_time() - start < 5  # quadratic work would take minutes
