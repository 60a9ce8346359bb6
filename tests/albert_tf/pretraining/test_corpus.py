import gzip
import io
import os
import tarfile
import time

import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining import corpus as corpus_module
from albert_tf.pretraining.corpus import Corpus, documents, find_files, sentences

BOOK = "My Book\n\nCHAPTER I\n\nIt rained. The\nroad was wet.\n\nMr. Hall left.\n\nCHAPTER II.\n\nThe sun came out.\n"


def write(path, text, encoding="utf-8"):
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return str(path)


def texts(path, input_format="paragraphs"):
    return [document.text.strip() for document in documents(str(path), input_format)]


def test_headings_part_a_book(tmp_path):
    found = list(documents(write(tmp_path / "book.txt", BOOK), "paragraphs"))
    assert [document.text.split("\n")[0] for document in found] == ["My Book", "CHAPTER I", "CHAPTER II."]
    assert [document.index for document in found] == [0, 1, 2]
    assert {document.file_index for document in found} == {0}
    assert found[1].sentences() == ["CHAPTER I", "It rained.", "The road was wet.", "Mr. Hall left."]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("# One\nText.\n\n## Two\n\nMore.\n\nLast.\n", 2),
        ("# One\n\n## Part of it\n\nText.\n", 1),  # headings in a row stay together
        ("Intro.\n\nXIV\n\nText.\n\nXV.\n\nText.\n", 3),
        ("Intro.\n\nTHE LONG ROAD\n\nText.\n", 2),
        ("Intro.\n\nProse with CAPITALS and Part 2 of it.\n\nI\nam one paragraph.\n", 1),
        ("One.\n\n\n\n\nTwo.\n\n\n", 1),  # a blank line ends a paragraph, not a document
        ("#!/bin/sh is no heading\n\n#tag neither\n", 1),
    ],
)
def test_headings(tmp_path, text, count):
    found = texts(write(tmp_path / "a.txt", text))
    assert len(found) == count
    assert "".join("".join(found).split()) == "".join(text.split())  # nothing is lost


def test_sentences_format(tmp_path):
    path = write(tmp_path / "a.txt", "A one.\nA two.\n\n \n\nB one.\n")
    assert texts(path, "sentences") == ["A one.\nA two.", "B one."]
    assert list(sentences(path, "sentences")) == ["A one.", "A two.", "B one."]


def test_mark_line_ends_and_nulls(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfOne line\r\ngoes on.\r\n\r\nMac\rline.\x00End.\r")
    corpus = Corpus(path, "paragraphs")
    assert [document.sentences() for document in corpus.documents()] == [
        ["One line goes on.", "Mac line.", "End."],
    ]
    assert corpus.null_characters == 1 and corpus.invalid_characters == 0
    assert texts(write(tmp_path / "b.txt", b"A\x00\x00\x00b.\x00")) == ["A   b."]


@pytest.mark.parametrize("block", [4, 5, 7, 64])
def test_blocks_do_not_show(tmp_path, monkeypatch, block):
    text = "\ufeff" + "CHAPTER I\r\n\r\nÄöß “quoted” 今日は。\r\n\r\nCHAPTER II\r\n\r\nEnd\ufffd.\r\n\r\n" * 3
    path = write(tmp_path / "a.txt", text)
    whole = texts(path)
    monkeypatch.setattr(corpus_module, "_BLOCK_BYTES", block)
    assert texts(path) == whole and len(whole) == 6


def test_invalid_bytes_are_replaced_and_counted(tmp_path):
    path = write(tmp_path / "a.txt", b"caf\xe9 and more text. " * 3)
    corpus = Corpus(path, "paragraphs")
    assert [d.text for d in corpus.documents()] == ["caf\ufffd and more text. " * 3]
    assert corpus.invalid_characters == 3 and corpus.damaged == [path]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Это по-русски.".encode("cp1251") * 20, "not UTF-8"),
        ("Text.".encode("utf-16"), "UTF-16"),
        ("Text without a mark.\n".encode("utf-16-le"), "UTF-16"),  # else each letter would be a word
        ("Text without a mark.\n".encode("utf-16-be"), "UTF-16"),
        ("Text without a mark.\n".encode("utf-32-le"), "UTF-32"),
        (b"PK\x03\x04 zip", "zip archive"),
        (gzip.compress(b"Some text. " * 1000, mtime=0)[:-30], "truncated or corrupt"),
        (b"\x1f\x8b\x08broken", "truncated or corrupt"),
    ],
)
def test_foreign_files_are_named(tmp_path, content, words):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=words) as caught:
        list(documents(path, "paragraphs"))
    assert path in str(caught.value) and "\n" not in str(caught.value)


def tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(path)


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_archives(tmp_path, mode):
    members = {"x/b.txt": b"Text b.", "x/a.txt": b"Text a.", "x/._a.txt": b"junk", "x/c.txt.gz": gzip.compress(b"C.")}
    path = tar(tmp_path / "all.tar.gz", members, mode)
    found = list(documents(path, "paragraphs"))
    assert [document.text for document in found] == ["Text b.", "Text a.", "C."]  # in the archive's order
    assert [document.file_index for document in found] == [0, 1, 2]
    assert found[0].source == f"{path}:x/b.txt"
    assert Corpus(path).has_many_texts


def test_truncated_archive(tmp_path):
    path = tar(tmp_path / "all.tar.gz", {"a.txt": b"Text. " * 10_000, "b.txt": bytes(range(256)) * 100})
    content = (tmp_path / "all.tar.gz").read_bytes()
    write(tmp_path / "all.tar.gz", content[: len(content) * 2 // 3])
    with pytest.raises(UserError, match="truncated or corrupt"):
        list(documents(path, "paragraphs"))


def test_files_of_a_folder_that_are_left_out_are_told(tmp_path, capsys):
    for name in ("a.txt", "b.md", "c.html"):
        (tmp_path / name).write_text("Text.")
    assert find_files(str(tmp_path)) == [str(tmp_path / "a.txt")]
    assert f"NOTICE: 2 of 3 files in {tmp_path} end in neither" in capsys.readouterr().err
    assert len(find_files(f"{tmp_path}/*")) == 3 and not capsys.readouterr().err


def test_find_files(tmp_path):
    names = ["b.txt", "a.txt", "c.gz", "d.csv", "sub/e.txt"]
    (tmp_path / "sub").mkdir()
    for name in names:
        write(tmp_path / name, "Text.")
    assert find_files(str(tmp_path)) == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.gz", "sub/e.txt")]
    assert find_files(f"{tmp_path}/b.txt,{tmp_path}/*.txt") == [str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]
    assert find_files([tmp_path / "d.csv"]) == [str(tmp_path / "d.csv")]
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")  # opening it would wait for ever
    with pytest.raises(UserError, match="a device or a pipe"):
        find_files(str(tmp_path / "pipe.txt"))
    for wrong in (f"{tmp_path}/*.md", f"{tmp_path}/a.txt,{tmp_path}/none.txt", str(tmp_path / "empty"), "", " , "):
        with pytest.raises(UserError):
            find_files(wrong)


def test_a_file_is_read_once_however_its_path_is_spelt(tmp_path, monkeypatch):
    """Else its text stood twice in the corpus, and perhaps among the held-out records as well."""
    (tmp_path / "books").mkdir()
    write(tmp_path / "books" / "a.txt", "x")
    monkeypatch.chdir(tmp_path)
    spellings = ["books", "./books/a.txt", "books/../books/a.txt", str(tmp_path / "books" / "a.txt"), "books/*"]
    assert find_files(spellings) == ["books/a.txt"]


def test_hidden_files_of_a_folder_are_no_text(tmp_path, capsys):
    for name in ("a.txt", "._a.txt", ".ipynb_checkpoints/a.txt"):
        (tmp_path / ".corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / ".corpus" / name, "x")
    assert find_files(str(tmp_path / ".corpus")) == [str(tmp_path / ".corpus" / "a.txt")]
    assert not capsys.readouterr().err


def test_linked_folders_that_are_left_out_are_told(tmp_path, capsys):
    for name in ("elsewhere/a.txt", "corpus/b.txt"):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, "x")
    linked = tmp_path / "corpus" / "linked"
    linked.symlink_to(tmp_path / "elsewhere")
    assert find_files(str(tmp_path / "corpus")) == [str(tmp_path / "corpus" / "b.txt")]
    assert capsys.readouterr().err == f"NOTICE: linked folders are not looked into, name them as well: {linked}\n"
    assert find_files([linked, tmp_path / "corpus"]) == [str(linked / "a.txt"), str(tmp_path / "corpus" / "b.txt")]


def test_auto_knows_the_formats(tmp_path):
    one_a_line = "\n".join(f"This is sentence number {n}." for n in range(20)) + "\n\n"
    wrapped = "This is a long line of prose that\nwas wrapped by hand. And it\ngoes on and on.\n\n" * 20
    long_lines = "This is a paragraph. It has some sentences. It is one line.\n" * 20
    apart = "A paragraph of one sentence.\n\n" * 20
    for text, expected in (
        (one_a_line * 3, "sentences"),
        (wrapped, "paragraphs"),
        (long_lines, "paragraphs"),
        (apart, "paragraphs"),
        ("", "paragraphs"),
    ):
        corpus = Corpus(write(tmp_path / "a.txt", text))
        assert (corpus.input_format, bool(corpus.reason)) == (expected, True), text[:40]
    with pytest.raises(UserError, match="input format"):
        Corpus(str(tmp_path / "a.txt"), "lines")


@pytest.mark.parametrize("input_format", ["paragraphs", "sentences"])
def test_long_documents_come_in_parts(tmp_path, monkeypatch, input_format):
    monkeypatch.setattr(corpus_module, "MAX_DOCUMENT_CHARS", 1000)
    monkeypatch.setattr(corpus_module, "_BLOCK_BYTES", 300)
    text = "".join(f"Sentence number {n} is here.\n" for n in range(300)) + "word " * 600 + "x" * 3000
    found = list(documents(write(tmp_path / "a.txt", text), input_format))
    assert {document.index for document in found} == {0}
    assert max(len(document.text) for document in found) <= 1000
    assert "".join(document.text for document in found) == text
    assert all(document.text.endswith(".\n") for document in found[:5])


@pytest.mark.parametrize("piece", ["\n", "\n \n", " ", ".", "A", "\n\nI", "#", "\r", "\0", "\n\n# A\n"])
def test_no_file_is_slow(tmp_path, piece):
    path = write(tmp_path / "a.txt", piece * (600_000 // len(piece)))
    start = time.process_time()
    for input_format in ("paragraphs", "sentences"):
        for _ in documents(path, input_format):
            pass
    assert time.process_time() - start < 10


def test_reading_counts(tmp_path):
    first, second = write(tmp_path / "a.txt", BOOK), write(tmp_path / "b.txt", BOOK)
    corpus = Corpus(f"{first},{second}", "paragraphs")
    for _ in range(2):  # and starts over
        assert len(list(corpus.documents())) == 6
        assert corpus.bytes_read == corpus.num_bytes == 2 * len(BOOK)
        assert corpus.num_texts == 2 and corpus.num_chars == 2 * len(BOOK)
