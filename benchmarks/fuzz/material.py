"""What the cases damage: a tiny vocabulary, models of every kind, records, task files and texts, all whole."""

import contextlib
import gzip
import io
import json
import os
import pathlib
import pickle
import shutil
import tarfile
import types
import zipfile
from collections.abc import Iterator
from unittest import mock

from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError

_CONFIG = AlbertConfig(
    vocab_size=300,
    embedding_size=8,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
LENGTH = 32  # tokens a record
# Fine-tuned models: folder -> (task, head with its options, labels).
_TASKS = {
    "classifier": ("classification", {"classifier": {"num_labels": 2}}, ("no", "yes")),
    "regression": ("regression", {"regression": {}}, None),
    "mrpc": ("mrpc", {"classifier": {"num_labels": 2}}, ("0", "1")),
    "squad": ("squad1.1", {"span": {}}, None),
    "squad2": ("squad2.0", {"conditional_span": {}}, None),
    "race": ("race", {"multiple_choice": {}}, None),
    "tokens": ("tokens", {"token_classifier": {"num_labels": 3}}, ("O", "B-PER", "I-PER")),
}
_OPTIONS = dict.fromkeys(("squad", "squad2"), {"max_query_length": 8, "doc_stride": 8}) | {
    "race": {"max_qa_length": 12}
}
_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "aeinorst")]
CONTEXT = "The river flows past the old stone bridge, where birds sing in winter and the market opens in spring."


def make(folder: pathlib.Path) -> None:
    """Makes everything in a new folder; takes about half a minute, most of it TensorFlow's start.

    Nothing of it depends on chance, but the weights of models.
    """
    import tf_keras

    folder.mkdir(parents=True)
    tf_keras.utils.set_random_seed(1)
    _make_texts(folder / "texts")
    _make_vocabularies(folder)
    _make_models(folder)
    _make_foreign_models(folder)
    _make_records(folder)
    _make_tables(folder / "tables")
    _make_questions(folder)
    _run(folder, "pretrain", data_dir="records", output_dir="run", albert_config_file="model/albert_config.json")
    (folder / "random").write_bytes(bytes(range(256)))


def _make_texts(folder: pathlib.Path) -> None:
    from albert_tf.pretraining import prose

    folder.mkdir()
    documents = list(prose.topics().items())[10:40]
    text = "\n\n".join(text for _, text in documents)[:30_000]
    (folder / "prose.txt").write_text(text, encoding="utf-8")
    with gzip.open(folder / "prose.txt.gz", "wt", encoding="utf-8") as file:
        file.write(text[:15_000])
    with tarfile.open(folder / "prose.tar.gz", "w:gz") as archive:
        for name, document in documents[:6]:
            member = tarfile.TarInfo(f"books/{name}.txt")
            data = document.encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (folder / "lines.txt").write_text("a list of names\nthe value is set\n\nan empty list\n")
    (folder / "masks.txt").write_text("The [MASK] is a list.\nA [MASK] of [MASK] ||| the value.\n")


def _make_vocabularies(folder: pathlib.Path) -> None:
    from albert_tf.pretraining.vocabulary import train_vocabulary

    texts = str(folder / "texts" / "prose.txt")
    train_vocabulary(texts, folder / "vocab", vocab_size=_CONFIG.vocab_size, report=lambda line: None)
    (folder / "wordpiece").mkdir()
    (folder / "wordpiece" / "vocab.txt").write_text("\n".join(_PIECES) + "\n")


def _make_models(folder: pathlib.Path) -> None:
    from albert_tf import checkpoints
    from albert_tf.tokenization import load_tokenizer
    from tasks.catalog import make_task

    tokenizer = load_tokenizer(folder / "vocab")
    info = checkpoints.ModelInfo(sentence_objective="sop", max_seq_length=LENGTH)
    model = checkpoints.new_model(_CONFIG, {"masked_lm": {}, "sentence_order": {}}, tokenizer, info=info)
    checkpoints.save_model(folder / "model", model)
    for name, (task, heads, labels) in _TASKS.items():
        options = _OPTIONS.get(name, {})
        described = make_task(task, max_seq_length=LENGTH, labels=labels, options=options).describe()
        info = checkpoints.ModelInfo(**described)
        checkpoints.save_model(folder / name, checkpoints.new_model(_CONFIG, heads, tokenizer, info=info))
    _make_export(folder / "export", checkpoints.load_model(folder / "classifier"))


def _make_export(folder: pathlib.Path, model) -> None:
    """An export as `albert_tf export` makes it, without the check in a process of its own."""
    from albert_tf.export import saved_model, versions
    from tasks.catalog import task_of
    from tasks.serving import serving_of

    ids = serving_of(task_of(model.info, "the model"), model).ids_signature()
    folder.mkdir()
    saved_model.write_saved_model(folder / "1", {"serving_default": ids}, encoder=model.encoder)
    versions.write_manifest(folder / "1", model, format="saved_model", precision="float32", ops={"custom": []})


def _make_foreign_models(folder: pathlib.Path) -> None:
    from albert_tf import checkpoints
    from albert_tf.conversion import huggingface_files, release

    model = checkpoints.load_model(folder / "model")
    for name, write in (("release", release.write), ("face", huggingface_files.write)):
        (folder / name).mkdir()
        write(folder / name, model)
    shutil.copytree(folder / "face", folder / "torch")
    _write_torch(folder / "torch" / "pytorch_model.bin", folder / "torch" / "model.safetensors")
    (folder / "torch" / "model.safetensors").unlink()
    (folder / "archives").mkdir()
    with tarfile.open(folder / "archives" / "release.tar.gz", "w:gz") as archive:
        archive.add(folder / "release", "albert")


def _write_torch(path: pathlib.Path, weights: pathlib.Path) -> None:
    """The tensors of a safetensors file in the zip form of PyTorch's file, by stand-ins under PyTorch's names."""
    import safetensors.numpy

    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch"})

    def rebuild(*_):
        raise AssertionError("only its name is used")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2, torch._utils = rebuild, utils

    class Storage:
        def __init__(self, key, array):
            self.key, self.array = key, array

    class Tensor:
        def __init__(self, storage):
            self.storage = storage

        def __reduce__(self):
            shape = self.storage.array.shape
            steps = tuple(step // 4 for step in self.storage.array.strides)
            return rebuild, (self.storage, 0, shape, steps, False, {})

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            return (
                ("storage", torch.FloatStorage, item.key, "cpu", item.array.size) if isinstance(item, Storage) else None
            )

    tensors = safetensors.numpy.load_file(weights)
    storages = {name: Storage(str(number), array) for number, (name, array) in enumerate(tensors.items())}
    pickled = io.BytesIO()
    with mock.patch.dict("sys.modules", {"torch": torch, "torch._utils": utils}):
        Pickler(pickled, protocol=2).dump({name: Tensor(storage) for name, storage in storages.items()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickled.getvalue())
        for storage in storages.values():
            archive.writestr(f"model/data/{storage.key}", storage.array.tobytes())


def _make_records(folder: pathlib.Path) -> None:
    texts = {"input_file": "texts/prose.txt", "spm_model_file": "vocab/spiece.model", "max_seq_length": LENGTH}
    for name, masking in (("records", "dynamic"), ("static", "static")):
        more = {"masking": masking, "num_shards": 2, "num_workers": 1}
        _run(folder, "create_pretraining_data", output_dir=name, **texts, **more)
    shutil.copytree(folder / "static", folder / "released")  # as the release makes them: nothing describes them
    (folder / "released" / "records.json").unlink()


def _make_tables(folder: pathlib.Path) -> None:
    folder.mkdir()
    rows = [(f"a list of {word}", f"the {word} is empty", "yes" if len(word) % 2 else "no") for word in CONTEXT.split()]
    (folder / "rows.tsv").write_text("".join(f"{a}\t{c}\n" for a, _, c in [("text", "", "label"), *rows]))
    (folder / "rows.csv").write_text("".join(f'"{a}",{c}\n' for a, _, c in [("text", "", "label"), *rows]))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": a, "label": c}) + "\n" for a, _, c in rows))
    (folder / "numbers.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{len(b) / 7}\n" for a, b, _ in rows))
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (folder / "mrpc.tsv").write_text(
        header + "".join(f"{len(c) % 2}\t{i}\t{i}\t{a}\t{b}\n" for i, (a, b, c) in enumerate(rows))
    )


def _make_questions(folder: pathlib.Path) -> None:
    (folder / "questions").mkdir()
    answer = {"text": "river", "answer_start": CONTEXT.index("river")}
    asked = [
        {"id": f"q{i}", "question": f"What {word} past?", "answers": [answer]}
        for i, word in enumerate("flows is".split())
    ]
    impossible = {"id": "q3", "question": "Who?", "is_impossible": True, "answers": []}
    second = [{**question, "is_impossible": False} for question in asked] + [impossible]
    for name, version, questions in (("squad", "1.1", asked), ("squad2", "v2.0", second)):
        data = [{"title": "River", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]
        (folder / "questions" / f"{name}.json").write_text(json.dumps({"version": version, "data": data}))
    passage = {
        "article": CONTEXT,
        "questions": ["What flows?", "Birds sing in _ ."],
        "options": [["river", "stone", "market"], ["winter", "spring"]],
        "answers": ["A", "A"],
        "id": "high1.txt",
    }
    (folder / "passages" / "high").mkdir(parents=True)
    (folder / "passages" / "high" / "1.txt").write_text(json.dumps(passage))
    words = [f"{word} {'B-PER' if word.istitle() else 'O'}" for word in CONTEXT.split()]
    (folder / "questions" / "words.conll").write_text("\n".join(words[:9]) + "\n\n" + "\n".join(words[9:]) + "\n")


def _run(folder: pathlib.Path, command: str, **given) -> None:
    """Runs a command on whole material; raises UserError where it does not take it."""
    from albert_tf.__main__ import main

    if command == "pretrain":
        given |= {"num_train_steps": 2, "num_warmup_steps": 1, "train_batch_size": 4, "save_checkpoints_steps": 1}
        given |= {"eval_batch_size": 4, "distribution": "cpu"}
    said = io.StringIO()
    with inside(folder), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(["albert_tf", command, *(f"--{name}={value}" for name, value in given.items())])
    if code:
        raise UserError(f"the material for the cases cannot be made: {said.getvalue()}")


@contextlib.contextmanager
def inside(folder: pathlib.Path) -> Iterator[None]:
    """Makes a folder the current one for a while."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
