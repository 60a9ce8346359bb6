"""A stand-in tokeniser and small folders of records, for the tests of the input pipeline; memory of whole commands."""

import hashlib
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from albert_tf.pretraining import records


@pytest.fixture(scope="session")
def peak_memory():
    """A function (*arguments, setup="") -> (peak of the command's own process in MB, what it said).

    setup: Python to run first. (The peak that getrusage gives begins with that of the process that started it.)
    """
    status = pathlib.Path("/proc/self/status")
    if not status.exists() or "VmHWM" not in status.read_text():
        pytest.skip("needs VmHWM of /proc/self/status, Linux")
    program = """
import pathlib, sys
from albert_tf.__main__ import main
code = main(sys.argv)
print(pathlib.Path("/proc/self/status").read_text())
sys.exit(code)
"""

    def run(*arguments, setup=""):
        command = [sys.executable, "-c", setup + program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return int(re.search(r"VmHWM:\s*(\d+) kB", done.stdout)[1]) * 1024 / 1e6, done.stderr

    return run


@pytest.fixture(scope="session")
def tokenizer():
    """What the pipeline asks of a tokeniser, for 500 pieces: three of four begin a word."""
    return SimpleNamespace(
        pad_id=0,
        unk_id=1,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        vocab_size=500,
        starts_word=lambda: np.arange(500) % 4 != 0,
        hash=hashlib.sha256(b"vocabulary").hexdigest(),
        path="spiece.model",
        kind="sentencepiece",
        do_lower_case=True,
        keep_accents=False,
    )


@pytest.fixture(scope="session")
def write_folder(tokenizer):
    """A function (folder, lists of payloads, one for each file, **fields of records.json) -> folder, written."""

    def write(folder, files, **changes):
        folder.mkdir()
        shards = []
        for index, payloads in enumerate(files):
            name = records.shard_name(index, len(files))
            data = b"".join(records.frame(payloads)) if payloads else b""
            (folder / name).write_bytes(data)
            shards.append(records.Shard(name, len(payloads), len(data)))
        fields = dict(
            masking="dynamic",
            max_seq_length=16,
            max_predictions_per_seq=3,
            masked_lm_prob=0.15,
            do_whole_word_mask=True,
            ngram=3,
            favor_shorter_ngram=True,
            objective="sop",
            token_dtype="uint16",
            vocab_size=tokenizer.vocab_size,
            vocabulary_hash=tokenizer.hash,
            tokenizer_kind=tokenizer.kind,
            do_lower_case=True,
            keep_accents=False,
            random_seed=1,
            dupe_factor=1,
            short_seq_prob=0.1,
            num_records=sum(shard.num_records for shard in shards),
            shards=tuple(shards),
            counts={},
            code_version="test",
        )
        records.RecordsInfo(**(fields | changes)).write(folder)
        return folder

    return write
