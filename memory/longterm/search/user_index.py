"""`UserIndex`: the in-memory index of one user's items: passages, their words, names and vectors."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from turnwise.memory.conversation.spans import Spans
from turnwise.memory.longterm.base import MemoryItem, Scope, first_of_each
from turnwise.memory.longterm.items.base import FactFilter, matches
from turnwise.memory.longterm.search.analyzer import is_dense, speaker_words, stem, stems, words
from turnwise.memory.longterm.search.passages import MOST_VECTORS, Passage, passages_of, shown, vector_keys
from turnwise.memory.longterm.search.query import Query, Term, parse
from turnwise.memory.longterm.search.ranking import Asked, Matched, Weights, match, rank
from turnwise.memory.longterm.search.word_frequency import is_frequent, log_frequency
from turnwise.memory.longterm.types import MemoryCategory, MemoryType
from turnwise.memory.longterm.vector.item_rows import NOTHING, Revision, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Places = NDArray[np.int64]

MOST_PASSAGES = 3
"""How many passages of an item are shown."""

ONE_EDIT, TWO_EDITS = 4, 8
"""From how many letters on an unknown word is corrected by one edit, and by two."""

Place = tuple[str, int, Spans, int, int]
"""Where a passage stands among a user's: session, turn, blocks, row, start."""

_Arrival = tuple[Row, Passage, str]
"""A passage as it comes: with its row, and the key of its vector, empty if it has none."""

_NOWHERE = np.zeros(0, dtype=np.int64)

_ROOM = 64
"""For how many vectors there is room at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How the items of an index match the words of a query; see `UserIndex.match`."""

    query: Query
    seen: NDArray[np.bool_] | None
    """Of each passage, whether its item is asked for; None if all are."""
    matched: Matched
    """Of those that are asked for."""


class UserIndex:
    """One user's items as of a revision. Immutable except for its vectors.

    The constructor makes an empty index; `grown` returns a new one with rows added. Items of a session stand together,
    in their order.
    """

    def __init__(self) -> None:
        self.revision = NOTHING
        self.rows: list[Row] = []
        """The row of each passage."""
        self._passages: list[Passage] = []
        self._places: list[Place] = []
        self._words = _Words()
        self._where = _NOWHERE
        """Where the passages are, in the order in which they came."""
        self._sessions = _NOWHERE
        self._facts = np.zeros(0, dtype=bool)
        """Of each passage, whether its item is a fact and not what was said in a turn."""
        self._categories = np.zeros(0, dtype=np.int8)
        """Of each passage, the number of its item's category."""
        self._codes: dict[str, int] = {}
        self._plain = True
        """Whether all items are for any agent, and none was superseded, expires or is resolved."""
        self._pinned: list[Row] = []
        self._latest = 0.0
        self._items = 0
        self._text_bytes = 0

    def grown(self, revision: Revision, more: Sequence[Row]) -> UserIndex:
        """Return the index of a later revision, with these rows added, each of a number above all that are here."""
        new = UserIndex()
        came = [each for row in more for each in _passages(row)]
        placed = sorted((_place(row, passage), at) for at, (row, passage, _) in enumerate(came))
        order = [at for _, at in placed]
        at = np.array([bisect(self._places, place) for place, _ in placed], dtype=np.int64)
        rows = [came[number][0] for number in order]
        new.revision = revision
        new.rows = _merged(self.rows, rows, at)
        new._places = _merged(self._places, [place for place, _ in placed], at)
        new._codes = codes = dict(self._codes)
        new._sessions = np.insert(self._sessions, at, [_code(row, codes) for row in rows])
        facts = [row.item.type is not MemoryType.INTERACTION for row in rows]
        new._facts = np.insert(self._facts, at, facts)
        new._categories = np.insert(self._categories, at, [_NUMBERS[row.item.type.category] for row in rows])
        passages = [came[number][1] for number in order]
        new._passages = _merged(self._passages, passages, at)
        # Where the old passages are now, and where the new ones are, in the order in which they came.
        old = self._where + np.searchsorted(at, self._where, side="right")
        new._where = np.concatenate([old, (at + np.arange(len(at)))[np.argsort(np.array(order, dtype=np.int64))]])
        new._words = self._words.grown(len(self.rows), came)
        new._plain = self._plain and all(map(_is_plain, more))
        new._pinned = [*self._pinned, *(row for row in more if row.item.pinned)]
        new._latest = max([self._latest, *(row.item.created_at for row in more)])
        new._items = self._items + len(more)
        new._text_bytes = self._text_bytes + sum(len(row.item.text) for row in more)
        return new

    def pinned(self, scope: Scope, which: FactFilter, expired: Collection[int] = ()) -> list[MemoryItem]:
        """Return the items that are pinned and that the scope sees. Numbers of rows in `expired` are left out."""
        agents = (None, scope.agent)
        rows = (row for row in self._pinned if row.agent in agents and row.row not in expired)
        return [row.item for row in rows if matches(row.item, which)]

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return 3 * self._text_bytes + 900 * len(self.rows) + 4 * self._words.dimensions * len(self.rows)

    def missing(self) -> list[str]:
        """Return the keys of the vectors that it does not have."""
        return self._words.missing(len(self.rows))

    def take(self, vectors: Mapping[str, Vectors]) -> None:
        """Take these vectors, by key. A passage without one of its own takes that of its item."""
        self._words.take(vectors)

    def by_key(self) -> dict[str, Vectors]:
        """Return the vectors that it has."""
        return self._words.by_key(len(self.rows))

    def similarities(self, vector: Vectors | None) -> NDArray[np.float64] | None:
        """Return each passage's vector similarity to a vector, NaN without a vector; None if no passage has one."""
        similarities = None if vector is None else self._words.similarities(vector, len(self.rows))
        if similarities is None:
            return None
        found = np.empty(len(similarities))
        found[self._where] = similarities
        return found

    def match(
        self, query: Query, scope: Scope, which: FactFilter, *, weights: Weights, expired: Collection[int] = ()
    ) -> Match:
        """Return how the items that the scope sees match the words of a query.

        Args:
            expired: numbers of rows that are left out.
        """
        found = self._words.find(query, len(self.rows))
        terms, places = found.terms, self._where[found.serials]
        speakers, named = self._where[found.speakers], [(int(self._where[at]), logs) for at, logs in found.named]
        sessions = self._sessions
        seen = self._seen(scope, which, expired)
        if seen is not None:
            new = np.cumsum(seen) - 1
            is_seen = seen[places]
            terms, places = terms[is_seen], new[places[is_seen]]
            speakers = new[speakers[seen[speakers]]]
            named = [(int(new[at]), logs) for at, logs in named if seen[at]]
            sessions = sessions[seen]
        asked = Asked(
            terms=terms,
            places=places,
            log_frequencies=found.log_frequencies,
            is_corrected=found.is_corrected,
            parts=query.parts,
            speakers=speakers,
            named=named,
        )
        return Match(query=query, seen=seen, matched=match(asked, sessions, weights))

    def rank(
        self, match: Match, *, limit: int, similarities: NDArray[np.float64] | None = None, per_category: bool = False
    ) -> list[MemoryItem]:
        """Return up to `limit` items that bear on a query, or with `per_category` of each category, the best first.

        Args:
            match: what this index returned.
            similarities: each passage's vector similarity to the query; None without vectors.
        """
        facts, seen, groups = self._facts, match.seen, self._categories if per_category else None
        if seen is not None:
            facts, similarities = facts[seen], None if similarities is None else similarities[seen]
            groups = None if groups is None else groups[seen]
        most = limit * MOST_PASSAGES if len(self.rows) > self._items else limit
        ranked = rank(match.matched, facts=facts, similarities=similarities, limit=most, groups=groups)
        places = ranked.places if seen is None else np.flatnonzero(seen)[ranked.places]
        words = [match.query.terms[term].word for term in match.matched.found.tolist()]
        said = match.matched.has[:, ranked.places].T.tolist()
        shown_items = self._shown(places.tolist(), ranked.scores.tolist(), words, said)
        return first_of_each(shown_items, limit) if per_category else shown_items[:limit]

    def _shown(
        self, places: Sequence[int], scores: Sequence[float], words: Sequence[str], said: Sequence[Sequence[float]]
    ) -> list[MemoryItem]:
        """Return the items of these passages, each once, with its score, its passages and the words that it has.

        Args:
            said: of each passage, and each of the words, whether it has it.
        """
        found: dict[int, tuple[MemoryItem, float, list[Passage], dict[str, None]]] = {}
        for at, score, has_it in zip(places, scores, said, strict=True):
            row = self.rows[at]
            if (known := found.get(row.row)) is None:
                known = found[row.row] = row.item, score, [], {}
            _, _, passages, has = known
            has.update(dict.fromkeys(compress(words, has_it)))
            if len(passages) < MOST_PASSAGES:
                passages.append(self._passages[at])
        return [
            replace(
                item,
                score=score,
                words=tuple(has),
                passage=None if passages[0].stop - passages[0].start == len(item.text) else shown(item.text, passages),
            )
            for item, score, passages, has in found.values()
        ]

    def _seen(self, scope: Scope, which: FactFilter, expired: Collection[int]) -> NDArray[np.bool_] | None:
        """Return for each passage whether its item is asked for; None if all are."""
        is_of_now = which.as_of is None or which.as_of >= self._latest
        if self._plain and is_of_now and which.types is None and not expired:
            return None
        agents, gone = (None, scope.agent), set(expired)
        return np.array(
            [row.agent in agents and row.row not in gone and matches(row.item, which) for row in self.rows], dtype=bool
        )


def index_of(items: Sequence[MemoryItem]) -> UserIndex:
    """Return an index of items that are asked for all."""
    rows = [Row(row=at, agent=None, item=item, key=str(at)) for at, item in enumerate(items)]
    return UserIndex().grown(Revision(1, 0, len(rows)), rows)


def find(
    user_index: UserIndex,
    query: str,
    *,
    limit: int,
    weights: Weights,
    similarities: NDArray[np.float64] | None = None,
    per_category: bool = False,
) -> list[MemoryItem]:
    """Return up to `limit` items of an index that bear on the query, the best first, of whatever user and time."""
    match = user_index.match(parse(query), Scope(user_id=""), _EVER, weights=weights)
    return user_index.rank(match, limit=limit, similarities=similarities, per_category=per_category)


_NUMBERS = {category: number for number, category in enumerate(MemoryCategory)}


_EVER = FactFilter(superseded=True)


class _Found:
    """The matches of a query in some items."""

    def __init__(self) -> None:
        self.terms = self.serials = _NOWHERE
        """Pairs of a term's number, ascending, and a passage that has it; some twice."""
        self.log_frequencies: list[float] = []
        self.is_corrected: list[bool] = []
        self.speakers = _NOWHERE
        self.named: list[tuple[int, float]] = []


class _Words:
    """Which passages have which words, by their numbers in the order in which they came.

    Indexes that grow one from the other share it: it is only ever added to, and each looks at what it has itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held where something is added."""
        self._count = 0
        self._passages: list[_Arrival] = []
        self._vectors: Vectors = np.zeros((0, 0), dtype=np.float32)
        """One a passage, NaN without one, and room for more; no columns while there are none."""
        self._waiting: dict[str, list[int]] = {}
        """Passages without a vector, by the key of that."""
        self._parts: dict[str, list[str]] = {}
        """The keys in `_waiting` of items of several passages, by the key of the item."""
        self._having: dict[str, array[int]] = {}
        """Passages by the stems of their words, in ascending order."""
        self._speakers: dict[str, list[int]] = {}
        """By the stems of the name that their item begins with."""
        self._names: dict[str, list[tuple[tuple[str, ...], float, int]]] = {}
        """Names by their first stem: all of their stems, the frequency of the rarest word, the passage."""
        self._known: dict[str, None] = {}
        """All words."""
        self._alike: dict[tuple[str, int], list[str]] = {}
        """All words by their first letter and how many they have."""

    def grown(self, count: int, more: list[_Arrival]) -> _Words:
        """Return the words of the first `count` passages and of these: itself if what it has besides begins alike.

        So when a recall and a save read the same new items at once, they are taken in once.
        """
        with self._lock:
            there = self._passages[count : count + len(more)]
            if there == more[: len(there)]:
                self._add(more[len(there) :])
                return self
            first = self._passages[:count]
        new = _Words()
        new._add([*first, *more])
        new.take(self.by_key(count))
        return new

    # Vectors

    @property
    def dimensions(self) -> int:
        """How many dimensions vectors have; 0 while there are none."""
        return int(self._vectors.shape[1])

    def missing(self, count: int) -> list[str]:
        """Return the keys of the vectors that the first `count` passages do not have, in the order they came."""
        with self._lock:
            return [key for key, serials in self._waiting.items() if serials[0] < count]

    def take(self, vectors: Mapping[str, Vectors]) -> None:
        """Take those of these vectors that passages do not have. Of another dimension, they take the place of all."""
        if not vectors:
            return
        dimensions = len(next(iter(vectors.values())))
        with self._lock:
            if self.dimensions != dimensions:
                self._vectors = np.full((max(self._count, _ROOM), dimensions), np.nan, dtype=np.float32)
                self._waiting, self._parts = {}, {}
                for at, passage in enumerate(self._passages):
                    self._await_vector(at, passage)
            for key, vector in sorted(vectors.items(), key=lambda each: each[0] in self._parts):
                for each in (key, *self._parts.pop(key, ())):
                    if serials := self._waiting.pop(each, None):
                        self._vectors[serials] = vector

    def by_key(self, count: int) -> dict[str, Vectors]:
        """Return the vectors that the first `count` passages have."""
        with self._lock:
            if not self.dimensions:
                return {}
            there = np.flatnonzero(~np.isnan(self._vectors[:count, 0]))
            return {self._passages[at][2]: self._vectors[at] for at in there}

    def similarities(self, vector: Vectors, count: int) -> Vectors | None:
        """Return the similarity of the first `count` passages to a vector; None if none has one of its dimension."""
        vectors = self._vectors  # which may be replaced meanwhile
        if vectors.shape[1] != len(vector):
            return None
        similarities: Vectors = vectors[:count] @ vector
        return similarities

    def _await_vector(self, at: int, passage: _Arrival) -> None:
        row, _, key = passage
        if not key:
            return
        if key not in self._waiting and key != row.key:
            self._parts.setdefault(row.key, []).append(key)
        self._waiting.setdefault(key, []).append(at)

    # Words

    def find(self, query: Query, count: int) -> _Found:
        """Return what the first `count` passages have of a query."""
        found = _Found()
        speakers: set[int] = set()
        meant: dict[str, str] = {}
        # Copies, as nothing can be added to an array while numpy looks at it.
        serials, stops = array("q"), [0]
        for term in query.terms:
            meant_stems, log, right = term.stems, term.log_frequency, None
            if not self._add_having(serials, meant_stems, count) and (right := self._corrected(term)):
                meant[term.word] = right
                meant_stems, log = stems([right])[0], log_frequency(right, term.language)
                self._add_having(serials, meant_stems, count)
            stops.append(len(serials))
            found.log_frequencies.append(log)
            found.is_corrected.append(right is not None)
            for each in meant_stems:
                if speaking := self._speakers.get(each):
                    speakers.update(speaking[:])
        pairs = np.repeat(np.arange(len(query.terms)), np.diff(stops)), np.frombuffer(serials, dtype=np.int64)
        is_there = pairs[1] < count
        found.terms, found.serials = pairs[0][is_there], pairs[1][is_there]
        found.speakers = np.array(sorted(at for at in speakers if at < count), dtype=np.int64)
        if not self._names:
            return found
        said = [stem(meant.get(word, word)) for word in query.said]
        there = set(said)
        for at, first in enumerate(said):
            for name, log, passage in self._names.get(first, ())[:]:
                is_said = tuple(said[at : at + len(name)]) == name or (is_dense(first[0]) and there.issuperset(name))
                if is_said and passage < count:
                    found.named.append((passage, log))
        found.named = list({passage: (passage, log) for passage, log in sorted(found.named, reverse=True)}.values())
        return found

    def _add_having(self, serials: array[int], stems: Iterable[str], count: int) -> bool:
        """Add the passages that have one of these stems; return whether one is of the first `count`."""
        is_found = False
        for each in stems:
            if having := self._having.get(each):
                serials += having
                is_found |= having[0] < count
        return is_found

    def _corrected(self, term: Term) -> str | None:
        """Return the word of the user's that a misspelt one stands for, if there is one."""
        word = term.word
        if len(word) < ONE_EDIT or not word.isalpha() or is_dense(word[0]) or is_frequent(word, term.language):
            return None
        most = 1 if len(word) < TWO_EDITS else 2
        lengths = range(len(word) - most, len(word) + most + 1)
        known = [each for length in lengths for each in self._alike.get((word[0], length), ())[:]]
        near = process.extract(word, known, scorer=OSA.distance, score_cutoff=most, limit=8)
        return min(near, key=lambda each: (each[1], -len(self._having.get(stem(each[0]), ()))))[0] if near else None

    def _add(self, more: Sequence[_Arrival]) -> None:
        if self.dimensions and (lacks := self._count + len(more) - len(self._vectors)) > 0:
            room = np.full((max(lacks, len(self._vectors)), self.dimensions), np.nan, dtype=np.float32)
            self._vectors = np.concatenate([self._vectors, room])
        for arrival in more:
            row, passage, _ = arrival
            item, at = row.item, self._count
            self._await_vector(at, arrival)
            text = item.text[passage.start : passage.stop]
            said = words(text if passage.start == 0 else passage.speaker + text)
            more_said = [word for name in (item.topic, item.name, *item.aliases) if name for word in words(name)]
            for found in stems([*said, *more_said, *_day_of(item.created_at).split()]):
                for each in found:
                    if (having := self._having.get(each)) is None:
                        having = self._having[each] = array("q")
                    if not having or having[-1] != at:
                        having.append(at)
            for word in (*said, *more_said):
                if word not in self._known and len(word) >= ONE_EDIT - 1:
                    self._known[word] = None
                    self._alike.setdefault((word[0], len(word)), []).append(word)
            for word in speaker_words(item.text):
                self._speakers.setdefault(stem(word), []).append(at)
            for name in (item.name, *item.aliases):
                if name and (parts := words(name)):
                    rarest = min(map(log_frequency, parts))
                    phrase = tuple(map(stem, parts))
                    self._names.setdefault(phrase[0], []).append((phrase, rarest, at))
            self._passages.append(arrival)
            self._count += 1


def _passages(row: Row) -> list[_Arrival]:
    passages = passages_of(row.item.text)
    keys = vector_keys(row.key, min(len(passages), MOST_VECTORS))
    keys += [""] * (len(passages) - len(keys))
    return [(row, passage, key) for passage, key in zip(passages, keys, strict=True)]


def _is_plain(row: Row) -> bool:
    item = row.item
    return row.agent is None and item.superseded_at is None and item.expires_at is None and item.status == "active"


def _place(row: Row, passage: Passage) -> Place:
    source = row.item.source
    turn = -1 if source.turn_index is None else source.turn_index
    return source.session_id or "", turn, source.spans, row.row, passage.start


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


def _day_of(created_at: float) -> str:
    try:
        day = datetime.fromtimestamp(created_at, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    # Without the day of the week: who names one means a day of this week, or of every week.
    return f"{day.year} {_MONTHS[day.month - 1]} {day.day}" if created_at else ""


_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
