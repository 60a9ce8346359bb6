"""Damage: bytes, text and JSON values made wrong in the ways that accidents and attackers make them wrong."""

import json
import random
from typing import Any

# Values that a JSON file may hold where something else is expected.
ODD = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf")),
    *(2**31 - 1, 2**31, -(2**31), 2**63, -(2**63), 2**64, 10**30, 9_999_999, 100_000, 10**400),
    *(
        "",
        " ",
        "x",
        "0",
        "1",
        "\0",
        "\x1b[31mred",
        "\u202e",
        "\ud800",
        "na\u00efve \u4e2d\u6587",
        "x" * 5000,
        "*",
        "../..",
    ),
    *([], {}, [None], [1, 2, 3], ["a", "a"], [[]], {"a": 1}, {"": None}, [{}], {"x": {"y": []}}),
]
ODD_CHARACTERS = "\0\t\r\n\"'\\,;\x1b\x7f\u0085\u2028\u202e\ufeff\ufffd\u0301\u4e2d\U0001f600\U000e0001[]{}|"
_NESTED = 200_000  # brackets inside each other: more than any parser's stack


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to three accidents: bits flipped, cut short, pieces overwritten, moved, repeated, inserted."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_ACCIDENTS)(rng, data)
    return data


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _flip_in_head(rng: random.Random, data: bytes) -> bytes:
    return _flip(rng, data[:64]) + data[64:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.choice((0, 1, len(data) // 2, max(0, len(data) - 1), rng.randint(0, len(data))))]


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    start, size = rng.randint(0, len(data)), rng.choice((1, 4, 8, 64))
    filler = rng.choice((b"\0" * size, b"\xff" * size, rng.randbytes(size), b"\x7f" + b"\xff" * (size - 1)))
    return data[:start] + filler + data[start + size :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + rng.choice((b"\0", b"\n", b"\xff\xfe", rng.randbytes(5), b"\xc3", b"\r\n\r\n")) + data[start:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[:end] + data[start:end] * rng.choice((1, 2)) + data[end:]


def _drop(rng: random.Random, data: bytes) -> bytes:
    start = rng.randint(0, len(data))
    return data[:start] + data[start + rng.choice((1, 4, 16, 200)) :]


def _foreign(rng: random.Random, data: bytes) -> bytes:
    """Something else altogether."""
    text = data.decode("utf-8", "replace")
    kinds = [b"\x1f\x8b\x08\0", b"PK\x03\x04", b"%PDF-1.7", b"\x7fELF", b"version https://git-lfs.github.com/spec/v1\n"]
    kinds += [text.encode("utf-16"), text.encode("latin-1", "replace"), rng.randbytes(300), b"\n" * 50, b"null", b"{}"]
    return rng.choice(kinds)


_ACCIDENTS = (_flip, _flip, _flip_in_head, _cut, _cut, _overwrite, _insert, _repeat, _drop, _foreign)


def garbled(rng: random.Random, text: str) -> str:
    """Lines and fields moved, doubled, emptied, and characters that programs trip over put in."""
    for _ in range(rng.choice((1, 2, 4))):
        lines = text.split("\n")
        where = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind == 0:
            lines.insert(where, rng.choice(lines))
        elif kind == 1:
            del lines[where]
        elif kind == 2:
            lines[where] = rng.choice(
                ("", " ", "\t", "x", "\t\t\t\t", '"', "[CLS] [SEP] [MASK]", "word " * 3000, "x" * 70_000)
            )
        elif kind == 3:
            fields = lines[where].split("\t")
            fields[rng.randrange(len(fields))] = rng.choice(
                ("", "-", "nan", "1e999", "\u00a0", "unseen", "0", "\ufeff")
            )
            lines[where] = "\t".join(fields)
        elif kind == 4:
            lines[where] = lines[where].replace("\t", rng.choice((",", " ", "", "\t\t")))
        elif kind == 5:
            lines = lines[:1] * 3 + lines if rng.random() < 0.3 else lines[: where + 1]
        else:
            at = rng.randint(0, len(lines[where]))
            lines[where] = lines[where][:at] + rng.choice(ODD_CHARACTERS) + lines[where][at:]
        text = "\n".join(lines)
    return text


def damaged_json(rng: random.Random, data: bytes, more_odd: list[Any] | None = None) -> bytes:
    """A JSON document with some values, keys or bytes wrong. more_odd: values to put in besides ODD."""
    kind = rng.random()
    if kind < 0.15:
        return damaged(rng, data)
    if kind < 0.18:
        opening = rng.choice(("[", '{"a":'))
        return (opening * _NESTED).encode()
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = altered(rng, value, ODD + (more_odd or []) * 4)
    return json.dumps(value).encode()


def altered(rng: random.Random, value: Any, odd: list[Any]) -> Any:
    """A JSON value with one place in it changed, at any depth."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.93:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, kind = rng.choice(keys), rng.random()
        if isinstance(value[key], (dict, list)) and kind < 0.6:
            changed = altered(rng, value[key], odd)
            return {**value, key: changed} if isinstance(value, dict) else [*value[:key], changed, *value[key + 1 :]]
        if isinstance(value, dict):
            return _altered_object(rng, value, key, odd)
        if kind < 0.75:
            return [*value[:key], *rng.choice(([], [value[key]] * 2, [rng.choice(odd)])), *value[key + 1 :]]
        return [*value[:key], _near(rng, value[key], odd), *value[key + 1 :]]
    return rng.choice(odd)


def _altered_object(rng: random.Random, value: dict, key: str, odd: list[Any]) -> dict:
    kind = rng.random()
    if kind < 0.12:
        return {name: item for name, item in value.items() if name != key}
    if kind < 0.2:
        return {**value, rng.choice(("", "unknown", key + "s", key.upper(), "x" * 300, "\x1b[0m")): rng.choice(odd)}
    if kind < 0.24:
        return {(f"{name}_" if name == key else name): item for name, item in value.items()}
    return {**value, key: _near(rng, value[key], odd)}


def _near(rng: random.Random, value: Any, odd: list[Any]) -> Any:
    """Something odd, or for numbers one that is nearly right."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.5:
        near = [value + 1, value - 1, -value, value * 2, str(value), value * 1000]
        if abs(value) < 2**1000:  # an integer beyond is no float
            near += [value / 3, float(value)]
        return rng.choice(near)
    return rng.choice(odd)
