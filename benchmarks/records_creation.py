"""Speed and memory of `albert_tf create_pretraining_data`, as a user would run it.

    python benchmarks/records_creation.py --input_file="$DATA/corpus/*.tar.gz" \\
        --spm_model_file=$DATA/sentencepiece/30k-clean.model

Prints, for dynamic and static masking: MB of text a second (whole command, and without start-up, which a run on a few
words measures) and for each second of processor time, the largest process's peak memory, and the peak of all processes
together; then the same on the text taken --times times over. Linux only: it reads /proc.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from absl import app, flags

from albert_tf.pretraining.corpus import find_files

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "text files: paths, folders or globs, comma-separated", required=True)
flags.DEFINE_string("spm_model_file", None, "SentencePiece model", required=True)
flags.DEFINE_multi_integer("max_seq_length", [512, 128], "tokens in a row; may be given several times")
flags.DEFINE_integer("num_workers", 2, "processes of the command")
flags.DEFINE_integer("times", 10, "also measure memory on so many times the text (0: do not)")


class Memory(threading.Thread):
    """Samples the memory of a process and its children until it ends; shared pages count once (Pss)."""

    def __init__(self, process: subprocess.Popen):
        super().__init__(daemon=True)
        self._process = process
        self.largest = self.together = 0  # bytes

    def run(self) -> None:
        while self._process.poll() is None:
            sizes = [_pss(pid) for pid in (self._process.pid, *_children(self._process.pid))]
            self.largest = max(self.largest, *sizes)
            self.together = max(self.together, sum(sizes))
            time.sleep(0.1)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _pss(pid: int) -> int:
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Run(NamedTuple):
    seconds: float
    processor_seconds: float  # of all processes
    size: float  # MB of text
    memory: Memory


def measure(input_file: str, *more: str) -> Run:
    """Runs the command once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "albert_tf", "create_pretraining_data", f"--input_file={input_file}"]
        command += [f"--output_dir={folder}/out", f"--spm_model_file={FLAGS.spm_model_file}"]
        command += [f"--num_workers={FLAGS.num_workers}", *more]
        start, processor = time.perf_counter(), _processor_seconds()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        memory = Memory(process)
        memory.start()
        if process.wait():
            raise SystemExit(f"failed: {' '.join(command)}")
        seconds = time.perf_counter() - start
        memory.join()
        counts = json.loads(pathlib.Path(folder, "out", "records.json").read_text())["counts"]
        return Run(seconds, _processor_seconds() - processor, counts["characters"] / 1e6, memory)


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(name: str, run: Run, startup: Run) -> None:
    warm = run.size / (run.seconds - startup.seconds)
    print(
        f"{name:<20}{run.size:7.1f} MB {run.seconds:6.1f} s {run.size / run.seconds:6.2f} MB/s, without start-up "
        f"{warm:5.2f}; {run.size / run.processor_seconds:5.2f} MB a processor second; largest process "
        f"{run.memory.largest / 1e6:4.0f} MB, together {run.memory.together / 1e6:4.0f}",
        flush=True,
    )


def main(argv) -> None:
    files = find_files(FLAGS.input_file)
    with tempfile.TemporaryDirectory() as folder:
        words = pathlib.Path(folder, "words.txt")
        words.write_text("A few words of text. And a few more.\n")
        startup = measure(str(words), "--max_unknown_share=1")
        print(f"{FLAGS.num_workers} workers on {len(os.sched_getaffinity(0))} cores; start-up {startup.seconds:.1f} s")
        for masking in ("dynamic", "static"):
            for length in FLAGS.max_seq_length:
                more = (f"--masking={masking}", f"--max_seq_length={length}")
                once = measure(",".join(files), *more)
                report(f"{masking}, length {length}", once, startup)
        if FLAGS.times:
            repeated = pathlib.Path(folder, "repeated")
            repeated.mkdir()
            for number in range(FLAGS.times):
                for file in files:
                    (repeated / f"{number}-{pathlib.Path(file).name}").symlink_to(pathlib.Path(file).resolve())
            many = measure(f"{repeated}/*", *more)
            report(f"the last, {FLAGS.times} times", many, startup)
            ratio = many.memory.together / once.memory.together
            print(f"peak of all processes: {ratio:.2f} times that of the text once")


if __name__ == "__main__":
    app.run(main)
