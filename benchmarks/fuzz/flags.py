"""Flags: values of the wrong kind, out of range, huge, empty; unknown, missing, repeated and contradictory ones."""

import importlib
import re
from typing import Any

from absl import flags as absl_flags

from albert_tf.__main__ import COMMANDS
from benchmarks.fuzz.workshop import Workshop

_TEXTS = "texts/prose.txt"
# A small whole command to begin with, and how often: those that take seconds come rarely. "@x" is material.
_COMMANDS: dict[str, tuple[int, dict[str, Any]]] = {
    "tokenize": (12, {"model_dir": "@vocab", "text": "The list is empty."}),
    "create_pretraining_data": (
        14,
        {"input_file": f"@{_TEXTS}", "output_dir": "out/records", "spm_model_file": "@vocab/spiece.model"}
        | {"max_seq_length": 32, "num_workers": 1},
    ),
    "train_vocab": (6, {"input_file": f"@{_TEXTS}", "output_dir": "out/vocab", "vocab_size": 200}),
    "inspect": (10, {"model_dir": "@model"}),
    "convert": (10, {"model_dir": "@model", "output_dir": "out/converted", "to": "huggingface"}),
    "embed": (10, {"model_dir": "@model", "input_file": "@texts/lines.txt", "output_file": "out/vectors.npy"}),
    "fill_mask": (10, {"model_dir": "@model", "text": "The [MASK] is empty."}),
    "evaluate": (6, {"model_dir": "@classifier", "input_file": "@tables/rows.tsv"}),
    "predict": (8, {"model_dir": "@classifier", "input_file": "@tables/rows.tsv", "output_file": "out/answers.tsv"}),
    "evaluate_pretraining": (4, {"model_dir": "@model", "data_dir": "@records", "eval_batch_size": 4}),
    "finetune": (
        5,
        {"task_name": "classification", "model_dir": "@model", "output_dir": "out/run", "num_train_steps": 1}
        | {"train_file": "@tables/rows.tsv", "train_batch_size": 2, "max_seq_length": 16},
    ),
    "pretrain": (
        5,
        {"data_dir": "@records", "output_dir": "out/run", "albert_config_file": "@model/albert_config.json"}
        | {"num_train_steps": 1, "num_warmup_steps": 0, "train_batch_size": 4, "eval_batch_size": 4},
    ),
    "export": (1, {"model_dir": "@classifier", "export_dir": "out/export"}),
    "benchmark": (1, {"albert_config_file": "@model/albert_config.json", "max_seq_length": 16, "num_steps": 1}),
    "data_service": (3, {"role": "worker", "dispatcher": "grpc://localhost:1", "wait_seconds": 1}),
}
# What asks for much work or many processes and gets it: only small or impossible values.
_WORK = {"num_train_steps", "num_train_epochs", "num_seeds", "dupe_factor", "num_steps", "wait_seconds", "num_workers"}
_WORK |= {"train_batch_size"}
# Names of other machines are asked for on the network; the largest batch fills the memory on purpose.
_LEFT_OUT = {"tpu_name", "data_service", "find_batch"}
_HUGE = ("2147483648", "9223372036854775808", "1e308", "-1e308", "1" + "0" * 400, "999999999", "100000")
_SMALL = ("0", "1", "2", "-1", "3", "4", "5", "16", "0.5", "-0.0", "1e-320")
_WRONG = ("", " ", "x", "1,000", "0x10", "\u0661", "nan", "inf", "true", "None", "1 2", "--", "1e", "\0", "x" * 400)
_PATHS = (
    "",
    " ",
    "nowhere",
    "in",
    "out",
    "in/random",
    "/dev/null",
    "a" * 300,
    "in/na\u00efve\u4e2d",
    "in/*",
    "-",
    "x://y",
)
_PATHS += (
    "in/random/x",
    "out/new/deep",
    "out/x.json",
    "out/x.npy",
    "in/[",
    "\x1b[31m",
    "in\nx",
    "in/model/",
    "./in/model",
)
_STRANGERS = (
    "--unknown=1",
    "--",
    "-",
    "stray",
    "--=",
    "---x",
    "--no",
    "--help=2",
    "--flagfile=in/random",
    "--flagfile=nowhere",
)
_STRANGERS += (
    "--undefok=x",
    "-x",
    "--model_di=x",
    "--noeval_batch_size",
    "--\u00e9=1",
    "--" + "y" * 5000,
    "--text",
    "\0",
)


def make(shop: Workshop) -> list[str]:
    """A whole command with one to four flags wrong, doubled, missing or additional."""
    rng = shop.rng
    if rng.random() < 0.03:
        return rng.choice([[], [""], ["Tokenize"], ["--version"], ["--help"], ["nothing"], ["-"], ["\0"], ["x" * 9999]])
    shop.take("random")
    name = rng.choices(list(_COMMANDS), [share for share, _ in _COMMANDS.values()])[0]
    given = {flag: _taken(shop, value) for flag, value in _COMMANDS[name][1].items()}
    values = absl_flags.FlagValues()
    importlib.import_module(COMMANDS[name].module).define_flags(values)
    known = [flag for flag in values if flag not in _LEFT_OUT]
    arguments = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.random()
        if kind < 0.12 and given:
            del given[rng.choice(list(given))]
        elif kind < 0.2:
            arguments.append(rng.choice(_STRANGERS))
        else:
            flag = rng.choice(list(given) if given and kind < 0.4 else known)
            value = _value(shop, values[flag])
            if rng.random() < 0.1:  # twice: the last counts
                arguments.append(f"--{flag}={value}")
            else:
                given[flag] = value
    # What bounds the work stays, and no server is started that runs until somebody stops it.
    given |= {flag: value for flag, value in _COMMANDS[name][1].items() if flag in _WORK - given.keys()}
    arguments += [f"--{flag}={value}" for flag, value in given.items()]
    arguments = [argument for argument in arguments if argument != "--role=dispatcher"]
    # Who names an existing file as output has it replaced.
    arguments = [re.sub(r"^(--output_\w+=)(\./)?in/", r"\1out/", argument) for argument in arguments]
    rng.shuffle(arguments)
    return [name, *arguments]


def _taken(shop: Workshop, value: Any) -> Any:
    return shop.take(value[1:]) if isinstance(value, str) and value.startswith("@") else value


def _value(shop: Workshop, flag: absl_flags.Flag) -> str:
    rng = shop.rng
    choices = list(getattr(flag.parser, "enum_values", None) or [])
    if choices:
        return rng.choice([*choices * 3, "", "x", choices[0].upper(), ",".join(choices)])
    if flag.boolean:
        return rng.choice(("true", "false", "1", "0", "yes", "", "2", "TRUE", "x"))
    if flag.parser.syntactic_help:  # a number
        return rng.choice((*_SMALL * 2, *_WRONG) if flag.name in _WORK else (*_SMALL * 2, *_HUGE, *_WRONG))
    if flag.flag_type().startswith("comma"):
        return rng.choice(("", ",", "a", "a,b", "a,a", "text,label", "yes,no", " a , b ", "masked_lm", "none", *_PATHS))
    if rng.random() < 0.4:
        material = (
            "model",
            "release",
            "face",
            "classifier",
            "records",
            "vocab",
            "wordpiece/vocab.txt",
            "texts/lines.txt",
        )
        return shop.take(
            rng.choice((*material, "tables/rows.tsv", "run", "export", "texts/masks.txt", "vocab/spiece.model"))
        )
    return rng.choice(
        (*_PATHS, "[MASK]", "[MASK] " * 50, "classification", "squad1.1", "squad2.0", "albert_base", "race")
    )
