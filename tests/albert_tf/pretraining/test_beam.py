"""Records made on Apache Beam are those of the local path, byte for byte."""

import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tarfile
import threading
import time

import pytest

from albert_tf.__main__ import main
from albert_tf.pretraining import plan
from albert_tf.pretraining.records import RecordsInfo, check_file

pytestmark = pytest.mark.filterwarnings("default")  # Beam and what it brings warn of their own


@pytest.fixture
def beam():
    return pytest.importorskip("apache_beam", reason="Apache Beam is not installed: pip install '.[beam]'")


@pytest.fixture(scope="module")
def text(prose, tmp_path_factory):
    """Plain files, an archive of several, one compressed, one empty, one with a broken character."""
    folder = tmp_path_factory.mktemp("text")
    files = sorted(prose.iterdir())
    for file in files[:12]:
        shutil.copy(file, folder)
    with tarfile.open(folder / "archive.tar.gz", "w:gz") as archive:
        for file in files[12:30]:
            archive.add(file, file.name)
    (folder / "packed.txt.gz").write_bytes(gzip.compress(files[31].read_bytes()))
    (folder / "empty.txt").write_text("")
    (folder / "zz-broken.txt").write_bytes(b"Some words \xff of text. And some more of them here.\n" * 20)
    return folder


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(plan, "CHUNK_CHARS", 20_000)


def create(text, model, folder, *more, runner="DirectRunner"):
    named = [f"--input_file={text}", f"--spm_model_file={model}", f"--output_dir={folder}", f"--runner={runner}"]
    return main(["albert_tf", "create_pretraining_data", *named, "--max_seq_length=64", *more])


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_same(folder, other):
    first, second = content(folder), content(other)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] == second[name], name


@pytest.mark.parametrize(
    "flags",
    [
        ["--heldout_fraction=0.2", "--num_shards=3"],
        ["--objective=nsp", "--input_format=paragraphs", "--masking=static", "--dupe_factor=2"],
        ["--heldout_fraction=0.2", "--input_format=sentences", "--objective=nsp"],
    ],
    ids=["sop", "nsp", "sentences"],
)
def test_the_records_of_the_local_path(beam, text, tiny_spm, tmp_path, small_chunks, capsys, flags):
    flags = ["--max_unknown_share=0.2", *flags]
    assert create(text, tiny_spm, tmp_path / "beam" / "out", *flags) == 0
    with_beam = capsys.readouterr()
    assert create(text, tiny_spm, tmp_path / "local", *flags, runner="local") == 0
    local = capsys.readouterr()
    assert_same(tmp_path / "beam" / "out", tmp_path / "local")
    assert [path.name for path in (tmp_path / "beam").iterdir()] == ["out"]
    assert with_beam.out.replace("beam/out", "local") == local.out
    assert (
        "20 invalid UTF-8 characters were replaced, in 1 files" in with_beam.err and "DirectRunner: 16" in with_beam.err
    )
    info = RecordsInfo.read(tmp_path / "beam" / "out")
    assert sum(check_file(path) for path in info.paths(tmp_path / "beam" / "out")) == info.num_records > 300


def test_documents_in_parts_and_buckets(beam, tiny_spm, tmp_path, small_chunks, monkeypatch):
    """One document too long to be read at once, and shards of several buckets."""
    from albert_tf.pretraining import corpus, shards

    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARS", 15_000)
    monkeypatch.setattr(shards, "BUCKET_BYTES", 20_000)
    words = ["river", "stone", "green", "walks", "under", "light", "and", "the"]
    rng = random.Random(1)
    lines = [" ".join(rng.choices(words, k=12)).capitalize() + "." for _ in range(1500)]
    (tmp_path / "long.txt").write_text(" ".join(lines))
    (tmp_path / "short.txt").write_text("\n".join(lines[:3]))
    for runner in ("DirectRunner", "local"):
        flags = ["--objective=nsp", "--input_format=paragraphs", "--num_shards=2"]
        assert create(tmp_path / "*.txt", tiny_spm, tmp_path / runner, *flags, runner=runner) == 0
    assert_same(tmp_path / "DirectRunner", tmp_path / "local")
    assert json.loads((tmp_path / "local" / "records.json").read_text())["counts"]["documents"] == 2


@pytest.fixture
def started(beam, monkeypatch):
    """The worker processes that the direct runner has started."""
    from apache_beam.runners.portability import local_job_service

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, start_new_session=True, **options)
            processes.append(self)

    processes: list[Popen] = []
    monkeypatch.setattr(local_job_service.subprocess, "Popen", Popen)
    return processes


@pytest.mark.slow
def test_two_processes(beam, started, text, tiny_spm, tmp_path):
    for number in range(12):  # so much text that there are several chunks
        shutil.copytree(text, tmp_path / "text" / str(number))
    text = tmp_path / "text"
    options = "--beam_options=--direct_running_mode=multi_processing --direct_num_workers=2"
    flags = ["--heldout_fraction=0.2", "--num_shards=3", "--max_unknown_share=0.2"]
    assert create(text, tiny_spm, tmp_path / "beam", options, *flags) == 0
    assert [process.wait(60) for process in started] == [0, 0]
    assert create(text, tiny_spm, tmp_path / "local", *flags, runner="local") == 0
    assert_same(tmp_path / "beam", tmp_path / "local")


@pytest.mark.slow
def test_killed_processes_end_the_pipeline(beam, started, text, tiny_spm, tmp_path, capsys):
    """Killed while they write the first of many buckets: the command ends, and leaves nothing behind."""

    def kill():
        while not ended.is_set():
            if next(tmp_path.glob(".partial-*/work/bucket-*"), None):
                return [os.killpg(process.pid, signal.SIGKILL) for process in started]
            time.sleep(0.001)

    ended = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    options = "--beam_options=--direct_running_mode=multi_processing --direct_num_workers=2"
    try:
        assert create(text, tiny_spm, tmp_path / "out", options, "--num_shards=100", "--max_unknown_share=0.2") == 2
    finally:
        ended.set()
        killer.join()
    assert [process.wait(60) for process in started] == [-signal.SIGKILL] * 2
    assert "the pipeline failed on DirectRunner" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_an_address_with_a_scheme(beam, text, tiny_spm, tmp_path, capsys):
    """disk://x stands for tmp_path/x: nothing but Beam's file systems can read or write it."""
    from apache_beam.io.filesystem import FileMetadata
    from apache_beam.io.localfilesystem import LocalFileSystem

    class DiskFileSystem(LocalFileSystem):
        @classmethod
        def scheme(cls):
            return "disk"

        def _local(self, path):
            return path.replace("disk:/", str(tmp_path), 1) if path.startswith("disk:/") else path

        def join(self, base, *parts):
            return "/".join([base.rstrip("/"), *parts])

        def split(self, path):
            return path.rsplit("/", 1)

        def exists(self, path):
            return super().exists(self._local(path))

        def metadata(self, path):
            found = super().metadata(self._local(path))
            return FileMetadata(path, found.size_in_bytes, found.last_updated_in_seconds)

        def mkdirs(self, path):
            super().mkdirs(self._local(path))

        def _list(self, path):
            for file in super()._list(self._local(path)):
                yield FileMetadata(
                    "disk://" + file.path.removeprefix(f"{tmp_path}/"), file.size_in_bytes, file.last_updated_in_seconds
                )

        def create(self, path, *arguments, **options):
            return super().create(self._local(path), *arguments, **options)

        def open(self, path, *arguments, **options):
            return super().open(self._local(path), *arguments, **options)

        def rename(self, sources, targets):
            super().rename(list(map(self._local, sources)), list(map(self._local, targets)))

        def delete(self, paths):
            super().delete(list(map(self._local, paths)))

    shutil.copytree(text, tmp_path / "in")
    flags = ["--max_unknown_share=0.2", "--heldout_fraction=0.2"]
    assert create("disk://in", tiny_spm, "disk://out", *flags) == 0
    assert create(text, tiny_spm, tmp_path / "local", *flags, runner="local") == 0
    assert_same(tmp_path / "out", tmp_path / "local")
    capsys.readouterr()
    assert create("disk://in/*.txt", tiny_spm, "disk://out", *flags) == 2
    assert "disk://out holds something" in capsys.readouterr().err
    assert create("disk://in/*.txt", tiny_spm, "disk://more", "--max_unknown_share=0") == 2
    assert "does not know the text" in capsys.readouterr().err and not (tmp_path / "more").exists()
    assert create("disk://nowhere", tiny_spm, tmp_path / "more", *flags) == 2
    assert "no input file at disk://nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--beam_options=--no_such=1"], "unknown in --beam_options: no_such"),
        (["--beam_options=--direct_num_workers=x"], "cannot be read"),
        (["--beam_options='"], "cannot be read"),
        (["--beam_options=--runner=FlinkRunner"], "give it with --runner"),
        (["--num_workers=2"], "--num_workers=2 is for --runner=local"),
        (["--max_unknown_share=0"], "does not know the text"),
        (["--num_shards=5000"], "too many shards"),
        (["--input_file=no://where"], "cannot reach no://where"),
    ],
)
def test_refusals(beam, text, tiny_spm, tmp_path, capsys, flags, words):
    assert create(text, tiny_spm, tmp_path / "out", *flags) == 2
    said = capsys.readouterr().err.splitlines()
    assert words in said[-1] and said[-1].startswith("albert_tf create_pretraining_data: ")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(beam, text, tiny_spm, tmp_path, capsys):
    packed = tmp_path / "half.txt.gz"
    packed.write_bytes((text / "packed.txt.gz").read_bytes()[:-300])
    assert create(f"{text},{packed}", tiny_spm, tmp_path / "out", "--input_format=paragraphs") == 2
    assert f"cannot read {packed}: it is truncated or corrupt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["half.txt.gz"]


def test_a_failing_pipeline_leaves_nothing(beam, text, tiny_spm, tmp_path, capsys, monkeypatch):
    from albert_tf.pretraining import beam as pipeline

    def fail(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(pipeline, "_write_bucket", fail)
    assert create(text, tiny_spm, tmp_path / "out", "--max_unknown_share=0.2") == 2
    said = capsys.readouterr().err
    assert "the pipeline failed on DirectRunner" in said and "no space left on device" in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_without_beam(text, tiny_spm, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    assert create(text, tiny_spm, tmp_path / "out") == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "needs Apache Beam" in said[0] and "pip install '.[beam]'" in said[0]
    assert create(text, tiny_spm, tmp_path / "out", "--beam_options=--x", runner="local") == 2
    assert "--runner is local" in capsys.readouterr().err
    assert not pathlib.Path(tmp_path / "out").exists()
