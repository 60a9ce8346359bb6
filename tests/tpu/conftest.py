"""Small models and records for the tests of the loop."""

import contextlib
import io
import json
import os
import pathlib
import shutil

import pytest

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
