"""The ranking of one user's items by what they share with a query, and by their neighbours."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turnwise.memory.fusion import Weights, rank


def ask(hits: list[list[int]], sessions: list[int], **changes: Any) -> tuple[list[int], list[float]]:
    size = len(sessions)
    found = rank(
        [np.array(places, dtype=np.int64) for places in hits],
        related=[np.zeros(0, np.int64)] * len(hits),
        labels=np.zeros(size, bool),
        sessions=np.array(sessions, dtype=np.int64),
        lengths=np.full(size, 10.0),
        similarities=changes.pop("similarities", None),
        limit=10,
        weights=Weights(**changes),
    )
    return found.places.tolist(), found.scores.tolist()


def test_neighbours_of_the_same_session_come_with_what_was_found() -> None:
    assert ask([[2]], [0, 0, 0, 0, 1], tail=0.3)[0] == [2, 3, 1]
    assert ask([[3]], [0, 0, 0, 0, 1], tail=0.3)[0] == [3, 2]
    assert ask([[3]], [0, 1, 2, 3, 4], tail=0.0)[0][0] == 3


def test_a_query_that_is_mostly_about_something_else_finds_nothing() -> None:
    assert ask([[0], [], []], [0, 1]) == ([], [])
    assert ask([[0], [0], []], [0, 1])[0] == [0]
    assert ask([], [0, 1]) == ([], [])
    assert ask([[]], []) == ([], [])


def test_what_is_similar_is_found_without_a_shared_word() -> None:
    assert ask([[]], [0, 1, 2], similarities=np.array([0.1, 0.9, np.nan]))[0] == [1]
    assert ask([[]], [0, 1, 2], similarities=np.array([0.1, 0.3, np.nan]))[0] == []


@given(st.data())
def test_scores_fall_from_at_most_1_and_there_are_as_many_as_places(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    hits = data.draw(st.lists(st.lists(st.integers(0, size - 1), unique=True, max_size=size), max_size=4))
    sessions = sorted(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    near = data.draw(st.lists(st.floats(-1, 1) | st.just(float("nan")), min_size=size, max_size=size))
    places, scores = ask([sorted(each) for each in hits], sessions, similarities=np.array(near))
    assert len(set(places)) == len(places) == len(scores) <= 10
    assert all(
        1 >= one >= other > 0
        for one, other in zip(scores, [*scores[1:], scores[-1:][0]] if scores else [], strict=True)
    )
