"""Files and folders that are whole under their final name or not there, wherever and however they are named."""

import fcntl
import json
import math
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

import pytest

from albert_tf import files
from albert_tf.errors import UserError


def test_new_folder_leaves_nothing_of_a_failure(tmp_path):
    (tmp_path / "kept").mkdir()
    with pytest.raises(ZeroDivisionError), files.new_folder(tmp_path / "kept" / "a" / "b") as folder:
        (folder / "half").touch()
        raise ZeroDivisionError
    assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]


def test_new_folder_follows_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    (tmp_path / "later").symlink_to("new")
    for name in ("out", "later"):
        with files.new_folder(tmp_path / name) as folder:
            (folder / "file").touch()
        assert (tmp_path / name).is_symlink() and (tmp_path / name / "file").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "later", "new", "out"]


def test_places_that_cannot_be_replaced_are_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for place in (".", "../here"):
        with pytest.raises(UserError, match="the folder you are in"):
            files.check_new_folder(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda path: pathlib.Path(path).name == "here")
    with pytest.raises(UserError, match="where a disk is mounted"), files.new_folder("here"):
        raise AssertionError("the work must not begin")
    with pytest.raises(UserError, match="File name too long"):
        files.check_new_folder("x" * 300)


def test_writing_replaces_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(UserError, match="cannot write .*file: odd"), files.writing(path) as file:
        file.write(b"half")
        raise OSError("odd")  # as NumPy raises it, without a number
    with pytest.raises(KeyboardInterrupt), files.writing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]
    files.write_atomically(path, "new")
    assert path.read_bytes() == b"new"


KILLED = """
import os, sys
from albert_tf import files
with files.{kind}(sys.argv[1]) as made:
    print("begun", flush=True)
    sys.stdin.read(1)
    os._exit(9)  # as a kill does: nothing is tidied up
"""


@pytest.mark.parametrize("kind", ["writing", "new_folder"])
def test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_stays(tmp_path, kind):
    def again():
        with getattr(files, kind)(tmp_path / "odd[1]"):
            pass
        return sorted(entry.name for entry in tmp_path.iterdir())

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", KILLED.format(kind=kind), tmp_path / "odd[1]"]
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        (partial,) = tmp_path.iterdir()
        assert again() == [partial.name, "odd[1]"]
        process.communicate("x")
    assert process.returncode == 9 and partial.exists()
    assert again() == ["odd[1]"]


@pytest.mark.parametrize("kind", ["writing", "new_folder"])
def test_what_is_taken_for_abandoned_before_it_is_locked_is_made_again(tmp_path, monkeypatch, kind):
    """By a process that is still at it, or has finished."""
    lock, seen = fcntl.flock, []

    def flock(descriptor, operation):
        seen.append(set(tmp_path.iterdir()))
        if len(seen) == 1:
            raise BlockingIOError
        if len(seen) == 2:
            for partial in seen[1]:
                partial.rmdir() if partial.is_dir() else partial.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with getattr(files, kind)(tmp_path / "name"):
        assert [len(there) for there in seen] == [1, 2, 1] and set(tmp_path.iterdir()) == seen[2]
    assert list(tmp_path.iterdir()) == [tmp_path / "name"]


def test_a_folder_that_is_removed_as_soon_as_it_is_made_is_made_again(tmp_path, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def mkdtemp(**where):
        made.append(make(**where))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with files.new_folder(tmp_path / "name") as folder:
        assert len(made) == 2 and str(folder) == made[1]
    assert list(tmp_path.iterdir()) == [tmp_path / "name"]


def test_json_has_null_for_numbers_that_are_none(tmp_path):
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": float("inf")}], "d": (0, "NaN", None, True)}
    files.write_json(tmp_path / "x.json", value)
    expected = {"a": None, "b": [1.5, None, {"c": None}], "d": [0, "NaN", None, True]}
    assert files.read_json(tmp_path / "x.json", "test") == expected


def test_json_that_an_editor_of_windows_has_saved(tmp_path):
    (tmp_path / "x.json").write_bytes('\ufeff{"a":\r\n 1}\r\n'.encode())
    assert files.read_json(tmp_path / "x.json", "test") == {"a": 1}


def test_json_carries_names_that_are_not_utf8(tmp_path):
    value = {"name": os.fsdecode(b"caf\xe9"), "other": "é\u2028"}
    files.write_json(tmp_path / "a.json", value)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == value


@pytest.mark.parametrize("name", ["run [1]*?", os.fsdecode(b"caf\xe9"), "back\\slash"])
def test_links_with_plain_names(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.index").write_text("index")
    with files.plainly_named(folder / "a", [".index"]) as prefix:
        assert not set("[]*?\\") & set(str(prefix)) and str(prefix).isascii()
        assert pathlib.Path(f"{prefix}.index").read_text() == "index"
    with files.plainly_named(folder) as link:
        (link / "b").touch()
    assert (folder / "b").is_file()


def test_links_and_pipes_keep_their_place(tmp_path):
    """Seen: an output named /dev/null took the device's place."""
    link, target, pipe = tmp_path / "link", tmp_path / "target", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    with pytest.raises(ZeroDivisionError), files.writing(link) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    files.write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    with open(target, "r+") as opened:  # as /dev/stdout is, with ">>target"
        files.write_atomically(f"/dev/fd/{opened.fileno()}", "more")
        assert opened.read() == "more"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomically(pipe, "through")
    assert os.read(reader, 100) == b"through" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]
