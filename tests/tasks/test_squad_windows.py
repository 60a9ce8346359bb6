import numpy as np
import pytest

from albert_tf.tokenization import load_tokenizer
from tasks.squad_data import GoldAnswer, Question
from tasks.squad_windows import question_features, token_span

# Double spaces, a no-break space, a ligature, full-width letters, a combining mark, a zero-width space, CRLF.
CONTEXT = (
    "The  value\u00a0of an expression is the of\ufb01ce, \uff26\uff35\uff2c\uff2c width e\u0301tude\u200b.\r\n"
    "Names refer to objects; each name is bound in a block, (2.5%) of them twice."
)
LENGTHS = {"max_seq_length": 24, "max_query_length": 6, "doc_stride": 5}


@pytest.fixture(scope="module")
def tokenizer(tiny_spm):
    return load_tokenizer(tiny_spm)


def asked(*answers, context=CONTEXT, question="Which names are bound in a block?"):
    gold = tuple(GoldAnswer(text, context.index(text)) for text in answers)
    return Question("q", question, context, gold, "2.0")


def test_rows_hold_question_and_window(tokenizer):
    question = asked("Names")
    ids = tokenizer.encode(CONTEXT)
    query = tokenizer.encode(question.question)[:6]
    features = question_features(question, tokenizer, **LENGTHS)
    room = 24 - 6 - 3
    assert len(query) == 6 and len(features) == 1 + -(-(len(ids) - room) // 5)
    for number, feature in enumerate(features):
        part = ids[5 * number : 5 * number + room]
        assert feature["input_ids"].tolist() == [tokenizer.cls_id, *query, tokenizer.sep_id, *part, tokenizer.sep_id]
        assert feature["segment_ids"].tolist() == [0] * 8 + [1] * (len(part) + 1)
        assert feature["context_start"] == 8 and len(feature["offsets"]) == len(part)
        assert all(value.dtype == np.int32 for value in feature.values())


@pytest.mark.parametrize(
    "text", ["value", "of\ufb01ce", "\uff26\uff35\uff2c\uff2c width", "e\u0301tude", "Names refer", "2.5%", "twice"]
)
def test_gold_answers_are_found_on_the_original_text(tokenizer, text):
    features = question_features(asked(text), tokenizer, **LENGTHS)
    held = [(feature, span) for feature in features for span in feature["gold_spans"]]
    assert len(held) == 1  # one window owns it
    feature, (start, end) = held[0]
    offsets = feature["offsets"]
    first, last = offsets[start - feature["context_start"], 0], offsets[end - feature["context_start"], 1]
    assert text in CONTEXT[first:last]
    assert last - first <= len(text) + 3  # pieces may reach into neighbouring signs, not further
    labels = {(int(f["start_position"]), int(f["end_position"])) for f in features if f["start_position"]}
    assert (start, end) in labels


def test_windows_without_the_whole_answer_get_the_null_label(tokenizer):
    question = asked("value of".replace(" ", "\u00a0"))
    features = question_features(question, tokenizer, **LENGTHS)
    whole = [f for f in features if f["offsets"][0, 0] <= 5 and f["offsets"][-1, 1] >= 13]
    assert len(whole) < len(features)
    for feature in features:
        position = (int(feature["start_position"]), int(feature["end_position"]))
        assert (position != (0, 0)) == any(feature is f for f in whole)


def test_an_answer_that_no_window_holds_and_one_that_is_split(tokenizer):
    long = CONTEXT[: CONTEXT.index("each")].strip()
    features = question_features(asked(long), tokenizer, **LENGTHS)
    assert all(feature["start_position"] == 0 and not len(feature["gold_spans"]) for feature in features)


def test_unanswerable_and_unknown(tokenizer):
    features = question_features(asked(), tokenizer, **LENGTHS)
    assert all(feature["start_position"] == feature["end_position"] == 0 for feature in features)
    unknown = Question("q", "Who?", CONTEXT, None, None)
    assert all("start_position" not in f for f in question_features(unknown, tokenizer, **LENGTHS))


def test_owned_positions_cover_the_passage_once(tokenizer):
    features = question_features(asked(), tokenizer, **LENGTHS)
    owned = [tuple(pair) for f in features for pair in f["offsets"][slice(*(f["owned"] - f["context_start"]))]]
    assert owned == tokenizer.encode_with_offsets(CONTEXT).offsets


def test_empty_passage_and_question(tokenizer):
    (feature,) = question_features(Question("q", "", "", (), "2.0"), tokenizer, **LENGTHS)
    assert feature["input_ids"].tolist() == [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
    assert feature["offsets"].shape == (0, 2) and feature["owned"].tolist() == [2, 2]


def test_token_span():
    offsets = np.array([[0, 3], [4, 6], [6, 6], [6, 7], [6, 7], [9, 12]], np.int32)
    assert token_span(offsets, 0, 3) == (0, 0)
    assert token_span(offsets, 1, 5) == (0, 1)
    assert token_span(offsets, 6, 7) == (3, 4)  # both pieces of one character, not the invisible one before
    assert token_span(offsets, 2, 12) == (0, 5)
    assert token_span(offsets, 7, 9) == (1, 0)  # nothing stands for these characters
    assert token_span(offsets[:0], 0, 1) == (1, 0)
