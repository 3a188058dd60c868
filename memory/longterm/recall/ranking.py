"""Ranks the items of one user for a query: by words, names and vectors, and by those of the items around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of the ranking. `tests/bench/long_term/weights.py` shows what each of them gives.

    Raises:
        ConfigError: a weight is not a number, or out of range.
    """

    saturation: float = 0.5
    """BM25's k1: the lower it is, the less a repeated word adds."""
    around: float = 0.35
    """The weight of a word in the item before or after, relative to one in the item itself; half of it for the next."""
    reach: int = 2
    """How many items of the same session before and after count."""
    asked: float = 0.5
    """The weight of a word in the item before if that ends with a question, since this item answers it. Similarities to
    it count as much."""
    short: int = 220
    """An item with more characters stands for itself: the items around it count as much less as it is longer."""
    speaker: float = 0.5
    """The gain of an item whose speaker the query names, as a share of its score."""
    name: float = 5.0
    """The nats that an item gains if the query has its name and the name is a rare word."""
    corrected: float = 0.9
    """The weight of a word that replaces a misspelt one."""
    background: int = 1000
    """How many virtual texts with general word frequencies are added to the user's statistics."""
    text_words: int = 15
    """How many words each virtual text has."""
    common: float = 5.0
    """A word has weight 0 if -ln(its general frequency) is at most this."""
    rare: float = 11.0
    """A word has weight 1 if -ln(its general frequency) is at least this. Between `common` and `rare`, the weight is
    linear."""
    vectors: float = 0.7
    """How many standard deviations of the scores by words a standard deviation of the similarities counts."""
    margin: float = 1.2
    """A sentence of a prompt stands out by its words if its best passage shares at least ln(number of passages) +
    `margin` nats with it, and at least the share `part` of the sentence's nats."""
    part: float = 0.28
    """See `margin`."""
    share: float = 0.75
    """A sentence also stands out if its best item shares at least this share of the sentence's nats, and at least
    `least` nats by general word frequency."""
    least: float = 8.0
    """See `share`. A sentence with fewer nats by general word frequency has no content, and never stands out."""
    prominence: float = 1.0
    """A sentence stands out by its vector if its similarity to the best item exceeds that of unrelated texts by this
    many of their standard deviations, and by more if the prompt has several sentences, each of which may do so by
    chance. Where there are vectors, its words must share twice as much to do so alone."""
    tail: float = 0.75
    """A reminder leaves out a fact whose score for a sentence is below this share of the best fact's: most such facts
    are look-alikes. It keeps turns (items of type INTERACTION), since each may have another part of the answer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least, most, requirement = _RANGES[field.name]
            kinds = int if field.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                raise ConfigError(f"Weights.{field.name}", value, requirement)
        if self.common >= self.rare:
            raise ConfigError("Weights.common", self.common, f"must be below Weights.rare, which is {self.rare!r}")


_MOST = 1e6
_SHARE = (0.0, 1.0, "must be a number from 0 to 1")
_AMOUNT = (0.0, _MOST, "must be a number from 0 to a million")
_COUNT = (0, _MOST, "must be a whole number from 0 to a million")
_ANY = (-_MOST, _MOST, "must be a number from minus to plus a million")

_RANGES = {
    **dict.fromkeys(("around", "asked", "corrected", "part", "tail"), _SHARE),
    "saturation": (0.01, _MOST, "must be a number from 0.01 to a million"),
    **dict.fromkeys(("speaker", "name", "share", "least", "vectors"), _AMOUNT),
    **dict.fromkeys(("reach", "background"), _COUNT),
    **dict.fromkeys(("common", "rare", "prominence"), _ANY),
    "margin": (-math.inf, _MOST, "must be a number up to a million, or minus infinity for none"),
    **dict.fromkeys(("text_words", "short"), (1, _MOST, "must be a whole number from 1 to a million")),
}
"""The least and the greatest value of each weight, and the text of the error."""

FACTS = Weights(reach=0, least=2.0, prominence=2.0)
"""For facts: each stands for itself, and of those that are less near than the best one most are look-alikes."""


class Passages:
    """The passages of a user's items. Those of an item stand together in their order, as do the items of a session.

    Args:
        items: of each passage, a number that it shares with those of the same item.
        sessions: of each passage, the number of its session.
        chars: of each passage, how many characters its item has.
        is_fact: of each passage, whether its item is a fact, and not what was said in a turn.
        asks: of each passage, whether its item ends with a question.
        content: of each passage, how much its item says, see `content_of`.
    """

    def __init__(
        self,
        *,
        items: Places,
        sessions: Places,
        chars: Places,
        is_fact: NDArray[np.bool_],
        asks: NDArray[np.bool_],
        content: Numbers,
    ) -> None:
        self.items, self.sessions, self.chars, self.is_fact, self.asks = items, sessions, chars, is_fact, asks
        self.content = content
        self._by_item: tuple[Weights, _Items] | None = None

    def by_item(self, weights: Weights) -> _Items:
        """Return the items of the passages, which are computed once for queries with the same weights."""
        if self._by_item is None or self._by_item[0] is not weights:
            self._by_item = weights, _Items(self, weights)
        return self._by_item[1]

    def only(self, which: NDArray[np.bool_]) -> Passages:
        """Return these passages."""
        return Passages(
            items=self.items[which],
            sessions=self.sessions[which],
            chars=self.chars[which],
            is_fact=self.is_fact[which],
            asks=self.asks[which],
            content=self.content[which],
        )


@dataclass(frozen=True, kw_only=True)
class QueryTerms:
    """A query as numbers, matched against the passages."""

    places: Places
    """The passages that have a term: those of the first one, then those of the next."""
    counts: Sequence[int]
    """For each term, how many of `places` are its own."""
    log_frequencies: Sequence[float]
    """For each term, the logarithm of its general frequency in its language."""
    is_corrected: Sequence[bool]
    """For each term, whether it stands for a misspelt one."""
    parts: Sequence[Sequence[int]]
    """The terms of each sentence."""
    asks: Sequence[bool]
    """Of each sentence, whether it is a question."""
    speakers: Places
    """The passages of items whose speaker the query names."""
    named: Sequence[tuple[int, float]]
    """The passages of items whose name the query has, each with the log frequency of the name's rarest word."""


class Ranked(NamedTuple):
    """The best items for a query, in their order."""

    places: list[int]
    """The first passage of each item."""
    counts: list[int]
    """How many passages each item has."""
    scores: list[float]
    """Of each item, from 0 to 1."""
    has_terms: list[list[bool]]
    """Of each item, whether it has each of the query's terms in `Matched.present`."""
    passage_scores: Numbers | None
    """Of all passages, in nats; None if each item has only one."""


class Matched:
    """The matches of queries' words, each with the passages of its user's items.

    What is computed is computed for all queries at once, since a call of numpy takes longer than its work on one user's
    items. The columns of an array are the passages, or the items, of each query in turn. Queries affect each other in
    nothing.

    Scores are nats: the less likely a match is by chance, the higher it is. What is rare is counted in items, and the
    words of the items around one count for it too. Each sentence is scored by itself.

    Args:
        queries: one or more, with equally many sentences, and each with terms.
        passages: of each query, at least one.
    """

    def __init__(self, queries: Sequence[QueryTerms], passages: Sequence[Passages], weights: Weights) -> None:
        import numpy as np

        self._queries = queries
        self._passages = passages
        self._weights = weights
        of_each = [of_query.by_item(weights) for of_query in passages]
        self._items = items = of_each[0] if len(of_each) == 1 else _ItemsOfSeveral(of_each, weights)
        self.present = [[term for term, count in enumerate(query.counts) if count] for query in queries]
        """Of each query, the terms that some item has, in ascending order."""
        counts = [query.counts[term] for query, present in zip(queries, self.present, strict=True) for term in present]
        places = _joined([query.places for query in queries], items.first_passages)
        rows = list(map(len, self.present))
        self._table = self._item_table = _Table(rows, items.passage_columns)
        """Where the values of these terms and the passages are; `_item_table`: and the items."""
        cells = item_cells = self._table.cells(places, counts)
        having = counts
        if not items.has_one_passage_each:
            self._item_table = _Table(rows, items.item_columns)
            item_cells = self._item_table.cells(items.of_passages[places], counts)
        self._has = np.zeros(self._item_table.size, dtype=bool)
        """Whether each item has each of these terms."""
        self._has[item_cells] = True
        if not items.has_one_passage_each and counts:
            having = np.add.reduceat(self._has, self._item_table.firsts, dtype=np.int64).tolist()
        self._nats, self._general = self._nats_of_terms(having)
        """Of each term of each query, the nats that an item gains that has it, and those by its general frequency."""
        self._present_nats = [
            np.array([[nats[term] for term in present]]) for nats, present in zip(self._nats, self.present, strict=True)
        ]
        self._frequency: Numbers
        """How often each passage has each of these terms, with what the items around it have."""
        if items.has_one_passage_each:
            self._frequency = items.around_cells(cells, places, self._table.size)
        else:
            nats = np.repeat(np.concatenate(self._present_nats, axis=1)[0], counts)
            nats_of_passages = np.bincount(places, nats, len(items.of_passages)).astype(np.float64, copy=False)
            is_best = items.are_best(nats_of_passages)[places]
            of_best = item_cells[is_best], items.of_passages[places[is_best]]
            around = self._item_table.split(items.around_cells(*of_best, self._item_table.size))
            self._frequency = np.concatenate(
                [
                    np.repeat(of_items, items.counts[columns], axis=1).ravel()
                    for of_items, columns in zip(around, items.item_columns, strict=True)
                ]
            )
        self._frequency[cells] += 1.0

    def _nats_of_terms(self, having: Sequence[int]) -> tuple[list[list[float]], list[list[float]]]:
        """Return `_nats` and `_general`, given how many items have each term that some item has."""
        weights, all_nats, all_general = self._weights, [], []
        having_each = iter(having)
        for query, size in zip(self._queries, self._items.item_counts.tolist(), strict=True):
            nats, general = [], []
            for log, is_corrected, count in zip(query.log_frequencies, query.is_corrected, query.counts, strict=True):
                telling, expected = self._expected(log)
                of_items = next(having_each) if count else 0
                rarity = max(-math.log((of_items + expected + 0.5) / (size + weights.background + 1)), 0.0)
                general.append(-log * telling)
                nats.append(rarity * (telling * weights.corrected if is_corrected else telling))
            all_nats.append(nats)
            all_general.append(general)
        return all_nats, all_general

    def _expected(self, log: float) -> tuple[float, float]:
        weights = self._weights
        return _expected(log, weights.common, weights.rare, weights.background, weights.text_words)

    def _products(self, matrices: Sequence[Numbers], values: Numbers) -> Numbers:
        """Return of the passages of each query the product of its matrix and its table; 0 in rows that it lacks."""
        import numpy as np

        products = np.zeros((max(map(len, matrices)), len(self._items.of_passages)))
        tables = self._table.split(values)
        for matrix, table, columns in zip(matrices, tables, self._items.passage_columns, strict=True):
            np.matmul(matrix, table, out=products[: len(matrix), columns])
        return products

    @cached_property
    def _are_parts(self) -> list[Numbers]:
        """Of each query and sentence, a row, and each term, 1 if the sentence has it; else 0."""
        import numpy as np

        matrices = []
        for query in self._queries:
            is_part = np.zeros((len(query.parts), len(query.counts)))
            for row, terms in enumerate(query.parts):
                is_part[row, list(terms)] = 1.0
            matrices.append(is_part)
        return matrices

    @cached_property
    def _has_content(self) -> NDArray[np.bool_]:
        """Of each sentence, a row, and each query, whether it says anything, unlike a greeting."""
        import numpy as np

        pairs = zip(self._are_parts, self._general, strict=True)
        general_nats = np.array([is_part @ np.array(general) for is_part, general in pairs]).T
        has_content: NDArray[np.bool_] = general_nats >= self._weights.least
        return has_content

    def _of_parts(self, of_terms: Sequence[Sequence[float]]) -> list[Numbers]:
        """Return of each query and sentence, a row, the nats of the terms in `present`."""
        return [
            (is_part * nats)[:, present]
            for is_part, nats, present in zip(self._are_parts, of_terms, self.present, strict=True)
        ]

    def rank(
        self,
        *,
        limits: Sequence[int],
        similarities: Numbers | None = None,
        prominences: Numbers | None = None,
        common: Numbers | None = None,
        groups: Sequence[NDArray[np.int8] | None],
        is_reminder: bool = False,
    ) -> list[Ranked]:
        """Rank the items of each query by their words, names and vectors.

        For each sentence that stands out, and unless it is a reminder for the query as a whole. If none of a query's
        questions stands out, all of them count, but for those of one word, such as "Details?", which are about what
        stands beside them. Each sentence has its own best items: each question as many, others fewer the less they
        stand out, and the whole few.

        Args:
            limits: of each query, the most items to return, at least 1.
            similarities: of the query to each passage, one row, and if it has several sentences a row for each; for a
                reminder a row for each sentence only. From -1 to 1, NaN for passages without a vector. None if there
                are no vectors.
            prominences: of each sentence and passage, see `prominences_of`; needed with a row for each sentence.
            common: of each passage, see `common_of`.
            groups: of each query, and each passage, the group of its item: each group is limited by itself. None for
                one group.
            is_reminder: return only items that stand out for a sentence that does.
        """
        import numpy as np

        items, saturation = self._items, self._weights.saturation
        sentences = self._ranked_sentences(similarities, prominences, is_reminder=is_reminder)
        if sentences is None:
            return [Ranked([], [], [], [], None) for _ in limits]
        nats, rows, shares, counts, is_near, by_words = sentences
        saturated = self._frequency * (saturation + 1) / (self._frequency + saturation)
        words_of_passages = self._products(nats, saturated)
        words = items.best(words_of_passages)
        is_relevant = words > 0
        words = items.less_chance(words)
        speakers = _joined([query.speakers for query in self._queries], items.first_passages)
        if len(speakers):
            words[:, items.of_passages[speakers]] *= 1 + self._weights.speaker
        near = rows if rows is None or common is None else rows - _COMMON * common
        scores = words if near is None else self._with_vectors(words, near)
        if is_near is not None:
            is_relevant |= items.best(is_near.astype(float)) > 0
        elif rows is not None and not is_reminder:
            is_relevant |= items.best(rows) > 0
        of_names = self._of_names() if any(query.named for query in self._queries) else None
        if of_names is not None:
            is_relevant |= of_names > 0
            scores = np.where(of_names > 0, np.maximum(scores, 0.0) + of_names, scores)
        scores = np.where(is_relevant, scores, -np.inf)
        ranked = []
        has_each = self._item_table.split(self._has)
        for number, (count, columns, has) in enumerate(zip(counts, items.item_columns, has_each, strict=True)):
            order, best = self._best(
                number,
                limits[number],
                scores[:count, columns],
                shares[:count, number],
                of_names=None if of_names is None else of_names[columns],
                groups=groups[number],
                by_words=None if by_words is None else by_words[:count, number],
            )
            of_best: list[float] = np.maximum(best[order], 0.0).tolist()
            of_query, passage_scores = self._passages[number].by_item(self._weights), None
            if not items.has_one_passage_each:
                own = items.passage_columns[number]
                passage_scores = words_of_passages[:count, own].max(axis=0, initial=0.0)
                passage_scores += _of_rows(None if rows is None else rows[:count, own])
            ranked.append(
                Ranked(
                    places=of_query.starts[order].tolist(),
                    counts=of_query.counts[order].tolist(),
                    scores=[nats_of_item / (nats_of_item + _HALF) for nats_of_item in of_best],
                    has_terms=has[:, order].T.tolist(),
                    passage_scores=passage_scores,
                )
            )
        return ranked

    def _ranked_sentences(
        self, similarities: Numbers | None, prominences: Numbers | None, *, is_reminder: bool
    ) -> _Sentences | None:
        """Return what is ranked by: the query as a whole, and its sentences that stand out; for a reminder only these.

        A query for which fewer stand out has further rows, which say nothing. None for reminders for which none does.
        """
        import numpy as np

        whole, one = self._present_nats, np.ones((1, len(self._queries)))
        parts = len(self._queries[0].parts)
        if not is_reminder and parts <= 1:
            return _Sentences(whole, similarities, one, [1] * len(self._queries))
        stands_out = self._standing_out(prominences)
        if not is_reminder:
            asks = np.array([query.asks for query in self._queries], dtype=bool).T
            is_long = np.array([is_part.sum(axis=1) > 1 for is_part in self._are_parts]).T
            stands_out |= self._has_content & asks & is_long & ~(stands_out & asks).any(axis=0)
        counts: list[int] = stands_out.sum(axis=0).tolist()
        if is_reminder and not any(counts) and not any(query.named for query in self._queries):
            return None
        chosen = np.argsort(~stands_out, axis=0, kind="stable")[: max(counts)]
        every = np.arange(len(self._queries))
        nats = [of_parts[own] for of_parts, own in zip(self._of_parts(self._nats), stands_out.T, strict=True)]
        shares = self._shares(stands_out, prominences)[chosen, every]
        rows = similarities
        if is_reminder:
            by_words, is_near = self._standing_out(None)[chosen, every], None
            if prominences is not None:
                is_near = self._chosen(prominences, chosen) >= self._weights.prominence
            rows = None if rows is None else self._chosen(rows, chosen)
            return _Sentences(nats, rows, shares, counts, is_near, by_words)
        if rows is not None:
            of_sentences = rows[1:] if len(rows) > 1 else np.full((parts, rows.shape[1]), np.nan)
            rows = np.concatenate([rows[:1], self._chosen(of_sentences, chosen)])
        shares = np.concatenate([one * _WHOLE, shares])
        nats = [np.concatenate(both) for both in zip(whole, nats, strict=True)]
        return _Sentences(nats, rows, shares, [1 + count for count in counts])

    def _chosen(self, rows: Numbers, chosen: Places) -> Numbers:
        """Return of each passage the chosen rows of its query, given the numbers of these rows of each query."""
        import numpy as np

        return rows[np.repeat(chosen, self._items.passage_counts, axis=1), np.arange(rows.shape[1])]

    def _best(
        self,
        number: int,
        limit: int,
        scores: Numbers,
        shares: Numbers,
        *,
        of_names: Numbers | None,
        groups: NDArray[np.int8] | None,
        by_words: NDArray[np.bool_] | None,
    ) -> tuple[Places, Numbers]:
        """Return the best items of a query, in order, and the score of each of all.

        Args:
            number: that of the query.
            scores: of each sentence, a row, and each of its items; minus infinity for what is not relevant.
            shares: see `_in_order`.
            of_names: of each of its items, see `_of_names`.
            groups: see `rank`.
            by_words: see `_look_alikes`.
        """
        import numpy as np

        is_named = None if of_names is None or not of_names.any() else of_names > 0
        best: Numbers = scores[0] if len(scores) == 1 else np.maximum.reduce(scores, axis=0, initial=-np.inf)
        if of_names is not None and is_named is not None:
            best = np.maximum(best, np.where(is_named, of_names, -np.inf))
        in_order = self._in_order(scores, best, is_named, shares)
        if groups is None and by_words is None:
            order = in_order[:limit] if len(scores) == 1 else in_order
            order = order[best[order] > -np.inf][:limit]
        else:
            passages, starts = self._passages[number], self._passages[number].by_item(self._weights).starts
            members = self._members(best, None if groups is None else groups[starts])
            if by_words is not None:
                is_fact = passages.is_fact[starts]
                members = [group & ~self._look_alikes(group & is_fact, scores, by_words) for group in members]
            order = np.concatenate([in_order[group[in_order]][:limit] for group in members])
        if len(scores) != 1 or is_named is not None or groups is not None:
            order = order[np.argsort(-best[order], kind="stable")]
        return order, best

    @staticmethod
    def _members(best: Numbers, groups: NDArray[np.int8] | None) -> list[NDArray[np.bool_]]:
        """Return which items each group has that have a score, given the group of each item."""
        import numpy as np

        selected = np.isfinite(best)
        if groups is None:
            return [selected]
        return [selected & (groups == group) for group in np.unique(groups)]

    @staticmethod
    def _in_order(scores: Numbers, best: Numbers, is_named: NDArray[np.bool_] | None, shares: Numbers) -> Places:
        """Return the places of all items: the best of each sentence in turn, and of these the best.

        So two questions in one prompt both have their answers.

        Args:
            shares: of each sentence, how many turns it has for each of one with share 1.
        """
        import numpy as np

        orders = (-scores).argsort(axis=1, kind="stable")
        if len(orders) == 1 and is_named is None:
            in_order: Places = orders[0]
            return in_order
        turns = (np.argsort(orders, axis=1) + 1) / shares[:, np.newaxis]
        turns = np.where(np.isfinite(scores), turns, np.inf).min(axis=0, initial=np.inf)
        if is_named is not None:
            turns[is_named] = 0
        return np.lexsort((-best, turns))

    def _shares(self, stands_out: NDArray[np.bool_], prominences: Numbers | None) -> Numbers:
        """Return how many turns each sentence that stands out has for each of a question, see `_in_order`.

        What is told around a question seldom says what is wanted: it has fewer turns the less it stands out.
        """
        import numpy as np

        evidence = np.maximum(self._shared[0] - np.log(self._items.passage_counts), 0.0)
        if prominences is not None:
            evidence += np.maximum(np.maximum.reduceat(prominences, self._items.first_passages, axis=1), 0.0)
        evidence += _SMALL
        shares: Numbers = evidence / np.where(stands_out, evidence, _SMALL).max(axis=0, initial=_SMALL)
        shares[np.array([query.asks for query in self._queries], dtype=bool).T] = 1.0
        return shares

    def _standing_out(self, prominences: Numbers | None) -> NDArray[np.bool_]:
        """Return which sentences of each query stand out, by their words or by their vectors; see `Weights`."""
        import numpy as np

        weights = self._weights
        shared, general, total = self._shared
        much = 1.0 if prominences is None else _CERTAIN
        least = weights.margin + np.log(self._items.passage_counts)
        stands_out = (shared >= much * least) & (shared >= much * weights.part * total)
        if prominences is None:
            stands_out |= (shared >= weights.share * total) & (general >= weights.least)
        else:
            above_chance = weights.prominence + _TRIES * np.log(np.maximum(self._has_content.sum(axis=0), 1))
            stands_out |= np.maximum.reduceat(prominences, self._items.first_passages, axis=1) >= above_chance
        result: NDArray[np.bool_] = self._has_content & stands_out
        return result

    @cached_property
    def _shared(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of each sentence and query: the nats that its best passage shares, those by general frequency, its own."""
        import numpy as np

        once = np.minimum(self._frequency, 1.0)
        matched = self._products(self._of_parts(self._nats), once)
        shared, general, total = np.empty((3, len(matched), len(self._queries)))
        tables = zip(self._table.split(once), self._of_parts(self._general), self._items.passage_columns, strict=True)
        for number, (table, general_nats, columns) in enumerate(tables):
            places = matched[:, columns].argmax(axis=1)
            shared[:, number] = matched[np.arange(len(places)), places + columns.start]
            general[:, number] = (general_nats * table[:, places].T).sum(axis=1)
            total[:, number] = (self._are_parts[number] * self._nats[number]).sum(axis=1)
        return shared, general, total

    def _with_vectors(self, words: Numbers, similarities: Numbers) -> Numbers:
        """Return the items' scores by words and vectors, of each part.

        Both are standardised, since neither scale says how much a difference means: see `Weights.vectors`. What is near
        beside an item counts a quarter, or as `Weights.asked`. A remark, such as "That sounds great!", is similar to
        much and answers little: it loses what `_Items.remarks` says.
        """
        import numpy as np

        items = self._items
        apart, spread = _centred(items.nearest(similarities), items.first_items, items.item_counts)
        near = apart / _of_each(np.maximum(spread, _SMALL), items.item_counts)
        near += items.around(near, _BESIDE)
        _, deviation = _centred(words, items.first_items, items.item_counts)
        scores: Numbers = words + _of_each(self._weights.vectors * np.maximum(deviation, 1.0), items.item_counts) * near
        return scores - items.remarks

    def _of_names(self) -> Numbers:
        """Return what each item gains if its query has its name, in nats; else 0."""
        import numpy as np

        gains = np.zeros(len(self._items))
        for first, query in zip(self._items.first_passages.tolist(), self._queries, strict=True):
            for place, frequency in query.named:
                item = int(self._items.of_passages[first + place])
                gains[item] = max(gains[item], self._weights.name * self._expected(frequency)[0])
        return gains

    def _look_alikes(self, facts: NDArray[np.bool_], scores: Numbers, by_words: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of these facts have for each sentence a score far below that of its best fact.

        A sentence that does not stand out by its words has none: its answer may be any of the nearest facts.

        Args:
            by_words: of each sentence, whether it stands out by its words.
        """
        import numpy as np

        least = self._weights.tail * scores[:, facts].max(axis=1, keepdims=True, initial=0.0) * by_words[:, np.newaxis]
        is_answer = (scores > 0) & (scores >= least)
        look_alikes: NDArray[np.bool_] = facts & ~is_answer.any(axis=0) & np.isfinite(scores).any(axis=0)
        return look_alikes


class _Sentences(NamedTuple):
    """What items are ranked by, a row for each: the query as a whole, or some of its sentences."""

    nats: Sequence[Numbers]
    """Of each query, a matrix: the nats of each of its terms in `Matched.present`."""
    similarities: Numbers | None
    """The similarities of each passage; None without vectors."""
    shares: Numbers
    """Of each query, see `Matched._in_order`."""
    counts: Sequence[int]
    """How many of the rows are each query's own."""
    is_near: NDArray[np.bool_] | None = None
    """For a reminder with vectors: whether each passage is prominent."""
    by_words: NDArray[np.bool_] | None = None
    """For a reminder: whether the sentence stands out by its words."""


class _Items:
    """The items to which the passages of a query belong."""

    def __init__(self, passages: Passages, weights: Weights) -> None:
        import numpy as np

        count = len(passages.items)
        is_first = np.ones(count, dtype=bool)
        is_first[1:] = passages.items[1:] != passages.items[:-1]
        self.starts = np.flatnonzero(is_first)
        """The first passage of each item."""
        self.counts = np.diff(self.starts, append=count)
        """How many passages each item has."""
        self.of_passages = np.cumsum(is_first) - 1
        """Of each passage, the place of its item."""
        self.chances = np.log(np.maximum(self.counts, 1))
        """Of each item, the nats by which its best passage is better by chance, as the best of several."""
        little = np.log(_SAYS_ENOUGH / np.maximum(passages.content[self.starts], 1.0))
        self.remarks = np.where(passages.is_fact[self.starts], 0.0, np.clip(little, 0.0, _LESS))
        """Of each item, the nats that it has less because it says little; 0 for facts, which are all short."""
        self.has_one_passage_each = len(self.starts) == count
        """Whether what holds for a passage holds for its item, and is computed once."""
        self._asks = passages.asks[self.starts]
        self._alone = np.minimum(1.0, weights.short / np.maximum(passages.chars[self.starts], 1))
        self._sessions = passages.sessions[self.starts]
        self._place(weights, [count], [len(self.starts)])

    def _place(self, weights: Weights, passage_counts: list[int], item_counts: list[int]) -> None:
        import numpy as np

        self._weights = weights
        self.passage_counts, self.item_counts = np.array(passage_counts), np.array(item_counts)
        """How many passages, and how many items, each query has."""
        self.passage_columns, self.item_columns = _columns(passage_counts), _columns(item_counts)
        """Where these are."""
        self.first_passages = self.passage_counts.cumsum() - self.passage_counts
        self.first_items = self.item_counts.cumsum() - self.item_counts
        """The first of these."""
        self._given_by_weight: dict[float, Numbers] = {}
        """What `given` has returned."""

    def __len__(self) -> int:
        return len(self.starts)

    def best(self, values: Numbers) -> Numbers:
        """Return the greatest value of each item's passages, of rows of passages; NaN where all are."""
        import numpy as np

        if self.has_one_passage_each:
            return values
        best: Numbers = np.fmax.reduceat(values, self.starts, axis=-1)
        return best

    def are_best(self, values: Numbers) -> NDArray[np.bool_]:
        """Return of each passage whether it is its item's best one, the first of several, given a value of each."""
        import numpy as np

        candidates = np.flatnonzero(values == np.repeat(self.best(values), self.counts))
        _, first = np.unique(self.of_passages[candidates], return_index=True)
        are_best = np.zeros(len(values), dtype=bool)
        are_best[candidates[first]] = True
        return are_best

    def nearest(self, similarities: Numbers) -> Numbers:
        """Return how similar each item is: as its most similar passage, less what the best of several is by chance.

        At least as the mean of its passages; NaN where a passage has no vector.
        """
        import numpy as np

        if self.has_one_passage_each:
            return similarities
        _, deviation = _centred(similarities, self.first_passages, self.passage_counts)
        chance = _ALIKE * _of_each(deviation, self.item_counts) * np.sqrt(2 * self.chances)
        mean = np.add.reduceat(similarities, self.starts, axis=-1) / self.counts
        nearest: Numbers = np.maximum(self.best(similarities) - chance, mean)
        return nearest

    def less_chance(self, values: Numbers) -> Numbers:
        """Return values of items less the nats that are the chance of several passages; at least 0."""
        import numpy as np

        return values if self.has_one_passage_each else np.maximum(values - self.chances, 0.0)

    def around(self, values: Numbers, weight: float) -> Numbers:
        """Return what the items around each one have, of rows of items: less of further ones, and for a long item.

        Args:
            weight: that of the item before or after; a question before has `Weights.asked`, if that is more.
        """
        import numpy as np

        total = np.zeros(values.shape)
        for step, (to_after, to_before) in enumerate(self.given(weight)[:, :, np.newaxis] * values, 1):
            total[:, step:] += to_after[:, :-step]
            total[:, :-step] += to_before[:, step:]
        return total

    def around_cells(self, cells: Places, items: Places, size: int) -> Numbers:
        """Return what the items around each one have, in a table of terms and items; see `around`.

        Args:
            cells: where an item has a term, and items: the item.
            size: the size of the table.
        """
        import numpy as np

        given, reach = self.given(self._weights.around), self._weights.reach
        # Before the first cell and after the last one is room for what would be there.
        to = cells + _steps(reach)
        around = np.bincount(to.ravel(), given[..., items].ravel(), size + 2 * reach)
        return around[reach : reach + size].astype(np.float64, copy=False)

    def given(self, weight: float) -> Numbers:
        """Return for each number of steps, in two rows, how much each item gives to that after it, and before it."""
        if (given := self._given_by_weight.get(weight)) is None:
            given = self._given_by_weight[weight] = self._new_given(weight)
        return given

    def _new_given(self, weight: float) -> Numbers:
        import numpy as np

        weights, sessions = self._weights, self._sessions
        given = np.zeros((weights.reach, 2, len(self)))
        for step in range(1, weights.reach + 1):
            faded = (sessions[step:] == sessions[:-step]) * _FADE ** (step - 1)
            before = np.where(self._asks, max(weights.asked, weight), weight)[:-step] if step == 1 else weight
            given[step - 1, 0, :-step] = before * faded * self._alone[step:]
            given[step - 1, 1, step:] = weight * faded * self._alone[:-step]
        return given


class _ItemsOfSeveral(_Items):
    """The items of several queries, those of each in turn."""

    def __init__(self, several: Sequence[_Items], weights: Weights) -> None:
        import numpy as np

        self._several = several
        self._place(weights, [len(items.of_passages) for items in several], [len(items) for items in several])
        self.starts = _joined([items.starts for items in several], self.first_passages)
        self.of_passages = _joined([items.of_passages for items in several], self.first_items)
        self.counts, self.chances, self.remarks = (
            np.concatenate([getattr(items, name) for items in several]) for name in ("counts", "chances", "remarks")
        )
        self.has_one_passage_each = all(items.has_one_passage_each for items in several)

    def _new_given(self, weight: float) -> Numbers:
        import numpy as np

        return np.concatenate([items.given(weight) for items in self._several], axis=-1)


class _Table:
    """Where the values of each query are in one array: a table for each, with a row for each of its terms.

    Args:
        rows: how many terms each query has.
        columns: the columns of each query in arrays of all.
    """

    def __init__(self, rows: Sequence[int], columns: Sequence[slice]) -> None:
        self.size = 0
        self.firsts: list[int] = []
        """Where each row begins."""
        self._before: list[int] = []
        """Where each row would begin if it had the columns of all queries."""
        self._parts: list[tuple[slice, tuple[int, int]]] = []
        for count, own in zip(rows, columns, strict=True):
            width = own.stop - own.start
            start, self.size = self.size, self.size + count * width
            self.firsts += range(start, self.size, width)
            self._before += range(start - own.start, self.size - own.start, width)
            self._parts.append((slice(start, self.size), (count, width)))

    def cells(self, columns: Places, counts: Sequence[int]) -> Places:
        """Return where the values of columns are: so many of each row in turn."""
        import numpy as np

        cells: Places = np.array(self._before, dtype=np.int64).repeat(counts) + columns
        return cells

    def split(self, values: Any) -> list[Any]:
        """Return the table of each query."""
        return [values[own].reshape(shape) for own, shape in self._parts]


def _of_rows(similarities: Numbers | None) -> Numbers | float:
    """Return by how much a passage's similarity decides which passages of its item are shown."""
    import numpy as np

    if similarities is None:
        return 0.0
    most: Numbers = np.fmax.reduce(similarities, axis=0, initial=0.0)
    return most * _HALF


def _centred(values: Numbers, firsts: Places, counts: Places) -> tuple[Numbers, Numbers]:
    """Return values less the mean of their query's in their row, 0 for NaN, and the standard deviation of these.

    Args:
        firsts: the first column of each query, and counts: how many it has.
    """
    import numpy as np

    sums = np.add.reduceat(values, firsts, axis=1)
    known = counts
    if math.isfinite(np.add.reduce(sums, axis=None)):
        apart = values - _of_each(sums / counts, counts)
    else:
        is_known = np.isfinite(values)
        known = np.maximum(np.add.reduceat(is_known.astype(float), firsts, axis=1), 1)
        means = np.add.reduceat(np.where(is_known, values, 0.0), firsts, axis=1) / known
        apart = np.where(is_known, values - _of_each(means, counts), 0.0)
    return apart, np.sqrt(np.add.reduceat(apart * apart, firsts, axis=1) / known)


def _of_each(values: Numbers, counts: Places) -> Numbers:
    """Return what each query has in its columns, of rows of queries; for a single query that is the same."""
    return values if len(counts) == 1 else values.repeat(counts, axis=1)


def _joined(places: Sequence[Places], firsts: Places) -> Places:
    """Return the places of several queries, given the first place of each."""
    import numpy as np

    if len(places) == 1:
        return places[0]
    joined: Places = np.concatenate(places)
    joined += np.repeat(firsts, [len(of_query) for of_query in places])
    return joined


def _columns(counts: Sequence[int]) -> list[slice]:
    """Return the columns of each query, given how many it has."""
    stops = list(accumulate(counts))
    return [slice(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]


@lru_cache
def _steps(reach: int) -> Places:
    """Return how far the cell of the item after is, and of that before, for each number of steps; plus `reach`."""
    import numpy as np

    return np.array([[[reach + step], [reach - step]] for step in range(1, reach + 1)], np.int64).reshape(reach, 2, 1)


@lru_cache(maxsize=100_000)
def _expected(log: float, common: float, rare: float, background: int, text_words: int) -> tuple[float, float]:
    """Return how much a word with this general frequency tells, and how many virtual texts have it; see `Weights`."""
    telling = min(max((-log - common) / (rare - common), 0.0), 1.0)
    return telling, background * min(1.0, text_words * math.exp(log))


_HALF = 10.0
"""The score in nats that is returned as 0.5."""

_FADE = 0.5
"""How much of an item's weight the next one in the same direction has."""

_BESIDE = 0.25
"""The weight of the similarity of the item before or after."""

_WHOLE = 0.25
"""How many turns a query of several sentences has as a whole, for each of a question: its words are of all of them."""

_TRIES = 0.4
"""By how many standard deviations more a sentence must stand out by its vector, times ln(number of sentences)."""

_COMMON = 0.5
"""How much of a passage's similarity to the mean of all is taken from its similarity to a query."""

_SAYS_ENOUGH = 80.0
"""See `content_of`. Of what was said in turns, that with less answers the less often, and that with more as often."""

_LESS = 1.0
"""The most nats that an item has less because it says little: the shortest may answer, too."""

_CERTAIN = 2.0
"""How much more than chance a sentence shares whose words count though its vector does not stand out."""

_ALIKE = 0.6
"""By how much of what is expected of independent passages the most similar passage of an item exceeds the others."""

_SMALL = 0.02
"""The least standard deviation of similarities: of few items nobody can tell."""
