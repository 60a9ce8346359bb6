"""A flag that several commands have means and says the same in all of them."""

import importlib

from absl import flags

from albert_tf.__main__ import COMMANDS

TRAINING = {"pretrain", "benchmark", "finetune"}
COMPUTING = TRAINING | {"evaluate_pretraining", "evaluate", "predict"}


def found(name):
    """The commands that have a flag: {command: (default, choices, help)}."""
    those = {}
    for command, (module, _) in COMMANDS.items():
        flag_values = flags.FlagValues()
        importlib.import_module(module).define_flags(flag_values)
        if name in flag_values:
            flag = flag_values[name]
            those[command] = (flag.default, tuple(getattr(flag.parser, "enum_values", ())), flag.help)
    return those


def test_one_meaning_in_every_command():
    for name, commands in (("mixed_precision", COMPUTING), ("grad_accum_steps", TRAINING), ("recompute", TRAINING)):
        those = found(name)
        assert set(those) == commands and len(set(those.values())) == 1, those


def test_places_differ_by_what_a_command_can_use():
    those = found("distribution")
    assert set(those) == COMPUTING
    default, places, text = those.pop("pretrain")
    assert places == ("auto", "cpu", "gpu", "mirrored", "multi_worker", "tpu")
    without = tuple(place for place in places if place != "multi_worker")
    for one in those.values():
        assert one[:2] == (default, without)
        assert one[2].split(": ")[1] == text.split(": ")[1].replace("the cluster of TF_CONFIG, ", "")
    those = found("tpu_name")
    assert set(those) == COMPUTING
    for command in ("finetune", "evaluate", "predict"):  # tasks.evaluation refuses the TPU of another machine
        assert those.pop(command) == (None, (), "local, on a TPU VM")
    assert set(those.values()) == {(None, (), "Cloud TPU name, grpc://host:port, or local on a TPU VM")}
