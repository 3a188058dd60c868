"""`UserIndex`: the index by which one user's items are ranked."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from memories.vector_memories import item
from turnwise.memory.longterm.base import Source
from turnwise.memory.longterm.items.rows import Revision, Row
from turnwise.memory.longterm.recall.analyzer import words
from turnwise.memory.longterm.recall.passages import vectors_of
from turnwise.memory.longterm.recall.prominence import spread_out
from turnwise.memory.longterm.recall.query import parse
from turnwise.memory.longterm.recall.ranking import FACTS, Weights
from turnwise.memory.longterm.recall.user_index import UserIndex, find, index_of


@given(st.data())
def test_an_extended_index_equals_one_made_at_once(data: st.DataObject) -> None:
    sessions = data.draw(st.lists(st.sampled_from(["a", "b", None]), max_size=12))
    rows = []
    for number, session in enumerate(sessions):
        source = Source(session_id=session, turn_index=data.draw(st.none() | st.integers(0, 3)))
        text = data.draw(st.sampled_from(["Ann: hello", "Bob: a walrus", "no name"]))
        rows.append(Row(row=number, agent=None, item=item(str(number), text, source=source), key=str(number)))
    vectors = {row.key: np.full(3, row.row, np.float32) for row in rows if row.row % 3}
    once = UserIndex().grown(Revision(1, 0, len(rows)), rows)
    once.take(vectors)
    grown = UserIndex()
    for row_count in [*data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)), len(rows)]:
        base, other_count = grown, data.draw(st.integers(grown.revision.rows, len(rows)))
        if data.draw(st.booleans()):  # a recall and a save at once extend the same index, each as far as it saw
            base.grown(Revision(1, 0, other_count), rows[base.revision.rows : other_count])
        grown = base.grown(Revision(1, 0, row_count), rows[base.revision.rows : row_count])
        grown.take(vectors)
    assert grown.missing() == once.missing() == [row.key for row in rows if row.key not in vectors]
    assert grown.rows == once.rows
    assert [(row.item.source.session_id or "") for row in grown.rows] == sorted(name or "" for name in sessions)
    assert grown.bytes == once.bytes
    if vectors:
        expected = [3.0 * row.row if row.row % 3 else np.nan for row in once.rows]
        for index in (grown, once):
            assert np.array_equal(similarities_of(index, [1.0, 1.0, 1.0]), expected, equal_nan=True)
    for query in ("Ann walrus", "hello", "Bob"):
        for weights in (FACTS, Weights()):
            assert find(grown, query, limit=9, weights=weights) == find(once, query, limit=9, weights=weights)


def similarities_of(user_index: UserIndex, vector: Sequence[float]) -> Any:
    """Return the similarity of each passage to a vector."""
    near = user_index.near(np.array([vector], np.float32))
    assert near is not None
    return near.similarities[0]


def long(id: str, texts: int, key: str) -> Row:
    text = "user: " + " ".join(f"Sentence {number} of this story is about nothing at all." for number in range(texts))
    return Row(row=int(id), agent=None, item=item(id, text), key=key)


def test_passages_have_the_vector_of_the_item_until_they_have_their_own() -> None:
    row = long("0", 60, "key")
    keys = [key for key, _ in vectors_of(row.key, row.item.text)]
    assert len(keys) > 2
    user_index = UserIndex().grown(Revision(1, 0, 1), [row])
    assert user_index.missing() == keys
    user_index.take({keys[1]: np.array([0.0, 1.0], np.float32)})
    similarities = similarities_of(user_index, [0.0, 1.0])
    assert similarities[1] == 1 and np.isnan(np.delete(similarities, 1)).all()
    user_index.take({"key": np.array([1.0, 0.0], np.float32)})
    similarities = similarities_of(user_index, [1.0, 0.0])
    assert similarities.tolist() == [1.0, 0.0] + [1.0] * (len(keys) - 2)
    assert not user_index.missing()


def test_what_is_similar_to_all_items_does_not_come_before_what_is_similar_to_the_query() -> None:
    turns = [item(str(number), f"item {number}", source=Source(session_id=str(number))) for number in range(6)]
    user_index, axes = index_of(turns), np.eye(6, dtype=np.float32)
    of_all, *others = axes[0], *(0.6 * axes[0] + 0.8 * axis for axis in axes[1:])
    user_index.take(dict(zip(user_index.missing(), [of_all, *others], strict=True)))
    near = user_index.near(np.array([0.9 * axes[0] + 0.436 * axes[1]]))
    assert near is not None and near.similarities[0, 0] > near.similarities[0, 1]
    recalled = find(user_index, "whippets", limit=2, weights=Weights(), near=near)
    assert [item.id for item in recalled] == ["1", "0"]


def test_a_text_of_any_length_has_a_bounded_number_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("passages", "user_index"):
        monkeypatch.setattr(f"turnwise.memory.longterm.recall.{module}.MOST_VECTORS", 20)
    row = long("0", 1000, "key")
    grown = UserIndex().grown(Revision(1, 0, 1), [row])
    assert len(grown.missing()) == len(vectors_of("key", row.item.text)) == 20
    assert len(grown.rows) > 20


def test_two_extensions_of_one_index_have_their_own_vectors() -> None:
    first = UserIndex().grown(Revision(1, 0, 1), [Row(row=0, agent=None, item=item("0", "a walrus"), key="0")])
    first.take({"0": np.array([1.0, 0.0], np.float32)})
    grown = []
    for name in ("1", "2"):
        more = Row(row=1, agent=None, item=item(name, "a crab"), key=name)
        grown.append(first.grown(Revision(1, 0, 2), [more]))
    assert [user_index.missing() for user_index in (first, *grown)] == [[], ["1"], ["2"]]
    grown[0].take({"1": np.array([0.0, 1.0], np.float32)})
    assert [np.isnan(similarities_of(user_index, [0.0, 1.0])).tolist() for user_index in (first, *grown)] == [
        [False],
        [False] * 2,
        [False, True],
    ]


def test_an_earlier_index_does_not_find_what_was_added_later() -> None:
    rows = [
        Row(row=number, agent=None, item=item(str(number), "Ann: a walrus"), key=str(number)) for number in range(3)
    ]
    before = UserIndex().grown(Revision(1, 0, 1), rows[:1])
    after = before.grown(Revision(1, 0, 3), rows[1:])
    assert [recalled.id for recalled in find(before, "walrus", limit=9, weights=FACTS)] == ["0"]
    assert {recalled.id for recalled in find(after, "walrus", limit=9, weights=FACTS)} == {"0", "1", "2"}
    assert not find(UserIndex().grown(Revision(1, 0, 0), []), "walrus", limit=9, weights=FACTS)


def test_new_items_are_taken_in_once_by_a_recall_and_a_save_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the user's other items either: to add thousands of them again would take seconds."""
    analysed = list[str]()

    def noting(text: str) -> list[str]:
        analysed.append(text)
        return words(text)

    rows = [
        Row(row=number, agent=None, item=item(str(number), f"Ann: walrus {number}"), key=str(number))
        for number in range(20)
    ]
    before = UserIndex().grown(Revision(1, 0, 16), rows[:16])
    monkeypatch.setattr("turnwise.memory.longterm.recall.user_index.words", noting)
    grown = {row_count: before.grown(Revision(1, 0, row_count), rows[16:row_count]) for row_count in (18, 20, 17, 19)}
    assert analysed == [row.item.text for row in rows[16:]]
    for row_count, user_index in grown.items():
        assert {recalled.id for recalled in find(user_index, "walrus", limit=99, weights=FACTS)} == {
            *map(str, range(row_count))
        }


def row_vector(*values: float) -> NDArray[np.float32]:
    return np.array([value / 9 for value in values], np.float32)


SENTENCES = ("The walrus sings", "Ann: a walrus in the harbour", "Bob: no walrus", "The harbour is closed. It rains")


@pytest.mark.parametrize("is_reminder", [False, True])
@pytest.mark.parametrize("query", ["Is the walrus in the harbour?", "It rains. Which walrus sings?", "Ann", "zebra"])
@pytest.mark.parametrize("weights", [Weights(), FACTS])
def test_items_of_one_passage_each_are_ranked_by_the_rules_for_several(
    query: str, is_reminder: bool, weights: Weights
) -> None:
    """What is the same for an item and its only passage is computed once, with the same result."""
    rows = [
        Row(row=row, agent=None, item=item(str(row), SENTENCES[row % 4], source=Source(session_id="s")), key=str(row))
        for row in range(30)
    ]
    vectors = {row.key: row_vector(1.0, row.row % 5, row.row % 7) for row in rows if row.row % 6}

    def answer(is_shortened: bool) -> list[tuple[Any, ...]]:
        user_index = UserIndex().grown(Revision(1, 0, len(rows)), rows)
        user_index.take(vectors)
        items = user_index.arranged.by_item(weights)
        assert items.has_one_passage_each
        items.has_one_passage_each = is_shortened
        parts = parse(query).told_apart() if is_reminder else [0]
        near = user_index.near(np.full((len(parts), 3), 0.5, np.float32), np.eye(3, dtype=np.float32))
        near = spread_out(near, query, is_fact=user_index.arranged.is_fact, is_reminder=True) if is_reminder else near
        ranked = find(user_index, query, limit=9, weights=weights, near=near, is_reminder=is_reminder)
        return [(entry.id, entry.score, entry.words, entry.passage) for entry in ranked]

    assert answer(is_shortened=True) == answer(is_shortened=False)


def test_the_level_of_unrelated_texts_follows_new_and_removed_vectors() -> None:
    rows = [Row(row=row, agent=None, item=item(str(row), f"text {row}"), key=str(row)) for row in range(6)]
    vectors = {str(row): row_vector(row, 5 - row, row % 2) for row in range(6)}
    unrelated, sentence = np.eye(3, dtype=np.float32), np.full((1, 3), 0.5, np.float32)

    def prominences(user_index: UserIndex) -> Any:
        near = user_index.near(sentence, unrelated)
        assert near is not None and near.prominences is not None
        return near.prominences

    def made_at_once(numbers: Sequence[int]) -> UserIndex:
        user_index = UserIndex().grown(Revision(1, 0, len(numbers)), [rows[number] for number in numbers])
        user_index.take({str(number): vectors[str(number)] for number in numbers})
        return user_index

    user_index = UserIndex().grown(Revision(1, 0, 6), rows)
    user_index.take({str(row): vectors[str(row)] for row in range(3)})
    first = prominences(user_index)
    user_index.take(vectors)
    assert not np.array_equal(first, prominences(user_index))
    assert np.array_equal(prominences(user_index), prominences(made_at_once(range(6))))
    user_index = user_index.changed(Revision(1, 1, 6), (), {0, 5})
    assert np.allclose(prominences(user_index), prominences(made_at_once(range(1, 5))))
