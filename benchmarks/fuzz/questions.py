"""Task files with a structure: SQuAD's JSON, RACE's folder or archive of passages, words in CoNLL columns."""

import io
import tarfile

from benchmarks.fuzz import mutations
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.workshop import Workshop

_FINETUNE = (
    "finetune --model_dir=@model --output_dir=out/run --num_train_steps=1 --train_batch_size=2 --max_seq_length=32"
)
# How often, file that is damaged, command; {} is the file.
_PLANS = [
    (4, "questions/squad.json", "evaluate --model_dir=@squad --input_file={} --output_file=out/answers.json"),
    (2, "questions/squad.json", "predict --model_dir=@squad --input_file={} --output_file=out/answers.json"),
    (4, "questions/squad2.json", "evaluate --model_dir=@squad2 --input_file={} --output_file=out/answers.json"),
    (2, "questions/squad2.json", "predict --model_dir=@squad --input_file={} --output_file=out/answers.json"),
    (5, "questions/words.conll", "evaluate --model_dir=@tokens --input_file={} --output_file=out/answers.tsv"),
    (2, "questions/words.conll", "predict --model_dir=@tokens --input_file={} --output_file=out/answers.tsv"),
    (6, "passages/high/1.txt", "evaluate --model_dir=@race --input_file=in/passages --output_file=out/answers.tsv"),
    (4, "passages.tar.gz", "evaluate --model_dir=@race --input_file=in/passages.tar.gz --output_file=out/answers.tsv"),
    (
        1,
        "questions/squad.json",
        f"{_FINETUNE} --task_name=squad1.1 --train_file={{}} --max_query_length=8 --doc_stride=8",
    ),
    (1, "questions/words.conll", f"{_FINETUNE} --task_name=tokens --train_file={{}}"),
    (1, "passages/high/1.txt", f"{_FINETUNE} --task_name=race --train_file=in/passages --max_qa_length=12"),
]


def make(shop: Workshop) -> list[str]:
    """One file damaged, and a command that reads it."""
    _, file, command = shop.rng.choices(_PLANS, [plan[0] for plan in _PLANS])[0]
    if file == "passages.tar.gz":
        _archive(shop, file)
    elif file.endswith(".conll"):
        shop.garble(file)
    else:
        shop.damage_json(file)
    return filled(shop, command, f"in/{file}")


def _archive(shop: Workshop, name: str) -> None:
    """An archive of passages with one odd member; sometimes its bytes are damaged, too."""
    data = (shop.material / "passages" / "high" / "1.txt").read_bytes()
    if shop.rng.random() < 0.5:
        data = mutations.damaged_json(shop.rng, data)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("RACE/high/1.txt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        archive.addfile(odd_member(shop, "RACE/high/2.txt"))
    whole = shop.rng.random() < 0.5
    (shop.folder / "in" / name).write_bytes(
        packed.getvalue() if whole else mutations.damaged(shop.rng, packed.getvalue())
    )


def odd_member(shop: Workshop, name: str) -> tarfile.TarInfo:
    """A member that no careful reader follows: a link or path outside, a device, an odd name, a size not kept."""
    rng = shop.rng
    member = tarfile.TarInfo(name)
    kind = rng.randrange(5)
    if kind == 0:
        member.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE))
        member.linkname = str(rng.choice(shop.places()))
    elif kind == 1:
        member.name = rng.choice((*map(str, shop.places()), "../../escaped.txt", "/escaped.txt", "a\\..\\escaped.txt"))
    elif kind == 2:
        member.type = rng.choice((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"?"))
    elif kind == 3:
        member.name = rng.choice(
            ("", ".", "x" * 3000, "na\u00efve\n.txt", "\x1b[31m.txt", "/".join("d" * 300) + ".txt")
        )
    else:
        member.size = rng.choice((1 << 40, 1 << 62, 700))  # nothing follows
    return member
