"""GLUE's files as they come, and what the benchmark takes back."""

import pathlib

import numpy as np
import pytest

from albert_tf.errors import UserError
from tasks.catalog import TASKS, canonical_name, make_task
from tasks.classification import ClassPrediction
from tasks.glue import GLUE

ROWS = {  # train, dev, test of the official files
    "cola": (8551, 1043, 1063),
    "mrpc": (3668, 408, 1725),
    "rte": (2490, 277, 3000),
    "sts-b": (5749, 1500, 1379),
    "sst-2": (67349, 872, 1821),
    "wnli": (635, 71, 146),
}


@pytest.mark.parametrize("name", ROWS)
def test_official_files(shared, name):
    task = make_task(name)
    paths = task.files(shared / "data/GLUE")
    read = {split: task.read(path) for split, path in paths.items()}
    assert tuple(len(read[split]) for split in ("train", "dev", "test")) == ROWS[name]
    assert all(example.label is not None for example in read["train"] + read["dev"])
    assert all(example.label is None for example in read["test"])
    assert [example.id for example in read["test"]] == [str(i) for i in range(ROWS[name][2])]
    task.check_submission(paths["test"], len(read["test"]))


def test_official_rows_are_read_as_they_are(shared):
    cola = make_task("cola").read(shared / "data/GLUE/CoLA/test.tsv")
    assert cola[0].texts == ("Bill whistled past the house.",)
    mrpc = make_task("mrpc").read(shared / "data/GLUE/MRPC/dev.tsv")
    assert mrpc[0].label == "1" and mrpc[0].texts[1].startswith('"The foodservice pie business')
    qnli = make_task("qnli").read(shared / "data/GLUE/QNLI/dev.tsv")
    assert len(qnli) == 5463 and qnli[0].label == "entailment"


def test_official_samples_of_every_task(shared):
    for name, table in GLUE.items():
        for split, path in make_task(name).files(shared / "data/GLUE-samples").items():
            if name == "ax":
                continue
            example = make_task(name).read(path)[0]
            assert len(example.texts) == len(table.layout.texts)
            assert (example.label is None) == split.startswith("test"), (name, split)


def test_reading_rules(tmp_path, capsys):
    mnli = tmp_path / "dev_matched.tsv"
    mnli.write_text("index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tb\t-\n")
    assert [example.label for example in make_task("mnli").read(mnli)] == ["neutral", None]
    qqp = tmp_path / "train.tsv"
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    qqp.write_text(head + "7\t1\t2\ta\tb\t1\n8\t1\tbroken\n9\t1\t2\tc\td\t0\n")
    assert [example.id for example in make_task("qqp").read(qqp)] == ["7", "9"]
    assert "1 rows with too few columns are left out, the first at line 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("sst-2", "sentence\tlabel\nfine\t2\n", r"dev\.tsv:2: unknown label '2', expected one of 0, 1"),
        ("sst-2", "sentence\tlabel\nfine\n", r"dev\.tsv:2: found 1 columns, expected 2"),
        ("sst-2", "text\tlabel\nfine\t1\n", r"dev\.tsv:1: no column 'sentence', found text, label"),
        ("cola", "own\t1\tfine\n", r"dev\.tsv:1: found 3 columns, expected 4"),
        ("cola", "own\tyes\t\tfine\n", r"dev\.tsv:1: unknown label 'yes'"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n", r"dev\.tsv:2: unknown label 'neutral'"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t-\n", r"dev\.tsv:2: unknown label '-'"),
        ("sts-b", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tmuch\n", r"dev\.tsv:2: the label is 'much'"),
        ("sts-b", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t7\n", r"dev\.tsv:2: the label is 7, expected 0 to 5"),
    ],
)
def test_wrong_rows(tmp_path, task, content, message):
    (tmp_path / "dev.tsv").write_text(content)
    with pytest.raises(UserError, match=message):
        make_task(task).read(make_task(task).files(tmp_path)["dev"])


def test_submission_files(tmp_path, monkeypatch):
    rte = make_task("rte")
    monkeypatch.setitem(GLUE["rte"].test_rows, "RTE", 2)
    predictions = [ClassPrediction("entailment", np.array([0.9, 0.1])), ClassPrediction("not_entailment", np.zeros(2))]
    path = rte.write_submission(tmp_path, "test.tsv", predictions)
    assert pathlib.Path(path).read_text() == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    assert path.endswith("RTE.tsv")
    with pytest.raises(UserError, match="has 1 rows, the benchmark's test file for RTE has 2"):
        rte.write_submission(tmp_path, "test.tsv", predictions[:1])
    monkeypatch.setitem(GLUE["sts-b"].test_rows, "STS-B", 3)
    path = make_task("sts-b").write_submission(tmp_path, "test.tsv", [5.3, -1.0, 2.3456])
    assert pathlib.Path(path).read_text().split() == ["index", "prediction", "0", "5.000", "1", "0.000", "2", "2.346"]
    mnli = make_task("mnli")
    names = [mnli.submission_name(f"MNLI/{stem}.tsv") for stem in ("test_matched", "test_mismatched", "diagnostic")]
    assert names == ["MNLI-m", "MNLI-mm", "AX"]


def test_recipes_are_those_of_the_paper():
    recipe = make_task("cola").recipe
    assert (recipe.learning_rate, recipe.train_batch_size, recipe.num_train_steps) == (1e-5, 16, 5336)
    assert (recipe.num_warmup_steps, recipe.encoder_dropout, recipe.classifier_dropout) == (320, 0, 0.1)
    assert make_task("wnli").recipe.encoder_dropout == 0.1 and make_task("qqp").max_seq_length == 512


def test_labels_are_in_the_order_of_the_release():
    assert make_task("mnli").labels == ("contradiction", "entailment", "neutral") == make_task("ax").labels
    assert make_task("qnli").labels == make_task("rte").labels == ("entailment", "not_entailment")
    assert make_task("cola").labels == ("0", "1") and make_task("sts-b").labels is None
    assert make_task("mnli", labels=("neutral", "entailment", "contradiction")).labels[0] == "neutral"
    with pytest.raises(UserError, match="the labels of rte are entailment, not_entailment"):
        make_task("rte", labels=("yes", "no"))


def test_names_in_any_spelling():
    assert {canonical_name(name) for name in ("SST2", "sst-2", "Sst_2", "SST-2")} == {"sst-2"}
    assert canonical_name("STSB") == "sts-b" and canonical_name("MNLI") == "mnli"
    with pytest.raises(UserError, match="unknown task 'sst3'; did you mean sst-2"):
        canonical_name("sst3")
    assert all(canonical_name(name) == name for name in TASKS)
