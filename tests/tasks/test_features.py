"""Features come back as they were, from memory and from the cache."""

import dataclasses
import tarfile

import numpy as np
import pytest

from albert_tf import checkpoints, files
from albert_tf.errors import UserError
from tasks.catalog import make_task
from tasks.features import FeatureCache, check_segments, content_hash, make_features, tell_unknown, unknown_share
from tasks.text import TextExample


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return checkpoints.load_folder_tokenizer(tiny_model)


def _examples(count=4):
    return [TextExample(str(i), ("a river " * (i + 1),), str(i % 2)) for i in range(count)]


def test_features_are_those_of_each_example(tokenizer):
    task, examples = make_task("sst-2"), _examples()
    features = make_features(task, examples, tokenizer)
    assert len(features) == 4 and features.example_index.tolist() == [0, 1, 2, 3]
    for number, example in enumerate(examples):
        (expected,) = task.featurise(example, tokenizer)
        assert set(features[number]) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(features[number][name], array)
        assert features.lengths[number] == len(expected["input_ids"])
    np.testing.assert_array_equal(features[-1]["input_ids"], features[3]["input_ids"])
    with pytest.raises(IndexError):
        features[4]


def test_labels_are_all_or_none(tokenizer):
    mixed = [*_examples(2), TextExample("2", ("a",))]
    assert "label" not in make_features(make_task("sst-2"), mixed, tokenizer)[0]
    with pytest.raises(UserError, match="no features from 0 examples"):
        make_features(make_task("sst-2"), [], tokenizer)


def test_the_share_of_unknown_tokens(tokenizer, capfd):
    texts = (
        "a river",
        "a \u6771\u4eac river",
    )  # an unknown run of characters is one token, behind the mark of its word
    features = make_features(make_task("sst-2"), [TextExample(str(i), (t,)) for i, t in enumerate(texts)], tokenizer)
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    assert unknown_share(features, tokenizer) == pytest.approx(1 / tokens)
    tell_unknown(features, tokenizer, "data.tsv")
    assert f"WARNING: data.tsv: {1 / tokens:.1%} of the tokens are unknown" in capfd.readouterr().err
    tell_unknown(make_features(make_task("sst-2"), _examples(), tokenizer), tokenizer, "data.tsv")
    assert capfd.readouterr().err == ""


def _kept(folder):
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


def test_cache(tokenizer, tmp_path, monkeypatch):
    source = tmp_path / "train.tsv"
    source.write_text("one")
    task, examples, folder = make_task("sst-2"), _examples(), tmp_path / "cache"

    def features(task=task, examples=examples):
        cache = FeatureCache(folder)
        made = cache.features(task, examples, tokenizer, source)
        cache.keep()
        return made

    made = features()
    assert len(_kept(folder)) == 1
    with monkeypatch.context() as patch:
        patch.setattr(type(task), "featurise", None)  # a hit makes nothing
        again = features()
    for number in range(4):
        for name, array in made[number].items():
            np.testing.assert_array_equal(again[number][name], array)
            assert again[number][name].dtype == array.dtype
    features(task.replace(max_seq_length=8))
    features(task.replace(labels=("1", "0")))
    features(examples=examples[:2])
    assert "label" not in features(examples=[dataclasses.replace(example, label=None) for example in examples])[0]
    source.write_text("another")
    features()
    monkeypatch.setattr(type(task), "version", 2)
    features()
    assert len(_kept(folder)) == 7


def test_a_damaged_cache_is_made_anew(tokenizer, tmp_path):
    source = tmp_path / "train.tsv"
    source.write_text("one")
    for _ in range(2):
        cache = FeatureCache(tmp_path / "cache")
        assert len(cache.features(make_task("sst-2"), _examples(), tokenizer, source)) == 4
        cache.keep()
        (name,) = _kept(tmp_path / "cache")
        (tmp_path / "cache" / name).write_bytes(b"PK\x03\x04 cut short")


def test_nothing_is_kept_without_a_wish(tokenizer, tmp_path):
    source = tmp_path / "train.tsv"
    source.write_text("one")
    FeatureCache(tmp_path / "cache").features(make_task("sst-2"), _examples(), tokenizer, source)
    assert _kept(tmp_path / "cache") == []


def test_folders_are_hashed_by_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.txt").write_text("1")
    before = content_hash(tmp_path / "a")
    (tmp_path / "a/x.txt").write_text("2")
    changed = content_hash(tmp_path / "a")
    (tmp_path / "a/x.txt").rename(tmp_path / "a/y.txt")
    assert len({before, changed, content_hash(tmp_path / "a")}) == 3


def test_parts_of_one_archive_are_told_apart(tmp_path):
    """Else training and development rows of RACE.tar.gz, as many of each, would be found in each other's place."""
    archive = tmp_path / "RACE.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for split in ("train", "dev"):
            tar.addfile(tarfile.TarInfo(f"RACE/{split}/1.txt"))
    hashes = [content_hash(place) for place in (archive, archive / "train", archive / "dev")]
    assert len(set(hashes)) == 3
    assert hashes[0] == files.sha256(archive)
    assert content_hash(archive / "dev") == hashes[2]


def test_a_cache_that_cannot_be_written_is_said_and_no_more(tokenizer, tmp_path, capsys):
    source = tmp_path / "train.tsv"
    source.write_text("one")
    cache = FeatureCache(source)
    assert len(cache.features(make_task("sst-2"), _examples(), tokenizer, source)) == 4
    cache.keep()
    assert capsys.readouterr().err.startswith("NOTICE: features are not kept: ")
    assert source.read_text() == "one" and [path.name for path in tmp_path.iterdir()] == ["train.tsv"]


def test_pairs_need_a_model_that_knows_two_segments(tokenizer):
    """Else a look-up beyond the table: an error of TensorFlow's on a CPU, silence and zeros on a GPU."""
    one, two = (
        make_features(make_task(name), examples, tokenizer)
        for name, examples in (("sst-2", _examples()), ("mrpc", [TextExample("0", ("a river", "a ship"), "1")]))
    )
    check_segments(one, 1, "rows.tsv")
    check_segments(two, 2, "rows.tsv")
    with pytest.raises(UserError, match="rows.tsv gives pairs of segments but the model knows 1 .type_vocab_size"):
        check_segments(two, 1, "rows.tsv")


@pytest.mark.parametrize("columns", [[None], 3, ["a", 1]])
def test_columns_that_are_no_names_are_refused(columns):
    with pytest.raises(UserError, match="expected names of columns"):
        make_task("classification", options={"text_columns": columns})
