"""The command table, its help and its one-line answers to mistakes."""

import dataclasses
import importlib
import os
import resource
import subprocess
import sys
import types

import pytest
from absl import flags

from albert_tf import __main__ as command_table
from albert_tf.__main__ import COMMANDS, Command, main
from albert_tf.errors import UserError


@pytest.fixture
def sample(monkeypatch):
    """A command named `sample`; its `seen` collects the flags of each run, its `action` may be replaced."""
    module = types.ModuleType("sample_command")
    module.seen = []

    def define_flags(flag_values):
        flags.DEFINE_string("input_file", None, "Text to read.", required=True, flag_values=flag_values)
        flags.DEFINE_integer("num_steps", 7, "Length, in steps.", lower_bound=1, flag_values=flag_values)
        flags.DEFINE_float("learning_rate", 0.5, "Peak rate.", flag_values=flag_values)
        flags.DEFINE_bool("lower", True, "Lower-case the text.", flag_values=flag_values)
        flags.DEFINE_enum("optimizer", "lamb", ["lamb", "adamw"], "Update rule.", flag_values=flag_values)
        flags.DEFINE_list("heads", [], "Heads to keep.", flag_values=flag_values)
        flags.DEFINE_integer("seed", None, "Seed (default: the recipe's).", flag_values=flag_values)
        flags.register_validator(
            "num_steps", lambda value: value % 2 == 1, message="expected an odd number", flag_values=flag_values
        )

    module.define_flags = define_flags
    module.action = lambda values: None

    def run(values):
        module.seen.append(values.flag_values_dict())
        module.action(values)

    module.run = run
    monkeypatch.setitem(sys.modules, "sample_command", module)
    monkeypatch.setitem(COMMANDS, "sample", Command("sample_command", "do nothing, visibly"))
    return module


def run_line(capsys, *arguments):
    """Exit code and the two outputs of one call in this process."""
    code = main(["albert_tf", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_every_command_exists_and_keeps_the_contract():
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        flag_values = flags.FlagValues()
        module.define_flags(flag_values)
        assert callable(module.run), name
        for flag in command_table._defined(flag_values):
            assert flag.help != "(no help available)", (name, flag.name)
        assert command.summary and not command.summary.endswith("."), name


# The paper's recipe and the release's settings, which a run takes where its user says nothing. None: decided later.
DEFAULTS = {
    "train_vocab": {"vocab_size": 30_000, "do_lower_case": True, "keep_accents": False},
    "create_pretraining_data": {
        **{"max_seq_length": 512, "max_predictions_per_seq": None, "masked_lm_prob": 0.15, "do_whole_word_mask": True},
        **{"ngram": 3, "favor_shorter_ngram": True, "objective": "sop", "masking": "dynamic", "dupe_factor": 1},
        **{"short_seq_prob": 0.1, "num_workers": 0, "num_shards": None, "random_seed": 12345, "input_format": "auto"},
        **{"heldout_fraction": 0.0, "max_unknown_share": 0.05, "do_lower_case": None, "keep_accents": None},
    },
    "pretrain": {
        **{"num_train_steps": 125_000, "train_batch_size": 4096, "grad_accum_steps": 1, "learning_rate": 0.00176},
        **{"num_warmup_steps": 3125, "optimizer": "lamb", "bias_correction": False, "weight_decay": 0.01},
        **{"hidden_dropout": None, "attention_dropout": None, "mixed_precision": "float32", "distribution": "auto"},
        **{"deterministic": False, "init_checkpoint": None, "eval_data_dir": None, "tpu_name": None},
    },
    "evaluate_pretraining": {"sentence_objective": "as_trained"},
}


def test_defaults_are_those_of_paper_and_release():
    from albert_tf.pretraining.creation import CreationSettings

    for name, expected in DEFAULTS.items():
        flag_values = flags.FlagValues()
        importlib.import_module(COMMANDS[name].module).define_flags(flag_values)
        assert {flag: flag_values[flag].default for flag in expected} == expected, name
    made = dataclasses.asdict(CreationSettings())
    assert made.items() <= DEFAULTS["create_pretraining_data"].items()  # from Python as by the command
    assert CreationSettings().masking_rule().max_predictions_per_seq == 77


def test_every_command_module_is_listed():
    listed = {command.module for command in COMMANDS.values()}
    folder = os.path.join(os.path.dirname(command_table.__file__), "commands")
    modules = {name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py")} - {"__init__"}
    with_run = {name for name in modules if hasattr(importlib.import_module(f"albert_tf.commands.{name}"), "run")}
    assert {f"albert_tf.commands.{name}" for name in with_run} <= listed


def test_flags_reach_the_command_and_are_fresh_each_time(sample, capsys):
    line = ("sample", "--input_file=a.txt", "--num_steps", "3", "--nolower", "--optimizer=adamw", "--heads=x,y")
    assert run_line(capsys, *line) == (0, "", "")
    assert run_line(capsys, "sample", "--input_file=b.txt", "--lower=false") == (0, "", "")
    first, second = sample.seen
    assert first == {
        "input_file": "a.txt",
        "num_steps": 3,
        "learning_rate": 0.5,
        "lower": False,
        "optimizer": "adamw",
        "heads": ["x", "y"],
        "seed": None,
    }
    assert second == {**first, "input_file": "b.txt", "num_steps": 7, "optimizer": "lamb", "heads": []}


def test_flagfile(sample, capsys, tmp_path):
    (tmp_path / "flags").write_text("# a comment\n--num_steps=5\n--input_file=c.txt\n")
    assert run_line(capsys, "sample", f"--flagfile={tmp_path}/flags")[0] == 0
    assert sample.seen[0]["num_steps"] == 5


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "albert_tf: no command given: choose one of train_vocab, "),
        (["pretrian"], "albert_tf: unknown command 'pretrian', did you mean pretrain?; "),
        (["--learning_rate=1", "sample"], "albert_tf: no command before --learning_rate=1: "),
        (["sample"], "albert_tf sample: missing --input_file; "),
        (["sample", "--input_file"], "albert_tf sample: Missing value for flag --input_file; "),
        (["sample", "--imput_file=a"], "albert_tf sample: unknown flag --imput_file, did you mean --input_file?; "),
        (["sample", "--qqq=a"], "albert_tf sample: unknown flag --qqq; "),
        (["sample", "--input_file=a", "b"], "albert_tf sample: stray argument 'b': flags are written --name=value; "),
        (["sample", "--input_file=a", "--", "--x"], "albert_tf sample: stray argument '--x': "),
        (["sample", "input_file=a", "--input_file=a"], "sample: stray argument 'input_file=a', did you mean --input_"),
        (["sample", "--input_file=a", "--lower", "false"], "albert_tf sample: stray argument 'false': "),
        (["sample", "--input_file=a", "--num_steps=x: y"], "--num_steps=x: y: expected a positive integer; "),
        (["sample", "--input_file=a", "--num_steps=0"], "--num_steps=0: expected a positive integer; "),
        (["sample", "--input_file=a", "--num_steps=1.5"], "--num_steps=1.5: expected a positive integer; "),
        (["sample", "--input_file=a", "--num_steps=4"], "sample: --num_steps=4: expected an odd number; "),
        (["sample", "--input_file=a", "--learning_rate=fast"], "--learning_rate=fast: expected a number; "),
        (["sample", "--input_file=a", "--learning_rate=nan"], "--learning_rate=nan: expected a finite number; "),
        (["sample", "--input_file=a", "--learning_rate=1e999"], "--learning_rate=inf: expected a finite number; "),
        (["sample", "--input_file=a", "--lower=maybe"], "--lower=maybe: expected true or false; "),
        (["sample", "--input_file=a", "--nolower=true"], "sample: --nolower=true does not take an argument; "),
        (["sample", "--input_file=a", "--optimizer=sgd"], "--optimizer=sgd: expected one of lamb, adamw; "),
        (["sample", "--flagfile=/no/such/file"], "albert_tf sample: Unable to open flagfile: "),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(sample, capsys, arguments, said):
    code, out, err = run_line(capsys, *arguments)
    assert code == 2 and out == "" and sample.seen == []
    assert said in err and err.count("\n") == 1 and "--help" in err


def test_user_error_interrupt_and_bug(sample, capsys):
    def fail(error):
        def action(values):
            raise error

        return action

    sample.action = fail(UserError("no text at\n  a.txt: give another"))
    assert run_line(capsys, "sample", "--input_file=a") == (2, "", "albert_tf sample: no text at a.txt: give another\n")
    sample.action = fail(KeyboardInterrupt())
    assert run_line(capsys, "sample", "--input_file=a") == (130, "", "albert_tf sample: interrupted\n")
    assert run_line(capsys, "sample", "--input_file=") == (
        2,
        "",
        "albert_tf sample: --input_file is empty; albert_tf sample --help lists the flags\n",
    )
    sample.action = fail(FileNotFoundError(2, "No such file or directory", "a.txt"))
    code, _, err = run_line(capsys, "sample", "--input_file=a")
    assert (code, err) == (
        2,
        "albert_tf sample: a.txt: No such file or directory; check the path, its rights and the disk\n",
    )
    sample.action = fail(BrokenPipeError())
    with pytest.raises(BrokenPipeError):
        main(["albert_tf", "sample", "--input_file=a"])
    sample.action = fail(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["albert_tf", "sample", "--input_file=a"])


def test_help_of_a_command(sample, capsys):
    code, out, err = run_line(capsys, "sample", "--help")
    assert (code, err, sample.seen) == (0, "", [])
    assert out.splitlines()[:3] == [
        "albert_tf sample: do nothing, visibly",
        "",
        "usage: albert_tf sample --input_file=... [--flag=value ...]",
    ]
    for heading in (
        "  --input_file  (a text; required)",
        "  --num_steps  (a positive integer; default 7)",
        "  --lower  (true or false; default true)",
        "  --optimizer  (one of lamb, adamw; default lamb)",
        "  --heads  (a comma separated list; default empty)",
        "  --seed  (an integer; optional)",  # the text may name a default, as here
    ):
        assert heading in out.splitlines()
    assert "      Update rule." in out.splitlines()
    assert run_line(capsys, "sample", "--num_steps=x", "--helpfull") == (0, out, "")


def test_overview_names_every_command(capsys):
    code, out, _ = run_line(capsys, "--help")
    assert code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in out and command.summary in out
    assert run_line(capsys, "--version")[1].startswith("albert_tf 0.")


def in_new_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_help_is_quick_and_imports_no_tensorflow():
    code = (
        "import sys; from albert_tf.__main__ import COMMANDS, main\n"
        "assert main(['albert_tf', '--help']) == 0\n"
        "for name in COMMANDS: assert main(['albert_tf', name, '--help']) == 0\n"
        "heavy = {'tensorflow', 'tf_keras', 'keras', 'torch', 'scipy', 'pandas', 'sentencepiece'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = in_new_process("-c", code)
    assert done.returncode == 0, done.stderr
    assert min(_processor_seconds("-m", "albert_tf", "--help") for _ in range(3)) < 0.5


def _processor_seconds(*arguments):
    """Not seconds by the clock, which tell what else the machine does; start-up waits for nothing but the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert in_new_process(*arguments).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_as_a_program():
    done = in_new_process("-m", "albert_tf", "tokenise")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "albert_tf: unknown command 'tokenise', did you mean tokenize?; albert_tf --help lists the commands\n"
    )
    script = os.path.join(os.path.dirname(sys.executable), "albert_tf")
    if os.path.exists(script):
        done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_early_is_no_error():
    # `head` closes the pipe; a buffered write then fails at the flush.
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m albert_tf --help | head -c 1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_is_one_line_or_escaped():
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "albert_tf", "--help"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        assert done.returncode == 2
        assert "No space left on device" in done.stderr and done.stderr.count("\n") == 1
    code = "import albert_tf.__main__ as m; m.main = lambda: print(chr(0x2581), chr(0xdcff)) or 0; m.command_line()"
    done = in_new_process("-c", code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2581 \\udcff\n", "")


def test_an_error_is_one_line_that_can_be_read_whatever_the_files_say(sample, capsys):
    def fail(values):
        raise UserError("found \x1b[31m\u202e\n\0, " + "x" * 100_000 + "; copy it again")

    sample.action = fail
    code, out, err = run_line(capsys, "sample", "--input_file=a")
    assert (code, out) == (2, "") and len(err) < 1700 and err.count("\n") == 1
    assert err.startswith("albert_tf sample: found \\x1b[31m\\u202e \\x00, xxx") and err.endswith("; copy it again\n")


def test_a_flag_with_a_very_long_name(sample, capsys):
    code, out, err = run_line(capsys, "sample", "--input_file=a", "--" + "y" * 5000)
    assert (code, out) == (2, "") and err.startswith("albert_tf sample: unknown flag --yyy") and len(err) < 200
