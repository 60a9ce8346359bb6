"""SQuAD, RACE and token classification through the commands: train, evaluate, predict, resume."""

import functools
import json
import shutil

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.__main__ import main
from albert_tf.conversion.names import POOLER
from tasks.training_loop import TrainingLoop

COLOURS = ("green", "white", "brown", "black")
THINGS = ("bridge", "river", "garden", "letter", "window", "market")


def some_slow(names, *, quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def command(name, **flags):
    """Runs a command in this process and returns its exit code."""
    return main(["albert_tf", name, *(f"--{flag}={value}" for flag, value in flags.items())])


def text_of(number):
    """(text, thing, colour): "the bridge is green and the river is white ." asks for one of the two."""
    thing, other = THINGS[number % 6], THINGS[(number + 1 + number // 6 % 5) % 6]
    colour, second = COLOURS[number % 4], COLOURS[(number + 1) % 4]
    return f"The {thing} is {colour} and the {other} is {second} ." + " It is so ." * (number % 3), thing, colour


def squad_data(count, version):
    """Questions on `text_of`; in version 2.0 every third has no answer."""
    paragraphs = []
    for number in range(count):
        context, thing, colour = text_of(number)
        lost = version == "2.0" and number % 3 == 0
        answers = [] if lost else [{"text": colour, "answer_start": context.index(colour)}]
        qa = {"id": f"q{number}", "question": f"What is the {'winter' if lost else thing}?", "answers": answers}
        if version == "2.0":
            qa["is_impossible"] = lost
        paragraphs.append({"context": context, "qas": [qa]})
    return {"version": version, "data": [{"title": "colours", "paragraphs": paragraphs}]}


def write_squad(folder, version):
    for split, count in (("train", 24), ("dev", 8)):
        (folder / f"{split}-v{version}.json").write_text(json.dumps(squad_data(count, version)))
    unlabelled = squad_data(5, "1.1")
    for paragraph in unlabelled["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    (folder / "test.json").write_text(json.dumps(unlabelled))
    return folder


def write_race(folder):
    for split, level, count in (("train", "middle", 8), ("dev", "middle", 3), ("dev", "high", 2)):
        (folder / split / level).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            context, thing, colour = text_of(number)
            options = [*COLOURS][: 3 + number % 2]
            passage = {
                "article": context,
                "questions": [f"The {thing} is _ ."],
                "options": [options if colour in options else [*options[:-1], colour]],
                "id": f"{level}{number}.txt",
            }
            passage["answers"] = ["ABCD"[passage["options"][0].index(colour)]]
            (folder / split / level / f"{number}.txt").write_text(json.dumps(passage))
    return folder


def write_tokens(folder):
    for split, count in (("train", 24), ("dev", 8)):
        lines = []
        for number in range(count):
            for word in text_of(number)[0].split():
                lines.append(f"{word} {'B-COLOUR' if word in COLOURS else 'O'}\n")
            lines.append("\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    (folder / "test.txt").write_text("A\ngreen\nbridge\n\nWinter\n")
    return folder


SQUAD = {"max_query_length": 12, "doc_stride": 16, "max_seq_length": 48}
RUNS = {
    "squad1.1": (lambda folder: write_squad(folder, "1.1"), SQUAD),
    "squad2.0": (lambda folder: write_squad(folder, "2.0"), SQUAD),
    "squad2.0-plain": (lambda folder: write_squad(folder, "2.0"), {**SQUAD, "span_head": "plain"}),
    "race": (write_race, {"max_qa_length": 20, "max_seq_length": 64}),
    "tokens": (write_tokens, {"max_seq_length": 16}),
}


def finetune(name, run, data, model):
    flags = {"num_train_steps": 6, "eval_every_steps": 3, "train_batch_size": 8, "learning_rate": 1e-3}
    flags |= {"encoder_dropout": 0.1, "task_name": name.removesuffix("-plain").upper()}
    return command("finetune", data_dir=data, model_dir=model, output_dir=run, **flags, **RUNS[name][1])


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """name -> (run folder, data folder), each made once."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp(name)
        (folder / "data").mkdir()
        data = RUNS[name][0](folder / "data")
        assert finetune(name, folder / "run", data, tiny_model) == 0
        return folder / "run", data

    return of


@pytest.mark.parametrize("name", some_slow(RUNS, quick=("squad2.0", "race", "tokens")))
def test_train_evaluate_predict(name, trained, tmp_path, capfd):
    run, data = trained(name)
    result = json.loads((run / "results.json").read_text())
    assert result["last_step"] == 6 and list(result["metrics"]) == ["dev"]
    metrics = result["metrics"]["dev"]
    alone = tmp_path / "alone"  # prediction needs a model folder and a file, nothing else
    shutil.copytree(run, alone, ignore=shutil.ignore_patterns("checkpoints", "features", "tensorboard", "*.jsonl"))
    capfd.readouterr()
    assert command("evaluate", model_dir=alone, data_dir=data, output_file=tmp_path / "dev.out") == 0
    shown = capfd.readouterr().out.splitlines()[0]
    assert shown.endswith(" | ".join(f"{metric} {value:.4f}" for metric, value in metrics.items()))
    test_file = {"race": data / "dev/high", "tokens": data / "test.txt"}.get(name, data / "test.json")
    assert command("predict", model_dir=alone, input_file=test_file, output_file=tmp_path / "test.out") == 0
    check_files(name, tmp_path, data, metrics, alone)
    if name in ("squad2.0", "tokens"):  # two equal models answer as one
        twin = shutil.copytree(alone, tmp_path / "twin")
        flags = {"ensemble": f"{alone},{twin}", "input_file": test_file, "output_file": tmp_path / "pair.out"}
        assert command("predict", **flags) == 0
        assert (tmp_path / "pair.out").read_text() == (tmp_path / "test.out").read_text()


def test_a_pooler_that_the_head_passes_by_is_not_called_trained(tiny_model, tmp_path):
    """The source never trained it: neither does a head on every token, while one on the first token does."""
    source = shutil.copytree(tiny_model, tmp_path / "source")
    info = json.loads((source / "model.json").read_text())
    (source / "model.json").write_text(json.dumps({**info, "made_by": {"new": list(POOLER)}}))
    for name, new in (("tokens", POOLER), ("race", ())):
        (tmp_path / name).mkdir()
        data = RUNS[name][0](tmp_path / name)
        flags = {"task_name": name, "num_train_steps": 1, "train_batch_size": 8, **RUNS[name][1]}
        assert command("finetune", data_dir=data, model_dir=source, output_dir=tmp_path / f"{name}.run", **flags) == 0
        assert checkpoints.load_model(tmp_path / f"{name}.run").restored.new == new


@pytest.mark.parametrize("name", some_slow(["squad1.1", "squad2.0", "race", "tokens"], quick=("squad2.0",)))
def test_an_interrupted_run_goes_on_to_the_same_end(name, trained, tiny_model, tmp_path, monkeypatch):
    whole, data = trained(name)
    evaluate = TrainingLoop._evaluate

    def interrupted(self):
        if self._step() == 6:
            raise KeyboardInterrupt
        return evaluate(self)

    monkeypatch.setattr(TrainingLoop, "_evaluate", interrupted)
    assert finetune(name, tmp_path / "run", data, tiny_model) == 130
    monkeypatch.undo()
    assert finetune(name, tmp_path / "run", data, tiny_model) == 0
    first, second = (json.loads((run / "results.json").read_text()) for run in (whole, tmp_path / "run"))
    assert first == second
    first, second = (checkpoints.load_model(run).named_variables() for run in (whole, tmp_path / "run"))
    for variable in first:
        np.testing.assert_allclose(first[variable], second[variable], atol=1e-6, err_msg=variable)


def check_files(name, folder, data, metrics, model_dir):
    """What predict and evaluate wrote."""
    written = (folder / "test.out").read_text()
    if name == "race":
        header, *rows = [line.split("\t") for line in written.splitlines()]
        assert header[:3] == ["id", "prediction", "option"] and [row[0] for row in rows] == [
            "high0.txt-0",
            "high1.txt-0",
        ]
        assert set(metrics) == {"accuracy", "accuracy_middle", "accuracy_high"}
    elif name == "tokens":
        rows = [line.split("\t") for line in written.splitlines()]
        assert [row[0] for row in rows] == ["A", "green", "bridge", "", "Winter", ""]
        assert {row[-1] for row in rows if len(row) > 1} <= {"O", "B-COLOUR", "I-COLOUR"}
    else:
        assert list(json.loads(written)) == [f"q{number}" for number in range(5)]
        official_agrees(name, folder, data, metrics, model_dir)


def official_agrees(name, folder, data, metrics, model_dir):
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    version = name[5:8]
    dataset = json.loads((data / f"dev-v{version}.json").read_text())["data"]
    predictions = json.loads((folder / "dev.out").read_text())
    if version == "1.1":
        official = squad_evaluate_v1_1.evaluate(dataset, predictions)
        assert metrics["f1"] == 100 * official["final_f1"] and metrics["exact_match"] == 100 * official["exact_match"]
        return
    nulls = json.loads((folder / "null_odds_dev.out").read_text())
    official = squad_evaluate_v2_0.evaluate(dataset, predictions, nulls)
    assert metrics["f1"] == official["f1"] and metrics["exact"] == official["exact"]
    saved = checkpoints.read_info(model_dir)[0].task_options["null_threshold"]
    assert saved == metrics["null_threshold"]
    assert all((predictions[i] == "") >= (null > saved) for i, null in nulls.items())


def mixed_versions(folder):
    write_squad(folder, "1.1")
    (folder / "dev-v1.1.json").write_text(json.dumps(squad_data(3, "2.0")))


def repeated_id(folder):
    write_squad(folder, "1.1")
    data = squad_data(3, "1.1")
    data["data"][0]["paragraphs"][2]["qas"][0]["id"] = "q1"
    (folder / "train-v1.1.json").write_text(json.dumps(data))


def two_columns(folder):
    write_tokens(folder)
    (folder / "dev.txt").write_text("green B-COLOUR\n\nbridge\n")


@pytest.mark.parametrize(
    ("task_name", "write", "flags", "message"),
    [
        ("squad1.1", mixed_versions, {}, "dev-v1.1.json is SQuAD v2.0: task squad1.1 takes v1.1"),
        ("squad1.1", repeated_id, {}, "data[0].paragraphs[2].qas[0]: id 'q1' is also at data[0].paragraphs[1].qas[0]"),
        ("squad1.1", lambda _: None, {}, "no SQuAD file at"),
        ("squad2.0", lambda _: None, {"doc_stride": 500}, "doc_stride is 500, but a window may have as few as 445"),
        ("squad2.0", lambda _: None, {"max_qa_length": 5}, "task squad2.0 has no setting max_qa_length"),
        ("race", lambda _: None, {}, "no file or folder"),
        (
            "race",
            lambda folder: (folder / "RACE.tar.gz").write_bytes(b"x"),
            {},
            "RACE.tar.gz is truncated or no archive",
        ),
        ("tokens", two_columns, {}, "dev.txt:3: 1 columns, expected 2"),
        ("squat1.1", lambda _: None, {}, "did you mean squad1.1?"),
    ],
)
def test_wrong_inputs_get_one_line(task_name, write, flags, message, tiny_model, tmp_path, capfd):
    write(tmp_path)
    run = tmp_path / "run"
    flags = {"task_name": task_name, "data_dir": tmp_path, "model_dir": tiny_model, "output_dir": run, **flags}
    assert command("finetune", **flags) == 2
    errors = capfd.readouterr().err.splitlines()
    assert message in errors[-1] and errors[-1].startswith("albert_tf finetune: ") and not run.exists()


def test_the_head_of_another_task_is_refused(trained, tmp_path, capfd):
    run, _ = trained("tokens")
    (tmp_path / "test.json").write_text("{}")
    flags = {"model_dir": run, "input_file": tmp_path / "test.json", "output_file": tmp_path / "out.json"}
    assert command("predict", task_name="squad", **flags) == 2
    assert "has the head of task tokens, asked for is squad" in capfd.readouterr().err
