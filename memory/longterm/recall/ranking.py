"""Ranks the items of one user for a query, by their words, names and vectors, and by the words of neighbouring items.

All scores are information in nats: the less likely a match is by chance, the higher its score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of the ranking. `tests/bench/long_term/weights.py` says how the defaults were chosen.

    Raises:
        ConfigError: a weight is not a number, or out of range.
    """

    saturation: float = 0.25
    """BM25's k1: the lower it is, the less a repeated word adds."""
    before: float = 0.5
    """The weight of a word in the previous item, relative to one in the item itself; multiplied again per item."""
    after: float = 0.55
    """The same for the item after; the one after that counts `before` times as much, and so on."""
    reach: int = 3
    """How many items of the same session before and after count."""
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
    margin: float = 0.5
    """A sentence of a query counts if its best item shares at least ln(number of items) + `margin` nats with it, and at
    least the share `part` of the sentence's nats."""
    part: float = 0.25
    """See `margin`."""
    share: float = 0.7
    """A sentence also counts if its best item shares at least this share of the sentence's nats, and at least `least`
    nats by general word frequency."""
    least: float = 8.0
    """See `share`. A sentence with fewer nats by general word frequency has no content."""
    vectors: float = 8.0
    """The nats that an item gains if its vector is that of the query."""
    similar: float = 0.45
    """The least vector similarity at which an item is relevant regardless of its words."""
    tail: float = 0.7
    """A fact is left out if its score by words is below this share of the best fact's: most such facts are look-alikes.
    Facts that only vectors find are kept. So are turns (items of type INTERACTION), since each may have another part of
    the answer."""

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
    **dict.fromkeys(("before", "after", "corrected", "part", "tail"), _SHARE),
    "saturation": (0.01, _MOST, "must be a number from 0.01 to a million"),
    **dict.fromkeys(("speaker", "name", "share", "least", "vectors"), _AMOUNT),
    **dict.fromkeys(("reach", "background"), _COUNT),
    **dict.fromkeys(("common", "rare", "similar"), _ANY),
    "margin": (-math.inf, _MOST, "must be a number up to a million, or minus infinity for none"),
    "text_words": (1, _MOST, "must be a whole number from 1 to a million"),
}
"""The least and the greatest value of each weight, and the text of the error."""

FACTS = Weights(reach=0, least=2.0)
"""For facts: each stands for itself, and of those that share less than the best does most are look-alikes."""


@dataclass(frozen=True, kw_only=True)
class QueryTerms:
    """A query as numbers, matched against the items."""

    terms: Places
    """Numbers of terms, in ascending order. With `places`, pairs of a term and an item that has it; a pair may occur
    twice."""
    places: Places
    """For each entry of `terms`, the item that has the term."""
    log_frequencies: Sequence[float]
    """For each term, the logarithm of its general frequency in its language."""
    is_corrected: Sequence[bool]
    """For each term, whether it stands for a misspelt one."""
    parts: Sequence[Sequence[int]]
    """The terms of each sentence."""
    speakers: Places
    """The items whose speaker the query names."""
    named: Sequence[tuple[int, float]]
    """The items whose name the query has, each with the log frequency of the name's rarest word."""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The items' scores by words and names, without vectors."""

    query: QueryTerms
    present: Places
    """The terms that some item has, in ascending order."""
    has: Numbers
    """Of each of these terms, and each item, 1 if the item has it; else 0."""
    scores: Numbers
    """In nats; 0 for an item that matches nothing."""
    has_content: bool
    """False for a query without content words, such as a greeting; vectors are then ignored."""
    neighbours: _Neighbours
    weights: Weights


@dataclass(frozen=True)
class Ranked:
    """The relevant items, the best first."""

    places: Places
    scores: Numbers
    """From 0 to 1."""


def match(query: QueryTerms, sessions: Places, weights: Weights) -> Matched:
    """Score the items of one user by words and names. Each sentence of a query is scored by itself.

    Args:
        sessions: of each item; items of a session stand together, in their order.
    """
    import numpy as np

    neighbours = _Neighbours(sessions, weights)
    logs = np.array(query.log_frequencies)
    is_present = np.bincount(query.terms, minlength=len(logs)) > 0
    present, rows = np.flatnonzero(is_present), np.cumsum(is_present) - 1
    has = np.zeros((len(present), len(sessions)))
    has[rows[query.terms], query.places] = 1.0
    telling = np.minimum(np.maximum((-logs - weights.common) / (weights.rare - weights.common), 0.0), 1.0)
    is_part = np.zeros((len(query.parts), len(logs)))
    for row, terms in enumerate(query.parts):
        is_part[row, list(terms)] = 1.0
    has_content = bool((is_part @ (-logs * telling)).max(initial=0.0) >= weights.least)
    telling *= np.where(np.array(query.is_corrected), weights.corrected, 1.0)
    scores = _by_words(_QueryNumbers(logs, telling, is_part), present, has, neighbours, weights)
    for place, frequency in query.named:
        scores[place] += weights.name * _telling(frequency, weights)
    return Matched(
        query=query,
        present=present,
        has=has,
        scores=scores,
        has_content=has_content,
        neighbours=neighbours,
        weights=weights,
    )


def rank(
    matched: Matched,
    *,
    facts: NDArray[np.bool_],
    similarities: Numbers | None,
    limit: int,
    groups: NDArray[np.int8] | None = None,
) -> Ranked:
    """Rank the items by their words and names, and by their vectors.

    Args:
        facts: of each item, whether it is a fact and not what was said in a turn.
        similarities: of each item's vector to the query's, from -1 to 1, NaN for items without one; None if there are
            none at all.
        limit: the most items to return.
        groups: of each item, its group: each group is limited, and its look-alikes are left out, by itself. One group
            if left out.
    """
    import numpy as np

    query, weights = matched.query, matched.weights
    if not len(matched.scores) or limit <= 0:
        return Ranked(np.zeros(0, np.int64), np.zeros(0))
    scores = matched.scores.copy()
    if similarities is not None and matched.has_content:
        scores = _with_vectors(scores, similarities, matched.neighbours, weights)
    if len(query.speakers):
        scores[query.speakers] *= 1 + weights.speaker
    best = float(scores.max())
    if best <= 0:
        return Ranked(np.zeros(0, np.int64), np.zeros(0))
    bears = scores > 0
    groups_of_items = [bears] if groups is None else [bears & (groups == group) for group in np.unique(groups[bears])]
    selected = [group & ~_look_alikes(group & facts, matched.scores, weights.tail) for group in groups_of_items]
    order = np.concatenate([_best(scores, group, limit) for group in selected])
    if groups is not None:
        order = order[np.argsort(-scores[order], kind="stable")]
    return Ranked(order, scores[order] / (scores[order] + _HALF))


def _look_alikes(facts: NDArray[np.bool_], words: Numbers, tail: float) -> NDArray[np.bool_]:
    """Return which of these facts share words with the query, but too few beside the best: see `Weights.tail`."""
    look_alikes: NDArray[np.bool_] = facts & (words > 0) & (words < tail * float(words[facts].max(initial=0.0)))
    return look_alikes


def _best(scores: Numbers, which: NDArray[np.bool_], limit: int) -> Places:
    """Return the places of up to `limit` of these items, the best first."""
    import numpy as np

    places = np.flatnonzero(which)
    return places[np.argsort(-scores[places], kind="stable")][:limit]


class _QueryNumbers(NamedTuple):
    """A query's terms and sentences as numbers."""

    logs: Numbers
    """Of each term, the natural logarithm of its frequency."""
    telling: Numbers
    """Of each term, how much it says, from 0 to 1."""
    is_part: Numbers
    """Of each sentence, and each term, 1 if the sentence has the term; else 0."""


_HALF = 10.0
"""The score in nats that is returned as 0.5."""

_MANY, _SMALL = 10, 1e-6


def _by_words(
    numbers: _QueryNumbers, present: Places, has: Numbers, neighbours: _Neighbours, weights: Weights
) -> Numbers:
    """Return each item's score for the sentence that it matches best; 0 if it matches none.

    Args:
        present: the terms that some item has.
    """
    import numpy as np

    size, (logs, telling, is_part) = has.shape[1], numbers
    if not len(present) or not len(is_part):
        return np.zeros(size)
    counts = np.zeros(len(logs))
    counts[present] = has.sum(axis=1)
    expected = weights.background * np.minimum(1.0, weights.text_words * np.exp(logs))
    rarity = np.maximum(-np.log((counts + expected + 0.5) / (size + weights.background + 1)), 0.0)

    frequency = neighbours.spread(has)
    saturated = frequency * (weights.saturation + 1) / (frequency + weights.saturation)
    once = np.minimum(frequency, 1.0)

    weight = is_part * (rarity * telling)
    matched = weight[:, present] @ once
    places = matched.argmax(axis=1)
    shared = matched[np.arange(len(places)), places]
    general = ((is_part * (-logs * telling))[:, present] * once[:, places].T).sum(axis=1)
    total = weight.sum(axis=1)
    bears = (shared >= weights.margin + math.log(size)) & (shared >= weights.part * total)
    bears |= (shared >= weights.share * total) & (general >= weights.least)
    if not bears.any():
        return np.zeros(size)
    scores: Numbers = (weight[bears][:, present] @ saturated).max(axis=0)
    return scores


def _with_vectors(scores: Numbers, similarities: Numbers, neighbours: _Neighbours, weights: Weights) -> Numbers:
    """Return the scores with what the vectors add to items that bear on the query by their words, or are similar."""
    import numpy as np

    has_vector = np.isfinite(similarities)
    if not has_vector.any():
        return scores
    raw = np.where(has_vector, similarities, 0.0)
    # What is as near as the user's items are on the whole says nothing; of few items nobody can tell.
    usual = float(raw[has_vector].mean()) if has_vector.sum() >= _MANY else 0.0
    nearer = np.where(has_vector, np.maximum(raw - usual, 0.0) / max(1.0 - usual, _SMALL), 0.0)
    bears = (scores > 0) | (raw >= weights.similar)
    return np.where(bears, scores + weights.vectors * neighbours.spread(nearer), 0.0)


def _telling(log_frequency: float, weights: Weights) -> float:
    return min(max((-log_frequency - weights.common) / (weights.rare - weights.common), 0.0), 1.0)


class _Neighbours:
    """Adds to each item the words of its neighbours in the session; the further away, the less they count."""

    def __init__(self, sessions: Places, weights: Weights) -> None:
        self._steps = []
        for step in range(1, min(weights.reach, len(sessions) - 1) + 1):
            same = sessions[step:] == sessions[:-step]
            if same.any():
                fade = weights.before ** (step - 1)
                self._steps.append((step, same * (fade * weights.before), same * (fade * weights.after)))

    def spread(self, values: Numbers) -> Numbers:
        total = values.copy()
        for step, before, after in self._steps:
            total[..., step:] += before * values[..., :-step]
            total[..., :-step] += after * values[..., step:]
        return total
