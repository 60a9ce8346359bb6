"""English prose that every Python brings: the language reference and the docstrings of the standard library."""

import ast
import inspect
import pathlib
import pydoc_data.topics
import re
import sysconfig
import warnings
from collections.abc import Iterable

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_ENDS_LIKE_PROSE = re.compile(r"[.!?:][\"')]*$")
_MIN_WORDS = 6
_MIN_LETTERS = 0.75  # share of letters and spaces; below it a paragraph is a table, a grammar or code


def write_prose(folder: pathlib.Path) -> tuple[int, int]:
    """Writes one file for each topic and each module into `folder`; gives the numbers of files and of characters.

    The same Python gives the same files. Nothing is imported but the topics: docstrings are read from the source.
    """
    folder.mkdir(parents=True, exist_ok=True)
    documents = {**topics(), **docstrings()}
    for name, text in documents.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return len(documents), sum(map(len, documents.values()))


def prose_paragraphs(text: str) -> list[str]:
    """The paragraphs of `text` that read like English, each on one line; code, tables and lists of names fall out."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = block.splitlines()
        paragraph = " ".join(block.split())
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        if (
            len(paragraph.split()) >= _MIN_WORDS
            and letters >= _MIN_LETTERS * len(paragraph)
            and _ENDS_LIKE_PROSE.search(paragraph)
            and ">>>" not in block
            and not any(line.startswith("      ") for line in lines)
        ):
            paragraphs.append(paragraph)
    return paragraphs


def topics() -> dict[str, str]:
    """Name -> text of the language reference, paragraphs parted by blank lines."""
    texts = sorted(pydoc_data.topics.topics.items())
    return _documents((f"topic-{name}", prose_paragraphs(text)) for name, text in texts)


def docstrings() -> dict[str, str]:
    """Name -> all docstrings of one module of the standard library, paragraphs parted by blank lines."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    modules = []
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if not _SKIPPED_FOLDERS.intersection(parts):
            modules.append((f"module-{'.'.join(parts)}", _docstring_paragraphs(path)))
    return _documents(modules)


def _docstring_paragraphs(path: pathlib.Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold odd escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and samples of bad syntax
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return [paragraph for text in texts if text for paragraph in prose_paragraphs(text)]


def _documents(named_paragraphs: Iterable[tuple[str, list[str]]]) -> dict[str, str]:
    """File contents by name: repeated paragraphs kept once, documents of a single paragraph left out."""
    documents, seen = {}, set()
    for name, paragraphs in named_paragraphs:
        fresh = [text for text in paragraphs if not (text in seen or seen.add(text))]
        if len(fresh) > 1:
            documents[name] = "\n\n".join(fresh) + "\n"
    return documents
