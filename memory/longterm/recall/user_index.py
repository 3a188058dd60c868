"""`UserIndex`: the in-memory index of one user's items: passages, their words, names and vectors."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect, bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from turnwise.errors import StoreError
from turnwise.memory.background import check_awaited
from turnwise.memory.conversation.spans import Spans
from turnwise.memory.longterm.base import MemoryItem, Scope, first_of_each
from turnwise.memory.longterm.items.base import ItemFilter
from turnwise.memory.longterm.items.rows import NOTHING, Revision, Row
from turnwise.memory.longterm.items.rules import is_of_later, matches
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.recall.analyzer import asks, is_dense, stem, stems, words
from turnwise.memory.longterm.recall.item_words import ItemWords, Part, content_of
from turnwise.memory.longterm.recall.passages import MOST_VECTORS, Passage, passages_of, shown, vector_keys
from turnwise.memory.longterm.recall.prominence import (
    Level,
    Similarities,
    common_of,
    level_of,
    prominences_of,
    spread_out,
)
from turnwise.memory.longterm.recall.query import Query, Term, parse
from turnwise.memory.longterm.recall.ranking import Matched, Passages, QueryTerms, Ranked, Weights
from turnwise.memory.longterm.recall.standing_wishes import current_wishes, wishes_of
from turnwise.memory.longterm.recall.word_frequency import is_frequent, log_frequency
from turnwise.memory.values.records import replace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnwise.memory.longterm.recall.similarity import Similarity

    Vectors = NDArray[np.float32]
    Numbers = NDArray[np.float64]
    Places = NDArray[np.int64]

MOST_PASSAGES = 3
"""The most passages of an item that are shown."""

AS_GOOD = 0.5
"""A further passage is shown if its score is at least this share of the best one's."""

ONE_EDIT, TWO_EDITS = 4, 8
"""From how many letters on an unknown word is corrected by one edit, and by two."""

Place = tuple[str, int, Spans, int, int]
"""Where a passage stands among a user's: session, turn, blocks, row, start."""

COMPARED = 300_000
"""The most words of the user that a query is compared with, to correct misspelt words."""

ADDED = 64
"""How many passages are added while the lock is held; other calls wait for it."""


@dataclass(slots=True)
class Arrival:
    """A new passage with its row and the key of its vector, which is empty if it has none."""

    row: Row
    passage: Passage
    key: str
    item_words: ItemWords | None = field(compare=False)
    """Analyses the passages of its row; None once this one is indexed."""
    part: Part | None = field(default=None, compare=False)

    def analyse(self) -> Part:
        """Return the words and stems by which the passage is found. The passages of a row are analysed in order."""
        if self.part is None:
            check_awaited()
            passage, text = self.passage, self.row.item.text[self.passage.start : self.passage.stop]
            passage_words = words(text if passage.start == 0 else passage.speaker + text)
            self.item_words = self.item_words or ItemWords(self.row.item)
            self.part = self.item_words.part(passage_words)
        return self.part


_NO_POSITIONS = np.zeros(0, dtype=np.int64)
_NO_NUMBERS = np.zeros(0)

_ROOM = 64
"""The least number of vectors to reserve space for."""


@dataclass(kw_only=True, slots=True)
class Match:
    """The matches of the items of an index with the words of a query, which `rank_all` ranks; see `UserIndex.match`."""

    index: UserIndex
    query: Query
    visible: NDArray[np.bool_] | None
    """Of each passage, whether its item is requested; None if all are."""
    passages: Passages
    """Those of requested items."""
    terms: QueryTerms
    """The query, matched against these."""
    limit: int = 10
    """The most items to return, or with `per_category` of each category."""
    near: Similarities | None = None
    """The similarities of all passages to the query's vectors, see `vector_texts`; None without vectors."""
    per_category: bool = False
    is_reminder: bool = False
    """Whether only items are returned that stand out for a sentence: for most prompts none."""

    def of_visible(self, rows: Any) -> Any:
        """Return what rows have of the requested passages."""
        return rows if self.visible is None or rows is None else rows[..., self.visible]


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
        self._positions = _NO_POSITIONS
        """The positions of the passages, in the order in which they were added; -1 for removed ones."""
        self._sessions = _NO_POSITIONS
        self._facts = np.zeros(0, dtype=bool)
        """Of each passage, whether its item is a fact and not what was said in a turn."""
        self._asks = np.zeros(0, dtype=bool)
        """Of each passage, whether its item ends with a question."""
        self._content = np.zeros(0)
        """Of each passage, how much its item says, see `content_of`."""
        self._items = _NO_POSITIONS
        """Of each passage, the number of its row."""
        self._chars = _NO_POSITIONS
        """Of each passage, how many characters its item has."""
        self.categories = np.zeros(0, dtype=np.int8)
        """Of each passage, the number of its item's category."""
        self._codes: dict[str, int] = {}
        self._special = 0
        """How many items are for one agent only, were superseded, expire or are resolved."""
        self._pinned: list[Row] = []
        self._wishes: list[tuple[Row, str]] = []
        """The standing wishes in the items, with their rows."""
        self._latest_time = 0.0
        self._text_bytes = 0
        self._common_by_serial = self._common_by_passage = _NO_NUMBERS
        """What `_common` has computed, and what it is computed from."""

    def grown(self, revision: Revision, more: Sequence[Row]) -> UserIndex:
        """Return the index of a later revision, with these rows added, each of a number that no row here has."""
        return self.changed(revision, arrivals_of(more))

    def changed(self, revision: Revision, arrivals: Sequence[Arrival], removed: Collection[int] = ()) -> UserIndex:
        """Return the index of a later revision: without the rows of some numbers, and with the passages of others.

        Only these are analysed. Call it for the latest index of the user: earlier indexes no longer find removed
        passages.

        Args:
            arrivals: all passages of rows; each row has a number that no row that stays has.
        """
        if removed:
            return self._without(set(removed)).changed(revision, arrivals)
        new = UserIndex()
        placed = sorted((_place(arrival.row, arrival.passage), index) for index, arrival in enumerate(arrivals))
        order = [index for _, index in placed]
        positions = np.array([bisect(self._places, place) for place, _ in placed], dtype=np.int64)
        rows = [arrivals[number].row for number in order]
        new.revision = revision
        new.rows = _merged(self.rows, rows, positions)
        new._places = _merged(self._places, [place for place, _ in placed], positions)
        new._codes = codes = dict(self._codes)
        new._sessions = np.insert(self._sessions, positions, [_code(row, codes) for row in rows])
        facts = [row.item.type is not MemoryType.INTERACTION for row in rows]
        new._facts = np.insert(self._facts, positions, facts)
        new._asks = np.insert(self._asks, positions, [asks(row.item.text) for row in rows])
        contents = {row.row: content_of(row.item.text) for row in rows}
        new._content = np.insert(self._content, positions, [contents[row.row] for row in rows])
        new._items = np.insert(self._items, positions, [row.row for row in rows])
        new._chars = np.insert(self._chars, positions, [len(row.item.text) for row in rows])
        new.categories = np.insert(self.categories, positions, [_NUMBERS[row.item.type.category] for row in rows])
        passages = [arrivals[number].passage for number in order]
        new._passages = _merged(self._passages, passages, positions)
        # Where the old passages are now, and where the new ones are, in the order in which they came.
        moved = self._positions + np.searchsorted(positions, self._positions, side="right")
        old = np.where(self._positions < 0, -1, moved)
        new._positions = np.concatenate(
            [old, (positions + np.arange(len(positions)))[np.argsort(np.array(order, dtype=np.int64))]]
        )
        new._words = self._words.grown(len(self._positions), arrivals)
        more = list({arrival.row.row: arrival.row for arrival in arrivals}.values())
        new._special = self._special + sum(not _is_plain(row) for row in more)
        new._pinned = [*self._pinned, *(row for row in more if row.item.pinned)]
        new._wishes = [*self._wishes, *((row, wish) for row in more for wish in wishes_of(row.item))]
        new._latest_time = max([self._latest_time, *(_latest_of(row.item) for row in more)])
        new._text_bytes = self._text_bytes + sum(len(row.item.text) for row in more)
        return new

    def _without(self, removed: set[int]) -> UserIndex:
        """Return the index without the rows of these numbers."""
        stays = np.array([row.row not in removed for row in self.rows], dtype=bool)
        if stays.all():
            return self
        new, places = UserIndex(), np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)
        new.revision, new._codes, new._latest_time = self.revision, self._codes, self._latest_time
        new.rows = list(compress(self.rows, stays))
        new._places, new._passages = list(compress(self._places, stays)), list(compress(self._passages, stays))
        new._sessions, new._facts, new.categories = self._sessions[stays], self._facts[stays], self.categories[stays]
        new._items, new._chars, new._asks = self._items[stays], self._chars[stays], self._asks[stays]
        new._content = self._content[stays]
        new._positions = places[self._positions]
        new._words = self._words
        new._words.remove(np.flatnonzero((self._positions >= 0) & (new._positions < 0)).tolist())
        removed_rows = list({row.row: row for row in compress(self.rows, ~stays)}.values())
        new._special = self._special - sum(not _is_plain(row) for row in removed_rows)
        new._pinned = [row for row in self._pinned if row.row not in removed]
        new._wishes = [(row, wish) for row, wish in self._wishes if row.row not in removed]
        new._text_bytes = self._text_bytes - sum(len(row.item.text) for row in removed_rows)
        return new

    @property
    def removed_count(self) -> int:
        """How many passages were removed. They still take space."""
        return len(self._positions) - len(self.rows)

    def pinned(self, scope: Scope, which: ItemFilter, expired: Collection[int] = ()) -> list[MemoryItem]:
        """Return the items that are pinned and that the scope sees. Numbers of rows in `expired` are left out."""
        return [row.item for row in self._pinned if _is_visible(row, scope, which, expired)]

    def wishes(self, scope: Scope, which: ItemFilter, expired: Collection[int] = ()) -> list[MemoryItem]:
        """Return the standing wishes that hold and that the scope sees, the newest first; see `current_wishes`."""
        return current_wishes(
            [(row.item, wish) for row, wish in self._wishes if _is_visible(row, scope, which, expired)]
        )

    @property
    def bytes(self) -> int:
        """About how many bytes of memory it takes."""
        return 3 * self._text_bytes + 900 * len(self.rows) + 4 * self._words.dimensions * len(self._positions)

    def missing(self) -> list[str]:
        """Return the keys of the vectors that it does not have."""
        return self._words.missing(len(self._positions))

    def take(self, vectors: Mapping[str, Vectors]) -> None:
        """Take these vectors, by key. A passage without one of its own takes that of its item."""
        self._words.take(vectors)

    def by_key(self) -> dict[str, Vectors]:
        """Return the vectors that it has."""
        return self._words.by_key(len(self._positions))

    def near(self, vectors: Vectors | None, unrelated: Vectors | None = None) -> Similarities | None:
        """Return how similar the passages are to some vectors; None if no passage has a vector of their dimension.

        Args:
            unrelated: the vectors of `UNRELATED`, if the prominences are needed too.
        """
        if vectors is None or (similarities := self._words.similarities(vectors, len(self._positions))) is None:
            return None
        prominences = None
        if unrelated is not None:
            prominences = prominences_of(similarities, self._words.level_of(unrelated, len(self._positions)))
        return Similarities(
            self._by_passage(similarities),
            None if prominences is None else self._by_passage(prominences),
            self._common(),
        )

    def _common(self) -> Numbers:
        """Return what `common_of` does of the passages in their order."""
        common = self._words.common(len(self._positions))
        if self._common_by_serial is not common:
            self._common_by_serial, self._common_by_passage = common, common[self._serials]
        return self._common_by_passage

    def _by_passage(self, values: Numbers) -> Numbers:
        """Return values of the passages in their order, given in the order in which they were added."""
        return values if self._is_in_order else values[:, self._serials]

    @cached_property
    def _serials(self) -> Places:
        """The numbers of the passages, as they were added, in the order in which they stand."""
        serials, stays = np.empty(len(self.rows), dtype=np.int64), self._positions >= 0
        serials[self._positions[stays]] = np.flatnonzero(stays)
        return serials

    @cached_property
    def _is_in_order(self) -> bool:
        """Whether the passages stand in the order in which they were added."""
        return bool(np.array_equal(self._serials, np.arange(len(self._positions))))

    @cached_property
    def arranged(self) -> Passages:
        """The passages in their order, as they are ranked."""
        return Passages(
            items=self._items,
            sessions=self._sessions,
            chars=self._chars,
            is_fact=self._facts,
            asks=self._asks,
            content=self._content,
        )

    def match(
        self, query: Query, scope: Scope, which: ItemFilter, *, expired: Collection[int] = (), **options: Any
    ) -> Match:
        """Return the matches of the items that the scope sees with the words of a query.

        Args:
            expired: numbers of rows that are left out.
            options: the other attributes of `Match`.
        """
        hits = self._words.find(query, len(self._positions))
        places, counts = self._positions[hits.serials], hits.counts
        speakers = self._positions[hits.speakers]
        named_places = [(int(self._positions[serial]), logs) for serial, logs in hits.named]
        passages = self.arranged
        visible = self._visible(scope, which, expired)
        if visible is not None:
            new = np.cumsum(visible) - 1
            is_visible = visible[places]
            places, counts = new[places[is_visible]], _counts_of(counts, is_visible)
            speakers = new[speakers[visible[speakers]]]
            named_places = [(int(new[place]), logs) for place, logs in named_places if visible[place]]
            passages = passages.only(visible)
        numbers = QueryTerms(
            places=places,
            counts=counts,
            log_frequencies=hits.log_frequencies,
            is_corrected=hits.is_corrected,
            parts=query.parts,
            asks=query.asks,
            speakers=speakers,
            named=named_places,
        )
        return Match(index=self, query=query, visible=visible, passages=passages, terms=numbers, **options)

    def shown(self, match: Match, ranked: Ranked, present: Sequence[int]) -> list[MemoryItem]:
        """Return the ranked items with their scores, their relevant passages, and the words of the query they have.

        Args:
            match: what this index returned.
            present: the terms of the query of which the ranked ones say whether they have them.
        """
        words = [match.query.terms[term].word for term in present]
        in_index = None if match.visible is None else np.flatnonzero(match.visible)
        passage_scores, items = ranked.passage_scores, []
        for first, count, score, item_has in zip(*ranked[:4], strict=True):
            best = [first]
            if count > 1 and passage_scores is not None:
                of_item = passage_scores[first : first + count]
                order = np.argsort(-of_item, kind="stable")[:MOST_PASSAGES]
                best = (first + order[of_item[order] >= AS_GOOD * of_item.max()]).tolist()
            if in_index is not None:
                best = in_index[best].tolist()
            item, (start, stop, _), passage = self.rows[best[0]].item, self._passages[best[0]], None
            if stop - start != len(item.text):
                passage = shown(item.text, [self._passages[place] for place in best])
            items.append(replace(item, score=score, words=tuple(compress(words, item_has)), passage=passage))
        return items

    def changed_since(self, scope: Scope, which: ItemFilter) -> int:
        """Return how many items that match were changed after the filter's `as_of`, so that no recall has them."""
        changed = (row for row in self.rows if is_of_later(row.item, which.as_of))
        return len({row.row for row in changed if row.agent in (None, scope.agent) and matches(row.item, which)})

    def _visible(self, scope: Scope, which: ItemFilter, expired: Collection[int]) -> NDArray[np.bool_] | None:
        """Return for each passage whether its item is requested; None if all are."""
        is_of_now = which.as_of is None or which.as_of >= self._latest_time
        if not self._special and is_of_now and which.types is None and not expired:
            return None
        expired_rows = set(expired)
        return np.array([_is_visible(row, scope, which, expired_rows) for row in self.rows], dtype=bool)


def rank_all(matches: Sequence[Match], weights: Weights) -> list[list[MemoryItem]]:
    """Return for each match the items that are the most relevant to its query, at most `limit`.

    Those with equally many sentences are ranked together. A match has the same items alone.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, match in enumerate(matches):
        if match.limit > 0 and len(match.passages.items) and match.query.terms:
            kind = match.is_reminder, len(match.query.parts), match.near is None
            alike.setdefault(kind, []).append(number)
    items: list[list[MemoryItem]] = [[] for _ in matches]
    for numbers in alike.values():
        of_kind = [matches[number] for number in numbers]
        for number, of_match in zip(numbers, _ranked_alike(of_kind, weights), strict=True):
            items[number] = of_match
    return items


def _ranked_alike(matches: Sequence[Match], weights: Weights) -> list[list[MemoryItem]]:
    """Return what `rank_all` does, for matches of one kind."""
    matched = Matched([match.terms for match in matches], [match.passages for match in matches], weights)
    ranked = matched.rank(
        limits=[match.limit for match in matches],
        similarities=_beside(matches, "similarities"),
        prominences=_beside(matches, "prominences"),
        common=_beside(matches, "common"),
        groups=[match.of_visible(match.index.categories) if match.per_category else None for match in matches],
        is_reminder=matches[0].is_reminder,
    )
    of_each = []
    for number, (match, of_match) in enumerate(zip(matches, ranked, strict=True)):
        items = match.index.shown(match, of_match, matched.present[number]) if len(of_match.places) else []
        of_each.append(first_of_each(items, match.limit) if match.per_category else items)
    return of_each


def _beside(matches: Sequence[Match], name: str) -> Numbers | None:
    """Return what the similarities of all matches have, of the requested passages of each in turn; None if nothing."""
    rows = [match.of_visible(getattr(match.near, name, None)) for match in matches]
    if rows[0] is None:
        return None
    return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=-1)


def index_of(items: Sequence[MemoryItem]) -> UserIndex:
    """Return an index of these items, which every scope sees."""
    rows = [Row(row=number, agent=None, item=item, key=str(number)) for number, item in enumerate(items)]
    return UserIndex().grown(Revision(1, 0, len(rows)), rows)


def find(
    user_index: UserIndex,
    query: str,
    *,
    limit: int,
    weights: Weights,
    near: Similarities | None = None,
    per_category: bool = False,
    is_reminder: bool = False,
) -> list[MemoryItem]:
    """Return the best `limit` items of an index for a query, of any user and time; those that stand out, of a prompt.

    Args:
        is_reminder: whether the query is a prompt.
    """
    options: dict[str, Any] = {"limit": limit, "near": near, "per_category": per_category, "is_reminder": is_reminder}
    return rank_all([user_index.match(parse(query), Scope(user_id=""), _EVER, **options)], weights)[0]


def find_near(
    user_index: UserIndex, similarity: Similarity | None, query: str, *, is_reminder: bool, **options: Any
) -> tuple[list[MemoryItem], str | None]:
    """Return what `find` returns with vectors, and why only words were ranked; None if vectors worked.

    Args:
        similarity: makes and compares the vectors; None for words alone.
    """
    near = trouble = None
    if similarity is not None:
        try:
            near = similarity.near(query, [row.item.text for row in user_index.rows], is_reminder=is_reminder)
            near = spread_out(near, query, is_fact=user_index.arranged.is_fact, is_reminder=is_reminder)
        except StoreError as error:
            trouble = str(error)
    return find(user_index, query, near=near, is_reminder=is_reminder, **options), trouble


_NUMBERS = {category: number for number, category in enumerate(MemoryCategory)}


_EVER = ItemFilter(superseded=True)


class _Hits:
    """The matches of a query in some items."""

    def __init__(self, query: Query) -> None:
        self.serials = _NO_POSITIONS
        """The passages that have a term: those of the first one, then those of the next."""
        self.counts: list[int] = []
        """For each term, how many of `serials` are its own."""
        self.log_frequencies = [term.log_frequency for term in query.terms]
        self.is_corrected = [False] * len(query.terms)
        self.speakers = _NO_POSITIONS
        self.named: list[tuple[int, float]] = []


class _Words:
    """The passages that have each word. A passage is a number, in the order in which it was added.

    Indexes that grow from one another share it: passages are only added, and each index reads only its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while passages are added."""
        self._count = 0
        self._passages: list[Arrival | None] = []
        """None in the place of removed ones."""
        self._vectors: Vectors = np.zeros((0, 0), dtype=np.float32)
        """One row for each passage, NaN without a vector, and space for more; no columns while there are no vectors."""
        self._unrelated: Vectors = np.zeros((0, 0), dtype=np.float32)
        """The similarity of each unrelated text, a row, and each passage; NaN where it is not computed yet."""
        self._level: tuple[int, Level] | None = None
        """The level of the unrelated texts for so many first passages; None if vectors were added or removed since."""
        self._common: tuple[int, Numbers] | None = None
        """How near the first passages are to the mean of them; None if vectors were added or removed since."""
        self._without_vector: dict[str, list[int]] = {}
        """Passages without a vector, by the key of the vector."""
        self._part_keys: dict[str, list[str]] = {}
        """The keys in `_without_vector` of items of several passages, by the key of the item."""
        self._serials_by_stem: dict[str, array[int]] = {}
        """Passages by the stems of their words, in ascending order."""
        self._speakers: dict[str, array[int]] = {}
        """By the stems of the name that their item begins with."""
        self._names: dict[str, list[tuple[tuple[str, ...], float, int]]] = {}
        """Names by their first stem: all of their stems, the frequency of the rarest word, the passage."""
        self._word_counts: dict[str, int] = {}
        """All words, with the number of passages that have them."""
        self._words_by_length: dict[tuple[str, int], list[str]] = {}
        """All words by their first letter and how many they have."""

    def grown(self, count: int, more: Sequence[Arrival]) -> _Words:
        """Return the words of the first `count` passages and of these: itself if its further passages begin with these.

        So when a recall and a save read the same new items at once, they are added once.
        """
        done = 0
        while done < len(more):
            with self._lock:
                later_passages = self._passages[count + done : count + len(more)]
                is_alike = later_passages == more[done : done + len(later_passages)]
            if not is_alike:
                return self._copied(count, more)
            done += len(later_passages)
            batch = more[done : done + ADDED]
            for arrival in batch:
                arrival.analyse()  # without the lock, for which an event loop may wait
            with self._lock:
                if self._count == count + done:
                    self._add(batch)
                    done += len(batch)
        return self

    def _copied(self, count: int, more: Sequence[Arrival]) -> _Words:
        """Return a new object with the words of the first `count` passages and of these."""
        new = _Words()
        for arrival in [*_unanalysed(self._passages[:count]), *more]:
            new._add([arrival])
        new.take(self.by_key(count))
        return new

    def remove(self, serials: Sequence[int]) -> None:
        """Remove passages, which are all passages of their rows, from the words and vectors."""
        removed = _unanalysed([self._passages[serial] for serial in serials])
        parts = [arrival.analyse() if arrival else None for arrival in removed]
        with self._lock:
            for serial, arrival, part in zip(serials, removed, parts, strict=True):
                if arrival is None or part is None or self._passages[serial] is None:
                    continue
                self._passages[serial] = None
                for stemmed in part.stems:
                    _drop(self._serials_by_stem, stemmed, serial)
                for word in part.words:
                    self._remove_word(word)
                item_words = arrival.item_words or ItemWords(arrival.row.item)
                for stemmed in item_words.speakers:
                    _drop(self._speakers, stemmed, serial)
                for phrase, _ in item_words.names:
                    entries = self._names.get(phrase[0], [])
                    self._names[phrase[0]] = [entry for entry in entries if entry[2] != serial]
                if self.dimensions:
                    self._level = self._common = None
                    self._vectors[serial] = np.nan
                    self._unrelated[:, serial : serial + 1] = np.nan
                if serial in (serials_without_vector := self._without_vector.get(arrival.key, [])):
                    serials_without_vector.remove(serial)
                    if not serials_without_vector:
                        del self._without_vector[arrival.key]

    def _remove_word(self, word: str) -> None:
        """Subtract a removed passage from the count of a word."""
        if word not in self._word_counts:
            return
        self._word_counts[word] -= 1
        if not self._word_counts[word]:
            del self._word_counts[word]
            if alike := self._words_by_length.get((word[0], len(word))):
                alike.remove(word)

    # Vectors

    @property
    def dimensions(self) -> int:
        """How many dimensions the vectors have; 0 while there are none."""
        return int(self._vectors.shape[1])

    def missing(self, count: int) -> list[str]:
        """Return the keys of the vectors that the first `count` passages do not have, in the order of the passages."""
        with self._lock:
            return [key for key, serials in self._without_vector.items() if serials[0] < count]

    def take(self, vectors: Mapping[str, Vectors]) -> None:
        """Store these vectors for passages without one. Vectors of another dimension replace all vectors."""
        if not vectors:
            return
        dimensions = len(next(iter(vectors.values())))
        with self._lock:
            self._level = self._common = None
            if self.dimensions != dimensions:
                self._vectors = np.full((max(self._count, _ROOM), dimensions), np.nan, dtype=np.float32)
                self._unrelated = np.zeros((0, 0), dtype=np.float32)
                self._without_vector, self._part_keys = {}, {}
                for serial, passage in enumerate(self._passages):
                    if passage is not None:
                        self._await_vector(serial, passage)
            for key, vector in sorted(vectors.items(), key=lambda pair: pair[0] in self._part_keys):
                for part_key in (key, *self._part_keys.pop(key, ())):
                    if serials := self._without_vector.pop(part_key, None):
                        self._vectors[serials] = vector

    def by_key(self, count: int) -> dict[str, Vectors]:
        """Return the vectors that the first `count` passages have."""
        with self._lock:
            if not self.dimensions:
                return {}
            serials = np.flatnonzero(~np.isnan(self._vectors[:count, 0])).tolist()
            return {arrival.key: self._vectors[serial] for serial in serials if (arrival := self._passages[serial])}

    def similarities(self, to: Vectors, count: int) -> Numbers | None:
        """Return the similarity of the first `count` passages to each of these vectors, a row for each.

        None if no passage has a vector of their dimension.
        """
        vectors = self._vectors  # which may be replaced meanwhile
        if vectors.shape[1] != to.shape[1]:
            return None
        similarities: Numbers = (to @ vectors[:count].T).astype(np.float64)
        return similarities

    def common(self, count: int) -> Numbers:
        """Return what `common_of` does of the first `count` passages; computed once for the same passages."""
        with self._lock:
            if self._common is None or self._common[0] != count:
                self._common = count, common_of(self._vectors[:count])
            return self._common[1]

    def level_of(self, unrelated: Vectors, count: int) -> Level:
        """Return the level of unrelated texts, given their vectors, for the first `count` passages.

        It is computed once for the same passages, and each similarity once, since unrelated texts do not change.
        """
        with self._lock:
            if self._level is not None and self._level[0] == count:
                return self._level[1]
            shape = len(unrelated), len(self._vectors)
            if self._unrelated.shape != shape:
                larger = np.full(shape, np.nan, dtype=np.float32)
                if len(self._unrelated) == len(unrelated) and self._unrelated.shape[1] <= shape[1]:
                    larger[:, : self._unrelated.shape[1]] = self._unrelated
                self._unrelated = larger
            similarities = self._unrelated[:, :count]
            lacking = np.flatnonzero(np.isnan(similarities[0]) & ~np.isnan(self._vectors[:count, 0]))
            if len(lacking):
                similarities[:, lacking] = unrelated @ self._vectors[lacking].T
            self._level = count, level_of(similarities.astype(np.float64))
            return self._level[1]

    def _await_vector(self, serial: int, passage: Arrival) -> None:
        key, row_key = passage.key, passage.row.key
        if not key:
            return
        if key not in self._without_vector and key != row_key:
            self._part_keys.setdefault(row_key, []).append(key)
        self._without_vector.setdefault(key, []).append(serial)

    # Words

    def find(self, query: Query, count: int) -> _Hits:
        """Return the matches of the first `count` passages with a query."""
        hits = _Hits(query)
        corrections: dict[str, str] = {}
        compared = 0
        # Copies, as nothing can be added to an array while numpy looks at it.
        serials, speakers = array("q"), array("q")
        speakers_by_stem = self._speakers
        for number, term in enumerate(query.terms):
            meant_stems, before = term.stems, len(serials)
            if not self._add_serials(serials, meant_stems, count) and compared < COMPARED:
                alike = self._similar_words(term)
                compared += len(alike)
                if alike and (right := self._corrected(term, alike)):
                    corrections[term.word] = right
                    meant_stems = stems([right])[0]
                    hits.log_frequencies[number] = log_frequency(right, term.language)
                    hits.is_corrected[number] = True
                    del serials[before:]
                    self._add_serials(serials, meant_stems, count)
            hits.counts.append(len(serials) - before)
            for meant_stem in meant_stems:
                if speaking := speakers_by_stem.get(meant_stem):
                    speakers += speaking
        hits.serials = np.frombuffer(serials, dtype=np.int64)
        if not (is_there := hits.serials < count).all():
            hits.serials, hits.counts = hits.serials[is_there], _counts_of(hits.counts, is_there)
        if speakers:
            hits.speakers = np.frombuffer(speakers, dtype=np.int64)
            hits.speakers = hits.speakers[hits.speakers < count]
        if self._names:
            hits.named = self._named([stem(corrections.get(word, word)) for word in query.words], count)
        return hits

    def _named(self, query_words: Sequence[str], count: int) -> list[tuple[int, float]]:
        """Return which of the first `count` passages have a name in the query, each with the name's log frequency."""
        distinct_words, named = set(query_words), dict[int, float]()
        runs: dict[int, set[tuple[str, ...]]] = {}
        for first in distinct_words:
            for name, log, passage in self._names.get(first, ())[:]:
                if len(name) not in runs:
                    runs[len(name)] = {
                        tuple(query_words[start : start + len(name)])
                        for start in range(len(query_words) - len(name) + 1)
                    }
                is_said = name in runs[len(name)] or (is_dense(first[0]) and distinct_words.issuperset(name))
                if is_said and passage < count:
                    named[passage] = min(log, named.get(passage, log))
        return sorted(named.items(), reverse=True)

    def _add_serials(self, serials: array[int], stems: Sequence[str], count: int) -> bool:
        """Add the passages that have one of these stems, each once; return whether one is of the first `count`."""
        before = len(serials)
        if len(stems) == 1:
            serials.extend(self._serials_by_stem.get(stems[0], ()))
        else:
            serials.extend(sorted({serial for key in stems for serial in self._serials_by_stem.get(key, ())[:]}))
        return len(serials) > before and serials[before] < count

    def _similar_words(self, term: Term) -> list[str]:
        """Return the user's words that a misspelt word may stand for."""
        word = term.word
        if len(word) < ONE_EDIT or not word.isalpha() or is_dense(word[0]) or is_frequent(word, term.language):
            return []
        max_edits = _edits(word)
        lengths = range(len(word) - max_edits, len(word) + max_edits + 1)
        return [candidate for length in lengths for candidate in self._words_by_length.get((word[0], length), ())[:]]

    def _corrected(self, term: Term, alike: Sequence[str]) -> str | None:
        """Return which of these words a misspelt word stands for; None if none."""
        word, max_edits = term.word, _edits(term.word)
        similar = process.extract(word, alike, scorer=OSA.distance, score_cutoff=max_edits, limit=8)
        return (
            min(similar, key=lambda pair: (pair[1], -len(self._serials_by_stem.get(stem(pair[0]), ()))))[0]
            if similar
            else None
        )

    def _add(self, more: Sequence[Arrival | None]) -> None:
        if self.dimensions and (lacks := self._count + len(more) - len(self._vectors)) > 0:
            room = np.full((max(lacks, len(self._vectors)), self.dimensions), np.nan, dtype=np.float32)
            self._vectors = np.concatenate([self._vectors, room])
        for arrival in more:
            serial = self._count
            if arrival is not None:
                self._await_vector(serial, arrival)
                self._add_words(serial, arrival)
                arrival.part = arrival.item_words = None
            self._passages.append(arrival)
            self._count += 1

    def _add_words(self, serial: int, arrival: Arrival) -> None:
        part = arrival.analyse()
        for key in part.stems:
            if (serials_of_stem := self._serials_by_stem.get(key)) is None:
                serials_of_stem = self._serials_by_stem[key] = array("q")
            serials_of_stem.append(serial)
        for word in part.words:
            if len(word) >= ONE_EDIT - 1:
                if word not in self._word_counts:
                    self._words_by_length.setdefault((word[0], len(word)), []).append(word)
                self._word_counts[word] = self._word_counts.get(word, 0) + 1
        item_words = arrival.item_words or ItemWords(arrival.row.item)
        for stemmed in item_words.speakers:
            self._speakers.setdefault(stemmed, array("q")).append(serial)
        for phrase, rarest in item_words.names:
            self._names.setdefault(phrase[0], []).append((phrase, rarest, serial))


def _counts_of(counts: Sequence[int], is_left: NDArray[np.bool_]) -> list[int]:
    """Return how many of each term's passages are left, given how many there were, and which of all are left."""
    terms = np.repeat(np.arange(len(counts)), counts)[is_left]
    left: list[int] = np.bincount(terms, minlength=len(counts)).tolist()
    return left


def arrivals_of(rows: Iterable[Row]) -> list[Arrival]:
    """Return the passages of rows, in order."""
    arrivals: list[Arrival] = []
    for row in rows:
        passages, item_words = passages_of(row.item.text), ItemWords(row.item)
        keys = vector_keys(row.key, min(len(passages), MOST_VECTORS))
        keys += [""] * (len(passages) - len(keys))
        arrivals += [Arrival(row, passage, key, item_words) for passage, key in zip(passages, keys, strict=True)]
    return arrivals


def _unanalysed(passages: Sequence[Arrival | None]) -> list[Arrival | None]:
    """Return the passages as new arrivals, to be analysed again."""
    item_words = {arrival.row.row: ItemWords(arrival.row.item) for arrival in passages if arrival}
    return [
        arrival and Arrival(arrival.row, arrival.passage, arrival.key, item_words[arrival.row.row])
        for arrival in passages
    ]


def _drop(serials: dict[str, Any], key: str, serial: int) -> None:
    """Remove a passage from those that have a word."""
    if (serials_of_stem := serials.get(key)) is None:
        return
    position = bisect_left(serials_of_stem, serial)
    if position < len(serials_of_stem) and serials_of_stem[position] == serial:
        serials_of_stem.pop(position)
    if not serials_of_stem:
        del serials[key]


def _edits(word: str) -> int:
    """Return the most edits by which a word is corrected."""
    return 1 if len(word) < TWO_EDITS else 2


def _is_visible(row: Row, scope: Scope, which: ItemFilter, expired: Collection[int]) -> bool:
    """Return whether a scope sees a row's item and the item is requested."""
    is_seen = row.agent in (None, scope.agent) and row.row not in expired and matches(row.item, which)
    return is_seen and not is_of_later(row.item, which.as_of)


def _latest_of(item: MemoryItem) -> float:
    return max(item.created_at, item.updated_at or 0.0)


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


def _merged(old: list[Any], more: list[Any], positions: NDArray[np.int64]) -> list[Any]:
    """Return a list with each of `more` before what was at its position."""
    merged, start = [], 0
    for value, stop in zip(more, positions.tolist(), strict=True):
        merged += old[start:stop]
        merged.append(value)
        start = stop
    return merged + old[start:]
