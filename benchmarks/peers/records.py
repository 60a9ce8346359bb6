"""Records creation as `make bench` measures it: benchmarks/records_creation.py on text that every Python brings."""

import pathlib
import subprocess
import sys
import tempfile

from benchmarks.peers.runner import ROOT, Failed

TIMES = 40  # the prose once is 0.26 MB


def measure() -> list[str]:
    """The lines that benchmarks/records_creation.py prints.

    Raises Failed where it fails.
    """
    from albert_tf.pretraining import prose
    from albert_tf.pretraining.vocabulary import train_vocabulary

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        text = folder / "text"
        text.mkdir()
        for name, topic in prose.topics().items():
            (text / f"{name}.txt").write_text(f"{topic}\n\n" * TIMES, encoding="utf-8")
        once = folder / "once"
        once.mkdir()
        for name, topic in prose.topics().items():
            (once / f"{name}.txt").write_text(topic, encoding="utf-8")
        train_vocabulary(str(once), folder / "vocabulary", vocab_size=2000, report=lambda line: None)
        command = [sys.executable, "-m", "benchmarks.records_creation", f"--input_file={text}", "--times=0"]
        command += [f"--spm_model_file={folder / 'vocabulary' / 'spiece.model'}", "--max_seq_length=128"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no output"])[-1])
    return done.stdout.splitlines()
