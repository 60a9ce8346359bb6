import numpy as np
import pytest

from albert_tf import checkpoints
from albert_tf.errors import UserError
from tasks import batching, tokens
from tasks.catalog import make_task
from tasks.features import make_features

CONLL = """-DOCSTART- -X- O O

The DT B-NP O
Bridge NN I-NP B-LOC
of IN O I-LOC
Winter NN B-NP I-LOC

Ada NN B-NP B-PER
wrote\tVB\tO  O
"""
LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


@pytest.fixture(scope="module")
def tokenizer(tiny_spm):
    from albert_tf.tokenization import load_tokenizer

    return load_tokenizer(tiny_spm)


def written(folder, text, name="train.txt"):
    (folder / name).write_bytes(text.encode("utf-8"))
    return folder / name


def test_reading(tmp_path):
    sentences = make_task("tokens").read(written(tmp_path, CONLL))
    assert [(one.id, one.tokens, one.label) for one in sentences] == [
        ("0", ("The", "Bridge", "of", "Winter"), ("O", "B-LOC", "I-LOC", "I-LOC")),
        ("1", ("Ada", "wrote"), ("B-PER", "O")),
    ]
    assert tokens.read_conll(written(tmp_path, "\ufeff" + CONLL.replace("\n", "\r\n"))) == sentences
    assert tokens.read_conll(written(tmp_path, CONLL.rstrip())) == sentences


def test_words_without_labels_and_odd_characters(tmp_path):
    (sentence,) = tokens.read_conll(written(tmp_path, "New\u00a0York\n\u2028\n'\"\n\n\n"))
    assert sentence.tokens == ("New\u00a0York", "\u2028", "'\"") and sentence.label is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb\n", ":2: 1 columns, expected 2"),
        ("\na O\n\nb x O\n", ":4: 3 columns, expected 2"),
        ("a NN\n", ":1: the label is 'NN', expected O or one such as B-PER"),
        ("a O\nb B-\n", ":2: the label is 'B-'"),
        ("\n\n-DOCSTART- O\n", "has no sentences"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        tokens.read_conll(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_unknown_labels(tmp_path):
    task = make_task("NER", labels=("O", "B-PER", "I-PER"))
    with pytest.raises(UserError, match=":4: unknown label 'B-LOC', expected one of O, B-PER, I-PER"):
        task.read(written(tmp_path, CONLL))
    sentences = task.read(written(tmp_path, CONLL), with_labels=False)
    assert [sentence.tokens for sentence in sentences] == [
        one.tokens for one in tokens.read_conll(written(tmp_path, CONLL))
    ]
    assert {sentence.label for sentence in sentences} == {None}


def test_labels_are_completed_from_the_training_data(tmp_path):
    task = make_task("tokens")
    assert task.learned_from(task.read(written(tmp_path, CONLL))).labels == LABELS
    assert tokens.complete_labels({"I-X"}) == ("O", "B-X", "I-X")
    assert tokens.complete_labels({"S-X", "B-X"}) == ("O", "B-X", "I-X", "E-X", "S-X")
    assert tokens.complete_labels({"U-X"}) == ("O", "B-X", "I-X", "L-X", "U-X")
    with pytest.raises(UserError, match="the labels begin with S, U"):
        tokens.complete_labels({"S-X", "U-X"})
    with pytest.raises(UserError, match="every label is O"):
        task.learned_from([tokens.Sentence("0", ("a",), ("O",))])


def test_files(tmp_path):
    (tmp_path / "eng.testa").write_text("")
    names = {split: path.rsplit("/", 1)[1] for split, path in make_task("tokens").files(tmp_path).items()}
    assert names == {"train": "train.txt", "dev": "eng.testa", "test": "test.txt"}


# ---- features -------------------------------------------------------------------------------------------------------

SENTENCE = tokens.Sentence(
    "0", ("The", "Bridgework", "\u200b", "of", "Winter"), ("O", "B-LOC", "I-LOC", "I-LOC", "I-LOC")
)


def test_first_pieces_carry_the_labels(tokenizer):
    task = make_task("tokens", max_seq_length=96, labels=LABELS)
    (feature,) = task.featurise(SENTENCE, tokenizer)
    pieces = [tokenizer.encode(word) or [tokenizer.unk_id] for word in SENTENCE.tokens]
    assert len(pieces[1]) > 1 and len(pieces[2]) == 1  # several pieces; a word of nothing visible still has one
    labels = [tokens.NO_LABEL]
    for ids, label in zip(pieces, SENTENCE.label, strict=True):
        labels += [LABELS.index(label)] + [tokens.NO_LABEL] * (len(ids) - 1)
    assert feature["label"].tolist() == [*labels, tokens.NO_LABEL]
    assert feature["input_ids"].tolist() == [tokenizer.cls_id, *sum(pieces, []), tokenizer.sep_id]
    assert feature["words"][:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_seq_length", [4, 5, 8, 9])
def test_long_sentences_get_every_label_once(tokenizer, max_seq_length):
    rng = np.random.default_rng(0)
    words = tuple(str(word) for word in rng.choice(["bridge", "of", "Winter", "extraordinarily"], 40))
    labels = tuple(str(label) for label in rng.choice(LABELS, 40))
    task = make_task("tokens", max_seq_length=max_seq_length, labels=LABELS)
    sentences = [tokens.Sentence("0", words, labels)] * 2
    features = make_features(task, sentences, tokenizer)
    assert features.lengths.max() <= max_seq_length and (features.example_index == 1).sum() > 5
    outputs = []
    for feature in features:  # a model that knows the labels
        logits = rng.normal(size=(max_seq_length + 3, len(LABELS)))
        known = np.flatnonzero(feature["label"] >= 0)
        logits[known, feature["label"][known]] = 9
        outputs.append({"logits": logits})
    predictions = task.predictions(outputs, features, sentences)
    assert [one.labels for one in predictions] == [labels, labels]
    np.testing.assert_allclose(predictions[0].probabilities.sum(axis=1), np.ones(40))


def test_the_loss_counts_labelled_pieces_only():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3, 6, 5)).astype(np.float32)
    labels = np.full((3, 6), tokens.NO_LABEL, np.int32)
    labels[0, [1, 3]], labels[1, 2], labels[2, 2] = [4, 0], 2, 2
    batch = {"label": labels, "feature_index": np.array([7, 3, -1])}
    task = make_task("tokens", labels=LABELS)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [-log_probs[0, 1, 4] - log_probs[0, 3, 0], -log_probs[1, 2, 2], -log_probs[2, 2, 2]]
    np.testing.assert_allclose(task.loss({"logits": logits}, batch), expected, rtol=1e-5)
    assert task.loss_weights(batch).numpy().tolist() == [2, 1, 0]


def test_golden_of_hugging_face(shared):
    """Logits and loss of a reference token classifier, by way of the converted folder."""
    golden = np.load(shared / "golden/hf/for_token_classification/io.npz")
    model = checkpoints.load_model(shared / "golden/hf/for_token_classification")
    batch = {
        "input_ids": golden["input_ids"].astype(np.int32),
        "input_mask": golden["attention_mask"].astype(np.int32),
        "segment_ids": golden["token_type_ids"].astype(np.int32),
        "label": golden["labels_labels"].astype(np.int32),
        "feature_index": np.arange(3),
    }
    task = make_task("tokens", labels=LABELS)
    outputs = task.forward(model, batch)
    np.testing.assert_allclose(outputs["logits"], golden["logits"], atol=2e-5)
    loss = np.sum(task.loss(outputs, batch)) / np.sum(task.loss_weights(batch))
    assert loss == pytest.approx(float(golden["loss"]), abs=1e-5)


# ---- results --------------------------------------------------------------------------------------------------------


def test_entity_scores():
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-PER"]]
    predictions = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-PER"]]  # two of three entities right, three found
    scores = tokens.entity_scores(labels, predictions)
    assert scores == {
        "f1": pytest.approx(2 / 3),
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "accuracy": pytest.approx(5 / 6),
    }
    cut = tokens.entity_scores(labels, [["B-PER", "O", "O", "B-LOC"], ["O", "O"]])
    assert (cut["precision"], cut["recall"]) == (0.5, pytest.approx(1 / 3))  # half an entity is none
    assert tokens.entity_scores([["O"]], [["O"]])["f1"] == 0


def test_both_spellings_of_single_and_last_words():
    one, two = [["B-X", "L-X", "U-Y"]], [["B-X", "E-X", "S-Y"]]
    assert tokens.entity_scores(one, two)["f1"] == 1.0


def labelled(*rows):
    return [tokens.TokenLabels(tuple(row), np.eye(5)[[LABELS.index(label) for label in row]]) for row in rows]


def test_degenerate_runs_are_called_so():
    task = make_task("tokens", labels=LABELS)
    sentence = tokens.Sentence("0", ("a", "b"), ("B-PER", "O"))
    assert task.degenerate(labelled(("O", "O")), [sentence]) == "no word is part of an entity"
    assert task.degenerate(labelled(("B-LOC", "O")), [sentence]) == "no entity is right"
    assert task.degenerate(labelled(("B-PER", "O")), [sentence]) is None


def test_ensemble_and_files(tmp_path):
    task = make_task("tokens", labels=LABELS)
    sentences = [tokens.Sentence("0", ("Ada", "wrote"), None), tokens.Sentence("1", ("Winter",), None)]
    first = [tokens.TokenLabels(("O", "O"), np.array([[0.6, 0, 0, 0.4, 0], [0.9, 0.1, 0, 0, 0]])), *labelled(["O"])]
    second = [tokens.TokenLabels(("B-PER", "O"), np.array([[0.1, 0, 0, 0.9, 0], [1, 0, 0, 0, 0]])), *labelled(["O"])]
    both = task.combined([first, second])
    assert [one.labels for one in both] == [("B-PER", "O"), ("O",)]
    task.write_predictions(tmp_path / "out.txt", both, sentences)
    assert (tmp_path / "out.txt").read_text() == "Ada\t0.650000\tB-PER\nwrote\t0.950000\tO\n\nWinter\t1.000000\tO\n\n"
    again = task.read(tmp_path / "out.txt")
    assert [(one.tokens, one.label) for one in again] == [(("Ada", "wrote"), ("B-PER", "O")), (("Winter",), ("O",))]


def test_padding_changes_nothing(tokenizer, tiny_model):
    task = make_task("tokens", max_seq_length=96, labels=LABELS)
    model = checkpoints.load_model(tiny_model, heads=[])
    model.heads["token_classifier"] = checkpoints.new_model(
        model.config, {"token_classifier": task.head_options(0.1)}
    ).heads["token_classifier"]
    sentences = [SENTENCE, tokens.Sentence("1", ("Winter",), ("B-LOC",))]
    features = make_features(task, sentences, tokenizer)
    shapes = batching.Shapes(max_seq_length=96)
    together = batching.padded_batch(features, [0, 1], shapes)
    alone = batching.padded_batch(features, [1], shapes)
    outputs, one = task.forward(model, together), task.forward(model, alone)
    length = one["logits"].shape[1]
    assert length < outputs["logits"].shape[1]
    np.testing.assert_allclose(outputs["logits"][1, :length], one["logits"][0], atol=1e-5)
    np.testing.assert_allclose(task.loss(outputs, together)[1], task.loss(one, alone)[0], atol=1e-5)
