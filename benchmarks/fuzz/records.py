"""TFRecord files: damaged bytes, and whole frames around examples that do not say what they should."""

import json
import pathlib

from albert_tf.pretraining import records
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.workshop import Workshop

_EVALUATE = "evaluate_pretraining --model_dir=@model --data_dir={} --eval_batch_size=8"
_PRETRAIN = (
    "pretrain --num_train_steps=1 --num_warmup_steps=0 --train_batch_size=4 --eval_batch_size=4 --output_dir=out/run"
)
_PRETRAIN += " --albert_config_file=@model/albert_config.json --data_dir={}"
# How often, folder, command.
_PLANS = [
    (8, "records", "inspect --model_dir={} --verify"),
    (4, "records", _EVALUATE),
    (3, "static", _EVALUATE),
    (4, "released", _EVALUATE),
    (1, "records", _PRETRAIN),
    (1, "records", f"{_PRETRAIN} --skip_corrupt_records"),
    (1, "released", f"{_PRETRAIN} --spm_model_file=@vocab/spiece.model"),
]


def make(shop: Workshop) -> list[str]:
    """A folder of records with a bad shard, and a command that reads it."""
    rng = shop.rng
    _, folder, command = rng.choices(_PLANS, [plan[0] for plan in _PLANS])[0]
    shard = shop.path(folder) / rng.choice(("records-00000-of-00002.tfrecord", "records-00001-of-00002.tfrecord"))
    if rng.random() < 0.4:
        shop.damage(f"{folder}/{shard.name}")
    else:
        _write_odd(shop, shard)
    if rng.random() < 0.8:
        _describe(shard)
    return filled(shop, command, f"in/{folder}")


def _describe(shard: pathlib.Path) -> None:
    """Makes records.json, where there is one, agree with the shard's size: damage in it comes to light later."""
    path = shard.parent / records.DESCRIPTION
    if path.exists():
        info = json.loads(path.read_text())
        for one in info["shards"]:
            if one["name"] == shard.name:
                one["num_bytes"] = shard.stat().st_size
        path.write_text(json.dumps(info))


def _write_odd(shop: Workshop, shard: pathlib.Path) -> None:
    """Whole frames, in which some records are odd."""
    rng = shop.rng
    whole = list(records.read_payloads(shard))
    payloads = list(whole)
    for _ in range(rng.choice((1, 1, 3, len(payloads)))):
        where = rng.randrange(len(payloads))
        payloads[where] = _odd_record(shop, whole[where])
    shard.write_bytes(b"".join(records.frame(payloads)))


def _odd_record(shop: Workshop, payload: bytes) -> bytes:
    import tensorflow as tf

    rng = shop.rng
    if rng.random() < 0.15:
        return rng.choice((b"", b"\0" * 5, rng.randbytes(40), payload[: len(payload) // 2], payload * 2))
    example = tf.train.Example.FromString(payload)
    features = example.features.feature
    name = rng.choice(sorted(features))
    kind = rng.randrange(4)
    if kind == 0:
        del features[name]
        return example.SerializeToString()
    feature = features[name]
    if kind == 1:  # of another type
        feature.Clear()
        rng.choice((feature.int64_list, feature.float_list)).value.extend(rng.choice(([], [1], [1] * 32)))
    elif feature.HasField("bytes_list"):
        data = feature.bytes_list.value[0]
        odd = (
            b"",
            data[:-1],
            data * 2,
            data * 50,
            b"\xff" * len(data),
            rng.randbytes(len(data)),
            data[:2],
            b"\0" * len(data),
        )
        feature.bytes_list.value[0] = rng.choice(odd)
    else:
        values = feature.int64_list.value or feature.float_list.value
        number = rng.choice((-1, 0, 1, 5, 31, 32, 33, 299, 300, 70_000, 2**31, -(2**40)))
        if kind == 2 and values:
            values[rng.randrange(len(values))] = number
        else:
            changed = rng.choice(([], [*values, number], list(values)[:-1], list(values) * 3))
            del values[:]
            values.extend(changed)
    return example.SerializeToString()
