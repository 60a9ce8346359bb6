import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.__main__ import main
from albert_tf.pretraining.records import RecordsInfo, check_file

ROOT = pathlib.Path(__file__).resolve().parents[3]


def arguments(text, model, folder, *more):
    paths = [f"--input_file={text}", f"--spm_model_file={model}", f"--output_dir={folder}"]
    return ["albert_tf", "create_pretraining_data", *paths, "--max_seq_length=64", "--input_format=paragraphs", *more]


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_summary_and_folder(prose, tiny_spm, tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert main(arguments(prose, tiny_spm, out, "--num_workers=2", "--heldout_fraction=0.2", "--num_shards=2")) == 0
    printed = capsys.readouterr()
    assert names(out)[:4] == [
        "heldout",
        "records-00000-of-00002.tfrecord",
        "records-00001-of-00002.tfrecord",
        "records.json",
    ]
    assert {"spiece.model", "tokenizer_config.json"} < set(names(out)) and names(out.parent) == ["out"]
    info = RecordsInfo.read(out)
    assert sum(check_file(path) for path in info.paths(out)) == info.num_records
    assert f"training: {info.num_records} records in 2 shards" in printed.out
    for words in ("held-out: ", "documents", "unknown", "of 64 positions", "drawn short", "swapped: ", str(out)):
        assert words in printed.out
    assert "input format: paragraphs (as asked)" in printed.err and "million/s" in printed.err


def test_flags_reach_the_records(prose, tiny_spm, tmp_path):
    flags = {
        "masking": "static",
        "max_predictions_per_seq": 7,
        "masked_lm_prob": 0.2,
        "do_whole_word_mask": False,
        "ngram": 2,
        "favor_shorter_ngram": False,
        "objective": "none",
        "dupe_factor": 2,
        "short_seq_prob": 0.3,
        "random_seed": 7,
        "do_lower_case": False,
        "keep_accents": True,
    }
    given = [f"--{name}={str(value).lower()}" for name, value in flags.items()]
    text = sorted(prose.iterdir())[0]
    assert main(arguments(text, tiny_spm, tmp_path / "out", "--num_workers=1", "--max_unknown_share=1", *given)) == 0
    written = json.loads((tmp_path / "out" / "records.json").read_text())
    assert {name: written[name] for name in flags} == flags
    stored = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert stored["do_lower_case"] is False and stored["keep_accents"] is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_file": "{tmp}/none.txt"}, "no input file at"),
        ({"input_file": "{tmp}/empty.txt"}, "no training records"),
        ({"input_file": None}, "missing --input_file"),
        ({"output_dir": None}, "missing --output_dir"),
        ({"spm_model_file": None}, "neither of --spm_model_file and --vocab_file"),
        ({"vocab_file": "{tmp}/vocab.txt"}, "both of --spm_model_file and --vocab_file"),
        ({"spm_model_file": "{tmp}/vocab.txt"}, "expected sentencepiece"),
        ({"spm_model_file": "{tmp}/empty.txt"}, "empty.txt"),
        ({"output_dir": "{tmp}/taken"}, "holds something other than records"),
        ({"output_dir": "{tmp}/empty.txt/out"}, "cannot make the folder"),
        ({"max_seq_length": "5"}, "max_seq_length is 5"),
        ({"max_predictions_per_seq": "600"}, "max_predictions_per_seq is 600"),
        ({"masking": "late"}, "masking"),
        ({"objective": "order"}, "objective"),
        ({"input_format": "lines"}, "input_format"),
        ({"num_workers": "-1"}, "num_workers is -1"),
        ({"num_workers": "100000"}, "num_workers is 100000"),
        ({"max_seq_length": "0"}, "max_seq_length is 0"),
        ({"input_file": "/dev/null"}, "a device or a pipe"),
        ({"ngrams": "3"}, "ngram"),
        ({"heldout_fraction": "1"}, "heldout_fraction is 1.0"),
    ],
)
def test_wrong_use(prose, tiny_spm, tmp_path, capsys, change, words):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    before = content(tmp_path)
    values = {"input_file": prose, "spm_model_file": tiny_spm, "output_dir": tmp_path / "out", "num_workers": "1"}
    values |= {name: value and value.format(tmp=tmp_path) for name, value in change.items()}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    assert main(["albert_tf", "create_pretraining_data", *given]) == 2
    error = capsys.readouterr().err.strip().split("\n")[-1]
    assert words in error and "Traceback" not in error
    assert content(tmp_path) == before and not (tmp_path / "out").exists()


def test_damaged_text_is_told(tiny_spm, tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"Some text that has a caf\xe9 in it. And more of it.\n" * 20)
    assert main(arguments(tmp_path / "a.txt", tiny_spm, tmp_path / "out", "--num_workers=1")) == 0
    assert f"20 invalid UTF-8 characters were replaced, in 1 files: {tmp_path}/a.txt" in capsys.readouterr().err


def start(text, model, folder):
    """The command in a process group of its own, on enough text for some seconds."""
    command = [sys.executable, "-m", *arguments(text, model, folder, "--num_workers=2", "--dupe_factor=8")]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts its background jobs, these tests for one, with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def children(process):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = path.read_text().split(" ", 1)
            command = path.with_name("cmdline").read_text()
        except OSError:
            continue
        if int(rest.rsplit(")", 1)[1].split()[1]) == process.pid and "spawn_main" in command:
            found.append(int(number))
    return found


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_runs_lose_nothing(prose, tiny_spm, tmp_path, kills):
    begin = time.monotonic()
    with start(prose, tiny_spm, tmp_path / "reference") as process:
        assert process.wait() == 0
    seconds = time.monotonic() - begin
    place = tmp_path / "place"
    place.mkdir()
    for number in range(kills):
        with start(prose, tiny_spm, place / "out") as process:
            time.sleep(random.Random(number).uniform(0.3, 0.9) * seconds)
            process.kill()
        if (place / "out").exists():  # it was quicker than the kill
            assert content(place / "out") == content(tmp_path / "reference")
            (place / "out").rename(tmp_path / f"done-{number}")
    with start(prose, tiny_spm, place / "out") as process:
        assert process.wait() == 0
    assert content(place / "out") == content(tmp_path / "reference")
    assert names(place) == ["out"]  # what the killed runs left is gone


@pytest.mark.parametrize("who", ["worker", "everyone"])
def test_a_death_or_an_interrupt_ends_the_run(prose, tiny_spm, tmp_path, who):
    with start(prose, tiny_spm, tmp_path / "out") as process:
        deadline = time.monotonic() + 60
        while len(workers := children(process)) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        if who == "worker":
            os.kill(workers[0], signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGINT)
        error = process.stderr.read()
        assert process.wait() == (2 if who == "worker" else 130)
        assert not children(process)
    assert ("died: killed by signal 9" if who == "worker" else "interrupted") in error.strip().split("\n")[-1]
    assert "Traceback" not in error
    assert names(tmp_path) == []
