"""How well the items of one user bear on a query: their words, their neighbours', who says it, and their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What counts how much. The defaults are round numbers, not the best ones for some data."""

    saturation: float = 1.2
    """BM25's k1: how soon more of the same word adds no more."""
    length: float = 0.75
    """BM25's b: how far long texts are held to say less of each thing."""
    before: float = 0.5
    """What a word in the item before counts, beside one in the item itself; each item further back, so much less."""
    after: float = 0.25
    """The same for the item after; the one after that counts `before` times as much, and so on."""
    reach: int = 3
    """How many items before and after count."""
    related: float = 0.3
    """What a word counts that is only related to what was asked for."""
    speaker: float = 0.5
    """By how much an item gains whose speaker the query names."""
    vectors: float = 0.3
    """What the nearest vector counts beside the best words."""
    background: int = 1000
    """How many texts without the query's words are added to the user's, so that few still tell rare from common."""
    floor: float = 0.4
    """What share of a query, each word by its rarity, something must be about for anything to be recalled."""
    similar: float = 0.6
    """From which similarity of vectors on something is about a query whatever its words."""
    tail: float = 0.4
    """Items that bear on the query less than this share of what the best one does are left out."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Items that bear on a query, the best first."""

    places: Places
    scores: Numbers
    """From 0 to 1."""


def rank(
    hits: Sequence[Places],
    *,
    related: Sequence[Places],
    labels: Sequence[bool] | NDArray[np.bool_],
    sessions: Places,
    lengths: Numbers,
    similarities: Numbers | None,
    limit: int,
    weights: Weights,
) -> Ranked:
    """Rank the items of one user.

    Args:
        hits: for each term of the query, the items that have it.
        related: for each, the items that have words related to it.
        labels: whether the query names the item's speaker.
        sessions: of each item; items of a session stand together, in their order.
        lengths: of each item, in words.
        similarities: of each item's vector to the query's, from -1 to 1, NaN for items without one; None if there are
            none at all.
        limit: how many are wanted at most.
    """
    import numpy as np

    size = len(sessions)
    nothing = Ranked(np.zeros(0, np.int64), np.zeros(0))
    if not size or limit <= 0:
        return nothing
    near = _Neighbours(sessions, weights)
    words, about = _by_words(hits, related, near, lengths, weights)
    fused = words / words.max() if words.any() else words
    if similarities is not None:
        known = np.isfinite(similarities)
        if known.any():
            raw = np.where(known, similarities, 0.0)
            spread = near.spread(np.where(known, raw - raw[known].mean(), 0.0))
            spread = np.maximum(spread, 0.0)
            if spread.any():
                fused = fused + weights.vectors * spread / spread.max()
            about = np.maximum(about, np.where(raw >= weights.similar, raw, 0.0))
    named = np.asarray(labels)
    fused = np.where(named, 1 + weights.speaker, 1.0) * fused
    relevance = float(about.max())
    if relevance < weights.floor:
        return nothing
    best = float(fused.max())
    if best <= 0:
        return nothing
    candidates = np.flatnonzero(fused >= weights.tail * best)
    order = candidates[np.argsort(-fused[candidates], kind="stable")][:limit]
    return Ranked(order, np.clip(relevance * fused[order] / best, 0.0, 1.0))


class _Neighbours:
    """Adds to each item what those around it in its session have, less the further away."""

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


def _by_words(
    hits: Sequence[Places], related: Sequence[Places], near: _Neighbours, lengths: Numbers, weights: Weights
) -> tuple[Numbers, Numbers]:
    """Return BM25 with the neighbours' words, and which share of the query each item is about."""
    import numpy as np

    size = len(lengths)
    there = np.zeros((len(hits), size))
    for term, places in enumerate(related):
        there[term, places] = weights.related
    for term, places in enumerate(hits):
        there[term, places] = 1.0
    if not there.any():
        return np.zeros(size), np.zeros(size)
    # How many have the word itself. A word that nobody has is as rare as those that stand for it are.
    counts = np.array([len(places) or len(others) for places, others in zip(hits, related, strict=True)], dtype=float)
    frequency = near.spread(there)
    long = near.spread(lengths)
    norm = weights.saturation * (1 - weights.length + weights.length * long / float(long.mean()))
    scores = _rarity(size, counts) @ (frequency * (weights.saturation + 1) / (frequency + norm))
    counts = np.array([len(places) for places in hits], dtype=float)
    share = _rarity(size + weights.background, counts)
    return scores, (share @ np.minimum(frequency, 1.0)) / share.sum()


def _rarity(size: int, counts: Numbers) -> Numbers:
    """Return BM25's inverse document frequency."""
    import numpy as np

    rarity: Numbers = np.log1p((size - counts + 0.5) / (counts + 0.5))
    return rarity
