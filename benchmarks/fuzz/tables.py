"""Tables of texts and labels: TSV, CSV and JSON lines, of one's own or GLUE's; and plain lines of text."""

from benchmarks.fuzz import mutations
from benchmarks.fuzz.descriptions import filled
from benchmarks.fuzz.workshop import Workshop

_FINETUNE = (
    "finetune --model_dir=@model --output_dir=out/run --num_train_steps=1 --train_batch_size=2 --max_seq_length=16"
)
# How often, file that is damaged, command; {} is the file.
_PLANS = [
    (6, "tables/rows.tsv", "evaluate --model_dir=@classifier --input_file={}"),
    (3, "tables/rows.tsv", "predict --model_dir=@classifier --input_file={} --output_file=out/answers.tsv"),
    (6, "tables/rows.csv", "evaluate --model_dir=@classifier --input_file={} --output_file=out/answers.tsv"),
    (6, "tables/rows.jsonl", "evaluate --model_dir=@classifier --input_file={} --output_file=out/answers.tsv"),
    (3, "tables/rows.jsonl", "predict --model_dir=@classifier --input_file={} --output_file=out/answers.tsv"),
    (4, "tables/numbers.tsv", "evaluate --model_dir=@regression --input_file={} --output_file=out/answers.tsv"),
    (5, "tables/mrpc.tsv", "evaluate --model_dir=@mrpc --input_file={} --output_file=out/answers.tsv"),
    (1, "tables/rows.tsv", f"{_FINETUNE} --task_name=classification --train_file={{}}"),
    (1, "tables/numbers.tsv", f"{_FINETUNE} --task_name=regression --train_file={{}} --eval_file={{}}"),
    (1, "tables/mrpc.tsv", f"{_FINETUNE} --task_name=mrpc --train_file={{}}"),
    (4, "texts/lines.txt", "embed --model_dir=@model --input_file={} --output_file=out/vectors.jsonl"),
    (4, "texts/masks.txt", "fill_mask --model_dir=@model --input_file={} --output=json"),
    (4, "texts/lines.txt", "tokenize --model_dir=@vocab --input_file={}"),
    (2, "texts/lines.txt", "tokenize --vocab_file=@wordpiece/vocab.txt --input_file={} --special_tokens --output=json"),
]


def make(shop: Workshop) -> list[str]:
    """A file with wrong lines, fields, bytes or JSON values, and a command that reads it."""
    _, file, command = shop.rng.choices(_PLANS, [plan[0] for plan in _PLANS])[0]
    if file.endswith(".jsonl") and shop.rng.random() < 0.7:
        _damage_line(shop, file)
    else:
        shop.garble(file)
    return filled(shop, command, shop.take(file))


def _damage_line(shop: Workshop, name: str) -> None:
    """Damages one JSON line of a file."""
    path = shop.path(name)
    lines = path.read_bytes().splitlines()
    where = shop.rng.randrange(len(lines))
    lines[where] = mutations.damaged_json(shop.rng, lines[where])
    path.write_bytes(b"\n".join(lines) + b"\n")
