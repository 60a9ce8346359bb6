"""Prose gathered from the standard library: English in, everything else out, the same each time."""

from albert_tf.pretraining import prose


def test_prose_paragraphs_keep_english_only():
    text = """
    Return the number of words
    in a text.

        >>> count("a b")
        2

    stmt ::= "with" expression ":" suite

    Short one.

    name    value
    one     1.

    It is joined, as a hard-wrapped
    paragraph should be!
    """
    assert prose.prose_paragraphs(text) == [
        "Return the number of words in a text.",
        "It is joined, as a hard-wrapped paragraph should be!",
    ]


def test_no_paragraph_twice_and_no_document_of_one():
    first, second, third = (f"This is sentence number {word} of six words." for word in ("one", "two", "three"))
    documents = prose._documents([("a", [first, second, first]), ("b", [first, third]), ("c", [third, first])])
    assert documents == {"a": f"{first}\n\n{second}\n"}


def test_enough_to_train_on_and_repeatable():
    topics = prose.topics()
    assert topics == prose.topics()
    assert sum(map(len, topics.values())) > 150_000 and len(topics) > 30
    assert all("::=" not in text for text in topics.values())


def test_docstrings_come_from_the_source(tmp_path, monkeypatch):
    def source(subject):
        lines = (f"The {subject} is described in this sentence.", f"Another sentence tells what the {subject} does.")
        return f'"""{lines[0]}"""\ndef f():\n    """{lines[1]}"""\n'

    (tmp_path / "test").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "first.py").write_text(source("wheel"))
    (tmp_path / "test" / "hidden.py").write_text(source("test"))
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "odd.py").write_text('x = "\\d"\n' + source("axle"))  # an escape that newer Pythons warn about
    monkeypatch.setattr(prose.sysconfig, "get_path", lambda name: str(tmp_path))
    found = prose.docstrings()
    assert set(found) == {"module-package.first"}  # a docstring in the second place is none, so odd has one only
    assert found["module-package.first"].count("\n\n") == 1

    monkeypatch.setattr(prose, "topics", lambda: {"topic-x": "A topic.\n"})
    assert prose.write_prose(tmp_path / "out") == (2, len(found["module-package.first"]) + 9)
    assert (tmp_path / "out" / "topic-x.txt").read_text() == "A topic.\n"
