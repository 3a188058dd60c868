"""Ranks the items of one user for a query: by words, names and vectors, and by those of the items around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

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
    """The passages that have a term: those of the first one, then those of the next; some twice."""
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


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """The best items, in their order."""

    places: Places
    """The first passage of each item."""
    counts: Places
    """How many passages each item has."""
    scores: Numbers
    """Of each item, from 0 to 1."""
    passage_scores: Numbers | None
    """Of all passages, in nats; None if each item has only one."""


class Matched:
    """The matches of a query's words with the passages of one user's items.

    Scores are nats: the less likely a match is by chance, the higher it is. What is rare is counted in items, and the
    words of the items around one count for it too. Each sentence is scored by itself.
    """

    def __init__(self, query: QueryTerms, passages: Passages, weights: Weights) -> None:
        import numpy as np

        self._query = query
        self._passages = passages
        self._weights = weights
        self._items = passages.by_item(weights)
        self.present = [term for term, count in enumerate(query.counts) if count]
        """The terms that some item has, in ascending order."""
        self._has = np.zeros((len(self.present), len(passages.items)))
        """Of each of these terms, and each passage, 1 if the passage has it; else 0. `_in_items`: of each item."""
        rows = np.repeat(np.arange(len(self.present)), [query.counts[term] for term in self.present])
        self._has[rows, query.places] = 1.0
        self._in_items = self._items.best(self._has)
        counts = [0.0] * len(query.counts)
        for term, count in zip(self.present, np.add.reduce(self._in_items, axis=1).tolist(), strict=True):
            counts[term] = count
        self._general: list[float] = []
        """Of each term, the nats that it has by its general frequency."""
        nats: list[float] = []
        size = len(self._items)
        for log, is_corrected, count in zip(query.log_frequencies, query.is_corrected, counts, strict=True):
            telling = _telling(log, weights)
            self._general.append(-log * telling)
            telling *= weights.corrected if is_corrected else 1.0
            expected = weights.background * min(1.0, weights.text_words * math.exp(log))
            rarity = max(-math.log((count + expected + 0.5) / (size + weights.background + 1)), 0.0)
            nats.append(rarity * telling)
        self._nats = np.array(nats)
        """Of each term, the nats that an item gains that has it."""
        self._present_nats = self._nats[self.present]
        around = self._items.around(self._items.of_best(self._has, self._present_nats), weights.around)
        self._frequency = self._has + self._items.of_each_passage(around)

    @cached_property
    def _is_part(self) -> Numbers:
        """Of each sentence, a row, and each term, 1 if the sentence has it; else 0."""
        import numpy as np

        is_part = np.zeros((len(self._query.parts), len(self._nats)))
        for row, terms in enumerate(self._query.parts):
            is_part[row, list(terms)] = 1.0
        return is_part

    @cached_property
    def _has_content(self) -> NDArray[np.bool_]:
        """Of each sentence, whether it says anything, unlike a greeting."""
        import numpy as np

        result: NDArray[np.bool_] = self._is_part @ np.array(self._general) >= self._weights.least
        return result

    def rank(
        self,
        *,
        limit: int,
        similarities: Numbers | None = None,
        prominences: Numbers | None = None,
        common: Numbers | None = None,
        groups: NDArray[np.int8] | None = None,
        is_reminder: bool = False,
    ) -> Ranked:
        """Rank the items by their words, names and vectors.

        For each sentence that stands out, and unless it is a reminder for the query as a whole. If none of a query's
        questions stands out, all of them count, but for those of one word, such as "Details?", which are about what
        stands beside them. Each sentence has its own best items: each question as many, others fewer the less they
        stand out, and the whole few.

        Args:
            limit: the most items to return.
            similarities: of the query to each passage, one row, and if it has several sentences a row for each; for a
                reminder a row for each sentence only. From -1 to 1, NaN for passages without a vector. None if there
                are no vectors.
            prominences: of each sentence and passage, see `prominences_of`; needed with a row for each sentence.
            common: of each passage, see `common_of`.
            groups: of each passage, the group of its item: each group is limited by itself. One group if left out.
            is_reminder: return only items that stand out for a sentence that does.
        """
        import numpy as np

        if not len(self._items) or limit <= 0 or not len(self._nats):
            return self._nothing()
        sentences = self._ranked_sentences(similarities, prominences, is_reminder=is_reminder)
        if sentences is None:
            return self._nothing()
        nats, rows, shares, is_near, by_words = sentences
        saturation = self._weights.saturation
        saturated = self._frequency * (saturation + 1) / (self._frequency + saturation)
        words_of_passages = nats @ saturated
        words = self._items.best(words_of_passages)
        is_relevant = words > 0
        words = self._items.less_chance(words)
        if len(self._query.speakers):
            words[:, self._items.of_passages[self._query.speakers]] *= 1 + self._weights.speaker
        near = rows if rows is None or common is None else rows - _COMMON * common
        scores = words if near is None else self._with_vectors(words, near)
        if is_near is not None:
            is_relevant |= self._items.best(is_near.astype(float)) > 0
        elif rows is not None and not is_reminder:
            is_relevant |= self._items.best(rows) > 0
        of_names = is_named = None
        if self._query.named:
            of_names = self._of_names()
            is_named = of_names > 0
            is_relevant |= is_named
            scores = np.where(is_named, np.maximum(scores, 0.0) + of_names, scores)
        scores = np.where(is_relevant, scores, -np.inf)
        best = scores[0] if len(scores) == 1 else np.maximum.reduce(scores, axis=0, initial=-np.inf)
        if of_names is not None and is_named is not None:
            best = np.maximum(best, np.where(is_named, of_names, -np.inf))
        in_order = self._in_order(scores, best, is_named, shares)
        if groups is None and by_words is None:
            order = in_order[:limit] if len(scores) == 1 else in_order
            order = order[best[order] > -np.inf][:limit]
        else:
            members = self._members(best, groups)
            if by_words is not None:
                members = [group & ~self._look_alikes(group, scores, by_words) for group in members]
            order = np.concatenate([in_order[group[in_order]][:limit] for group in members])
        if len(scores) > 1 or self._query.named or groups is not None:
            order = order[np.argsort(-best[order], kind="stable")]
        nats_of_best = np.maximum(best[order], 0.0)
        return Ranked(
            places=self._items.starts[order],
            counts=self._items.counts[order],
            scores=nats_of_best / (nats_of_best + _HALF),
            passage_scores=None
            if self._items.has_one_passage_each
            else words_of_passages.max(axis=0, initial=0.0) + _of_rows(rows),
        )

    def _ranked_sentences(
        self, similarities: Numbers | None, prominences: Numbers | None, *, is_reminder: bool
    ) -> _Sentences | None:
        """Return what is ranked by: the query as a whole, and its sentences that stand out; for a reminder only these.

        None for a reminder for which none stands out.
        """
        import numpy as np

        whole = self._present_nats[np.newaxis]
        if not is_reminder and len(self._query.parts) <= 1:
            return _Sentences(whole, similarities, np.ones(1))
        stands_out, rows = self._standing_out(prominences), similarities
        asks = np.array(self._query.asks, dtype=bool)
        if not is_reminder and not (stands_out & asks).any():
            stands_out |= self._has_content & asks & (self._is_part.sum(axis=1) > 1)
        if is_reminder:
            if not (stands_out.any() or self._query.named):
                return None
            return _Sentences(
                self._nats_of_parts(stands_out),
                None if rows is None else rows[stands_out],
                self._shares(stands_out, prominences),
                None if prominences is None else prominences[stands_out] >= self._weights.prominence,
                self._standing_out(None)[stands_out],
            )
        if rows is not None:
            of_sentences = rows[1:] if len(rows) > 1 else np.full((len(stands_out), rows.shape[1]), np.nan)
            rows = np.concatenate([rows[:1], of_sentences[stands_out]])
        nats = np.concatenate([whole, self._nats_of_parts(stands_out)])
        return _Sentences(nats, rows, np.append(_WHOLE, self._shares(stands_out, prominences)))

    def _members(self, best: Numbers, groups: NDArray[np.int8] | None) -> list[NDArray[np.bool_]]:
        """Return which items each group has that have a score."""
        import numpy as np

        selected = np.isfinite(best)
        if groups is None:
            return [selected]
        of_group = groups[self._items.starts]
        return [selected & (of_group == group) for group in np.unique(of_group)]

    def _nats_of_parts(self, which: NDArray[np.bool_]) -> Numbers:
        """Return the nats of the terms in `present`, of these sentences."""
        nats: Numbers = (self._is_part[which] * self._nats)[:, self.present]
        return nats

    def items_with_terms(self, places: Places) -> Numbers:
        """Return of each of `present`, a row, and each of some items, 1 if the item has the term; else 0.

        Args:
            places: the first passage of each item.
        """
        return self._in_items[:, self._items.of_passages[places]]

    def _in_order(self, scores: Numbers, best: Numbers, is_named: NDArray[np.bool_] | None, shares: Numbers) -> Places:
        """Return the places of all items: the best of each sentence in turn, and of these the best.

        So two questions in one prompt both have their answers.

        Args:
            shares: of each sentence, how many turns it has for each of one with share 1.
        """
        import numpy as np

        orders = np.argsort(-scores, axis=1, kind="stable")
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

        evidence = np.maximum(self._shared[0] - math.log(len(self._passages.items)), 0.0)
        if prominences is not None:
            evidence += prominences.max(axis=1, initial=0.0)
        evidence = evidence[stands_out] + _SMALL
        shares: Numbers = evidence / evidence.max(initial=_SMALL)
        shares[np.array(self._query.asks, dtype=bool)[stands_out]] = 1.0
        return shares

    def _standing_out(self, prominences: Numbers | None) -> NDArray[np.bool_]:
        """Return which sentences stand out, by their words or by their vectors; see `Weights`."""
        import numpy as np

        weights = self._weights
        shared, general, total = self._shared
        much = 1.0 if prominences is None else _CERTAIN
        least = weights.margin + math.log(len(self._passages.items))
        stands_out = (shared >= much * least) & (shared >= much * weights.part * total)
        if prominences is None:
            stands_out |= (shared >= weights.share * total) & (general >= weights.least)
        else:
            above_chance = weights.prominence + _TRIES * math.log(max(int(self._has_content.sum()), 1))
            stands_out |= prominences.max(axis=1, initial=-np.inf) >= above_chance
        result: NDArray[np.bool_] = self._has_content & stands_out
        return result

    @cached_property
    def _shared(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of each sentence, the nats that its best passage shares with it, those by general frequency, and its own."""
        import numpy as np

        once = np.minimum(self._frequency, 1.0)
        nats = self._is_part * self._nats
        matched = nats[:, self.present] @ once
        places = matched.argmax(axis=1)
        shared = matched[np.arange(len(places)), places]
        general_nats = (self._is_part * np.array(self._general))[:, self.present]
        general = (general_nats * once[:, places].T).sum(axis=1)
        return shared, general, nats.sum(axis=1)

    def _with_vectors(self, words: Numbers, similarities: Numbers) -> Numbers:
        """Return the items' scores by words and vectors, of each part.

        Both are standardised, since neither scale says how much a difference means: see `Weights.vectors`. What is near
        beside an item counts a quarter, or as `Weights.asked`. A remark, such as "That sounds great!", is similar to
        much and answers little: it loses what `_Items.remarks` says.
        """
        import numpy as np

        apart, spread = _centred(self._items.nearest(similarities))
        near = apart / np.maximum(spread, _SMALL)
        near += self._items.around(near, _BESIDE)
        _, deviation = _centred(words)
        scores: Numbers = words + self._weights.vectors * np.maximum(deviation, 1.0) * near
        return scores - self._items.remarks

    def _of_names(self) -> Numbers:
        """Return what each item gains if the query has its name, in nats."""
        import numpy as np

        gains = np.zeros(len(self._items))
        for place, frequency in self._query.named:
            item = int(self._items.of_passages[place])
            gains[item] = max(gains[item], self._weights.name * _telling(frequency, self._weights))
        return gains

    def _look_alikes(self, group: NDArray[np.bool_], scores: Numbers, by_words: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of these items are facts whose score for each sentence is far below that of its best fact.

        A sentence that does not stand out by its words has none: its answer may be any of the nearest facts.

        Args:
            by_words: of each sentence, whether it stands out by its words.
        """
        import numpy as np

        facts = group & self._passages.is_fact[self._items.starts]
        least = self._weights.tail * scores[:, facts].max(axis=1, keepdims=True, initial=0.0) * by_words[:, np.newaxis]
        is_answer = (scores > 0) & (scores >= least)
        look_alikes: NDArray[np.bool_] = facts & ~is_answer.any(axis=0) & np.isfinite(scores).any(axis=0)
        return look_alikes

    def _nothing(self) -> Ranked:
        import numpy as np

        none = np.zeros(0, np.int64)
        return Ranked(places=none, counts=none, scores=np.zeros(0), passage_scores=None)


class _Sentences(NamedTuple):
    """What items are ranked by, a row for each: the query as a whole, or some of its sentences."""

    nats: Numbers
    """The nats of each term of `Matched.present`."""
    similarities: Numbers | None
    """The similarities of each passage; None without vectors."""
    shares: Numbers
    """See `Matched._in_order`."""
    is_near: NDArray[np.bool_] | None = None
    """For a reminder with vectors: whether each passage is prominent."""
    by_words: NDArray[np.bool_] | None = None
    """For a reminder: whether the sentence stands out by its words."""


class _Items:
    """The items to which the passages belong."""

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
        self._asked = weights.asked
        self._alone = np.minimum(1.0, weights.short / np.maximum(passages.chars[self.starts], 1))
        self._steps = []
        sessions = passages.sessions[self.starts]
        for step in range(1, min(weights.reach, len(sessions) - 1) + 1):
            same = sessions[step:] == sessions[:-step]
            if same.any():
                self._steps.append((step, same * _FADE ** (step - 1)))
        self._factors: dict[float, list[tuple[int, Numbers, Numbers]]] = {}
        """What `around` multiplies with, by its weight."""

    def __len__(self) -> int:
        return len(self.starts)

    def best(self, values: Numbers) -> Numbers:
        """Return the greatest value of each item's passages, of rows of passages; NaN where all are."""
        import numpy as np

        if self.has_one_passage_each:
            return values
        best: Numbers = np.fmax.reduceat(values, self.starts, axis=-1)
        return best

    def of_best(self, rows: Numbers, weights: Numbers) -> Numbers:
        """Return the values of each item's best passage, the first of several: that of the greatest weighted sum."""
        import numpy as np

        if self.has_one_passage_each:
            return rows
        values = weights @ rows
        candidates = np.flatnonzero(values == np.repeat(self.best(values), self.counts))
        _, first = np.unique(self.of_passages[candidates], return_index=True)
        return rows[:, candidates[first]]

    def nearest(self, similarities: Numbers) -> Numbers:
        """Return how similar each item is: as its most similar passage, less what the best of several is by chance.

        At least as the mean of its passages; NaN where a passage has no vector.
        """
        import numpy as np

        if self.has_one_passage_each:
            return similarities
        _, deviation = _centred(similarities)
        chance = _ALIKE * deviation * np.sqrt(2 * self.chances)
        mean = np.add.reduceat(similarities, self.starts, axis=-1) / self.counts
        nearest: Numbers = np.maximum(self.best(similarities) - chance, mean)
        return nearest

    def less_chance(self, values: Numbers) -> Numbers:
        """Return values of items less the nats that are the chance of several passages; at least 0."""
        import numpy as np

        return values if self.has_one_passage_each else np.maximum(values - self.chances, 0.0)

    def of_each_passage(self, values: Numbers) -> Numbers:
        """Return the value of each passage's item, of rows of items."""
        import numpy as np

        return values if self.has_one_passage_each else np.repeat(values, self.counts, axis=1)

    def around(self, values: Numbers, weight: float) -> Numbers:
        """Return what the items around each one have, of rows of items: less of further ones, and for a long item.

        Args:
            weight: that of the item before or after; a question before has `Weights.asked`, if that is more.
        """
        import numpy as np

        total = np.zeros_like(values)
        for step, of_before, of_after in self._factors.get(weight) or self._new_factors(weight):
            total[..., step:] += of_before * values[..., :-step]
            total[..., :-step] += of_after * values[..., step:]
        return total

    def _new_factors(self, weight: float) -> list[tuple[int, Numbers, Numbers]]:
        """Return how much each item has of the one so many steps before, and of the one after."""
        import numpy as np

        factors = []
        for step, faded in self._steps:
            before = np.where(self._asks, max(self._asked, weight), weight)[:-step] if step == 1 else weight
            factors.append((step, before * faded * self._alone[step:], weight * faded * self._alone[:-step]))
        self._factors[weight] = factors
        return factors


def _of_rows(similarities: Numbers | None) -> Numbers | float:
    """Return by how much a passage's similarity decides which passages of its item are shown."""
    import numpy as np

    if similarities is None:
        return 0.0
    most: Numbers = np.fmax.reduce(similarities, axis=0, initial=0.0)
    return most * _HALF


def _centred(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return values less the mean of their row, 0 for NaN, and the standard deviation of each row."""
    import numpy as np

    sums = np.add.reduce(values, axis=1, keepdims=True)
    counts = max(values.shape[1], 1)
    if all(map(math.isfinite, sums[:, 0].tolist())):
        apart = values - sums / counts
    else:
        is_known = np.isfinite(values)
        counts = np.maximum(is_known.sum(axis=1, keepdims=True), 1)
        apart = np.where(is_known, values - np.where(is_known, values, 0.0).sum(axis=1, keepdims=True) / counts, 0.0)
    return apart, np.sqrt(np.add.reduce(apart * apart, axis=1, keepdims=True) / counts)


def _telling(log_frequency: float, weights: Weights) -> float:
    return min(max((-log_frequency - weights.common) / (weights.rare - weights.common), 0.0), 1.0)


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
