"""`albert_tf inspect` on models, records and runs."""

import dataclasses
import json
import shutil

import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.config import AlbertConfig
from albert_tf.conversion import huggingface_files
from albert_tf.pretraining import records
from albert_tf.tokenization import load_tokenizer

CONFIG = AlbertConfig(
    vocab_size=800, embedding_size=8, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


def lines_of(capsys, *arguments):
    code = main(["albert_tf", "inspect", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return dict(line.split(": ", 1) for line in out.splitlines())


@pytest.fixture
def model(tiny_spm):
    info = checkpoints.ModelInfo(labels=("no", "yes"), max_seq_length=16)
    return checkpoints.new_model(CONFIG, {"classifier": {"num_labels": 2}}, load_tokenizer(tiny_spm), info=info)


def test_model_folder(tmp_path, capsys, model):
    checkpoints.save_model(tmp_path / "model", model)
    lines = lines_of(capsys, f"--model_dir={tmp_path / 'model'}", "--verify")
    assert lines["kind"].startswith("native")
    assert json.loads(lines["config"]) == dataclasses.asdict(CONFIG)
    assert lines["parameters of classifier"] == "26"  # 12 * 2 + 2
    assert lines["parameters of encoder/pooler"] == "156"  # 12 * 12 + 12
    total = sum(variable.shape.num_elements() for variable in model.named_variables().values())
    assert lines["parameters of all"] == f"{total:,}"
    assert lines["parameters of the encoder"] == f"{total - 26:,}"
    assert lines["tokeniser"] == f"sentencepiece, 800 pieces, SHA-256 {model.tokenizer.hash}"
    assert lines["label names"] == "no, yes"
    assert lines["missing"] == "nothing"
    assert lines["model and source (NumPy)"].startswith("largest difference")


def test_what_is_missing_is_named(tmp_path, capsys):
    model = checkpoints.new_model(CONFIG, {"token_classifier": {"num_labels": 2}})
    model.restored = checkpoints.Restored(new=("encoder/pooler/kernel", "encoder/pooler/bias"))
    (tmp_path / "face").mkdir()
    huggingface_files.write(tmp_path / "face", model)
    values = json.loads((tmp_path / "face" / "config.json").read_text())
    (tmp_path / "face" / "config.json").write_text(json.dumps({k: v for k, v in values.items() if "label" not in k}))
    lines = lines_of(capsys, f"--model_dir={tmp_path / 'face'}")
    assert lines["kind"].startswith("huggingface")
    assert lines["missing"] == (
        "tokeniser, label names of the token_classifier, trained values of encoder/pooler/kernel, encoder/pooler/bias"
    )


def test_damaged_model_is_one_line(tmp_path, capsys, model):
    checkpoints.save_model(tmp_path, model)
    data = tmp_path / "weights-0.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-50])
    assert main(["albert_tf", "inspect", f"--model_dir={tmp_path}"]) == 2
    assert "truncated or damaged" in capsys.readouterr().err


@pytest.fixture
def records_folder(tmp_path):
    payloads = [b"record %d" % i for i in range(5)]
    data = b"".join(records.frame(payloads))
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / records.shard_name(0, 1)).write_bytes(data)
    shard = records.Shard(records.shard_name(0, 1), 5, len(data))
    kinds = {"int": 1, "float": 0.5, "bool": True, "str": "x", "dict[str, float]": {"documents": 3}}
    values = {field.name: kinds.get(getattr(field.type, "__name__", str(field.type))) for field in
              dataclasses.fields(records.RecordsInfo)}  # fmt: skip
    values |= {"masking": "dynamic", "objective": "sop", "token_dtype": "uint16", "num_records": 5, "shards": (shard,)}
    values |= {"counts": {"documents": 3}, "format_version": records.FORMAT_VERSION, "vocabulary_hash": "abc"}
    records.RecordsInfo(**values).write(tmp_path / "records")
    return tmp_path / "records"


def test_records_folder(records_folder, capsys):
    lines = lines_of(capsys, f"--model_dir={records_folder}", "--verify")
    assert lines["kind"] == "records folder (dynamic masking, objective sop)"
    assert lines["records"] == "5 in 1 shards"
    assert lines["vocabulary_hash"] == "abc" and lines["counted documents"] == "3"
    assert lines["verified"] == "checksums of 5 records"


@pytest.mark.parametrize("flag", ["head=span", "hidden_act=gelu", "albert_config_file=albert_config.json"])
def test_flags_of_models_are_refused_for_records(records_folder, capsys, flag):
    assert main(["albert_tf", "inspect", f"--model_dir={records_folder}", f"--{flag}"]) == 2
    printed = capsys.readouterr()
    assert not printed.out and f"--{flag.split('=')[0]} is for models" in printed.err


def test_flipped_bit_in_records_is_found_by_verify(records_folder, capsys):
    shard = records_folder / records.shard_name(0, 1)
    data = bytearray(shard.read_bytes())
    data[14] ^= 1
    shard.write_bytes(data)
    assert main(["albert_tf", "inspect", f"--model_dir={records_folder}"]) == 0
    assert main(["albert_tf", "inspect", f"--model_dir={records_folder}", "--verify"]) == 2
    assert "byte offset 0" in capsys.readouterr().err


def test_verify_reads_the_records_held_out_too(records_folder, capsys):
    shutil.copytree(records_folder, records_folder / "heldout")
    lines = lines_of(capsys, f"--model_dir={records_folder}", "--verify")
    assert lines["verified"] == "checksums of 5 records, and of 5 held out"
    shard = records_folder / "heldout" / records.shard_name(0, 1)
    data = bytearray(shard.read_bytes())
    data[14] ^= 1
    shard.write_bytes(data)
    assert main(["albert_tf", "inspect", f"--model_dir={records_folder}", "--verify"]) == 2
    assert f"{shard} is damaged" in capsys.readouterr().err


def test_run_folder(tmp_path, capsys, model):
    (tmp_path / "checkpoints").mkdir()
    for step in (100, 20):
        (tmp_path / "checkpoints" / f"ckpt-{step}.index").touch()
    (tmp_path / "checkpoints" / "ckpt-mine.index").touch()
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 20, "odd": "\xff"}\n{"step": 100}\n')
    (tmp_path / "run.json").write_text(json.dumps({"command": "pretrain", "settings": {"seed": 1}}))
    lines = lines_of(capsys, f"--model_dir={tmp_path}")
    assert lines["checkpoints at step"] == "20, 100" and lines["last metrics"] == '{"step": 100}'
    assert lines["settings"] == '{"seed": 1}' and lines["model"] == "none saved yet"
    checkpoints.save_model(tmp_path, model, step=100)
    assert lines_of(capsys, f"--model_dir={tmp_path}")["kind"].startswith("native")
