"""`Growth`: brings an index up to date in steps of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from turnwise.memory.longterm.items.rows import Revision, Row
from turnwise.memory.longterm.recall.passages import item_key
from turnwise.memory.longterm.recall.user_index import Arrival, UserIndex, arrivals_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

UNFINISHED = Revision(-1, -1, 0)
"""The revision of an index that has some of the rows of a revision."""

STEP_CHARS = 32_000
"""About how many characters of text one step analyses: some milliseconds, or a tenth of a second of words that are all
different."""

PASSAGE_CHARS = 64
"""How many characters a passage counts in addition to its own."""


class Growth:
    """The growth of an index to a later revision. The first step removes the deleted rows; new rows are added in order.

    `index` is the index so far, which has whole rows only. No passage is analysed twice.

    Args:
        index: the index to begin with, the latest of its user.
        more: the rows to add.
        removed: the numbers of rows to remove.
        revision: the revision of the index in the end.
        revision_at: the revision of the index that has the rows up to one; if left out, one that equals no other.
        vectors: vectors of the rows to add, by key.
    """

    def __init__(
        self,
        index: UserIndex,
        more: Sequence[Row],
        removed: Collection[int],
        revision: Revision,
        *,
        revision_at: Callable[[Row], Revision] = lambda row: UNFINISHED,
        vectors: Mapping[str, Vectors] | None = None,
    ) -> None:
        self.index = index
        self._rows = more
        self._removed = removed
        self._revision = revision
        self._revision_at = revision_at
        self._vectors = vectors or {}
        self._count = 0
        """How many of the rows are analysed or begun."""
        self._begun: list[Arrival] = []
        """The passages of the last of these, if it is begun."""
        self._analysed = 0
        """How many of them are analysed."""
        self.missing = len(more)
        """How many rows the index still lacks."""
        self.is_done = not more and not removed and index.revision == revision

    def step(self) -> None:
        """Analyse some passages, and add the rows of which all are analysed."""
        if self.is_done:
            return
        arrivals: list[Arrival] = []
        chars = 0
        while chars < STEP_CHARS and (self._begun or self._count < len(self._rows)):
            if not self._begun:
                self._begun, self._analysed = arrivals_of([self._rows[self._count]]), 0
                self._count += 1
            arrival = self._begun[self._analysed]
            arrival.analyse()
            self._analysed += 1
            chars += PASSAGE_CHARS + arrival.passage.stop - arrival.passage.start
            if self._analysed == len(self._begun):
                arrivals += self._begun
                self._begun = []
        is_last = not self._begun and self._count == len(self._rows)
        if arrivals or self._removed or is_last:
            revision = self._revision if is_last else self._revision_at(arrivals[-1].row) if arrivals else UNFINISHED
            self.index = self.index.changed(revision, arrivals, self._removed)
            self.index.take(self._vectors)
            self._removed = ()
            self.missing -= len({arrival.row.row for arrival in arrivals})
        self.is_done = is_last


def growth_between(index: UserIndex, rows: Sequence[Row], revision: Revision) -> Growth:
    """Return the growth of an index to one of exactly these rows. Rows that it has are not analysed again."""
    indexed = {row.row: row for row in index.rows}
    more = [row for row in rows if indexed.get(row.row) != row]
    removed = indexed.keys() - {row.row for row in rows} | {row.row for row in more if row.row in indexed}
    if len(removed) > len(indexed) - len(removed) or index.removed_count > len(index.rows) + _MOST_REMOVED:
        return Growth(UserIndex(), rows, (), revision, vectors=index.by_key())
    # A row whose text stays has its vectors still. They are copied, as the index overwrites those of what is gone.
    keys = {row.key for row in more}
    vectors = {key: vector.copy() for key, vector in index.by_key().items() if item_key(key) in keys} if removed else {}
    return Growth(index, more, removed, revision, vectors=vectors)


_MOST_REMOVED = 1_000
"""An index with so many more removed passages than rows is built again, since removed passages still take space."""
