"""The pretraining loop from its command: what it leaves behind, resumes, refuses and survives."""

import dataclasses
import fcntl
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoints
from albert_tf.conversion import release
from albert_tf.errors import UserError
from albert_tf.pretraining.records import RecordsInfo
from tpu import preflight, pretraining, saving
from tpu.progress import read_metrics


def weights_of(folder):
    """Name -> array of the model at the root of a run."""
    return checkpoints.read_tensors(folder / checkpoints.read_info(folder)[1])


def assert_same_weights(first, second):
    first, second = (folder if isinstance(folder, dict) else weights_of(folder) for folder in (first, second))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


# What a run says and leaves


def test_a_run_says_what_it_does(finished, records):
    lines = finished[1].splitlines()
    train, heldout = (RecordsInfo.read(folder).num_records for folder in (records, records / "heldout"))
    assert "1 replica(s) on 1 worker(s), devices device:CPU:0" in lines[0]
    assert lines[1] == "model: own configuration, 24,946 parameters, float32"
    assert lines[2] == (
        f"data: {train:,} sequences of 32, objective sop, dynamic masks, 5 predictions a sequence; evaluation on "
        f"{heldout} held-out sequences"
    )
    assert lines[3].startswith("memory: about ") and lines[4].startswith("lamb: rate 0.01, 2 of 6 steps warm-up")
    assert lines[5].startswith(f"step 0: evaluation on {heldout} held-out sequences: loss ")
    assert lines[6].startswith("step 1/6 | loss ") and lines[6].endswith("(starting)")
    for part in ("masked LM", "accuracy", "sentence order", "rate", "gradient norm", "steps/s", "tokens/s", "input"):
        assert part in lines[7]
    assert lines[7].endswith(" left")
    assert lines[-1].startswith(f"step 6: evaluation on {heldout} held-out sequences: loss ")


def test_metrics_are_kept_as_json_and_for_tensorboard(finished, records):
    lines = read_metrics(finished[0] / "metrics.jsonl")
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluations] == [0, 6]
    assert evaluations[0]["masked_lm_loss"] == pytest.approx(np.log(800), abs=0.1)  # of an untrained model
    heldout = RecordsInfo.read(records / "heldout").num_records
    assert evaluations[0]["sentence_order_pairs"] == heldout
    assert 2 * heldout < evaluations[0]["masked_lm_predictions"] <= 5 * heldout
    assert evaluations[1]["masked_lm_loss"] < evaluations[0]["masked_lm_loss"]
    training = [line for line in lines if line["kind"] == "training"]
    assert training[-1]["step"] == 6 and training[-1]["learning_rate"] == pytest.approx(0.01 * (1 - 5 / 6))
    assert 0 <= training[-1]["input_waiting_share"] <= 1 and training[-1]["gradient_norm"] > 0
    assert training[-1]["tokens_per_second"] == pytest.approx(8 * 32 * training[-1]["steps_per_second"])
    seen = {}
    for kind in ("training", "evaluation"):
        for file in sorted((finished[0] / "tensorboard" / kind).iterdir()):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    seen[kind, event.step, value.tag] = float(tf.make_ndarray(value.tensor))
    for line in lines:
        assert seen[line["kind"], line["step"], "masked_lm_loss"] == pytest.approx(line["masked_lm_loss"], rel=1e-6)


def test_the_run_folder_is_a_model_folder_of_the_last_weights(finished, records):
    model = checkpoints.load_model(finished[0])
    assert set(model.heads) == {"masked_lm", "sentence_order"} and not model.restored.new
    assert model.info.sentence_objective == "sop" and model.info.max_seq_length == 32
    assert model.info.made_by["step"] == 6 and model.info.made_by["command"] == "pretrain"
    assert model.tokenizer.hash == RecordsInfo.read(records).vocabulary_hash
    reader = tf.train.load_checkpoint(str(finished[0] / "checkpoints" / "ckpt-6"))
    for number, (name, variable) in enumerate(model.named_variables().items()):
        stored = reader.get_tensor(f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(variable.numpy(), stored, err_msg=name)
    names = sorted(entry.name for entry in (finished[0] / "checkpoints").iterdir())
    assert [name for name in names if name.endswith(".index")] == ["ckpt-2.index", "ckpt-4.index", "ckpt-6.index"]


# Going on


def test_the_same_command_again_changes_nothing_and_more_steps_go_on(pretrain, copy, records):
    before, metrics = weights_of(copy), (copy / "metrics.jsonl").read_text()
    code, said = pretrain(records, copy)
    assert code == 0 and "resuming at step 6" in said and "step 6: evaluation" not in said
    assert_same_weights(copy, before)
    assert (copy / "metrics.jsonl").read_text() == metrics
    code, said = pretrain(
        records, copy, num_train_steps=8, save_checkpoints_steps=4, keep_checkpoints=1, max_seq_length=32
    )
    assert code == 0 and "resuming at step 6" in said and "step 8: evaluation" in said
    assert checkpoints.read_info(copy)[0].made_by["step"] == 8
    steps = [(line["kind"], line["step"]) for line in read_metrics(copy / "metrics.jsonl")]
    assert (
        steps == sorted(steps, key=lambda pair: pair[1]) and ("evaluation", 6) in steps and ("evaluation", 8) in steps
    )


def test_other_records_to_evaluate_on_are_evaluated_though_they_are_as_many(pretrain, copy, records, tmp_path):
    """Seen: the old evaluation passed for theirs, as their number is the same."""
    other = shutil.copytree(records / "heldout", tmp_path / "other")
    described = json.loads((other / "records.json").read_text())
    (other / "records.json").write_text(json.dumps({**described, "masked_lm_prob": 0.05}))
    code, said = pretrain(records, copy, eval_data_dir=other)
    assert code == 0 and "step 6: evaluation on" in said, said
    old, new = [
        line for line in read_metrics(copy / "metrics.jsonl") if (line["kind"], line["step"]) == ("evaluation", 6)
    ]
    assert old["data"] == new["data"] and new["masked_lm_predictions"] < 0.7 * old["masked_lm_predictions"]
    before = (copy / "metrics.jsonl").read_text()
    assert pretrain(records, copy, eval_data_dir=other)[0] == 0
    assert (copy / "metrics.jsonl").read_text() == before


def test_a_run_in_float16_goes_on_with_its_loss_scale(pretrain, records, tmp_path):
    """The run is set back by two steps, and comes to the same weights, slots and scale."""
    flags = {"mixed_precision": "mixed_float16", "num_train_steps": 4}
    run = tmp_path / "run"
    code, said = pretrain(records, run, **flags)
    assert code == 0, said
    before, state = weights_of(run), checkpoints.read_tensors(run / "checkpoints" / "ckpt-4")
    assert any("loss_scale" in name for name in state)
    for path in [*(run / "checkpoints").glob("ckpt-4*"), run / "checkpoints" / "checkpoint"]:
        path.unlink()
    code, said = pretrain(records, run, **flags)
    assert code == 0 and "resuming at step 2" in said, said
    assert_same_weights(run, before)
    again = checkpoints.read_tensors(run / "checkpoints" / "ckpt-4")
    for name in state:
        if "SAVE_COUNTER" not in name.upper() and "_CHECKPOINTABLE" not in name:
            np.testing.assert_array_equal(again[name], state[name], err_msg=name)


def test_records_at_an_address_that_only_tensorflow_reads(pretrain, refused, finished, records, tmp_path):
    """ram:// stands for gs://, which a remote TPU needs."""
    address = "ram://bucket/records"
    for path in records.rglob("*.*"):
        place = f"{address}/{path.relative_to(records)}"
        tf.io.gfile.makedirs(place.rsplit("/", 1)[0])
        tf.io.gfile.copy(str(path), place)
    code, said = pretrain(address, tmp_path / "run")
    assert code == 0 and "held-out sequences" in said, said
    assert_same_weights(tmp_path / "run", finished[0])
    code, said = pretrain(records, tmp_path / "run", num_train_steps=8)  # the same records, wherever they lie
    assert code == 0 and "resuming at step 6" in said
    refused("ram://bucket/none", tmp_path / "none", words=["no records at ram://bucket/none: expected records.json"])
    tf.io.gfile.remove(f"{address}/records-00001-of-00003.tfrecord")
    refused(address, tmp_path / "none", words=["no records file", "records-00001-of-00003.tfrecord"])


def test_records_as_the_release_leaves_them(pretrain, refused, make_records, tmp_path, tiny_spm):
    """Files alone, which do not say what they are: the tokeniser comes by flag, and the run is that of our folder."""
    made, release_folder = make_records(masking="static", heldout_fraction=0.0, num_shards=2), tmp_path / "release"
    release_folder.mkdir()
    for shard in made.glob("*.tfrecord"):
        shutil.copy(shard, release_folder)
    refused(release_folder, tmp_path / "run", words=["do not say which vocabulary made them", "--spm_model_file"])
    flags = {"num_train_steps": 2, "spm_model_file": tiny_spm}
    words = ["max_predictions_per_seq is 5 in the records, whose masks are static, but 3 in the flag"]
    refused(release_folder, tmp_path / "run", **flags, max_predictions_per_seq=3, words=words)
    assert not (tmp_path / "run").exists()
    code, said = pretrain(release_folder, tmp_path / "run", **flags)
    assert code == 0 and "static masks, 5 predictions a sequence; evaluation on a sample of" in said, said
    assert "TRAINING sequences" in said
    assert pretrain(made, tmp_path / "ours", num_train_steps=2)[0] == 0
    assert_same_weights(tmp_path / "run", tmp_path / "ours")
    assert checkpoints.load_model(tmp_path / "run").tokenizer.path.name == "spiece.model"
    code, said = pretrain(f"{release_folder}/*.tfrecord", tmp_path / "run", **{**flags, "num_train_steps": 3})
    assert code == 0 and "resuming at step 2" in said, said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.02}, ["learning_rate 0.01, now it is 0.02"]),
        ({"train_batch_size": 16}, ["train_batch_size 8, now it is 16"]),
        ({"seed": 1, "optimizer": "adamw"}, ["optimizer 'lamb', now it is 'adamw'", "(and seed)"]),
        ({"hidden_dropout": 0.1}, ["holds a run with model.hidden_dropout_prob 0.0, now it is 0.1: to go on"]),
        ({"max_predictions_per_seq": 3}, ["max_predictions_per_seq 5, now it is 3"]),
        ({"mixed_precision": "mixed_bfloat16"}, ["mixed_precision 'float32'"]),
        ({"deterministic": "true"}, ["deterministic False, now it is True"]),
        ({"init_checkpoint": "elsewhere"}, ["init_checkpoint None, now it is 'elsewhere'"]),
        ({"num_train_steps": 4}, ["has trained 6 steps already", "--num_train_steps=4"]),
    ],
)
def test_another_run_is_refused_by_name(refused, finished, records, monkeypatch, change, words):
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)  # it could not be taken back
    before = {
        path.name: path.stat().st_mtime_ns for path in finished[0].iterdir() if path.name not in (".lock", "run.json")
    }
    refused(records, finished[0], **change, words=[str(finished[0]), *words])
    assert before == {
        path.name: path.stat().st_mtime_ns for path in finished[0].iterdir() if path.name not in (".lock", "run.json")
    }


def test_other_records_are_another_run(refused, finished, make_records):
    other = make_records(random_seed=1)
    refused(other, finished[0], words=["holds a run with records "])


def test_a_damaged_newest_checkpoint_is_passed_over(pretrain, refused, copy, records):
    newest = copy / "checkpoints" / "ckpt-6.data-00000-of-00001"
    newest.write_bytes(newest.read_bytes()[:-1000])
    before = weights_of(copy)
    code, said = pretrain(records, copy)
    assert code == 0, said
    assert f"WARNING: {copy / 'checkpoints' / 'ckpt-6'} cannot be read" in said and "resuming at step 4" in said
    for name, value in weights_of(copy).items():
        np.testing.assert_allclose(value, before[name], atol=1e-6, err_msg=name)
    for path in (copy / "checkpoints").glob("*.data*"):
        path.write_bytes(b"")
    refused(records, copy, num_train_steps=8, words=["none of the 3 checkpoints in"])


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00 no list"])
def test_a_lost_list_of_checkpoints_does_not_start_the_run_anew(pretrain, copy, records, content):
    names = copy / "checkpoints" / "checkpoint"
    names.unlink() if content is None else names.write_bytes(content)
    code, said = pretrain(records, copy, num_train_steps=8)
    assert code == 0 and "resuming at step 6" in said, said


def test_a_run_killed_between_checkpoint_and_model_folder_brings_the_folder_up(pretrain, copy, records):
    expected = weights_of(copy)
    for path in copy.glob("weights-6*"):
        path.rename(path.with_name(path.name.replace("weights-6", "weights-4")))
    info = json.loads((copy / "model.json").read_text())
    info["weights"], info["made_by"]["step"] = "weights-4", 4
    (copy / "model.json").write_text(json.dumps(info))
    assert pretrain(records, copy)[0] == 0
    assert checkpoints.read_info(copy)[1] == "weights-6" and not list(copy.glob("weights-4*"))
    assert_same_weights(copy, expected)


def test_what_is_left_out_is_told_of_both_kinds_of_records():
    def source(folder, num_records, read, skipped):
        info = SimpleNamespace(num_records=num_records)
        return SimpleNamespace(info=info, num_records=read, num_skipped=skipped, paths=[f"{folder}/records"])

    whole, torn = source("a", 9, 9, 0), source("b", 1009, 1000, 2)
    assert pretraining._left_out(preflight.PretrainingData(whole, None, whole, "")) == []
    assert pretraining._left_out(preflight.PretrainingData(torn, None, torn, "")) == [
        "WARNING: 2 damaged records are left out, and 7 behind them (b)"
    ]
    held_out = source("b/heldout", 50, 49, 1)
    said = pretraining._left_out(preflight.PretrainingData(whole, None, held_out, ""))
    assert said == ["WARNING: 1 damaged records are left out (b/heldout)"]


def test_a_rate_beyond_what_is_published_for_the_batch_is_told(pretrain, records, tmp_path, monkeypatch):
    assert "NOTICE" not in pretrain(records, tmp_path / "narrow", num_train_steps=1, num_warmup_steps=1)[1]
    monkeypatch.setattr(pretraining, "_RATES_KNOWN_FROM", 32)  # as if published for models as narrow as this one
    code, said = pretrain(records, tmp_path / "known", num_train_steps=1, num_warmup_steps=1)
    assert code == 0 and "NOTICE: learning rate 0.01 is 128.6 times the 7.78e-05 suggested for lamb" in said


# Where a run must not go


def test_foreign_locked_and_unwritable_folders_are_refused(refused, finished, records, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear reader")
    refused(records, foreign, words=["holds letter.txt but no run.json"])
    assert [path.name for path in foreign.iterdir()] == ["letter.txt"]
    with open(finished[0] / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(records, finished[0], words=["is in use by another run"])
    refused(records, foreign / "letter.txt", words=["cannot write to", "--output_dir"])
    refused(records, "/proc/none/run", words=["cannot write to /proc/none/run"])
    for name in ("run[1]", "run*", "back\\slash"):  # TensorFlow writes checkpoints there that it does not find again
        refused(records, tmp_path / name, words=[f"{name} has one of * ? [ ] \\ in its name", "--output_dir"])
        assert not (tmp_path / name).exists()
    shutil.copytree(finished[0], tmp_path / "tuned")
    described = json.loads((tmp_path / "tuned" / "run.json").read_text())
    (tmp_path / "tuned" / "run.json").write_text(json.dumps({**described, "command": "finetune"}))
    refused(records, tmp_path / "tuned", words=["holds a run of 'finetune', not of 'pretrain'"])
    (tmp_path / "tuned" / "run.json").write_text("{")
    refused(records, tmp_path / "tuned", words=["run.json is not valid JSON"])


@pytest.mark.parametrize("settings", [5, [], None, "x"])
def test_a_damaged_run_description_is_refused(refused, copy, records, settings):
    described = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**described, "settings": settings}))
    refused(records, copy, words=["run.json is damaged: found settings"])


def test_wrong_input_is_refused_before_work_and_leaves_nothing(
    refused, records, make_records, config_file, tmp_path, tiny_spm
):
    folder = tmp_path / "run"
    larger = tmp_path / "larger.json"
    config = json.loads(config_file.read_text())
    larger.write_text(json.dumps({**config, "vocab_size": 900}))
    shorter = tmp_path / "shorter.json"
    shorter.write_text(json.dumps({**config, "max_position_embeddings": 16}))
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps({**config, "hiden_size": 16}))
    bare = shutil.copytree(records, tmp_path / "bare")
    (bare / "spiece.model").unlink()
    foreign = shutil.copytree(records / "heldout", tmp_path / "foreign")
    dataclasses.replace(RecordsInfo.read(foreign), vocabulary_hash="0" * 64).write(foreign)
    other_vocabulary = tmp_path / "vocab.txt"
    other_vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    cases = [
        ({"data_dir": tmp_path / "none"}, ["no records at", "none"]),
        ({"data_dir": tmp_path}, ["no records in", "records.json"]),
        ({"data_dir": bare}, ["has no tokeniser file"]),
        ({"data_dir": bare, "vocab_file": other_vocabulary}, ["another vocabulary than", "800 pieces", "6 pieces"]),
        ({"eval_data_dir": tmp_path / "none"}, ["no records at"]),
        ({"eval_data_dir": foreign}, [f"of the records to evaluate on, {foreign}: ", "made with another vocabulary"]),
        ({"eval_data_dir": make_records(objective="nsp")}, ["objective sop, those to evaluate on nsp"]),
        ({"albert_config_file": larger}, ["vocab_size is 800 in the records but 900 in the model"]),
        ({"albert_config_file": shorter}, ["32 tokens a row but the model has 16 positions"]),
        ({"albert_config_file": unknown}, ["unknown key 'hiden_size'", "'hidden_size'"]),
        ({"albert_config_file": tmp_path / "none.json"}, ["no model configuration at"]),
        ({"albert_config_file": None}, ["give one of --preset=NAME and --albert_config_file=FILE"]),
        ({"albert_config_file": None, "preset": "albert_huge"}, ["unknown preset 'albert_huge'"]),
        ({"max_seq_length": 64}, ["max_seq_length is 32 in the records but 64 in the flag"]),
        ({"train_batch_size": 4096}, ["fewer than one batch", "4096"]),
        ({"train_batch_size": 9, "grad_accum_steps": 2}, ["train_batch_size is 9: expected a multiple of 1 replica"]),
        ({"num_warmup_steps": 7}, ["num_warmup_steps is 7, num_train_steps 6"]),
        ({"distribution": "gpu"}, ["TensorFlow sees no GPU"]),
        ({"tpu_name": "local"}, ["tpu_name is 'local' with distribution cpu"]),
        ({"hidden_dropout": 1.5}, ["hidden_dropout_prob is 1.5"]),
        ({"init_checkpoint": tmp_path / "none"}, ["none"]),
        ({"spm_model_file": tiny_spm, "vocab_file": other_vocabulary}, ["are both given"]),
    ]
    for flags, words in cases:
        refused(**{"data_dir": records, "output_dir": folder, **flags}, words=[*words])
        assert not folder.exists(), flags


def test_a_tokeniser_that_is_named_follows_the_text_rules_of_the_records(records, tmp_path, tiny_spm):
    copy = shutil.copytree(records, tmp_path / "records")
    (copy / "spiece.model").unlink()
    described = json.loads((copy / "records.json").read_text())
    described |= {"do_lower_case": False, "keep_accents": True}
    (copy / "records.json").write_text(json.dumps(described))
    given = {"data_dir": str(copy), "tokenizer_file": str(tiny_spm), "eval_data_dir": None}
    tokenizer = preflight.open_data(SimpleNamespace(**given, skip_corrupt_records=False)).tokenizer
    assert (tokenizer.do_lower_case, tokenizer.keep_accents) == (False, True)


# Starting from weights


def test_init_checkpoint_takes_weights_and_names_what_is_new(pretrain, finished, records, tmp_path):
    """From a run folder, from a release checkpoint, and from one without heads; the optimiser starts anew."""
    source = checkpoints.load_model(finished[0])
    (tmp_path / "release").mkdir()
    release.write(tmp_path / "release", source)
    del source.heads["sentence_order"]
    checkpoints.save_model(tmp_path / "headless", with_its_heads_only(source))
    flags = {"num_train_steps": 1, "num_warmup_steps": 1, "eval_every_steps": 1}
    evaluations = {}
    for name, start in (("run", finished[0]), ("release", tmp_path / "release"), ("headless", tmp_path / "headless")):
        folder = tmp_path / f"from_{name}"
        code, said = pretrain(records, folder, init_checkpoint=start, **flags)
        assert code == 0, said
        evaluations[name] = read_metrics(folder / "metrics.jsonl")[0]
        assert f"variables from {start}" in said
        assert ("WARNING: NEW" in said) == (name == "headless"), said
    assert f"WARNING: NEW, not in {tmp_path / 'headless'}: sentence_order/kernel, sentence_order/bias" in said
    last = read_metrics(finished[0] / "metrics.jsonl")[-1]
    for name, evaluation in evaluations.items():
        assert evaluation["masked_lm_loss"] == pytest.approx(last["masked_lm_loss"], abs=1e-5)
        same = evaluation["sentence_order_loss"] == pytest.approx(last["sentence_order_loss"], abs=1e-5)
        assert same == (name != "headless")
    # Rate 0 at the first step: the weights are still those of the start, in spite of a used optimiser there.
    assert_same_weights(tmp_path / "from_run", finished[0])


def test_another_run_starts_from_an_earlier_step(pretrain, finished, copy, records, tmp_path, monkeypatch):
    step_2 = finished[0] / "checkpoints" / "ckpt-2"
    model = checkpoints.load_model(step_2)
    assert set(model.heads) == {"masked_lm", "sentence_order"} and not model.restored.new
    assert model.info.made_by["step"] == 2 and model.tokenizer.hash == RecordsInfo.read(records).vocabulary_hash
    reader = tf.train.load_checkpoint(str(step_2))
    weights = {name: variable.numpy() for name, variable in model.named_variables().items()}
    for number, (name, value) in enumerate(weights.items()):
        stored = reader.get_tensor(f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(value, stored, err_msg=name)
    last = weights_of(finished[0])
    assert max(np.abs(value - last[name]).max() for name, value in weights.items()) > 1e-4
    flags = {"init_checkpoint": f"{step_2}.index", "num_train_steps": 1, "num_warmup_steps": 1}
    code, said = pretrain(records, tmp_path / "run", **flags)
    assert code == 0 and "WARNING" not in said, said
    assert_same_weights(tmp_path / "run", weights)  # rate 0 at the first step
    with pytest.raises(UserError, match="holds the checkpoints of a run: give the run folder .*, such as .*/ckpt-2"):
        checkpoints.load_model(step_2.parent)
    with monkeypatch.context() as patch:  # paths as they are in the folder itself
        patch.chdir(step_2.parent)
        assert checkpoints.load_model("ckpt-2").info.made_by["step"] == 2
        with pytest.raises(UserError, match=f"give the run folder {finished[0]} for the latest weights"):
            checkpoints.load_model(".")
    described = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(
        json.dumps({**described, "heads": {"masked_lm": {}, "span": {}, "regression": {}}})
    )
    with pytest.raises(UserError, match="ckpt-2 does not hold the .* weights of the model in"):
        checkpoints.load_model(copy / "checkpoints" / "ckpt-2")


def with_its_heads_only(model):
    heads = {name: options for name, options in model.info.heads.items() if name in model.heads}
    return dataclasses.replace(model, info=dataclasses.replace(model.info, heads=heads))


def test_a_run_killed_before_its_first_checkpoint_still_starts_from_the_weights(
    pretrain, finished, records, tmp_path, monkeypatch
):
    flags = {"init_checkpoint": finished[0], "num_train_steps": 1, "num_warmup_steps": 1}
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(saving.Saver, "save", lambda self: 1 / 0)
        pretrain(records, tmp_path / "run", **flags)
    assert (tmp_path / "run" / "run.json").exists()
    code, said = pretrain(records, tmp_path / "run", **flags)
    assert code == 0 and f"variables from {finished[0]}" in said
    assert_same_weights(tmp_path / "run", finished[0])


def test_init_checkpoint_of_another_vocabulary_leaves_nothing(refused, finished, records, tmp_path):
    other = shutil.copytree(finished[0], tmp_path / "other")
    info = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps({**info, "vocabulary_hash": "0" * 64}))
    refused(records, tmp_path / "run", init_checkpoint=other, words=["hash", "put the right file back"])
    (other / "spiece.model").unlink()  # model.json still knows
    words = ["the model was made with 000000000000", "or make the records with the vocabulary of the model"]
    refused(records, tmp_path / "run", init_checkpoint=other, words=words)
    assert not (tmp_path / "run").exists()
