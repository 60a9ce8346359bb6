import itertools

import pytest

from tasks.windows import Window, cut


def test_example():
    assert cut(7, room=4, stride=2) == [Window(0, 4, 0, 3), Window(2, 6, 3, 5), Window(4, 7, 5, 7)]


def test_short_and_empty_texts_have_one_window():
    assert cut(4, room=4, stride=1) == [Window(0, 4, 0, 4)]
    assert cut(0, room=4, stride=2) == [Window(0, 0, 0, 0)]


@pytest.mark.parametrize("num_tokens", [1, 5, 6, 7, 23, 64])
def test_every_token_is_owned_by_the_window_that_sees_it_best(num_tokens):
    for room, stride in itertools.product(range(1, 9), range(1, 9)):
        if stride > room:
            continue
        windows = cut(num_tokens, room=room, stride=stride)
        assert windows[0].first == 0 and windows[-1].stop == num_tokens
        for token in range(num_tokens):
            context = [min(token - w.first, w.stop - 1 - token) for w in windows]  # negative: not in the window
            best = context.index(max(context))
            owners = [i for i, w in enumerate(windows) if w.owned_from <= token < w.owned_to]
            assert context[best] >= 0 and owners == [best]
        assert all(0 < w.stop - w.first <= room for w in windows)
        assert all(b.first - a.first == stride for a, b in itertools.pairwise(windows))
