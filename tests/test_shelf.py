"""`Shelf`: one user's items, laid out to be ranked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turnwise.memory.full_text_rows import Revision, Row
from turnwise.memory.long_term import Source
from turnwise.memory.ranking import FACTS
from turnwise.memory.shelf import Shelf, find
from vectorbox import item


@given(st.data())
def test_a_shelf_that_grew_is_one_that_was_made_at_once(data: st.DataObject) -> None:
    sessions = data.draw(st.lists(st.sampled_from(["a", "b", None]), max_size=12))
    rows = []
    for at, session in enumerate(sessions):
        source = Source(session_id=session, turn_index=data.draw(st.none() | st.integers(0, 3)))
        text = data.draw(st.sampled_from(["Ann: hello", "Bob: a walrus", "no name"]))
        rows.append(Row(row=at, agent=None, item=item(str(at), text, source=source), key=str(at)))
    vectors = {row.key: np.full(3, row.row, np.float32) for row in rows if row.row % 3}
    once = Shelf().grown(Revision(1, 0, len(rows)), rows)
    once.take(vectors)
    grown = Shelf()
    for at in [*data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)), len(rows)]:
        grown = grown.grown(Revision(1, 0, at), rows[grown.revision.rows : at])
        grown.take(vectors)
    assert grown.missing() == once.missing() == [row.key for row in once.rows if row.key not in vectors]
    assert grown.rows == once.rows
    assert [(each.item.source.session_id or "") for each in grown.rows] == sorted(name or "" for name in sessions)
    assert grown.bytes == once.bytes
    assert grown._where.tolist() == once._where.tolist() == [once.rows.index(row) for row in rows]
    assert np.array_equal(np.diff(grown._sessions) == 0, np.diff(once._sessions) == 0)
    for query in ("Ann walrus", "hello", "Bob"):
        assert find(grown, query, limit=9, weights=FACTS) == find(once, query, limit=9, weights=FACTS)
