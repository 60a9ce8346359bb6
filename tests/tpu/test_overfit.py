"""albert_tiny learns 64 sequences by heart, in float32 and in bfloat16: the model, its gradients and the loop work."""

import dataclasses

import pytest

from albert_tf.pretraining import records
from tpu.progress import read_metrics


@pytest.fixture(scope="module")
def few_records(make_records, tmp_path_factory):
    """A function that gives a folder of 64 records with a kind of masking."""

    def make(masking):
        source = make_records(max_seq_length=16, masking=masking, heldout_fraction=0.0, num_shards=1)
        info = records.RecordsInfo.read(source)
        folder = tmp_path_factory.mktemp("few")
        payloads = [
            payload for payload, _ in zip(records.read_payloads(info.paths(source)[0]), range(64), strict=False)
        ]
        content = b"".join(records.frame(payloads))
        (folder / info.shards[0].name).write_bytes(content)
        shard = records.Shard(info.shards[0].name, 64, len(content))
        dataclasses.replace(info, num_records=64, shards=(shard,)).write(folder)
        for name in ("spiece.model", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
        return folder

    return make


def overfit(pretrain, data, folder, **flags):
    """The last evaluation, on the 64 sequences themselves."""
    code, said = pretrain(
        data,
        folder,
        albert_config_file=None,
        preset="albert_tiny",
        optimizer="adamw",
        bias_correction="true",
        save_checkpoints_steps=100_000,
        eval_every_steps=100_000,
        train_batch_size=16,
        **flags,
    )
    assert code == 0, said
    return read_metrics(folder / "metrics.jsonl")[-1], said


@pytest.mark.parametrize("mixed_precision", ["float32", "mixed_bfloat16"])
def test_64_sequences_with_their_masks(pretrain, few_records, tmp_path, mixed_precision):
    flags = {"num_train_steps": 160, "num_warmup_steps": 16, "learning_rate": 2e-3}
    last, said = overfit(pretrain, few_records("static"), tmp_path / "run", mixed_precision=mixed_precision, **flags)
    assert "evaluation on a sample of 64 TRAINING sequences" in said
    assert last["masked_lm_loss"] < 0.5 and last["sentence_order_accuracy"] > 0.95, said


@pytest.mark.slow
@pytest.mark.parametrize("mixed_precision", ["float32", "mixed_bfloat16"])
def test_64_sequences_under_masks_that_change(pretrain, few_records, tmp_path, mixed_precision):
    """Masks anew each epoch, measured under masks never seen: the words themselves have to be learnt by heart."""
    flags = {"num_train_steps": 1200, "num_warmup_steps": 60, "learning_rate": 1e-3}
    last, said = overfit(pretrain, few_records("dynamic"), tmp_path / "run", mixed_precision=mixed_precision, **flags)
    assert last["masked_lm_loss"] < 0.5 and last["sentence_order_accuracy"] > 0.95, said
