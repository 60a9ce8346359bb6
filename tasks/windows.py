"""Cutting a long text into overlapping windows, so that every token is in one and has a window that sees it best."""

from typing import NamedTuple


class Window(NamedTuple):
    """Tokens first..stop-1 of a text; of those, owned_from..owned_to-1 have more context here than elsewhere."""

    first: int
    stop: int
    owned_from: int
    owned_to: int


def cut(num_tokens: int, *, room: int, stride: int) -> list[Window]:
    """Windows of at most `room` tokens, each `stride` tokens after the one before; the last ends with the text.

    A token in several windows is owned by the one where its nearer edge is farthest away; at a tie by the earlier. The
    owned ranges follow each other without gap. An empty text gives one empty window.

    >>> cut(7, room=4, stride=2)
    [Window(first=0, stop=4, owned_from=0, owned_to=3), Window(first=2, stop=6, owned_from=3, owned_to=5), \
Window(first=4, stop=7, owned_from=5, owned_to=7)]

    `stride` must be 1..room: a larger one would lose tokens, 0 would never end.
    """
    assert 1 <= stride <= room, (stride, room)
    firsts = [0]
    while firsts[-1] + room < num_tokens:
        firsts.append(firsts[-1] + stride)
    stops = [min(first + room, num_tokens) for first in firsts]
    # In the overlap [second's first, first's stop) the middle belongs to the first: up to there its edge is farther.
    borders = [(first + stop - 1) // 2 + 1 for first, stop in zip(firsts[1:], stops[:-1], strict=True)]
    return [Window(*window) for window in zip(firsts, stops, [0, *borders], [*borders, num_tokens], strict=True)]
