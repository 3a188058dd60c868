"""Loads ahead of time what recalls need, so that the first one does not wait for it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.recall.ranking import FACTS

_EXAMPLE = MemoryItem(id="example", text="Ann's night train to Paris leaves at nine. Always answer in English.")

_QUESTION = "When does the train for Pariss leave?"
"""A question with a word that is looked up among similar ones."""


@runtime_checkable
class LoadsAhead(Protocol):
    """Optional protocol of a memory whose first recall would have more to load than `load_ranking` does."""

    async def load_ahead(self) -> None:
        """Load it, in the background. Connects to nothing, and asks no model of others."""


@runtime_checkable
class LoadableAhead(Protocol):
    """Optional protocol of embedding functions and storages of vectors that have much to load at their first use."""

    def load_ahead(self) -> None:
        """Load it. Blocks. Connects to nothing, and does nothing if what is to be loaded is not there yet."""


def load_ranking() -> None:
    """Load what finds items by words: numpy, stemmers, the words of English. Blocks for some half a second."""
    from turnwise.memory.longterm.recall.index_growth import growth_between  # noqa: F401 - what `ItemIndexes` uses
    from turnwise.memory.longterm.recall.user_index import find, index_of

    for is_reminder in (False, True):
        find(index_of([_EXAMPLE]), _QUESTION, limit=1, weights=FACTS, is_reminder=is_reminder)
