"""A tiny pretrained model, a few rows of every text task, and commands run in this process."""

import pathlib

import pytest

WORDS = "river stone bird music winter garden letter market window bridge".split()


def sentences(count, *, seed=0):
    """Short sentences of which every other one has the word "bright"; its label is whether it has."""
    made = []
    for number in range(count):
        words = [WORDS[(seed + number * (step + 3) + step) % len(WORDS)] for step in range(2 + number % 7)]
        label = number % 2
        made.append((" ".join([*words, "bright"] if label else words), label))
    return made


def rows(header, lines):
    """A TSV file's text; without a header where it is None."""
    return "".join("\t".join(map(str, line)) + "\n" for line in ([header] if header else []) + list(lines))


def _single(count, seed, label=lambda value: value):
    return [(text, label(value)) for text, value in sentences(count, seed=seed)]


def _pairs(count, seed, label):
    return [
        (number, text, "the same is bright", label(value))
        for number, (text, value) in enumerate(sentences(count, seed=seed))
    ]


def _entailment(value):
    return ("not_entailment", "entailment")[value]


def glue_files(name):
    """{file name: content} of a made-up copy of a GLUE task: 24 rows to train on, 8 to evaluate, 5 without labels."""
    splits = (("train", 24, 0), ("dev", 8, 3))
    test = [text for text, _ in sentences(5, seed=5)]
    if name == "cola":
        made = {f"{s}.tsv": rows(None, [("own", y, "", t) for t, y in _single(n, k)]) for s, n, k in splits}
        return {**made, "test.tsv": rows(("index", "sentence"), enumerate(test))}
    if name == "sst-2":
        made = {f"{s}.tsv": rows(("sentence", "label"), _single(n, k)) for s, n, k in splits}
        return {**made, "test.tsv": rows(("index", "sentence"), enumerate(test))}
    if name == "mrpc":
        head = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        made = {
            f"{s}.tsv": "\ufeff" + rows(head, [(y, i, i, a, b) for i, a, b, y in _pairs(n, k, int)])
            for s, n, k in splits
        }
        return {**made, "test.tsv": rows(("index", *head[1:]), [(i, i, i, t, t) for i, t in enumerate(test)])}
    if name == "qqp":
        head = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
        made = {f"{s}.tsv": rows(head, [(i, i, i, a, b, y) for i, a, b, y in _pairs(n, k, int)]) for s, n, k in splits}
        return {**made, "test.tsv": rows(("id", "question1", "question2"), [(i, t, t) for i, t in enumerate(test)])}
    if name == "mnli":
        head = ("index", "sentence1", "sentence2", "gold_label")
        kinds = ("neutral", "contradiction", "entailment")
        label = lambda value: kinds[value]  # noqa: E731
        made = {"train.tsv": rows(head, _pairs(24, 0, label))}
        for split, seed in (("dev_matched", 3), ("dev_mismatched", 4)):
            made[f"{split}.tsv"] = rows(head, [*_pairs(8, seed, label), (8, "no", "agreement", "-")])
            made[f"{split.replace('dev', 'test')}.tsv"] = rows(head[:-1], [(i, t, t) for i, t in enumerate(test)])
        return made
    names = {
        "qnli": ("question", "sentence", "label", _entailment),
        "rte": ("sentence1", "sentence2", "label", _entailment),
        "wnli": ("sentence1", "sentence2", "label", int),
        "sts-b": ("sentence1", "sentence2", "score", lambda value: 0.5 + 4 * value),
    }
    first, second, answer, label = names[name]
    head = ("index", first, second, answer)
    made = {f"{s}.tsv": rows(head, _pairs(n, k, label)) for s, n, k in splits}
    return {**made, "test.tsv": rows(head[:-1], [(i, t, t) for i, t in enumerate(test)])}


def write_files(folder, contents):
    """Writes {name: text} and returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_spm, tmp_path_factory):
    """A model folder: two layers of 32 with a fresh encoder, large enough to learn one word in a few steps."""
    import tf_keras

    from albert_tf import checkpoints
    from albert_tf.config import AlbertConfig
    from albert_tf.tokenization import load_tokenizer

    tf_keras.utils.set_random_seed(7)
    tokenizer = load_tokenizer(tiny_spm)
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=96,
        initializer_range=0.1,
    )
    folder = tmp_path_factory.mktemp("model") / "tiny"
    checkpoints.save_model(folder, checkpoints.new_model(config, {"masked_lm": {}}, tokenizer))
    return folder


@pytest.fixture(scope="session")
def glue_root(tmp_path_factory):
    """A GLUE folder with every task."""
    from tasks.glue import GLUE

    root = tmp_path_factory.mktemp("glue")
    for name, table in GLUE.items():
        if name != "ax":
            write_files(root / table.folder, glue_files(name))
    write_files(root / "AX", {"diagnostic.tsv": rows(("index", "sentence1", "sentence2"), [(0, "a bird", "a stone")])})
    return root


@pytest.fixture(scope="session")
def command():
    """command(name, **flags) -> exit code; flags that are None are left out."""
    from albert_tf.__main__ import main

    def run(name, **flags):
        return main(["albert_tf", name, *(f"--{flag}={value}" for flag, value in flags.items() if value is not None)])

    return run


@pytest.fixture(scope="session")
def finetune(command):
    """finetune(**flags) -> exit code, with small values where none are given."""

    def run(**flags):
        small = {"num_train_steps": 4, "train_batch_size": 8, "max_seq_length": 32, "learning_rate": 1e-3}
        return command("finetune", **{**small, **flags})

    return run


@pytest.fixture(scope="session")
def weights():
    """weights(model folder) -> {name: array}."""
    from albert_tf import checkpoints

    return lambda folder: checkpoints.read_tensors(folder / checkpoints.read_info(folder)[1])


@pytest.fixture(scope="session")
def bright():
    """bright(count) -> [(text, whether it has the word "bright")]."""
    return sentences


@pytest.fixture(scope="session")
def write():
    """write(folder, {file name: text}) -> folder."""
    return write_files
