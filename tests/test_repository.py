"""The house rules that a machine can hold: imports one way, one Keras, documents that tell the truth."""

import ast
import configparser
import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
from absl import flags

import albert_tf
from albert_tf.__main__ import COMMANDS

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("albert_tf", "tpu", "tasks")  # each may import those before it
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tpu").glob("*.md")])


def name_of(path):
    return str(path.relative_to(ROOT))


def imports_of(path):
    """Every module that `path` imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            assert all(alias.name != "*" for alias in node.names), f"{name_of(path)}: star import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way_and_to_one_keras(path):
    room = ROOMS.index(path.relative_to(ROOT).parts[0])
    imported = list(imports_of(path))
    back = [name for name in imported if name.split(".")[0] in ROOMS[room + 1 :]]
    assert not back, f"{ROOMS[room]} must not import {back}"
    other_keras = [name for name in imported if name.split(".")[0] == "keras" or name.startswith("tensorflow.keras")]
    other_keras += re.findall(r"\btf\.keras\.\w+", path.read_text(encoding="utf-8"))
    assert not other_keras, f"tf_keras is the Keras of this project, not {other_keras}"
    assert path.name not in ("utils.py", "util.py", "helpers.py", "common.py", "misc.py")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_public_functions_say_what_they_are(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module needs one line of what it is"
    public = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and node.name not in ("define_flags", "run")  # every command has them; see albert_tf/__main__.py
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def shell_commands(text):
    """The `albert_tf ...` commands in the fenced blocks of a document, with continued lines joined."""
    for block in re.findall(r"^```(?:bash|sh|shell|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^|\s)albert_tf\s+(\w+\b.*)", line.removeprefix("$ "))
            if found and not line.lstrip().startswith("#"):
                yield found[1]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_in_documents_have_the_flags_they_use(path):
    for line in shell_commands(path.read_text(encoding="utf-8")):
        name, *arguments = shlex.split(line.split("|")[0].split(">")[0], comments=True)
        assert name in COMMANDS, line
        flag_values = flags.FlagValues()
        importlib.import_module(COMMANDS[name].module).define_flags(flag_values)
        for argument in arguments:
            if argument.startswith("--"):
                flag = argument[2:].split("=")[0]
                known = flag in flag_values or (flag.startswith("no") and flag[2:] in flag_values)
                assert known, f"{flag!r} in: albert_tf {line}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_in_documents_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not re.match(r"https?:|mailto:", target):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_tests_named_in_documents_exist(path):
    named = set(re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8")))
    tests = "".join(test.read_text(encoding="utf-8") for test in (ROOT / "tests").rglob("test_*.py"))
    assert named <= set(re.findall(r"def (test_\w+)\(", tests))


def test_readme_lists_every_command():
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert table == list(COMMANDS)


def test_python_of_the_readme_runs_to_its_last_line(tiny_spm, tmp_path, monkeypatch):
    """The example is run as it stands, on a model folder made for it."""
    from albert_tf import checkpoints, config

    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    tokenizer = albert_tf.load_tokenizer(tiny_spm)
    small = config.preset("albert_tiny").replace(vocab_size=tokenizer.vocab_size)
    model = checkpoints.new_model(small, {"masked_lm": {}, "sentence_order": {}}, tokenizer)
    checkpoints.save_model(tmp_path / "demo" / "run", model)
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["outputs"]["sequence_output"].shape[-1] == 256


def test_one_version_and_one_list_of_packages():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] == "attr: albert_tf.__version__"
    assert f"## {albert_tf.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["-e .[test]"]


def test_shell_files_parse():
    files = [ROOT / ".ci" / "run", *ROOT.glob("tpu/**/*.sh"), *ROOT.glob("benchmarks/**/*.sh")]
    for path in files:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert os.access(path, os.X_OK), name_of(path)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    "version, has_venv, said",
    [
        (None, True, "no {python} found"),
        ("3.9", True, "{python} is Python 3.9: Python 3.10 to 3.12 is needed"),
        ("3.13", True, "{python} is Python 3.13: Python 3.10 to 3.12 is needed"),
        ("3.11", False, "{python} has no venv module"),
    ],
)
def test_make_names_what_is_missing(tmp_path, version, has_venv, said):
    python = tmp_path / "python"
    if version is not None:  # answers as a Python of that version would
        is_right = version in ("3.10", "3.11", "3.12")
        python.write_text(
            "#!/bin/sh\n"
            f'case "$*" in -V) echo "Python {version}"; exit 0;; *version_info*) exit {0 if is_right else 1};; '
            f"*venv*) exit {0 if has_venv else 1};; esac\n"
        )
        python.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", "install", f"PYTHON={python}", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert said.format(python=python) in done.stderr
    assert not (tmp_path / "venv").exists()
