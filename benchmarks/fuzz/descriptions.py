"""Descriptions: the JSON files that say what a model, records, a run or an export is."""

from benchmarks.fuzz.workshop import Workshop

_PREDICT = "predict --model_dir={} --input_file=@tables/rows.tsv --output_file=out/answers.tsv"
_PRETRAIN = (
    "pretrain --num_train_steps=2 --num_warmup_steps=0 --train_batch_size=4 --eval_batch_size=4 --output_dir=out/run"
)
# How often, folder, file in it that is damaged, command; {} is the folder, @x other material.
_PLANS = [
    (6, "model", "albert_config.json", "inspect --model_dir={}"),
    (2, "model", "albert_config.json", "fill_mask --model_dir={} --text=[MASK]"),
    (1, "model", "albert_config.json", f"{_PRETRAIN} --data_dir=@records --albert_config_file={{}}/albert_config.json"),
    (
        1,
        "model",
        "albert_config.json",
        "benchmark --albert_config_file={}/albert_config.json --max_seq_length=8 --num_steps=1",
    ),
    (5, "model", "model.json", "inspect --model_dir={}"),
    (2, "model", "model.json", "convert --model_dir={} --output_dir=out/converted --to=release"),
    (3, "model", "model.json", "embed --model_dir={} --input_file=@texts/lines.txt --output_file=out/vectors.npy"),
    (4, "classifier", "model.json", _PREDICT),
    (
        2,
        "squad2",
        "model.json",
        "predict --model_dir={} --input_file=@questions/squad2.json --output_file=out/answers.json",
    ),
    (
        2,
        "tokens",
        "model.json",
        "predict --model_dir={} --input_file=@questions/words.conll --output_file=out/answers.tsv",
    ),
    (2, "race", "model.json", "predict --model_dir={} --input_file=@passages --output_file=out/answers.tsv"),
    (3, "vocab", "tokenizer_config.json", "tokenize --model_dir={} --text=list"),
    (6, "records", "records.json", "inspect --model_dir={} --verify"),
    (2, "records", "records.json", "evaluate_pretraining --model_dir=@model --data_dir={} --eval_batch_size=4"),
    (1, "static", "records.json", "evaluate_pretraining --model_dir=@model --data_dir={} --eval_batch_size=4"),
    (1, "records", "records.json", f"{_PRETRAIN} --data_dir={{}} --albert_config_file=@model/albert_config.json"),
    (3, "face", "config.json", "inspect --model_dir={}"),
    (2, "face", "tokenizer_config.json", "inspect --model_dir={}"),
    (2, "torch", "config.json", "convert --model_dir={} --output_dir=out/converted --to=native"),
    (3, "release", "albert_config.json", "convert --model_dir={} --output_dir=out/converted --to=native"),
    (3, "run", "run.json", "inspect --model_dir={}"),
    (
        1,
        "run",
        "run.json",
        f"{_PRETRAIN} --data_dir=@records --albert_config_file=@model/albert_config.json --output_dir={{}}",
    ),
    (3, "export", "1/manifest.json", _PREDICT),
]


def make(shop: Workshop) -> list[str]:
    """One description damaged, and a command that reads it."""
    _, folder, file, command = shop.rng.choices(_PLANS, [plan[0] for plan in _PLANS])[0]
    place = shop.take(folder)
    shop.damage_json(f"{folder}/{file}")
    return filled(shop, command, place)


def filled(shop: Workshop, command: str, place: str) -> list[str]:
    """The words of a command line with {} and @x replaced."""
    words = [word.replace("{}", place) for word in command.split()]
    return [
        f"{word[: word.index('=@')]}={shop.take(word[word.index('=@') + 2 :])}" if "=@" in word else word
        for word in words
    ]
