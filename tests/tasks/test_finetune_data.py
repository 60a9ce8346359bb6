"""Own tables, ensembles, submissions, wrong inputs: through the command line."""

import json
import shutil

import numpy as np
import pytest

from albert_tf.errors import UserError
from tasks.catalog import make_task
from tasks.finetuned import asked_task


@pytest.fixture(scope="module")
def own(tmp_path_factory, bright, write):
    """Two texts and a word as label, in three formats; a number as label."""
    folder = tmp_path_factory.mktemp("own")
    lines = [(text, "it is", ("dull", "shiny")[label]) for text, label in bright(16)]
    write(
        folder,
        {
            "train.csv": "a,b,kind\n" + "".join(f'"{a}, so",{b},{kind}\n' for a, b, kind in lines),
            "dev.jsonl": "".join(json.dumps({"a": a, "b": b, "kind": kind}) + "\n" for a, b, kind in lines[:8]),
            "unlabelled.tsv": "id\ta\tb\n" + "".join(f"row{i}\t{a}\t{b}\n" for i, (a, b, _) in enumerate(lines[:7])),
            "numbers.tsv": "text\tlabel\n" + "".join(f"{a}\t{len(a)}\n" for a, _, _ in lines),
        },
    )
    return folder


@pytest.fixture(scope="module")
def classifiers(own, tiny_model, tmp_path_factory, finetune):
    """Two models for the own data."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        assert (
            finetune(
                task_name="classification",
                train_file=own / "train.csv",
                eval_file=own / "dev.jsonl",
                text_columns="a,b",
                label_column="kind",
                model_dir=tiny_model,
                output_dir=runs / str(seed),
                seed=seed,
            )
            == 0
        )
    return runs


def _probabilities(path):
    header, *lines = [line.split("\t") for line in path.read_text().splitlines()]
    return header, [line[0] for line in lines], np.array([line[2:] for line in lines], float)


def test_own_classification(own, classifiers, tmp_path, command):
    info = json.loads((classifiers / "1/model.json").read_text())
    assert info["labels"] == ["dull", "shiny"]
    assert info["task_options"] == {"text_columns": ["a", "b"], "label_column": "kind"}
    assert command("evaluate", model_dir=classifiers / "1", input_file=own / "dev.jsonl") == 0
    flags = {"input_file": own / "unlabelled.tsv", "output_file": tmp_path / "p.tsv"}
    assert command("predict", model_dir=classifiers / "1", **flags) == 0
    header, ids, probabilities = _probabilities(tmp_path / "p.tsv")
    assert header == ["id", "prediction", "probability_dull", "probability_shiny"]
    assert ids == [f"row{i}" for i in range(7)] and probabilities.shape == (7, 2)


def test_predictions_do_not_depend_on_labels(own, classifiers, tmp_path, command):
    """Those of a file whose labels are kept in the cache, not known, or no labels at all."""
    rows = [(a, "it is") for a in ("bright", "so dim")]
    for name, kinds in {"known": ("shiny", "dull"), "odd": ("", "never seen")}.items():
        lines = [f"{a}\t{b}\t{kind}\n" for (a, b), kind in zip(rows, kinds, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("a\tb\tkind\n" + "".join(lines))
    model = {"model_dir": classifiers / "1", "cache_dir": tmp_path / "cache"}
    assert command("evaluate", **model, input_file=tmp_path / "known.tsv", output_file=tmp_path / "evaluated.tsv") == 0
    for name in ("known", "odd"):
        files = {"input_file": tmp_path / f"{name}.tsv", "output_file": tmp_path / f"{name}.out.tsv"}
        assert command("predict", **model, **files) == 0
        assert (tmp_path / f"{name}.out.tsv").read_text() == (tmp_path / "evaluated.tsv").read_text()


def test_rows_longer_than_the_positions_are_refused(own, classifiers, tmp_path, capfd, command):
    """As when model.json comes from another model: such rows would fail in the middle of TensorFlow's graph."""
    folder = tmp_path / "model"
    shutil.copytree(classifiers / "1", folder)
    info = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**info, "max_seq_length": 97}))
    assert command("evaluate", model_dir=folder, input_file=own / "dev.jsonl") == 2
    assert "says max_seq_length 97, albert_config.json has 96 positions" in capfd.readouterr().err


def test_ensembles_average_also_over_another_order_of_labels(own, classifiers, tmp_path, capfd, command):
    swapped = tmp_path / "swapped"
    from albert_tf import checkpoints
    from tasks.finetuned import load_finetuned, reorder_labels

    model, task = load_finetuned(classifiers / "2")
    reorder_labels(model, task, ("shiny", "dull"))
    import dataclasses

    info = dataclasses.replace(model.info, labels=("shiny", "dull"))
    checkpoints.save_model(swapped, dataclasses.replace(model, info=info))
    answers = {}
    for name, models in {
        "one": {"model_dir": classifiers / "1"},
        "two": {"model_dir": classifiers / "2"},
        "swapped": {"model_dir": swapped},
        "both": {"ensemble": f"{classifiers / '1'},{swapped}"},
    }.items():
        flags = {"input_file": own / "unlabelled.tsv", "output_file": tmp_path / f"{name}.tsv"}
        assert command("predict", **models, **flags) == 0
        answers[name] = _probabilities(tmp_path / f"{name}.tsv")[2]
    assert np.abs(answers["one"] - answers["two"]).max() > 1e-3
    np.testing.assert_allclose(answers["swapped"][:, ::-1], answers["two"], atol=2e-6)
    np.testing.assert_allclose(answers["both"], (answers["one"] + answers["two"]) / 2, atol=2e-6)
    assert "labels reordered from shiny, dull to dull, shiny" in capfd.readouterr().err


def test_own_regression_that_stays_constant_is_called_so(own, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "regression", "train_file": own / "numbers.tsv", "eval_file": own / "numbers.tsv"}
    given |= {"model_dir": tiny_model, "output_dir": tmp_path / "run", "learning_rate": 0.0, "classifier_dropout": 0.0}
    assert finetune(**given, num_train_steps=1) == 0  # exit code 0: the run did what it was asked to
    out = capfd.readouterr().out
    assert "DEGENERATE RUN" in out
    assert json.loads((tmp_path / "run/results.json").read_text())["degenerate"]


def test_a_score_that_is_not_defined_is_null_in_the_files(own, tiny_model, tmp_path, capfd, finetune, write):
    """Pearson's of labels that are all the same; NaN is no JSON."""
    write(tmp_path / "data", {"same.tsv": "text\tlabel\na river\t3\nthe stone\t3\n"})
    given = {"task_name": "regression", "train_file": own / "numbers.tsv", "eval_file": tmp_path / "data/same.tsv"}
    given |= {"model_dir": tiny_model, "output_dir": tmp_path / "run", "num_train_steps": 3, "early_stop_patience": 1}
    assert finetune(**given) == 0
    assert "pearson nan" in (out := capfd.readouterr().out)
    assert finetune(**given) == 0 and capfd.readouterr().out == out  # read back from the folder
    texts = [(tmp_path / "run/results.json").read_text(), (tmp_path / "run/model.json").read_text()]
    texts += (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    values = [json.loads(text, parse_constant=pytest.fail) for text in texts]
    assert values[0]["score"] is None
    assert values[0]["best_step"] == values[1]["made_by"]["step"] == 3  # nothing tells them apart: not the first


def test_without_development_data_the_last_weights_are_kept(own, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "regression", "train_file": own / "numbers.tsv", "model_dir": tiny_model}
    assert finetune(**given, output_dir=tmp_path / "run", num_train_steps=2) == 0
    assert "no development data" in capfd.readouterr().err
    assert json.loads((tmp_path / "run/model.json").read_text())["made_by"]["step"] == 2


def test_glue_submission(glue_root, tiny_model, tmp_path, capfd, command, finetune, bright, write):
    given = {"task_name": "wnli", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given, num_train_steps=1) == 0
    lines = "".join(f"{i}\t{text}\t{text}\n" for i, (text, _) in enumerate(bright(146)))
    full = write(tmp_path / "full", {"test.tsv": "index\tsentence1\tsentence2\n" + lines})
    flags = {"model_dir": tmp_path / "run", "output_file": tmp_path / "p.tsv", "glue_submission": True}
    assert command("predict", **flags, input_file=glue_root / "WNLI/test.tsv") == 2
    assert "has 5 rows, the benchmark's test file for WNLI has 146" in capfd.readouterr().err
    assert not (tmp_path / "p.tsv").exists()
    assert command("predict", **flags, input_file=full / "test.tsv") == 0
    rows = (tmp_path / "WNLI.tsv").read_text().splitlines()
    own = {**flags, "output_file": tmp_path / "WNLI.tsv"}
    assert command("predict", **own, input_file=full / "test.tsv") == 2
    assert "is the name of the submission file" in capfd.readouterr().err
    given = (full / "test.tsv").rename(full / "WNLI.tsv").read_text()
    assert command("predict", **{**flags, "output_file": full / "p.tsv"}, input_file=full / "WNLI.tsv") == 2
    assert (full / "WNLI.tsv").read_text() == given
    assert rows[0] == "index\tprediction" and len(rows) == 147 and rows[146].split("\t")[0] == "145"


def test_epochs_and_warmup(own, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "regression", "train_file": own / "numbers.tsv", "model_dir": tiny_model}
    assert finetune(**given, output_dir=tmp_path / "run", num_train_steps=None, num_train_epochs=1.5) == 0
    assert "3 steps (1.5 epochs of 16 features), 0 of them warm-up" in capfd.readouterr().err


def test_feature_cache_is_used_by_a_second_run(own, tiny_model, tmp_path, monkeypatch, finetune, weights):
    given = {
        "task_name": "regression",
        "train_file": own / "numbers.tsv",
        "model_dir": tiny_model,
        "num_train_steps": 1,
    }
    assert finetune(**given, output_dir=tmp_path / "one", cache_dir=tmp_path / "cache") == 0
    from tasks import features

    monkeypatch.setattr(features, "make_features", None)
    assert finetune(**given, output_dir=tmp_path / "two", cache_dir=tmp_path / "cache") == 0
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(np.allclose(first[name], second[name], atol=1e-6) for name in first)


@pytest.mark.parametrize("name", ["sst-2", "qqp"])
def test_official_files_train(name, shared, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": name, "data_dir": shared / "data/GLUE", "model_dir": tiny_model, "output_dir": tmp_path}
    assert finetune(**given, num_train_steps=2, eval_every_steps=2, max_train_examples=500, max_eval_examples=50) == 0
    assert list(json.loads((tmp_path / "results.json").read_text())["metrics"]) == (["dev"] if name == "sst-2" else [])


WRONG = [
    ({"task_name": "sst3"}, "unknown task 'sst3'; did you mean sst-2"),
    ({"data_dir": "nowhere"}, "no file at nowhere/train.tsv"),
    ({"model_dir": "nowhere"}, "nowhere"),
    ({"max_seq_length": 200}, "max_seq_length is 200, the model has 96 positions"),
    ({"max_seq_length": 2}, "max_seq_length is 2: expected at least 4"),
    ({"doc_stride": 64}, "task sst-2 has no setting doc_stride"),
    ({"train_batch_size": 6, "grad_accum_steps": 4}, "expected a multiple of 4"),
    ({"num_train_epochs": 2.0}, "num_train_steps and num_train_epochs are both given"),
    ({"num_warmup_steps": 50}, "num_warmup_steps is 50, expected 0 to num_train_steps (4)"),
    ({"num_train_steps": 0}, "num_train_steps is 0, expected more than 0"),
    ({"num_seeds": 0}, "num_seeds is 0"),
    ({"num_seeds": 2, "task_name": "wnli", "data_dir": None, "train_file": "train.tsv"}, "num_seeds needs development"),
    ({"seed": -1}, "seed"),
    ({"tpu_name": "grpc://10.0.0.1:8470"}, "a TPU of other machines"),
    ({"seed": 2**31}, "seed"),
    ({"encoder_dropout": 1.5}, "hidden_dropout_prob is 1.5"),
    ({"classifier_dropout": 1.0}, "dropout_rate 1.0: expected at least 0 and less than 1"),
    ({"learning_rate": -1.0}, "learning_rate is -1.0"),
    ({"mixed_precision": "half"}, "expected one of float32, mixed_bfloat16, mixed_float16"),
    ({"optimizer": "sgd"}, "expected one of adamw, lamb"),
    ({"task_name": "classification", "data_dir": None}, "no training data"),
    ({"task_name": "ax"}, "task ax has no training data; fine-tune mnli"),
    ({"train_batchsize": 3}, "unknown flag --train_batchsize, did you mean --train_batch_size"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_input_is_one_line_and_leaves_nothing(changes, message, glue_root, tiny_model, tmp_path, capfd, finetune):
    given = {"task_name": "sst-2", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**{**given, **changes}) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("albert_tf finetune: ")]
    assert len(lines) == 1 and message in lines[0]
    assert not list(tmp_path.iterdir())


def test_wrong_rows_name_file_and_line(glue_root, tiny_model, tmp_path, capfd, finetune, write):
    data = write(tmp_path / "data", {"train.tsv": "sentence\tlabel\nfine\t1\n\npoor\t3\n"})
    given = {"task_name": "sst-2", "data_dir": data, "model_dir": tiny_model, "output_dir": tmp_path / "run"}
    assert finetune(**given) == 2
    assert "train.tsv:4: unknown label '3', expected one of 0, 1" in capfd.readouterr().err
    write(data, {"train.tsv": "sentence\tlabel\n\u6771\u4eac \u5927\u962a\t1\n\u5bcc\u58eb\u5c71\t0\n"})
    assert finetune(**given) == 2
    said = capfd.readouterr().err
    assert "train.tsv: 50.0% of the tokens are unknown to the vocabulary" in said and not (tmp_path / "run").exists()
    test = {"train_file": glue_root / "SST-2/test.tsv"}
    assert finetune(**given, **test) == 2
    assert "has no labels" in capfd.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("evaluate", {}, "give either --input_file or --data_dir"),
        ("evaluate", {"input_file": "x.tsv"}, "no model: give --model_dir"),
        ("evaluate", {"input_file": "x.tsv", "model_dir": "nowhere"}, "nowhere"),
        ("evaluate", {"input_file": "x.tsv", "model_dir": "nowhere", "output_file": "nowhere/p.tsv"}, "no folder"),
        ("predict", {"input_file": "x.tsv"}, "missing --output_file"),
        ("predict", {"input_file": "x.tsv", "output_file": "nowhere/p.tsv"}, "no folder"),
    ],
)
def test_wrong_use_of_a_model(name, flags, message, capfd, command):
    assert command(name, **flags) == 2
    assert message in capfd.readouterr().err


def test_predictions_do_not_replace_what_they_are_made_of(glue_root, tmp_path, capfd, command):
    own = shutil.copy(glue_root / "SST-2/dev.tsv", tmp_path / "dev.tsv")
    before = (tmp_path / "dev.tsv").read_bytes()
    (tmp_path / "same.tsv").symlink_to(own)
    for name in ("evaluate", "predict"):
        assert command(name, model_dir="nowhere", input_file=own, output_file=tmp_path / "same.tsv") == 2
        assert "is the file that is read" in capfd.readouterr().err
    assert (tmp_path / "dev.tsv").read_bytes() == before


def test_a_model_is_asked_for_what_its_head_answers():
    """The same for a model folder and an export: MNLI's head answers the diagnostic set, `squad` is either version."""
    mnli, squad = make_task("mnli", labels=("neutral", "entailment", "contradiction")), make_task("squad2.0")
    assert asked_task(mnli, None, "model") is mnli and asked_task(mnli, "MNLI", "model") is mnli
    diagnostic = asked_task(mnli, "AX", "model")
    assert (diagnostic.name, diagnostic.labels) == ("ax", mnli.labels)
    assert asked_task(squad, "squad", "model") is squad
    for task, name in ((mnli, "rte"), (mnli, "squad"), (squad, "squad1.1")):
        with pytest.raises(UserError, match=f"model has the head of task {task.name}, asked for is {name}"):
            asked_task(task, name, "model")


def test_what_an_export_has_fixed_is_refused(tmp_path, capfd, command):
    (tmp_path / "manifest.json").write_text("{}")
    for name, value in {"tpu_name": "local", "mixed_precision": "mixed_float16", "start_n_top": 9}.items():
        assert command("evaluate", model_dir=tmp_path, input_file="x.json", **{name: value}) == 2
        assert f"leave out --{name}" in capfd.readouterr().err


def test_a_model_that_computes_no_numbers_answers_nothing(own, classifiers, tmp_path, capfd, command):
    from albert_tf import checkpoints

    model = checkpoints.load_model(classifiers / "1")
    model.encoder.pooler.bias.assign(model.encoder.pooler.bias * np.nan)
    checkpoints.save_model(tmp_path / "broken", model)
    given = {"model_dir": tmp_path / "broken", "input_file": own / "unlabelled.tsv", "output_file": tmp_path / "p.tsv"}
    assert command("predict", **given) == 2
    assert "logits" in (said := capfd.readouterr().err) and "not finite" in said and not (tmp_path / "p.tsv").exists()


def test_models_of_different_tasks_are_no_ensemble(
    own, classifiers, glue_root, tiny_model, tmp_path, capfd, command, finetune
):
    given = {"task_name": "sst-2", "data_dir": glue_root, "model_dir": tiny_model, "output_dir": tmp_path / "sst"}
    assert finetune(**given, num_train_steps=1) == 0
    both = f"{classifiers / '1'},{tmp_path / 'sst'}"
    assert command("evaluate", ensemble=both, input_file=own / "dev.jsonl") == 2
    assert "an ensemble is made of models for one task" in capfd.readouterr().err


def test_a_model_that_is_named_twice_is_refused(own, classifiers, tmp_path, capfd, command):
    """Else its answers would count twice, and the average be another one than the user believes."""
    one, two = classifiers / "1", classifiers / "2"
    (tmp_path / "link").symlink_to(one)
    flags = {"input_file": own / "unlabelled.tsv", "output_file": tmp_path / "p.tsv"}
    named = [{"model_dir": one, "ensemble": f"{one},{two}"}, {"ensemble": f"{two},{one},{tmp_path / 'link'}"}]
    named += [{"model_dir": one, "ensemble": f"{one}/../1"}]
    for models in named:
        assert command("predict", **models, **flags) == 2
        assert f"name {one} twice" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "p.tsv").exists()
    assert command("predict", model_dir=one, ensemble=two, **flags) == 0
