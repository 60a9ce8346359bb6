import copy
import json
import tarfile

import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from tasks import batching, race
from tasks.catalog import make_task
from tasks.features import make_features

PASSAGE = {
    "article": "A bright bird sat on the bridge. It sang to the river until the winter came.",
    "questions": ["The bird sat on the  _  .", "What came in the end?", "Who sang?"],
    "options": [["bridge", "river", "garden", "stone"], ["winter", "a letter", "the market"], ["the bird", "no one"]],
    "answers": ["A", "A", "B"],
    "id": "middle1.txt",
}


def write(folder, passages):
    """{path below the folder: passage object}."""
    for name, passage in passages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(passage), encoding="utf-8")
    return folder


def official(folder):
    """A small copy of the official layout: train, dev with both levels."""
    high = {**PASSAGE, "id": "high7.txt"}
    return write(
        folder,
        {
            "train/middle/1.txt": PASSAGE,
            "dev/middle/1.txt": PASSAGE,
            "dev/high/7.txt": high,
            "dev/high/8.txt": {**high, "id": "high8.txt"},
        },
    )


@pytest.fixture(scope="module")
def tokenizer(tiny_spm):
    from albert_tf.tokenization import load_tokenizer

    return load_tokenizer(tiny_spm)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_reading(tmp_path):
    task = make_task("RACE")
    examples = task.read(task.files(official(tmp_path))["dev"])
    assert [(e.id, e.level, e.label) for e in examples[-3:]] == [
        ("middle1.txt-0", "middle", 0),
        ("middle1.txt-1", "middle", 0),
        ("middle1.txt-2", "middle", 1),
    ]
    assert len(examples) == 9 and examples[-2].options == ("winter", "a letter", "the market")


def test_levels_folders_and_archives_read_alike(tmp_path):
    official(tmp_path / "RACE")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "RACE", "RACE")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/RACE.tar.gz").write_bytes((tmp_path / "packed.tar.gz").read_bytes())
    for name, count in (("race", 9), ("race-middle", 3), ("race-high", 6)):
        task = make_task(name)
        places = (tmp_path / "RACE", tmp_path, tmp_path / "packed.tar.gz", tmp_path / "beside")
        read = [task.read(task.files(place)["dev"]) for place in places]
        assert len(read[0]) == count and all(one == read[0] for one in read)
        assert task.level in (None, *{example.level for example in read[0]})
    with pytest.raises(UserError, match="has no questions of level high"):
        make_task("race-high").read(tmp_path / "RACE/train")


@pytest.mark.parametrize(
    ("place", "level"),
    [
        ("high14073.txt", "high"),
        ("RACE/dev/middle/1.txt", "middle"),
        ("high/dev/middle/1.txt", "middle"),
        ("highlands/1.txt", None),
        ("middle-aged.txt", None),
    ],
)
def test_levels_are_folders_or_numbered_names(place, level):
    assert race.level_of(place) == level


def test_answers_are_optional(tmp_path):
    passage = {key: value for key, value in PASSAGE.items() if key not in ("answers", "id")}
    examples = make_task("race").read(write(tmp_path, {"own.txt": passage}) / "own.txt")
    assert [example.label for example in examples] == [None] * 3
    assert examples[0].level is None and examples[0].id.endswith("own.txt-0")
    folder = write(tmp_path, {"odd.txt": {**PASSAGE, "answers": [""]}})
    assert [example.label for example in make_task("race").read(folder / "odd.txt", with_labels=False)] == [None] * 3


def changed(**values):
    return {**copy.deepcopy(PASSAGE), **values}


@pytest.mark.parametrize(
    ("passage", "message"),
    [
        ([], "holds a list"),
        (changed(article=None), "article is missing, expected a text"),
        (changed(questions="why"), "questions is a str, expected a list"),
        (changed(options=[["a", "b"]]), "1 options for 3 questions"),
        (changed(answers=["A"]), "1 answers for 3 questions"),
        (changed(answers=["A", "D", "A"]), "answers[1] is 'D', expected one of A, B, C"),
        (changed(answers=["A", "A", 0]), "answers[2] is 0"),
        (changed(options=[["a"], ["a", "b"], ["a", "b"]]), "options[0] has 1 options, expected 2 to 26"),
        (changed(options=[["a", 5], ["a", "b"], ["a", "b"]]), "options[0][1] is a int, expected a text"),
        (changed(questions=["q", None, "r"]), "questions[1] is missing"),
    ],
)
def test_faults_are_named_with_their_place(tmp_path, passage, message):
    folder = write(tmp_path, {"dev/middle/1.txt": passage})
    with pytest.raises(UserError) as caught:
        make_task("race").read(folder / "dev")
    assert str(caught.value).startswith(f"{folder}/dev/middle/1.txt") and message in str(caught.value)


def test_more_faults(tmp_path):
    folder = write(tmp_path, {"dev/middle/1.txt": PASSAGE, "dev/middle/2.txt": PASSAGE})
    with pytest.raises(UserError, match="2.txt: question middle1.txt-0 is also in .*/1.txt"):
        make_task("race").read(folder)
    (tmp_path / "cut.txt").write_text('{"article": ')
    with pytest.raises(UserError, match="cut.txt is not valid JSON"):
        make_task("race").read(tmp_path / "cut.txt")
    with pytest.raises(UserError, match="has no questions: expected .txt files"):
        make_task("race").read(write(tmp_path / "empty", {"a.json": {}}))


def test_the_option_fills_the_blank():
    assert race.filled("It is  _  .", r"\1 so") == r"It is  \1 so  ."
    assert race.filled("____ and _?", "x") == "x and x?"
    assert race.filled("Who?", "he") == "Who? he"


# ---- features -------------------------------------------------------------------------------------------------------


def example_of(number=0, **changes):
    values = {"id": "x", "passage": PASSAGE["article"], "question": PASSAGE["questions"][number], "level": None}
    return race.RaceExample(**{**values, "options": tuple(PASSAGE["options"][number]), "label": 0, **changes})


def test_rows_of_options(tokenizer):
    task = make_task("race", max_seq_length=96, options={"max_qa_length": 24})
    (feature,) = task.featurise(example_of(), tokenizer)
    passage = tokenizer.encode(PASSAGE["article"])
    for row, option in enumerate(PASSAGE["options"][0]):
        asked = tokenizer.encode(f"The bird sat on the {option} .")
        expected = [tokenizer.cls_id, *passage, tokenizer.sep_id, *asked, tokenizer.sep_id]
        length = feature["choice_lengths"][row]
        assert feature["input_ids"][row, :length].tolist() == expected
        assert (feature["input_ids"][row, length:] == tokenizer.pad_id).all()
        first = len(passage) + 2
        assert feature["segment_ids"][row].tolist() == [0] * first + [1] * (length - first) + [0] * (
            feature["input_ids"].shape[1] - length
        )
    assert feature["label"] == 0


def test_only_the_passage_is_shortened(tokenizer):
    task = make_task("race", max_seq_length=32, options={"max_qa_length": 16})
    long = example_of(question="Who sang to the river until the winter came, and for whom, and why so long?")
    (feature,) = task.featurise(long, tokenizer)
    passage = tokenizer.encode(PASSAGE["article"])
    for row, option in enumerate(long.options):
        asked = tokenizer.encode(f"{long.question} {option}")[-16:]
        assert feature["input_ids"][row].tolist() == [2, *passage[: 32 - 3 - len(asked)], 3, *asked, 3]
    assert feature["input_ids"].shape == (4, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_qa_length": 0}, "max_qa_length is 0"),
        ({"max_qa_length": 509}, "max_seq_length 512 leaves no room for the passage beside 509 tokens"),
        ({"doc_stride": 3}, "task race has no setting doc_stride"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_task("race", options=options)


def test_recipes():
    task = make_task("race")
    one = task.recipe_for(AlbertConfig(), "albert_base_v1")
    assert (one.learning_rate, one.encoder_dropout, one.num_train_steps) == (2e-5, 0.1, 12000)
    two = task.recipe_for(AlbertConfig(), "albert_base_v2")
    assert (two.learning_rate, two.encoder_dropout, two.classifier_dropout) == (1e-5, 0.0, 0.1)
    assert task.recipe_for(AlbertConfig(hidden_dropout_prob=0.1), None) == one
    assert task.recipe_for(AlbertConfig(hidden_dropout_prob=0.0), None) == two


# ---- model ----------------------------------------------------------------------------------------------------------


def test_golden_logits_and_loss(shared):
    folder = shared / "golden/tf1/heads/race"
    golden = np.load(folder / "io.npz")
    model = checkpoints.load_model(folder, heads=["multiple_choice"])
    batch = {name: golden[name].reshape(3, 4, 16) for name in ("input_ids", "segment_ids")}
    batch["choice_lengths"] = golden["input_mask"].reshape(3, 4, 16).sum(-1)
    batch["label"] = golden["label_ids"]
    task = make_task("race")
    outputs = task.forward(model, batch)
    np.testing.assert_allclose(outputs["logits"], golden["logits"], atol=2e-5)
    assert np.mean(task.loss(outputs, batch)) == pytest.approx(float(golden["loss"]), abs=1e-5)
    examples = [example_of()] * 3
    rows = [{"logits": row} for row in outputs["logits"].numpy()]
    predictions = task.predictions(rows, None, examples)
    np.testing.assert_allclose([one.probabilities for one in predictions], golden["probabilities"], atol=1e-5)
    assert [one.option for one in predictions] == golden["predictions"].tolist()


def test_missing_options_and_padding_change_nothing(tokenizer, tiny_model):
    """Questions with 4, 3 and 2 options: together in a padded batch as each one alone."""
    task = make_task("race", max_seq_length=64, options={"max_qa_length": 24})
    model = checkpoints.load_model(tiny_model, heads=[])
    head = checkpoints.new_model(model.config, {"multiple_choice": {}}).heads["multiple_choice"]
    model.heads["multiple_choice"] = head
    examples = [example_of(number, label=1) for number in range(3)]
    features = make_features(task, examples, tokenizer)
    shapes = batching.Shapes(max_seq_length=64)
    together = batching.padded_batch(features, [0, 1, 2], shapes, rows=4)
    assert together["input_ids"].shape[:2] == (4, 4)
    outputs = task.forward(model, together)
    losses = task.loss(outputs, together).numpy()
    assert np.isfinite(outputs["logits"]).all() and np.isfinite(losses).all()
    for number, example in enumerate(examples):
        alone = batching.padded_batch(features, [number], shapes)
        one = task.forward(model, alone)
        count = len(example.options)
        assert one["logits"].shape == (1, count)
        np.testing.assert_allclose(outputs["logits"][number, :count], one["logits"][0], atol=1e-5)
        np.testing.assert_allclose(losses[number], task.loss(one, alone)[0], atol=1e-5)
    (prediction,) = task.predictions([{"logits": outputs["logits"][2].numpy()}], None, examples[2:])
    assert prediction.probabilities.shape == (2,) and prediction.probabilities.sum() == pytest.approx(1)


def test_options_do_not_see_each_other(tokenizer, tiny_model):
    task = make_task("race", max_seq_length=64, options={"max_qa_length": 24})
    model = checkpoints.load_model(tiny_model, heads=[])
    model.heads["multiple_choice"] = checkpoints.new_model(model.config, {"multiple_choice": {}}).heads[
        "multiple_choice"
    ]

    def logits(options):
        features = make_features(task, [example_of(options=options)], tokenizer)
        return task.forward(model, batching.padded_batch(features, [0], batching.Shapes(max_seq_length=64)))["logits"]

    first = logits(("bridge", "river", "stone"))
    second = logits(("bridge", "a much longer option with many words", "stone"))
    np.testing.assert_allclose(first.numpy()[0, [0, 2]], second.numpy()[0, [0, 2]], atol=1e-5)
    assert abs(float(first[0, 1] - second[0, 1])) > 1e-4


# ---- results --------------------------------------------------------------------------------------------------------


def choices(*rows):
    return [race.Choice(int(np.argmax(row)), np.array(row)) for row in rows]


def test_levels_are_reported_apart():
    examples = [example_of(level=level, label=0) for level in ("middle", "high", "high")]
    predictions = choices([0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4])
    assert make_task("race").metrics(predictions, examples) == {
        "accuracy": pytest.approx(2 / 3),
        "accuracy_middle": 1.0,
        "accuracy_high": 0.5,
    }
    assert make_task("race").metrics(predictions[:1], examples[:1]) == {"accuracy": 1.0, "accuracy_middle": 1.0}


def test_degenerate_runs_are_called_so():
    task = make_task("race")
    examples = [example_of(label=number % 4) for number in range(100)]
    same = choices(*[[0.7, 0.1, 0.1, 0.1]] * 100)
    assert "all 100 answers are A; guessing gives 0.2500" in task.degenerate(same, examples)
    shifted = choices(*(np.roll([0.7, 0.1, 0.1, 0.1], number // 4) for number in range(100)))
    assert "is that of guessing" in task.degenerate(shifted, examples)
    good = choices(*(np.roll([0.7, 0.1, 0.1, 0.1], number if number % 3 else 0) for number in range(100)))
    assert task.degenerate(good, examples) is None


def test_ensemble_and_files(tmp_path):
    task = make_task("race")
    examples = [example_of(0, id="a"), example_of(2, id="b")]
    first, second = choices([0.6, 0.4, 0, 0], [0.9, 0.1]), choices([0.1, 0.7, 0.2, 0], [0.4, 0.6])
    both = task.combined([first, second])
    assert [one.option for one in both] == [1, 0]
    np.testing.assert_allclose(both[0].probabilities, [0.35, 0.55, 0.1, 0])
    task.write_predictions(tmp_path / "out.tsv", both, examples)
    assert (tmp_path / "out.tsv").read_text().splitlines() == [
        "id\tprediction\toption\tprobability_A\tprobability_B\tprobability_C\tprobability_D",
        "a\tB\triver\t0.350000\t0.550000\t0.100000\t0.000000",
        "b\tA\tthe bird\t0.650000\t0.350000\t\t",
    ]


def test_real_archive(shared):
    task = make_task("race-middle")
    examples = task.read(task.files(shared / "data/RACE")["dev"])
    assert len(examples) == 1436 and {len(example.options) for example in examples} == {4}
    assert {example.level for example in examples} == {"middle"}
