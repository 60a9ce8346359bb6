import dataclasses

import numpy as np
import pytest

from tasks.squad_answers import (
    Answers,
    Proposal,
    answers_from_spans,
    combined_answers,
    probability,
    spans_from_beams,
    spans_from_logits,
)

CONTEXT = "aa bb cc dd ee ff gg hh ii jj"  # a token a word


def window(first, stop, owned, query=2):
    """A window of tokens first..stop-1 of CONTEXT that owns owned[0]..owned[1]-1."""
    shift = query + 2 - first
    return {
        "input_ids": np.zeros(query + 3 + stop - first, np.int32),
        "context_start": np.array(query + 2),
        "owned": np.array(owned, np.int32) + shift,
        "offsets": np.array([[3 * i, 3 * i + 2] for i in range(first, stop)], np.int32).reshape(-1, 2),
        "gold_spans": np.zeros([0, 2], np.int32),
    }


WINDOWS = [window(0, 6, (0, 4)), window(2, 10, (4, 10), query=3)]


def brute_force(starts, ends, max_answer_length):
    """(score, window, start, end) of every allowed span, best first."""
    found = []
    for number, w in enumerate(WINDOWS):
        stop = int(w["context_start"]) + len(w["offsets"])
        for start in range(*w["owned"].tolist()):
            for end in range(start, min(stop, start + max_answer_length)):
                found.append((float(starts[number][start] + ends[number][end]), number, start, end))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("max_answer_length", [1, 3, 30, 10**13])
@pytest.mark.parametrize("per_window", [1, 4, 500])
def test_spans_are_the_best_of_all_allowed_ones(max_answer_length, per_window):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        starts, ends = (rng.normal(size=(2, 40)).astype(np.float32) for _ in range(2))  # rows of a padded batch
        lengths = {"max_answer_length": max_answer_length, "per_window": per_window}
        spans = spans_from_logits(list(starts), list(ends), WINDOWS, **lengths)
        expected = brute_force(starts, ends, max_answer_length)
        expected = [[span for span in expected if span[1] == number][:per_window] for number in (0, 1)]
        columns = (spans.score, spans.window, spans.start, spans.end)
        found = sorted(zip(*(column.tolist() for column in columns), strict=True))
        assert found == sorted(expected[0] + expected[1])


def test_beams_keep_the_allowed_pairs():
    beam = {
        "start_top_index": np.array([7, 4, 0]),
        "start_top_log_probs": np.array([-0.5, -1.0, -2.0], np.float32),
        # past the end, allowed, before the start; allowed, too long by one, allowed; start not owned
        "end_top_index": np.array([10, 9, 4, 4, 8, 7, 0, 5, 6]),
        "end_top_log_probs": -np.arange(9, dtype=np.float32),
    }
    spans = spans_from_beams([beam], WINDOWS[:1], max_answer_length=4)
    found = list(zip(spans.start.tolist(), spans.end.tolist(), spans.score.tolist(), strict=True))
    assert found == [(7, 9, -1.5), (4, 4, -4.0), (4, 7, -6.0)]
    beam = {name: value.astype(np.int32) if "index" in name else value for name, value in beam.items()}  # as a head's
    spans = spans_from_beams([beam], WINDOWS[:1], max_answer_length=2**31 - 1)  # "no limit"
    assert list(zip(spans.start.tolist(), spans.end.tolist(), strict=True)) == [(7, 9), (4, 4), (4, 8), (4, 7)]


def test_answers_are_slices_with_duplicate_texts_merged():
    context = "aa bb aa cc  "
    windows = [dict(window(0, 5, (0, 5)), offsets=np.array([[0, 2], [3, 5], [6, 8], [9, 11], [12, 12]], np.int32))]
    starts, ends = np.full(9, -5.0, np.float32), np.full(9, -5.0, np.float32)
    starts[[4, 6, 7]] = [2, 3, 0]
    ends[[4, 6, 8]] = [2, 1, 4]
    spans = spans_from_logits([starts], [ends], windows, max_answer_length=3, per_window=40)
    (proposals,) = answers_from_spans(spans, windows, np.array([0]), [context], n_best_size=4)
    # tokens 2..4 score 7 and end with an invisible piece; "aa" and "cc" 4, the earlier first; "aa" also later
    assert [(p.text, p.start, p.end, p.score) for p in proposals] == [
        ("aa cc", 6, 11, 7.0),
        ("aa", 0, 2, 4.0),
        ("cc", 9, 11, 4.0),
        ("aa bb aa", 0, 8, 3.0),
    ]
    weights = np.exp([7.0, 4.0, 4.0, 3.0])
    np.testing.assert_allclose([p.probability for p in proposals], weights / weights.sum(), rtol=1e-12)
    assert all(context[p.start : p.end] == p.text for p in proposals)


def test_windows_of_one_question_compete_and_each_question_keeps_its_own():
    rng = np.random.default_rng(0)
    starts, ends = (rng.normal(size=(2, 14)).astype(np.float32) for _ in range(2))
    spans = spans_from_logits(list(starts), list(ends), WINDOWS, max_answer_length=3, per_window=9)
    score, number, start, end = brute_force(starts, ends, 3)[0]
    (together,) = answers_from_spans(spans, WINDOWS, np.array([0, 0]), [CONTEXT], n_best_size=5)
    first = WINDOWS[number]["offsets"][start - WINDOWS[number]["context_start"], 0]
    assert together[0].start == first and together[0].score == score and len(together) == 5
    apart = answers_from_spans(spans, WINDOWS, np.array([0, 1]), [CONTEXT] * 2, n_best_size=5)
    assert apart[number][0].text == together[0].text and apart[1 - number][0].score < score


def test_no_allowed_token_gives_the_empty_answer():
    windows = [window(0, 0, (0, 0))]
    spans = spans_from_logits([np.zeros(9)], [np.zeros(9)], windows, max_answer_length=30, per_window=20)
    (proposals,) = answers_from_spans(spans, windows, np.array([0]), [""], n_best_size=20)
    answers = Answers(proposals, null_probability=1.0)
    assert proposals == () and answers.best_text == answers.text(0.5) == ""
    assert answers.as_json() == [{"text": "", "probability": 1.0, "score": None, "start_char": None, "end_char": None}]


def test_threshold():
    answers = Answers((Proposal("x", 0, 1, 0.0, 1.0),), null_probability=0.4)
    assert (answers.text(0.4), answers.text(0.39), Answers(answers.proposals).text(0.0)) == ("x", "", "x")


def test_ensemble_averages_what_several_models_propose():
    def answers(null, **probabilities):
        proposals = tuple(Proposal(text, 0, 1, np.log(p), p) for text, p in probabilities.items())
        return Answers(proposals, null, reachable=null > 0.5)

    both = combined_answers([answers(0.2, x=0.5, y=0.3), answers(0.6, y=0.6, z=0.4, w=0.1)])
    assert [(p.text, round(p.probability, 12)) for p in both.proposals] == [("x", 0.5), ("y", 0.45), ("z", 0.4)]
    assert both.null_probability == pytest.approx(0.4) and both.reachable
    assert both.proposals[1].score == pytest.approx((np.log(0.3) + np.log(0.6)) / 2)
    without = dataclasses.replace(answers(0.2, x=1.0), null_probability=None, reachable=None)
    assert combined_answers([without, without]) == without


def test_probability():
    np.testing.assert_allclose(probability([0.0, 2.0, -2.0]), [0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))])
    assert probability(np.inf) == 1.0 and probability(-np.inf) == 0.0 and 0 < probability(-700.0) < 1e-300
