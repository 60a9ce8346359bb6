"""Raw text for vocabularies and records: plain, gzip, tar archives, and what is no text at all."""

import gzip
import io
import tarfile

from benchmarks.fuzz import mutations
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.questions import odd_member
from benchmarks.fuzz.workshop import Workshop

_RECORDS = "create_pretraining_data --input_file={} --output_dir=out/records --spm_model_file=@vocab/spiece.model"
_RECORDS += " --max_seq_length=32 --num_workers=1"
# How often, command; {} is the text.
_PLANS = [
    (6, _RECORDS),
    (2, f"{_RECORDS} --masking=static --objective=nsp"),
    (2, f"{_RECORDS} --input_format=sentences --objective=none"),
    (2, f"{_RECORDS} --heldout_fraction=0.5 --max_unknown_share=1 --num_shards=2"),
    (2, "train_vocab --input_file={} --output_dir=out/vocab --vocab_size=100"),
]


def make(shop: Workshop) -> list[str]:
    """A text file or archive that is damaged or odd, and a command that reads it."""
    rng = shop.rng
    command = rng.choices([command for _, command in _PLANS], [share for share, _ in _PLANS])[0]
    kind = rng.randrange(6)
    if kind == 0:
        name = rng.choice(("texts/prose.txt.gz", "texts/prose.tar.gz"))
        shop.damage(name)
    elif kind == 1:
        name = "texts/prose.txt"
        shop.garble(name)
    elif kind == 2:
        name = "texts/archive.tar.gz"
        _archive(shop, name)
    elif kind == 3:
        name = "texts/odd.txt"
        _write(shop, name, _odd_text(shop))
    elif kind == 4:  # a bomb, or gzip in gzip
        name = "texts/odd.txt.gz"
        inner = rng.choice(
            (b"\0" * 20_000_000, b"word. " * 300_000, b"x" * 3_000_000, gzip.compress(b"A text. " * 99), b"")
        )
        _write(shop, name, gzip.compress(inner) * rng.choice((1, 1, 2)) + rng.choice((b"", b"", b"rest", b"\0" * 50)))
    else:  # a folder of several, one of them bad
        shop.take("texts/prose.txt")
        _write(shop, "texts/odd.txt", _odd_text(shop))
        name = rng.choice(("texts", "texts/*.txt", "texts/prose.txt,in/texts/odd.txt", "texts/odd.txt,in/nowhere.txt"))
    return filled(shop, command, f"in/{name}")


def _write(shop: Workshop, name: str, data: bytes) -> None:
    path = shop.folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _odd_text(shop: Workshop) -> bytes:
    rng = shop.rng
    text = (shop.material / "texts" / "prose.txt").read_text(encoding="utf-8")[:3000]
    odd = "".join(rng.choice(mutations.ODD_CHARACTERS) for _ in range(400))
    kinds = [
        b"",
        b"\n" * 1000,
        b"\xef\xbb\xbf",
        text.encode("utf-16"),
        text.encode("latin-1", "replace") + b"\xff" * 40,
    ]
    kinds += [
        rng.randbytes(5000),
        b"x" * 300_000,
        b"# \n" * 20_000,
        b"CHAPTER I\n\n" * 3000,
        b". " * 100_000,
        b"\r" * 99,
    ]
    kinds += [("\u4e2d" * 5000).encode(), ("a\u0301" * 5000).encode(), odd.encode("utf-8", "surrogatepass")]
    kinds += [
        (text + odd + text).encode("utf-8", "surrogatepass"),
        b"one",
        b"One sentence only.\n",
        b"\0" * 5000,
        b"-" * 9999,
    ]
    return rng.choice(kinds)


def _archive(shop: Workshop, name: str) -> None:
    """A tar archive of texts with odd members between good ones, plain or compressed, whole or damaged."""
    rng = shop.rng
    packed = io.BytesIO()
    good = (shop.material / "texts" / "prose.txt").read_bytes()[:4000]
    with tarfile.open(fileobj=packed, mode=rng.choice(("w:gz", "w"))) as archive:
        for number in range(rng.choice((1, 3))):
            member = tarfile.TarInfo(f"books/{number}.txt")
            member.size = len(good)
            archive.addfile(member, io.BytesIO(good))
            archive.addfile(odd_member(shop, f"books/odd-{number}.txt"))
    whole = rng.random() < 0.7
    _write(shop, name, packed.getvalue() if whole else mutations.damaged(rng, packed.getvalue()))
