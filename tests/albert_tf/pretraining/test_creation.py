import io
import itertools
import json
import random
import string

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.pretraining import chunks, plan, shards
from albert_tf.pretraining.corpus import Corpus
from albert_tf.pretraining.creation import CreationSettings, create_records
from albert_tf.pretraining.plan import is_heldout
from albert_tf.pretraining.records import RecordsInfo, read_payloads
from albert_tf.tokenization import load_tokenizer

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def tokenizer(tiny_spm):
    return load_tokenizer(tiny_spm)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(plan, "CHUNK_CHARS", 30_000)


def create(text, tokenizer, folder, *, num_workers=1, input_format="paragraphs", **settings):
    corpus = Corpus(str(text), input_format)
    settings = CreationSettings(**{"max_seq_length": 64, **settings})
    return create_records(corpus, tokenizer, folder, settings=settings, num_workers=num_workers, log=io.StringIO())


def features(folder):
    """All records of a folder: feature name -> list of values."""
    import tensorflow as tf

    for path in RecordsInfo.read(folder).paths(folder):
        for payload in read_payloads(path):
            found = tf.train.Example.FromString(payload).features.feature
            yield {name: list(getattr(value, value.WhichOneof("kind")).value) for name, value in found.items()}


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def segments(row):
    """[CLS] A [SEP] B [SEP] -> A, B."""
    inner = row[1:-1]
    cut = inner.index(SEP) if SEP in inner else len(inner)
    return inner[:cut], inner[cut + 1 :]


def streams(text, tokenizer, input_format="paragraphs"):
    """The tokens of each document, as a string of two-byte characters to search in."""
    found = {}
    for document in Corpus(str(text), input_format).documents():
        ids = [i for sentence in document.sentences() for i in tokenizer.encode(sentence)]
        found[document.index] = found.get(document.index, "") + "".join(map(chr, ids))
    return found


def gap(first, second, stream):
    """Tokens between two pieces that follow each other in a document, or None."""
    a, b = "".join(map(chr, first)), "".join(map(chr, second))
    place = stream.find(a)
    while place >= 0:
        if 0 <= (found := stream.find(b, place + len(a))) <= place + len(a) + 512:
            return found - place - len(a)
        place = stream.find(a, place + 1)
    return None


@pytest.mark.parametrize("masking", ["dynamic", "static"])
@pytest.mark.parametrize("objective", ["sop", "nsp"])
def test_the_number_of_workers_does_not_show(prose, tokenizer, tmp_path, small_chunks, masking, objective):
    settings = {"masking": masking, "objective": objective, "num_shards": 2, "heldout_fraction": 0.2}
    for num_workers in (1, 3):
        create(prose, tokenizer, tmp_path / str(num_workers), num_workers=num_workers, **settings)
    one, three = content(tmp_path / "1"), content(tmp_path / "3")
    assert one == three
    assert sum(name.endswith(".tfrecord") for name in one) == 3
    create(prose, tokenizer, tmp_path / "other", random_seed=1, **settings)
    assert content(tmp_path / "other") != one


def test_rows_are_pieces_of_one_document(prose, tokenizer, tmp_path, small_chunks):
    info, heldout = create(prose, tokenizer, tmp_path / "out")
    assert heldout is None and not (tmp_path / "out" / "heldout").exists()
    documents = streams(prose, tokenizer)
    rows, labels, gaps = 0, 0, 0
    for record in features(tmp_path / "out"):
        assert set(record) == {"tokens", "segment_a_length", "sentence_label"}
        row = np.frombuffer(record["tokens"][0], "<u2").tolist()
        assert row[0] == CLS and row[-1] == SEP and row.count(SEP) == 2 and len(row) <= 64
        a, b = segments(row)
        assert record["segment_a_length"] == [len(a) + 2]
        first, second = (a, b) if record["sentence_label"] == [0] else (b, a)
        if rows < 60:
            found = [gap(first, second, stream) for stream in documents.values()]
            gaps += min(value for value in found if value is not None)  # raises where no document has both
        rows, labels = rows + 1, labels + record["sentence_label"][0]
    assert rows == info.num_records > 1000
    assert gaps / 60 < 40  # these sentences are nearly as long as the rows
    assert info.counts["tokens"] == sum(map(len, documents.values()))
    assert info.counts["documents"] == len(documents)
    assert info.counts["swapped"] == labels and abs(labels / rows - 0.5) < 0.06
    assert abs(info.counts["short_targets"] / info.counts["targets"] - 0.1) < 0.04


def test_static_statistics(prose, tokenizer, tmp_path):
    """The shares of the issue on real records, over 100,000 positions and more."""
    info, _ = create(prose, tokenizer, tmp_path / "out", masking="static", max_seq_length=512, dupe_factor=2)
    positions = masked = swapped = rows = 0
    fates = np.zeros(3)
    starts_word = tokenizer.starts_word()
    documents = streams(prose, tokenizer)
    for record in features(tmp_path / "out"):
        length = sum(record["input_mask"])
        chosen = int(sum(record["masked_lm_weights"]))
        places, ids = record["masked_lm_positions"][:chosen], record["masked_lm_ids"][:chosen]
        after = [record["input_ids"][place] for place in places]
        fates += [
            sum(x == MASK for x in after),
            sum(x == y for x, y in zip(after, ids, strict=True)),
            sum(x not in (MASK, y) for x, y in zip(after, ids, strict=True)),
        ]
        before = list(record["input_ids"])
        for place, piece in zip(places, ids, strict=True):
            before[place] = piece
        a, b = segments(before[:length])
        assert record["segment_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (512 - length)
        assert record["token_boundary"] == [
            int(i < length and (piece in (CLS, SEP) or starts_word[piece])) for i, piece in enumerate(before)
        ]
        if rows < 50:
            first, second = (a, b) if record["next_sentence_labels"] == [0] else (b, a)
            assert any(gap(first, second, stream) is not None for stream in documents.values())
        assert chosen <= min(77, max(1, round(0.15 * length)))
        assert len(record["masked_lm_positions"]) == len(record["masked_lm_weights"]) == 77
        positions, masked, rows = positions + length, masked + chosen, rows + 1
        swapped += record["next_sentence_labels"][0]
    assert positions >= 100_000 and info.max_predictions_per_seq == 77
    assert abs(masked / positions - 0.15) < 0.003
    np.testing.assert_allclose(fates / masked, [0.8, 0.1, 0.1], atol=0.01)
    assert swapped == info.counts["swapped"]


def test_repeats_differ(prose, tokenizer, tmp_path):
    once, _ = create(prose, tokenizer, tmp_path / "1")
    thrice, _ = create(prose, tokenizer, tmp_path / "3", dupe_factor=3)
    assert abs(thrice.num_records / once.num_records - 3) < 0.1
    assert thrice.counts["tokens"] == once.counts["tokens"]
    rows = [record["tokens"][0] for record in features(tmp_path / "3")]
    assert len(set(rows)) > 0.9 * len(rows)


@pytest.mark.parametrize("objective", ["none", "nsp"])
def test_other_objectives(prose, tokenizer, tmp_path, small_chunks, objective):
    info, _ = create(prose, tokenizer, tmp_path / "out", objective=objective)
    documents = streams(prose, tokenizer)
    for record in itertools.islice(features(tmp_path / "out"), 300):
        a, b = segments(np.frombuffer(record["tokens"][0], "<u2").tolist())
        homes = [{i for i, s in documents.items() if "".join(map(chr, part)) in s} for part in (a, b)]
        if objective == "none":
            assert not b and homes[0] and record["sentence_label"] == [0]
        elif record["sentence_label"] == [0]:
            assert homes[0] & homes[1]
        elif min(len(a), len(b)) > 20:
            assert homes[0] and homes[1] and not homes[0] & homes[1]
    assert abs(info.counts["swapped"] / info.num_records - (0.5 if objective == "nsp" else 0)) < 0.05


def test_a_long_first_document_has_its_partner_looked_up_once(tmp_path, small_chunks):
    """Else the text were read from its beginning for every chunk of it."""
    (tmp_path / "a.txt").write_text("One long line. " * 60_000)
    (tmp_path / "b.txt").write_text("Another text.")
    corpus, times = Corpus(f"{tmp_path}/*", "paragraphs"), []

    def again():
        times.append(1)
        return corpus.documents()

    parts = list(corpus.documents())
    groups = list(plan.plan_chunks(parts, CreationSettings(objective="nsp"), by_file=False, again=again))
    assert [part.index for part in parts] == [0, 0, 1]
    assert [[part.index for part in group.partners] for group in groups] == [[1], [1], [0]]
    assert len(times) == 1


def test_held_out_documents_are_apart(prose, tokenizer, tmp_path):
    both = create(prose, tokenizer, tmp_path / "out", heldout_fraction=0.25)
    units = len(list(prose.iterdir()))
    settings = CreationSettings(heldout_fraction=0.25)
    expected = {i for i in range(units) if is_heldout(i, settings)}
    assert abs(len(expected) - units / 4) < 1
    texts = {}
    for document in Corpus(str(prose), "paragraphs").documents():
        texts.setdefault(document.file_index, []).append(document)
    for info, heldout, folder in zip(both, (False, True), ("out", "out/heldout"), strict=True):
        chosen = [d for unit, found in texts.items() if (unit in expected) == heldout for d in found]
        assert info.counts["documents"] == len(chosen)
        assert info.counts["tokens"] == sum(len(i) for d in chosen for i in tokenizer.encode_batch(d.sentences()))
        assert RecordsInfo.read(tmp_path / folder) == info
        assert load_tokenizer(tmp_path / folder).hash == tokenizer.hash
    assert info.shards[0].name == "records-00000-of-00001.tfrecord"


@pytest.mark.parametrize("fraction", [0.05, 0.3, 1 / 3, 0.5, 0.9])
def test_held_out_choice(fraction):
    settings = [CreationSettings(heldout_fraction=fraction, random_seed=seed) for seed in (1, 2)]
    chosen = [[is_heldout(unit, each) for unit in range(6000)] for each in settings]
    assert abs(np.mean(chosen[0]) - fraction) < 0.001 and chosen[0] != chosen[1]
    block = int(np.ceil(1 / fraction))
    assert any(chosen[0][:block])  # a small corpus gets its share
    assert not any(is_heldout(unit, CreationSettings()) for unit in range(100))


def test_records_are_shuffled_over_shards(prose, tokenizer, tmp_path, monkeypatch):
    info, _ = create(prose, tokenizer, tmp_path / "few", num_shards=4)
    sizes = [shard.num_records for shard in info.shards]
    assert sum(sizes) == info.num_records and max(sizes) < 1.2 * min(sizes)
    order = [shards_rows(tmp_path / "few", number) for number in range(4)]
    # Small buckets and blocks: other shuffles of the same records.
    monkeypatch.setattr(shards, "BUCKET_BYTES", 20_000)
    monkeypatch.setattr(shards, "_BUFFER_BYTES", 1000)
    create(prose, tokenizer, tmp_path / "many", num_shards=4)
    again = [shards_rows(tmp_path / "many", number) for number in range(4)]
    assert sorted(sum(order, [])) == sorted(sum(again, [])) and order != again
    assert not list((tmp_path / "many").glob("bucket*"))
    # In a shard, the rows of a document do not stand together.
    homes = []
    documents = streams(prose, tokenizer)
    for row in again[0][:200]:
        a, _ = segments(np.frombuffer(row, "<u2").tolist())
        homes.append(next(i for i, stream in documents.items() if "".join(map(chr, a)) in stream))
    assert np.mean(np.diff(homes) == 0) < 0.2


def shards_rows(folder, number):
    import tensorflow as tf

    path = RecordsInfo.read(folder).paths(folder)[number]
    return [tf.train.Example.FromString(p).features.feature["tokens"].bytes_list.value[0] for p in read_payloads(path)]


def test_memory_does_not_grow_with_the_text(prose, tiny_spm, tmp_path, peak_memory):
    """The quick twin of the last row in docs/results/records.md; each copy is in a cipher, so has words of its own."""
    text = "\n\n".join(file.read_text("utf-8") for file in sorted(prose.iterdir())).lower()
    bounds = "plan.CHUNK_CHARS, shards.BUCKET_BYTES, shards._BUFFER_BYTES = 200_000, 500_000, 500_000"
    rng, sizes, peaks = random.Random(0), [], []
    for copies in (4, 36):
        folder = tmp_path / str(copies)
        folder.mkdir()
        for number in range(copies):
            letters = "".join(rng.sample(string.ascii_lowercase, 26))
            (folder / f"{number}.txt").write_text(text.translate(str.maketrans(string.ascii_lowercase, letters)))
        sizes.append(copies * len(text) / 1e6)
        peak, _ = peak_memory(
            *("create_pretraining_data", f"--input_file={folder}", f"--output_dir={tmp_path / f'out{copies}'}"),
            *(f"--spm_model_file={tiny_spm}", "--max_unknown_share=1", "--num_workers=1"),
            setup=f"from albert_tf.pretraining import plan, shards\n{bounds}\n",
        )
        peaks.append(peak)
    assert sizes[1] - sizes[0] > 8
    assert peaks[1] - peaks[0] < 0.3 * (sizes[1] - sizes[0]), (sizes, peaks)


def test_rows_of_padding_take_little_memory(tokenizer, tmp_path, monkeypatch):
    """A chunk of short documents is many rows, which are masked a part at a time."""
    (tmp_path / "text.txt").write_text("The name of a module is here.\n\n" * 500)
    sizes, mask_rows = [], chunks.mask_rows

    def spied(input_ids, *arguments, **more):
        sizes.append(input_ids.shape)
        return mask_rows(input_ids, *arguments, **more)

    monkeypatch.setattr(chunks, "mask_rows", spied)
    monkeypatch.setattr(chunks, "_STATIC_POSITIONS", 64 * 100)
    settings = {"masking": "static", "input_format": "sentences"}
    info, _ = create(tmp_path / "text.txt", tokenizer, tmp_path / "out", **settings)
    assert info.num_records >= 500 and sum(rows for rows, _ in sizes) == info.num_records
    assert {shape for shape in sizes[:-1]} == {(100, 64)} and sizes[-1][0] <= 100
    assert len(list(features(tmp_path / "out"))) == info.num_records


def test_large_vocabulary_takes_four_bytes(tmp_path):
    words = [f"w{n}" for n in range(70_000)]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (tmp_path / "text.txt").write_text("w69999 w1. W3 w4.\n" * 50)
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    info, _ = create(tmp_path / "text.txt", tokenizer, tmp_path / "out", max_unknown_share=1.0)
    assert info.token_dtype == "uint32" and info.tokenizer_kind == "wordpiece"
    rows = [np.frombuffer(record["tokens"][0], "<u4") for record in features(tmp_path / "out")]
    assert max(row.max() for row in rows) == 70_004 == info.vocab_size - 1


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("", {}, "no training records: found 0 documents, 0 sentences, 0 tokens"),
        (" \n\n \n", {}, "no training records"),
        ("Some words of text.\n", {"num_shards": 5}, "too many shards: 1 training records for 5"),
        ("Some words of text.\n" * 9, {"objective": "nsp"}, "needs text of another document"),
        ("語" * 90, {}, "the vocabulary does not know the text: .* unknown, expected at most 5.0%"),
        ("Some words of text.\n", {"heldout_fraction": 0.2}, "no document to hold out"),
    ],
)
def test_nothing_is_left_of_failures(tokenizer, tmp_path, text, settings, words):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        create(tmp_path / "text.txt", tokenizer, tmp_path / "out", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_taken_folders(prose, tokenizer, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something other than records"):
        create(prose, tokenizer, tmp_path / "notes")
    create(prose, tokenizer, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(UserError, match="already holds finished records"):
        create(prose, tokenizer, tmp_path / "out")
    assert content(tmp_path / "out") == before
    assert json.loads(before["records.json"])["objective"] == "sop"


@pytest.mark.parametrize(
    "wrong",
    [
        {"masking": "none"},
        {"dupe_factor": 0},
        {"num_shards": 0},
        {"random_seed": -1},
        {"heldout_fraction": 1.0},
        {"max_unknown_share": 2.0},
        {"max_predictions_per_seq": 65, "max_seq_length": 64},
        {"max_predictions_per_seq": 0},
        {"max_seq_length": 3},
        {"objective": "x"},
        {"ngram": 0},
        {"ngram": 10**9},
        {"random_seed": 2**63},
        {"max_seq_length": 0},
        {"masked_lm_prob": 0.0},
    ],
)
def test_wrong_settings(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        CreationSettings(**wrong)


def test_like_the_release(shared, tmp_path):
    """Static records of the release's own text and vocabulary: its shares over five seeds, and its features."""
    golden = shared / "golden" / "data"
    expected = json.loads((golden / "across_seeds.json").read_text())["seq128_pred20"]
    tokenizer = load_tokenizer(shared / "data" / "sentencepiece" / "30k-clean.model")
    text = golden / "text1mb.txt.gz"
    settings = {"masking": "static", "max_seq_length": 128, "max_predictions_per_seq": 20}
    info, _ = create(text, tokenizer, tmp_path / "out", input_format="auto", **settings)
    records = list(features(tmp_path / "out"))
    weights = np.array([record["masked_lm_weights"] for record in records]) > 0
    after = np.array([np.take(record["input_ids"], record["masked_lm_positions"]) for record in records])[weights]
    before = np.array([record["masked_lm_ids"] for record in records])[weights]
    length = sum(sum(record["input_mask"]) for record in records)
    assert abs(weights.sum() / length - expected["masked_fraction_pooled"]["mean"]) < 0.003
    assert abs(np.mean(after == MASK) - expected["share_mask"]["mean"]) < 0.01
    assert abs(np.mean(after == before) - expected["share_keep"]["mean"]) < 0.01
    assert abs(info.num_records / expected["instances"]["mean"] - 1) < 0.2
    stats = json.loads((golden / "seq128_pred20.stats.json").read_text())
    assert set(records[0]) == set(stats["tfrecord_features"])
    first = json.loads((golden / "seq128_pred20.first20.json").read_text())[0]
    assert {name: len(value) for name, value in records[0].items()} == {name: len(first[name]) for name in records[0]}
