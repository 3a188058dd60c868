"""`Similarities`: how similar a user's items are to some texts, and how far that exceeds what unrelated texts give.

Similarities of one embedding function lie around 0.2, those of another around 0.7, and those of a user whose items are
all about one thing lie close together. So a prompt is compared with requests that need no memory, on the same items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from turnwise.memory.longterm.recall.query import parse, vector_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Similarities:
    """How near some texts, such as the sentences of a prompt, are to the passages of a user's items."""

    similarities: Numbers
    """Of each text, a row: the similarity of each passage, from -1 to 1; NaN for a passage without a vector.

    A query of several sentences comes before its sentences. Texts without names come last, see `VectorTexts`.
    """
    prominences: Numbers | None = None
    """See `prominences_of`; None if they are not needed."""
    common: Numbers | None = None
    """See `common_of`."""


def spread_out(
    near: Similarities | None, text: str, *, is_fact: NDArray[np.bool_], is_reminder: bool
) -> Similarities | None:
    """Return the similarities of a query and all of its parts, given those of its `vector_texts`.

    A text with names is as similar to a turn as it is on the mean with them and without: a name is similar to all that
    is said by and to its bearer, and words count it already. A fact has no speaker: a name in it says whose it is, as
    in "the passport of the user's son Tiago".

    Args:
        is_fact: of each passage, whether its item is a fact, and not what was said in a turn.
    """
    import numpy as np

    if near is None:
        return None
    _, own, with_names = vector_texts(text, is_reminder=is_reminder)
    of_texts = near.similarities
    if with_names:
        places = list(with_names)
        of_texts = near.similarities[:own].copy()
        nameless = np.where(is_fact, of_texts[places], near.similarities[own:])
        of_texts[places] = (of_texts[places] + nameless) / 2
    if near.prominences is None:
        return Similarities(of_texts, None, near.common)
    query = parse(text)
    with_vectors, count = query.told_apart(), len(query.parts)
    before = own - len(with_vectors)
    similarities = np.full((before + count, of_texts.shape[1]), np.nan)
    prominences = np.full((count, of_texts.shape[1]), -np.inf)
    similarities[:before] = of_texts[:before]
    similarities[[before + part for part in with_vectors]] = of_texts[before:]
    prominences[with_vectors] = near.prominences[before:own]
    return Similarities(similarities, prominences, near.common)


def common_of(vectors: Vectors) -> Numbers:
    """Return how similar each passage is to the mean of all; NaN for a passage without a vector.

    What is similar to all of a user's items, such as a greeting, is similar to a query for no reason of its own.
    """
    import numpy as np

    known = vectors[~np.isnan(vectors[:, 0])]
    common: Numbers = (vectors @ known.sum(axis=0) / max(len(known), 1)).astype(np.float64)
    return common


class Level(NamedTuple):
    """How similar unrelated texts are to their best passage."""

    mean: float
    deviation: float


def level_of(unrelated: Numbers) -> Level:
    """Return the level of texts that have nothing to do with the passages.

    Args:
        unrelated: their similarities: a row for each text, NaN for passages without a vector.
    """
    best = _above_mean(unrelated).max(axis=1, initial=-1.0)
    return Level(float(best.mean()), max(float(best.std()), _LEAST_DEVIATION))


def prominences_of(similarities: Numbers, level: Level) -> Numbers:
    """Return how far each similarity exceeds the best ones of unrelated texts, in standard deviations of those.

    All are taken above the mean of their text, since some texts are a little similar to everything.

    Args:
        similarities: a row for each text, NaN for passages without a vector.
    """
    prominences: Numbers = (_above_mean(similarities) - level.mean) / level.deviation
    return prominences


def _above_mean(similarities: Numbers) -> Numbers:
    """Return the similarities less the mean of their row, which few passages lower; -1 where there is none."""
    import numpy as np

    is_known = np.isfinite(similarities)
    count = is_known.sum(axis=1, keepdims=True)
    mean = np.where(is_known, similarities, 0.0).sum(axis=1, keepdims=True) / (count + _FEW)
    return np.where(is_known, similarities - mean, -1.0)


_FEW = 10
"""The mean of fewer passages says little."""

_LEAST_DEVIATION = 0.02

UNRELATED = (
    "How many inches are in a foot?",
    "Write a short poem about the first snow.",
    "What is the past tense of 'to swim'?",
    "Convert 30 degrees Celsius to Fahrenheit.",
    "Explain photosynthesis in two sentences.",
    "Which planet has the most moons?",
    "Sort these numbers: 7, 3, 9, 1.",
    "Translate 'good evening' into Japanese.",
    "What does the idiom 'to bite the bullet' mean?",
    "Write a regular expression that matches an email address.",
    "Who painted the Night Watch?",
    "How long do I boil an egg?",
    "Give me three rhymes for 'orange juice'.",
    "What is the square root of 1764?",
    "Summarise the plot of Hamlet.",
    "How do I undo the last commit in git?",
    "Is a tomato a fruit or a vegetable?",
    "Tell me a joke about a penguin.",
    "What year did the Berlin Wall fall?",
    "Rewrite this sentence in the passive voice: The cat chased the mouse.",
    "What is the difference between TCP and UDP?",
    "Suggest a name for a chess club.",
    "How far away is the Moon?",
    "Draft a polite email that declines an invitation.",
    "Spell 'necessary' backwards.",
    "Which countries border Switzerland?",
    "Make a table with the first ten prime numbers.",
    "What causes a rainbow?",
    "Explain recursion with an example in Python.",
    "How many players are in a handball team?",
    "Write a haiku about the sea.",
    "What is the chemical symbol of gold?",
)
"""They are about things that hardly any user's items are about."""
