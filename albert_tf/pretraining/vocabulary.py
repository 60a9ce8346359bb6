"""Text files -> a SentencePiece vocabulary with the release's settings.

The unigram trainer looks at words and how often they occur, never across white space. So the corpus is counted here and
only the counts go to the trainer: the whole corpus takes part, no sample has to be drawn, no line is too long, the
result does not depend on order or number of files, and memory does not grow with the text. On 20 MB of novels a
vocabulary trained this way cuts unseen novels into 0.0 to 0.2 % fewer pieces than one trained on sentences.
"""

import collections
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import sentencepiece

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pretraining.corpus import Corpus
from albert_tf.tokenization import SentencePieceTokenizer, Tokenizer, load_tokenizer
from albert_tf.tokenization.normalization import Normalizer, sentencepiece_normalizer
from albert_tf.tokenization.tokenizer import SETTINGS_FILE

CONTROL_SYMBOLS = ["[CLS]", "[SEP]", "[MASK]"]
USER_DEFINED_SYMBOLS = ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"]
_NUM_META_PIECES = 2 + len(CONTROL_SYMBOLS) + len(USER_DEFINED_SYMBOLS)
_LARGEST_VOCABULARY = 1_000_000
_CHARACTER_COVERAGE = 0.99995
_NUM_THREADS = 16  # fixed, as in the release: sums over threads round differently for each number of them

_MAX_WORD_CHARS = 1_000  # longer runs without white space are cut, since the trainer drops what has over 4,192 bytes
_MAX_DISTINCT_CHARS = 100_000_000  # of the words held while counting, about 1 GB of memory
_TRAINER_TEXT_BYTES = 64_000_000  # the trainer writes every word out as often as it occurs; larger counts are scaled
_TRAINER_BYTES_PER_BYTE = 14  # measured with sentencepiece 0.2.3
_SECONDS_BETWEEN_REPORTS = 10.0

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class WordCounts:
    """Normalised words with the number of times each occurs, sorted by word, and what counting met."""

    words: list[tuple[str, int]]
    num_cut: int  # runs without white space that were too long for one word
    num_forgotten: int  # rare words given up to bound memory

    @property
    def num_words(self) -> int:
        """Words in all, each as often as it occurs."""
        return sum(count for _, count in self.words)

    def hash(self) -> str:
        """SHA-256 (hex) over the words and counts: equal for equal text, however it is spread over files."""
        digest = hashlib.sha256()
        for word, count in self.words:
            digest.update(f"{word}\t{count}\n".encode())
        return digest.hexdigest()


def train_vocabulary(
    patterns: str | Sequence[str],
    output_dir: str | os.PathLike,
    *,
    vocab_size: int = 30_000,
    do_lower_case: bool = True,
    keep_accents: bool = False,
    report: Report | None = None,
) -> Tokenizer:
    """Writes spiece.model, spiece.vocab and tokenizer_config.json to `output_dir`, all at once, and loads them.

    patterns: files, folders or globs as `corpus.Corpus` takes them. The same text and settings give the same bytes on
    any machine. A folder that already holds this vocabulary is left as it is. `report` gets progress, a line at a time.

    Raises UserError for unusable input, a vocabulary size that the text cannot carry (the largest one is named), or a
    folder that holds something else.
    """
    report = report or (lambda line: print(line, file=sys.stderr, flush=True))
    output = pathlib.Path(output_dir)
    if vocab_size <= _NUM_META_PIECES:
        raise UserError(
            f"vocab_size {vocab_size} is too small: {_NUM_META_PIECES} pieces are special or set; give thousands"
        )
    if vocab_size > _LARGEST_VOCABULARY:
        raise UserError(f"vocab_size {vocab_size} is too large: expected at most {_LARGEST_VOCABULARY}")
    settings = {"vocab_size": vocab_size, "do_lower_case": do_lower_case, "keep_accents": keep_accents}
    finished = _finished_training(output, settings)
    normalizer = sentencepiece_normalizer(do_lower_case=do_lower_case, keep_accents=keep_accents)
    corpus = Corpus(patterns, "paragraphs")  # words are the same whatever the layout
    if finished is not None:
        if finished.get("words_hash") != count_words(_texts(corpus, report), normalizer).hash():
            raise UserError(f"{output} holds a vocabulary of other text; give a new output_dir or remove this one")
        report(f"{output} already holds this vocabulary; nothing to do")
        return load_tokenizer(output)
    with files.new_folder(output) as folder:  # made first, so that a folder that cannot be written is told at once
        counts = count_words(_texts(corpus, report), normalizer)
        _report_counts(counts, corpus, report)
        model = train_unigram(counts.words, vocab_size)
        tokenizer = SentencePieceTokenizer(  # checks the special pieces
            model, output / SentencePieceTokenizer.file_name, do_lower_case=do_lower_case, keep_accents=keep_accents
        )
        tokenizer.save(folder)
        training = {**settings, "num_words": counts.num_words, "words_hash": counts.hash()}
        files.write_json(folder / SETTINGS_FILE, {**tokenizer.settings(), "training": training})
    return load_tokenizer(output)


def count_words(
    texts: Iterable[str], normalizer: Normalizer, *, max_distinct_chars: int = _MAX_DISTINCT_CHARS
) -> WordCounts:
    """Counts the words of `texts` and normalises each distinct one once.

    Where the distinct words exceed `max_distinct_chars` characters, every other word met only once so far is forgotten,
    in the order of their appearance.
    """
    raw: collections.Counter[str] = collections.Counter()
    num_cut = num_forgotten = 0
    next_check = max_distinct_chars // 4  # characters read before the distinct ones can have become too many
    num_chars = 0
    for text in texts:
        words = text.split()
        if max(map(len, words), default=0) > _MAX_WORD_CHARS:
            num_cut += sum(len(word) > _MAX_WORD_CHARS for word in words)
            words = [part for word in words for part in _cut_long(word)]
        raw.update(words)
        num_chars += len(text)
        if num_chars >= next_check:
            distinct_chars = sum(map(len, raw))
            if distinct_chars > max_distinct_chars:
                for word in [word for word, count in raw.items() if count == 1][::2]:
                    del raw[word]
                    num_forgotten += 1
                distinct_chars = sum(map(len, raw))
            next_check = num_chars + max(max_distinct_chars - distinct_chars, max_distinct_chars // 4)
    counts: collections.Counter[str] = collections.Counter()
    for word, count in raw.items():
        for part in normalizer(word).split():  # the decomposition of some signs holds a space
            counts[part] += count
    return WordCounts(sorted(counts.items()), num_cut, num_forgotten)


def train_unigram(words: Sequence[tuple[str, int]], vocab_size: int) -> bytes:
    """The bytes of spiece.model for words and their counts: the release's settings, PAPER section on the vocabulary.

    Raises UserError where the words cannot carry `vocab_size` pieces, or their characters need more.
    """
    if not words:
        raise UserError("the input holds no words: only white space or signs that are dropped; give text")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in _scaled(words)),
            model_writer=model,
            input_format="tsv",
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=_CHARACTER_COVERAGE,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=CONTROL_SYMBOLS,
            user_defined_symbols=USER_DEFINED_SYMBOLS,  # a list: the trainer's own text form trips over the quote
            shuffle_input_sentence=False,
            num_threads=_NUM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _trainer_error(str(error), vocab_size) from error
    return model.getvalue()


def _scaled(words: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The same proportions in at most about _TRAINER_TEXT_BYTES: of all occurrences in a row, every n-th."""
    divisor = -(-_text_bytes(words) // _TRAINER_TEXT_BYTES)
    total = 0
    for word, count in words:
        kept = (total + count) // divisor - total // divisor
        total += count
        if kept:
            yield word, kept


def _text_bytes(words: Iterable[tuple[str, int]]) -> int:
    return sum(count * (len(word.encode()) + 4) for word, count in words)  # with the word mark and an end


def _cut_long(word: str) -> list[str]:
    return [word[start : start + _MAX_WORD_CHARS] for start in range(0, len(word), _MAX_WORD_CHARS)]


def _trainer_error(message: str, vocab_size: int) -> UserError:
    if too_high := re.search(r"too high .*<= (\d+)", message):
        return UserError(
            f"the text is too small for vocab_size {vocab_size}: it can carry {too_high[1]}; "
            f"give more text or --vocab_size={too_high[1]} or less"
        )
    if too_low := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"vocab_size {vocab_size} is too small: the characters of the text alone need {too_low[1]} pieces; "
            f"give --vocab_size={too_low[1]} or more"
        )
    return UserError(f"SentencePiece could not train on this text: {message}; give other text, or another --vocab_size")


def _texts(corpus: Corpus, report: Report) -> Iterator[str]:
    """The texts of the corpus, with progress to `report` now and then."""
    start = last = time.monotonic()
    for document in corpus.documents():
        yield document.text
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_REPORTS and corpus.bytes_read:
            last = now
            rate = corpus.bytes_read / (now - start)
            left = (corpus.num_bytes - corpus.bytes_read) / rate
            share = 100 * corpus.bytes_read / max(corpus.num_bytes, 1)
            report(f"counting words: {share:.0f} % read, {rate / 1e6:.1f} MB/s, {left:.0f} s left")


def _report_counts(counts: WordCounts, corpus: Corpus, report: Report) -> None:
    text_bytes = min(_text_bytes(counts.words), _TRAINER_TEXT_BYTES)
    memory = 150 + text_bytes * _TRAINER_BYTES_PER_BYTE // 1_000_000
    report(
        f"counted {counts.num_words:,} words, {len(counts.words):,} different, in {corpus.num_chars:,} characters of "
        f"{corpus.num_texts:,} texts; training will take about {memory:,} MB of memory"
    )
    if counts.num_cut:
        report(f"cut {counts.num_cut:,} runs of more than {_MAX_WORD_CHARS:,} characters without white space")
    if counts.num_forgotten:
        report(f"left out {counts.num_forgotten:,} rare words to bound memory")
    if corpus.invalid_characters:
        report(f"replaced {corpus.invalid_characters:,} invalid bytes in {', '.join(corpus.damaged[:3])}")


def _finished_training(output: pathlib.Path, settings: dict) -> dict | None:
    """What an earlier run with these settings wrote about its training; None where there is nothing yet.

    Raises UserError where the folder holds anything else.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    path = output / SETTINGS_FILE
    training = files.read_json(path, "tokeniser settings").get("training") if path.is_file() else None
    if not isinstance(training, dict):
        raise UserError(f"{output} exists and holds something else than a vocabulary; give a new output_dir")
    for key, value in settings.items():
        if training.get(key) != value:
            raise UserError(
                f"{output} holds a vocabulary with {key}={json.dumps(training.get(key))}, asked for is "
                f"{json.dumps(value)}; give a new output_dir or remove this one"
            )
    load_tokenizer(output)  # whole and unchanged, or a UserError
    return training
