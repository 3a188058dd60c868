"""What was forgotten, as it is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from turnwise.memory.longterm.deletion import Erasure


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was removed, and where it was looked for afterwards."""

    sessions: int = 0
    turns: int = 0
    """Turns that no later request holds any more."""
    summaries: int = 0
    """Summaries that stood for one of them, and have given way to the rest of what they stood for."""
    waiting: int = 0
    """Turns that were still to be saved, and are not any more."""
    notes: int = 0
    """Texts of working memory."""
    items: Mapping[str, int] = field(default_factory=dict)
    """What long-term memories had, by the name of the memory."""
    erased: Mapping[str, Erasure] = field(default_factory=dict)
    """What the look for it in each has shown, where that was asked for."""

    @property
    def verified(self) -> bool:
        """Whether it was looked for in all long-term memories, as was asked for, and nothing was found."""
        return bool(self.erased) and all(erasure.verified for erasure in self.erased.values())

    @property
    def progress(self) -> float:
        """How much of what is to be searched was, from 0 to 1, of the memory that has come the least far."""
        return min((erasure.progress for erasure in self.erased.values()), default=1.0)

    def __add__(self, other: Forgotten) -> Forgotten:
        counts = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if one.name not in ("items", "erased")
        }
        names = [*dict.fromkeys((*self.items, *other.items))]
        items = {name: self.items.get(name, 0) + other.items.get(name, 0) for name in names}
        return Forgotten(items=items, erased={**self.erased, **other.erased}, **counts)
