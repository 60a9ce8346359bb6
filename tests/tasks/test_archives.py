import io
import tarfile

import pytest

from albert_tf.errors import UserError
from tasks import archives

FILES = {"RACE/dev/high/2.txt": "two", "RACE/dev/high/10.txt": "ten", "RACE/dev/middle/1.txt": "\ufeffone"}


@pytest.fixture
def packed(tmp_path):
    path = tmp_path / "data.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("RACE/dev/high/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        extras = {"RACE/dev/high/._2.txt": "hidden", "RACE/dev/notes.md": "other", "../outside.txt": "out"}
        for name, text in {**extras, **FILES}.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def unpacked(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "RACE/dev/high/._2.txt").write_text("hidden")
    return tmp_path


def test_archive_and_folder_read_alike(packed, unpacked):
    expected = [("RACE/dev/high/10.txt", "ten"), ("RACE/dev/high/2.txt", "two"), ("RACE/dev/middle/1.txt", "one")]
    from_folder = [(f"RACE/{name}", text) for name, _, text in archives.texts(unpacked / "RACE", ".txt")]
    from_archive = [(name, text) for name, _, text in archives.texts(packed / "RACE", ".txt")]
    assert from_folder == from_archive == expected
    places = [place for _, place, _ in archives.texts(packed / "dev" / "middle", ".txt")]
    assert places == [f"{packed}/RACE/dev/middle/1.txt"]
    assert not (packed.parent / "outside.txt").exists()


def test_one_file(unpacked):
    path = unpacked / "RACE/dev/high/2.txt"
    assert list(archives.texts(path, ".txt")) == [(str(path), str(path), "two")]


def test_paths_inside_archives(packed, unpacked):
    assert archives.located(packed / "dev/high") == (packed, "dev/high")
    assert archives.located(packed) == (packed, "") and archives.located(unpacked) == (unpacked, "")
    assert archives.exists(packed) and archives.exists(packed / "dev/high") and archives.exists(unpacked / "RACE")
    assert not archives.exists(packed / "train") and not archives.exists(unpacked / "train")


def test_faults(packed, unpacked, monkeypatch):
    with pytest.raises(UserError, match="no file or folder"):
        list(archives.texts(unpacked / "none", ".txt"))
    (unpacked / "RACE/bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"RACE/bad.txt is not UTF-8 at byte 3"):
        list(archives.texts(unpacked / "RACE", ".txt"))
    monkeypatch.setattr(archives, "_MOST_BYTES", 2)
    with pytest.raises(UserError, match="has 3 bytes, expected at most 2"):
        list(archives.texts(packed, ".txt"))


@pytest.mark.parametrize("kept", [0, 5, 40, 150])
def test_damaged_archives_are_called_so(packed, kept):
    packed.write_bytes(packed.read_bytes()[:kept])
    with pytest.raises(UserError, match="data.tar.gz is truncated or no archive"):
        list(archives.texts(packed, ".txt"))
