"""Small models and records for the tests of the loop."""

import contextlib
import functools
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent

CONFIG = {
    "vocab_size": 800,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(scope="session")
def config_file(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("config") / "albert_config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="session")
def make_records(prose, tiny_spm, tmp_path_factory):
    """A function that gives the folder of records of 32 tokens made with some settings, once for each."""
    from albert_tf.pretraining.corpus import Corpus
    from albert_tf.pretraining.creation import CreationSettings, create_records
    from albert_tf.tokenization import load_tokenizer

    made = {}

    def make(**settings) -> pathlib.Path:
        key = tuple(sorted(settings.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("records") / "records"
            settings = {"max_seq_length": 32, "num_shards": 3, "heldout_fraction": 0.1, **settings}
            with open(os.devnull, "w") as log:
                create_records(
                    Corpus(f"{prose}/*.txt"),
                    load_tokenizer(tiny_spm),
                    folder,
                    settings=CreationSettings(**settings),
                    num_workers=1,
                    log=log,
                )
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def records(make_records) -> pathlib.Path:
    return make_records()


@pytest.fixture(scope="session")
def make_command(config_file):
    """A function that gives the arguments of a short `albert_tf pretrain`; None takes a flag away."""

    def make(data_dir, output_dir, **flags) -> list[str]:
        defaults = {
            "data_dir": data_dir,
            "output_dir": output_dir,
            "albert_config_file": config_file,
            "distribution": "cpu",
            "num_train_steps": 6,
            "num_warmup_steps": 2,
            "train_batch_size": 8,
            "learning_rate": 0.01,
            "save_checkpoints_steps": 2,
            "eval_every_steps": 1000,
            "eval_batch_size": 64,
        }
        given = {name: value for name, value in {**defaults, **flags}.items() if value is not None}
        return ["albert_tf", "pretrain", *(f"--{name}={value}" for name, value in given.items())]

    return make


@pytest.fixture(scope="session")
def pretrain(make_command):
    """A function that runs such a command and gives (exit code, what was said on standard error)."""

    def run(*places, **flags) -> tuple[int, str]:
        from albert_tf.__main__ import main

        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main(make_command(*places, **flags))
            except SystemExit as stop:
                code = stop.code
        return code, said.getvalue()

    return run


@pytest.fixture(scope="session")
def refused(pretrain):
    """A function that runs such a command, sees it refused in one line with these words, and gives what was said."""

    def run(*places, words, **flags) -> str:
        code, said = pretrain(*places, **flags)
        assert code == 2, said
        last = said.splitlines()[-1]
        assert last.startswith("albert_tf pretrain: ") and all(word in last for word in words), said
        assert "Traceback" not in said
        return said

    return run


@pytest.fixture(scope="session")
def finished(records, pretrain, tmp_path_factory) -> tuple[pathlib.Path, str]:
    """(folder, what was said) of a run of 6 steps, saved every 2; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    code, said = pretrain(records, folder)
    assert code == 0, said
    return folder, said


@pytest.fixture
def copy(finished, tmp_path) -> pathlib.Path:
    """A copy of the finished run, to be spoilt."""
    return shutil.copytree(finished[0], tmp_path / "copy")


class Program:
    """An `albert_tf` command in a process of its own."""

    def __init__(self, pid, log):
        self.pid, self._log = pid, pathlib.Path(log)

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def running(self) -> bool:
        return not self._log.with_name(f"{self._log.name}.code").exists()

    def code(self, seconds=240) -> int:
        """The exit code, once it has ended; negative for the number of a signal."""
        self._wait(lambda: not self.running(), seconds)
        return int(self._log.with_name(f"{self._log.name}.code").read_text())

    def wait_for(self, words, *, times=1, seconds=240) -> None:
        """Waits until it has said these words so many times."""
        self._wait(lambda: self.said().count(words) >= times or not self.running(), seconds)
        assert self.said().count(words) >= times, self.said()[-3000:]

    def send(self, number) -> None:
        os.kill(self.pid, number)

    def _wait(self, done, seconds):
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"process {self.pid} after {seconds} seconds: {self.said()[-3000:]}"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def program_server():
    environment = {**os.environ, "TF_NUM_INTEROP_THREADS": "8"}  # a replica may hold one while it waits for the others
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "program_server.py")],
        cwd=HERE.parents[1],
        env={**environment, "PYTHONPATH": str(HERE.parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield server
    server.stdin.close()
    server.wait()
    server.stdout.close()


@pytest.fixture(scope="session")
def starter(program_server):
    """with starter(folder) as (start, start_workers): ...; logs go to the folder, and none outlives the block."""
    return functools.partial(started_programs, program_server)


@contextlib.contextmanager
def started_programs(server, folder):
    programs = []

    def start(arguments, environment=None, *, devices=1) -> Program:
        job = {"arguments": [str(one) for one in arguments[1:]], "environment": environment or {}, "devices": devices}
        job["log"] = str(folder / f"program-{len(programs)}.log")
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        programs.append(Program(int(server.stdout.readline()), job["log"]))
        return programs[-1]

    def start_workers(arguments, count, *, only=None, devices=1) -> list[Program]:
        """The workers of one run, the chief first; `arguments` may be a function of the worker's number."""
        addresses = free_addresses(count)
        started = []
        for index in range(count) if only is None else only:
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            given = arguments(index) if callable(arguments) else arguments
            started.append(start(given, {"TF_CONFIG": json.dumps(task)}, devices=devices))
            started[-1].addresses = addresses
        return started

    try:
        yield start, start_workers
    finally:
        for program in programs:
            if program.running():
                with contextlib.suppress(ProcessLookupError):
                    program.send(signal.SIGKILL)
                program.code()


@pytest.fixture
def programs(starter, tmp_path):
    with starter(tmp_path) as both:
        yield both


@pytest.fixture
def start(programs):
    """start(arguments, environment={}, devices=1) -> Program."""
    return programs[0]


@pytest.fixture
def start_workers(programs):
    """start_workers(arguments, count) -> [Program], the workers of one run, the chief first."""
    return programs[1]


@pytest.fixture
def addresses():
    """addresses(count) -> so many of this machine, each with a port that nobody listens at."""
    return free_addresses


def free_addresses(count) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
