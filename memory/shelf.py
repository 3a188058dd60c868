"""One user's items, laid out to be ranked."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from turnwise.memory.facts import FactFilter, holds
from turnwise.memory.full_text import Matches
from turnwise.memory.full_text_rows import NOTHING, Revision, Row
from turnwise.memory.fusion import Weights, rank
from turnwise.memory.long_term import MemoryItem, Scope
from turnwise.memory.spans import Spans
from turnwise.memory.terms import Term
from turnwise.memory.vocabulary import label, lemma, stem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnwise.memory.categories import MemoryType

    Vectors = NDArray[np.float32]

WORD_LENGTH = 6
"""Characters a word takes, about: a text's length is only ever compared with others'."""

MAX_LENGTH = 6_000
"""From how many characters on texts are all as long, so that a huge one does not make all others short."""

Place = tuple[str, int, Spans, int]
"""Where an item stands among a user's: session, turn, blocks, row."""

_NOWHERE = np.zeros(0, dtype=np.int64)


class Shelf:
    """One user's items as of a revision: those of a session together, in their order. Changes only in its vectors.

    Made empty; `grown` makes the next.
    """

    def __init__(self) -> None:
        self.revision = NOTHING
        self.rows: list[Row] = []
        self.vectors: Vectors | None = None
        """One a row, NaN for an item without one; None while there are none."""
        self._places: list[Place] = []
        self._numbers = _NOWHERE
        """Of the rows, in ascending order."""
        self._where = _NOWHERE
        """Where the rows of these numbers are."""
        self._sessions = _NOWHERE
        self._codes: dict[str, int] = {}
        self._lengths = np.zeros(0)
        self._speakers: dict[str, list[int]] = {}
        """The numbers of the rows that are said by one of this name."""
        self._plain = True
        """Whether all items are for any agent, and none was superseded, expires or is resolved."""
        self._latest = 0.0
        self._text_bytes = 0

    def grown(self, revision: Revision, more: Sequence[Row]) -> Shelf:
        """Return the shelf of a later revision, with these rows added, each of a number above all that are here."""
        new = Shelf()
        placed = sorted((_place(row), row) for row in more)
        rows = [row for _, row in placed]
        at = np.array([bisect(self._places, place) for place, _ in placed], dtype=np.int64)
        new.revision = revision
        new.rows = _merged(self.rows, rows, at)
        new._places = _merged(self._places, [place for place, _ in placed], at)
        new._codes = codes = dict(self._codes)
        sessions = [_code(row, codes) for row in rows]
        new._sessions = np.insert(self._sessions, at, sessions)
        lengths = [1.0 + min(len(row.item.text), MAX_LENGTH) / WORD_LENGTH for row in rows]
        new._lengths = np.insert(self._lengths, at, lengths)
        if self.vectors is not None:
            new.vectors = np.insert(self.vectors, at, np.nan, axis=0)
        # Where the old rows are now, and where the new ones are; the new ones in the order of their numbers.
        old = self._where + np.searchsorted(at, self._where, side="right")
        order = np.argsort([row.row for row in rows])
        new._where = np.concatenate([old, (at + np.arange(len(at)))[order]])
        new._numbers = np.concatenate([self._numbers, np.array([row.row for row in more], dtype=np.int64)])
        new._speakers = {name: list(numbers) for name, numbers in self._speakers.items()}
        for row in more:
            for word in label(row.item.text):
                new._speakers.setdefault(stem(lemma(word)), []).append(row.row)
        new._plain = self._plain and all(map(_is_plain, more))
        new._latest = max([self._latest, *(row.item.created_at for row in more)])
        new._text_bytes = self._text_bytes + sum(len(row.item.text) for row in more)
        return new

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return self._text_bytes + 800 * len(self.rows) + (0 if self.vectors is None else self.vectors.nbytes)

    def missing(self) -> list[str]:
        """Return the keys of the items without a vector."""
        if self.vectors is None:
            return [row.key for row in self.rows]
        return [self.rows[at].key for at in np.flatnonzero(np.isnan(self.vectors[:, 0]))]

    def take(self, vectors: Mapping[str, Vectors]) -> None:
        """Take these vectors, by key."""
        if not vectors or not self.rows:
            return
        dimensions = len(next(iter(vectors.values())))
        if self.vectors is None or self.vectors.shape[1] != dimensions:
            self.vectors = np.full((len(self.rows), dimensions), np.nan, dtype=np.float32)
        for at, row in enumerate(self.rows):
            if (vector := vectors.get(row.key)) is not None:
                self.vectors[at] = vector

    def by_key(self) -> dict[str, Vectors]:
        """Return the vectors that it has."""
        if self.vectors is None:
            return {}
        return {self.rows[at].key: self.vectors[at] for at in np.flatnonzero(~np.isnan(self.vectors[:, 0]))}

    def rank(
        self,
        scope: Scope,
        asked: Sequence[Term],
        matches: Matches,
        vector: Vectors | None,
        *,
        limit: int,
        types: Collection[MemoryType] | None,
        as_of: float | None,
        now: float,
        weights: Weights,
    ) -> list[MemoryItem]:
        """Return up to `limit` items that the scope sees and that bear on the query, the best first."""
        found = [*matches.rows, *matches.related]
        hits = [self._find(rows) for rows in found]
        named = np.zeros(len(self.rows), dtype=bool)
        for term in asked:
            named[self._find(self._speakers.get(term.base, ()))] = True
        near = None
        if vector is not None and self.vectors is not None and self.vectors.shape[1] == len(vector):
            near = (self.vectors @ vector).astype(float)
        sessions, lengths = self._sessions, self._lengths
        seen = self._seen(scope, FactFilter(types=types, as_of=as_of, live_at=now if as_of is None else as_of))
        if matches.expired:
            seen = np.ones(len(self.rows), dtype=bool) if seen is None else seen
            seen[self._find(matches.expired)] = False
        if seen is not None:
            new = np.cumsum(seen) - 1
            hits = [new[places[seen[places]]] for places in hits]
            named, sessions, lengths = named[seen], sessions[seen], lengths[seen]
            near = None if near is None else near[seen]
        ranked = rank(
            hits[: len(asked)],
            related=hits[len(asked) :],
            labels=named,
            sessions=sessions,
            lengths=lengths,
            similarities=near,
            limit=limit,
            weights=weights,
        )
        places = ranked.places if seen is None else np.flatnonzero(seen)[ranked.places]
        return [
            replace(self.rows[at].item, score=float(score)) for at, score in zip(places, ranked.scores, strict=True)
        ]

    def _find(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return where the rows of these numbers are."""
        return self._where[np.searchsorted(self._numbers, numbers)] if numbers else _NOWHERE

    def _seen(self, scope: Scope, which: FactFilter) -> NDArray[np.bool_] | None:
        """Return for each item whether it is asked for; None if all are."""
        if self._plain and which.types is None and (which.as_of is None or which.as_of >= self._latest):
            return None
        agents = (None, scope.agent)
        return np.array([row.agent in agents and holds(row.item, which) for row in self.rows], dtype=bool)


def _is_plain(row: Row) -> bool:
    item = row.item
    return row.agent is None and item.superseded_at is None and item.expires_at is None and item.status == "active"


def _place(row: Row) -> Place:
    source = row.item.source
    turn = -1 if source.turn_index is None else source.turn_index
    return source.session_id or "", turn, source.spans, row.row


def _code(row: Row, codes: dict[str, int]) -> int:
    """Return a number for the row's session; one without a session is a session of its own."""
    session = row.item.source.session_id
    return -1 - row.row if session is None else codes.setdefault(session, len(codes))


def _merged(old: list[Any], more: list[Any], at: NDArray[np.int64]) -> list[Any]:
    """Return a list with each of `more` before what was at its position."""
    merged, start = [], 0
    for one, stop in zip(more, at.tolist(), strict=True):
        merged += old[start:stop]
        merged.append(one)
        start = stop
    return merged + old[start:]
