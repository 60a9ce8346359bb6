"""The command line: `albert_tf COMMAND --flag=value ...`.

A command is a module with `define_flags(flag_values)` and `run(flags)`. It is imported only when asked for, and imports
TensorFlow only inside `run`, so that help and wrong flags are answered at once.
"""

import difflib
import importlib
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from absl import flags

import albert_tf
from albert_tf.errors import UserError


class Command(NamedTuple):
    """Where a command lives and what it does, in one line."""

    module: str
    summary: str


COMMANDS = {
    "train_vocab": Command("albert_tf.commands.train_vocab", "train a SentencePiece vocabulary on text files"),
    "create_pretraining_data": Command(
        "albert_tf.commands.create_pretraining_data", "turn text files into records for pretraining"
    ),
    "tokenize": Command("albert_tf.commands.tokenize", "show the pieces, ids and offsets of a text"),
    "pretrain": Command("tpu.pretrain", "pretrain a model on records, or go on where a run stopped"),
    "data_service": Command("tpu.data_service", "read and mask records on other machines, for pretrain --data_service"),
    "evaluate_pretraining": Command(
        "tpu.evaluate_pretraining", "measure masked LM and sentence order of a model on records"
    ),
    "fill_mask": Command("albert_tf.commands.fill_mask", "fill the [MASK] places of a sentence"),
    "finetune": Command("tasks.finetune", "train a pretrained model on a task: GLUE, SQuAD, RACE, tokens, own tables"),
    "evaluate": Command("tasks.evaluate", "score a fine-tuned model on labelled data"),
    "predict": Command("tasks.predict", "answer with a fine-tuned model, one row an example"),
    "convert": Command(
        "albert_tf.commands.convert", "convert weights: the release, TF-Hub, Hugging Face, model folders"
    ),
    "export": Command("tasks.export", "export a model for TensorFlow Serving, TF-Hub or TensorFlow Lite"),
    "inspect": Command("albert_tf.commands.inspect", "show what a model, records or run folder is, and check it"),
    "embed": Command("albert_tf.commands.embed", "turn lines of text into vectors"),
    "benchmark": Command("tpu.benchmark", "measure a model's speed and memory on this machine"),
}

_WRONG_USE = 2
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_LONGEST_LINE = 1500  # characters of an error
_HELP = ("--help", "-help", "-h", "--helpfull", "--helpshort")  # absl's spellings of the same wish


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 done, 2 the user's mistake (told in one line), 130 interrupted.

    `argv` is like `sys.argv`, program name first. Trouble with files that no command foresaw (a path too long, no
    rights, a full disk) counts as the user's, too. Any other exception is a bug and passes through.
    """
    arguments = list(sys.argv if argv is None else argv)[1:]
    label = "albert_tf"
    try:
        name = _command_name(arguments)
        if name is None:
            return 0
        label = f"albert_tf {name}"
        _run_command(name, arguments[1:])
        return 0
    except UserError as error:
        print(f"{label}: {_one_line(str(error))}", file=sys.stderr)
        return _WRONG_USE
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        what = _one_line(f"{place}{error.strerror or error}")
        print(f"{label}: {what}; check the path, its rights and the disk", file=sys.stderr)
        return _WRONG_USE
    except KeyboardInterrupt:
        print(f"{label}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _one_line(message: str) -> str:
    """A message in one line that can be read: what files said is in it, which may be long or drive the terminal."""
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"  # the end says what to do
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def command_line() -> None:
    """What the installed `albert_tf` program and `python -m albert_tf` do: quieten TensorFlow, run `main`, exit."""
    quieten_tensorflow()
    sys.stdout.reconfigure(errors="backslashreplace")  # file names that are not UTF-8, terminals without Unicode
    code = None
    try:
        code = main()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, `head` for one, has seen enough
            code = 0
        elif not code:  # else `main` has told it
            print(f"albert_tf: cannot write the output: {error.strerror or error}; check the disk", file=sys.stderr)
            code = _WRONG_USE
    sys.exit(code)


def quieten_tensorflow() -> None:
    """Turns off the C++ start-up messages of a TensorFlow that is not imported yet, unless the user has set a level."""
    # Warnings off; without an NVIDIA driver errors as well, since then each start logs a failed search for GPUs.
    has_nvidia_driver = os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/dxg")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if has_nvidia_driver else "3")


def _command_name(arguments: Sequence[str]) -> str | None:
    """The command asked for, or None where help or the version was asked for and printed."""
    if not arguments:
        raise UserError(f"no command given: choose one of {', '.join(COMMANDS)}; albert_tf --help describes them")
    first = arguments[0]
    if first in _HELP:
        print(_overview())
        return None
    if first == "--version":
        print(f"albert_tf {albert_tf.__version__}")
        return None
    if first.startswith("-"):
        raise UserError(f"no command before {first}: write albert_tf COMMAND --flag=value; albert_tf --help lists them")
    if first not in COMMANDS:
        raise UserError(f"unknown command {first!r}{_nearest(first, COMMANDS)}; albert_tf --help lists the commands")
    return first


def _run_command(name: str, arguments: Sequence[str]) -> None:
    module = importlib.import_module(COMMANDS[name].module)
    flag_values = flags.FlagValues()
    module.define_flags(flag_values)
    if any(argument in _HELP for argument in arguments):
        print(_command_help(name, flag_values))
        return
    _parse(name, flag_values, arguments)
    module.run(flag_values)


def _parse(name: str, flag_values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Parses with absl, and words its complaints as one line that names the valid choices.

    Raises UserError.
    """
    more = f"albert_tf {name} --help lists the flags"
    flag_values.set_gnu_getopt()  # a stray argument must not hide the flags after it
    try:
        stray = flag_values(["albert_tf", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        near = _nearest(error.flagname, flag_values, prefix="--")
        raise UserError(f"unknown flag --{error.flagname}{near}; {more}") from error
    except flags.IllegalFlagValueError as error:
        problem = _failed_check(flag_values, error) if flag_values.is_parsed() else _wrong_type(flag_values, error)
        raise UserError(f"{problem}; {more}") from error
    except RecursionError as error:  # absl compares an unknown flag with its own ones, a letter a call
        raise UserError(f"unknown flag {max(arguments, key=len)[:60]}...; {more}") from error
    except (flags.Error, ValueError) as error:  # no value, an unreadable --flagfile, --noflag=value
        raise UserError(f"{str(error).removeprefix('ERROR:: ')}; {more}") from error
    if stray:
        near = _nearest(stray[0], flag_values, prefix="--")
        raise UserError(f"stray argument {stray[0]!r}{near}: flags are written --name=value; {more}")
    for flag in _defined(flag_values):
        if _is_required(flag) and flag.value in ("", []):
            raise UserError(f"--{flag.name} is empty; {more}")
        if isinstance(flag.value, float) and not math.isfinite(flag.value):
            raise UserError(f"--{flag.name}={flag.value}: expected a finite number; {more}")


def _failed_check(flag_values: flags.FlagValues, error: flags.IllegalFlagValueError) -> str:
    missing = [f"--{flag.name}" for flag in _defined(flag_values) if _is_required(flag) and flag.value is None]
    if missing:
        return f"missing {', '.join(missing)}"
    return str(error).removeprefix("flag ").removeprefix("flags ")


def _wrong_type(flag_values: flags.FlagValues, error: flags.IllegalFlagValueError) -> str:
    match = re.match(r"flag (--(\w+)=.*)", str(error), re.DOTALL)
    if match is None or match[2] not in flag_values:
        return str(error)
    given = match[1].removesuffix(f": {error.__context__}")
    return f"{given}: expected {_accepted(flag_values[match[2]])}"


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(word.lstrip("-").lower(), list(known), n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""


def _defined(flag_values: flags.FlagValues) -> list[flags.Flag]:
    return [flag_values[name] for name in flag_values if flag_values[name].name == name]


def _is_required(flag: flags.Flag) -> bool:
    return flag.default is None and any("must have a value" in validator.message for validator in flag.validators)


def _choices(flag: flags.Flag) -> list[str]:
    return list(getattr(flag.parser, "enum_values", None) or [])


def _accepted(flag: flags.Flag) -> str:
    """What a flag takes, as a phrase: "an integer", "one of lamb, adamw"."""
    if _choices(flag):
        return f"one of {', '.join(_choices(flag))}"
    if flag.boolean:
        return "true or false"
    return flag.parser.syntactic_help or "a text"


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "albert_tf: pretrain, fine-tune, convert and serve ALBERT in TensorFlow 2",
            "",
            "usage: albert_tf COMMAND --flag=value ...",
            "",
            *lines,
            "",
            "albert_tf COMMAND --help lists a command's flags; --flagfile=FILE reads them from a file, one a line.",
            "albert_tf --version prints the version.",
        ]
    )


def _command_help(name: str, flag_values: flags.FlagValues) -> str:
    defined = _defined(flag_values)
    needed = "".join(f" --{flag.name}=..." for flag in defined if _is_required(flag))
    lines = [f"albert_tf {name}: {COMMANDS[name].summary}", "", f"usage: albert_tf {name}{needed} [--flag=value ...]"]
    width = min(shutil.get_terminal_size().columns, 100)
    for flag in defined:
        choices = _choices(flag)
        text = flag.help.removeprefix(f"<{'|'.join(choices)}>: ")  # absl puts the choices there
        lines += ["", f"  --{flag.name}  ({_accepted(flag)}; {_default(flag)})"]
        lines += textwrap.wrap(" ".join(text.split()), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _default(flag: flags.Flag) -> str:
    if flag.default is None:
        return "required" if _is_required(flag) else "optional"
    return f"default {flag.default_as_str.strip(chr(39)) or 'empty'}"


if __name__ == "__main__":
    command_line()
