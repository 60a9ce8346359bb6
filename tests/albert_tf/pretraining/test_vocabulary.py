"""The trained vocabulary has the release's settings, repeats to the byte, and is not written where it should not be."""

import collections
import gzip
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pretraining import vocabulary
from albert_tf.pretraining.vocabulary import count_words, train_unigram, train_vocabulary
from albert_tf.tokenization import load_tokenizer
from albert_tf.tokenization.normalization import sentencepiece_normalizer

NORMALIZER = sentencepiece_normalizer(do_lower_case=True, keep_accents=False)
SPECIALS = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]
SIZE = 600


@pytest.fixture(scope="module")
def trained(prose, tmp_path_factory):
    """A vocabulary of SIZE pieces on `prose`, and the lines that training reported."""
    lines = []
    folder = tmp_path_factory.mktemp("vocabulary") / "v"
    return train_vocabulary([str(prose)], folder, vocab_size=SIZE, report=lines.append), lines


def test_release_settings(trained):
    tokenizer, _ = trained
    assert tokenizer.vocab_size == SIZE
    assert tokenizer.pieces()[:13] == SPECIALS
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.path.read_bytes())
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    types = [kinds.CONTROL, kinds.UNKNOWN] + [kinds.CONTROL] * 3 + [kinds.USER_DEFINED] * 8
    assert [piece.type for piece in proto.pieces] == types + [kinds.NORMAL] * (SIZE - 13)
    trainer = proto.trainer_spec
    assert (trainer.model_type, trainer.bos_id, trainer.eos_id) == (trainer.UNIGRAM, -1, -1)
    assert trainer.character_coverage == pytest.approx(0.99995)
    assert proto.normalizer_spec.name == "nmt_nfkc"
    assert "▁the" in tokenizer.pieces()


def test_same_normalizer_and_settings_as_the_release(trained, shared):
    real = sentencepiece_model_pb2.ModelProto.FromString((shared / "data/sentencepiece/30k-clean.model").read_bytes())
    ours = sentencepiece_model_pb2.ModelProto.FromString(trained[0].path.read_bytes())
    for name in ("name", "add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        assert getattr(ours.normalizer_spec, name) == getattr(real.normalizer_spec, name)
    for name in (
        "model_type character_coverage seed_sentencepiece_size shrinking_factor num_threads num_sub_iterations "
        "max_sentencepiece_length split_by_unicode_script split_by_whitespace split_by_number hard_vocab_limit "
        "control_symbols user_defined_symbols pad_id unk_id bos_id eos_id pad_piece unk_piece"
    ).split():
        assert getattr(ours.trainer_spec, name) == getattr(real.trainer_spec, name), name


def test_listing_and_settings_beside_the_model(trained, prose):
    tokenizer, lines = trained
    listing = tokenizer.path.with_name("spiece.vocab").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in listing] == tokenizer.pieces()
    assert (load_tokenizer(tokenizer.path).do_lower_case, tokenizer.keep_accents) == (True, False)
    words = sum(len(NORMALIZER(file.read_text("utf-8")).split()) for file in prose.iterdir())
    assert any(line.startswith(f"counted {words:,} words") and "MB of memory" in line for line in lines)


def test_counts_equal_sentences_one_by_one():
    """The trainer makes the same of counted words as of the words themselves, in any order."""
    text = "the cat sat on the mat; the cats of the matting sat. 12 cats\n" * 5 + "one more mat - for a cat\n"
    plain = [line.split() for line in text.splitlines()]
    words = [word for line in plain for word in line]
    counts = count_words([text], NORMALIZER).words
    assert counts == sorted(collections.Counter(words).items())
    model = sentencepiece.SentencePieceProcessor(model_proto=train_unigram(counts, 36))
    again = sentencepiece.SentencePieceProcessor(model_proto=train_unigram([(word, 1) for word in reversed(words)], 36))
    assert [model.id_to_piece(i) for i in range(36)] == [again.id_to_piece(i) for i in range(36)]
    assert [model.get_score(i) for i in range(36)] == pytest.approx([again.get_score(i) for i in range(36)])


def test_counting_normalises_like_the_tokeniser():
    texts = ["Élan  vital\u00a0Élan ΑΣ", "é\u0301lan \u00a8x"]
    expected = collections.Counter(word for text in texts for word in NORMALIZER(text).split())
    assert count_words(texts, NORMALIZER).words == sorted(expected.items())


def test_counting_bounds_memory():
    texts = [f"the w{number:05d}" for number in range(4_000)]
    counts = count_words(texts, NORMALIZER, max_distinct_chars=6_000)
    assert sum(len(word) for word, _ in counts.words) < 3 * 6_000
    assert dict(counts.words)["the"] == 4_000
    assert counts.num_forgotten + len(counts.words) == 4_001
    long = count_words(["x" * 2_500 + " y"], NORMALIZER)
    assert [(len(word), count) for word, count in long.words] == [(500, 1), (1_000, 2), (1, 1)]
    assert long.num_cut == 1


def test_memory_is_about_what_was_announced(prose, tmp_path, peak_memory):
    """The fixed part is announced with room for many different words; the text's part is close."""
    text = "\n".join(file.read_text("utf-8") for file in prose.iterdir())
    announced, peaks = [], []
    for copies in (4, 48):
        (tmp_path / f"{copies}.txt").write_text(text * copies)
        peak, said = peak_memory(
            "train_vocab",
            f"--input_file={tmp_path / f'{copies}.txt'}",
            f"--output_dir={tmp_path / f'v{copies}'}",
            f"--vocab_size={SIZE}",
        )
        peaks.append(peak)
        announced.append(int(re.search(r"will take about ([\d,]+) MB", said)[1].replace(",", "")))
        assert 0.3 < peak / announced[-1] < 1.1, (peaks, announced)
    assert (peaks[1] - peaks[0]) / (announced[1] - announced[0]) == pytest.approx(1, abs=0.25), (peaks, announced)


def test_large_counts_are_scaled(monkeypatch):
    monkeypatch.setattr(vocabulary, "_TRAINER_TEXT_BYTES", 10_000)
    words = [("aa", 100_000), ("bb", 300), ("cc", 1), ("dd", 50_000)]
    scaled = dict(vocabulary._scaled(words))
    assert vocabulary._text_bytes(scaled.items()) <= 10_000
    assert scaled["aa"] / scaled["dd"] == pytest.approx(2, rel=0.01)
    assert scaled["bb"] == pytest.approx(300 * scaled["aa"] / 100_000, abs=1)


def test_same_bytes_however_the_text_is_spread(trained, prose, tmp_path):
    """One compressed file in another order gives the same vocabulary as many files."""
    joined = "\n\n".join(file.read_text("utf-8") for file in sorted(prose.iterdir(), reverse=True))
    (tmp_path / "all.gz").write_bytes(gzip.compress(joined.encode()))
    again = train_vocabulary(str(tmp_path / "all.gz"), tmp_path / "v", vocab_size=SIZE, report=print)
    for name in ("spiece.model", "spiece.vocab", "tokenizer_config.json"):
        assert again.path.with_name(name).read_bytes() == trained[0].path.with_name(name).read_bytes()


def test_finished_folder_is_confirmed_or_refused(trained, prose, tmp_path):
    folder = trained[0].path.parent
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    lines = []
    assert train_vocabulary([str(prose)], folder, vocab_size=SIZE, report=lines.append).hash == trained[0].hash
    assert "nothing to do" in lines[-1]
    with pytest.raises(UserError, match=f"vocab_size={SIZE}, asked for is 700"):
        train_vocabulary([str(prose)], folder, vocab_size=700)
    with pytest.raises(UserError, match="do_lower_case=true, asked for is false"):
        train_vocabulary([str(prose)], folder, vocab_size=SIZE, do_lower_case=False)
    (tmp_path / "other.txt").write_text("some other text")
    with pytest.raises(UserError, match="vocabulary of other text"):
        train_vocabulary(str(tmp_path / "other.txt"), folder, vocab_size=SIZE)
    assert before == {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


def test_wrong_input_leaves_nothing_behind(prose, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a few words are not enough for thousands of pieces\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\u0301\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("mine")
    output = tmp_path / "out/v"
    cases = [
        (tmp_path / "absent.txt", output, 100, "no input file at"),
        (tmp_path / "*.md", output, 100, "no input file at"),
        (tmp_path / "empty.txt", output, 100, "holds no words"),
        (tmp_path / "blank.txt", output, 100, "holds no words"),
        (text, output, 30_000, "too small for vocab_size 30000: it can carry"),
        (text, output, 20, "too small: the characters of the text alone need"),
        (text, output, 13, "vocab_size 13 is too small"),
        (text, output, -5, "vocab_size -5 is too small"),
        (text, tmp_path / "foreign", 40, "something else than a vocabulary|not empty"),
        (text, tmp_path / "file", 40, "."),
        (text, tmp_path / "file/v", 40, "cannot make the folder"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for patterns, folder, size, message in cases:
        with pytest.raises(UserError, match=message) as error:
            train_vocabulary(str(patterns), folder, vocab_size=size, report=print)
        assert "\n" not in str(error.value)
    assert sorted(set(tmp_path.rglob("*")) - {output.parent}) == before


def test_the_named_size_can_be_carried(prose, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(next(iter(sorted(prose.iterdir()))).read_text("utf-8"))
    with pytest.raises(UserError) as error:
        train_vocabulary(str(text), tmp_path / "v", vocab_size=100_000, report=print)
    size = int(str(error.value).split("it can carry ")[1].split(";")[0])
    assert train_vocabulary(str(text), tmp_path / "v", vocab_size=size, report=print).vocab_size == size


def run_with_kills(prose, folder, delays):
    """Starts the command anew for every delay and kills it then; at last lets it finish."""
    command = [sys.executable, "-m", "albert_tf", "train_vocab", f"--input_file={prose}", f"--output_dir={folder}"]
    for delay in [*delays, None]:
        process = subprocess.Popen(
            [*command, f"--vocab_size={SIZE}"], stderr=subprocess.DEVNULL, start_new_session=True
        )
        if delay is None:
            assert process.wait() == 0
        else:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_after_kills(trained, folder):
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    for file in trained[0].path.parent.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()


def test_killed_and_run_again(trained, prose, tmp_path):
    run_with_kills(prose, tmp_path / "v", [0.9])
    check_after_kills(trained, tmp_path / "v")


def test_a_run_at_the_same_time_keeps_its_folder(trained, prose, tmp_path):
    with pytest.raises(UserError, match="cannot write"), files.new_folder(tmp_path / "v") as other:
        (other / "half").touch()
        train_vocabulary([str(prose)], tmp_path / "v", vocab_size=SIZE, report=lambda line: None)
        assert (other / "half").exists()
    check_after_kills(trained, tmp_path / "v")


@pytest.mark.slow
def test_killed_ten_times_and_run_again(trained, prose, tmp_path):
    run_with_kills(prose, tmp_path / "v", [0.1 + 0.25 * step for step in range(10)])
    check_after_kills(trained, tmp_path / "v")
