"""`RecalledItems` and `RecalledContent`: what memories recalled for one query, together or by their kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.memory.conversation.views.notebook_display import Rows, items_html
from turnwise.memory.longterm.base import MemoryItem, trouble_of


class RecalledItems(Rows[MemoryItem]):
    """Items that memories recalled, the best first."""

    def __init__(self, items: Sequence[MemoryItem] = ()) -> None:
        super().__init__(items)
        self.trouble = trouble_of(items)
        """Why items may be missing, or ranked worse than usual; None if none are. Of a past time, whether items were
        changed since: then these items are a lower bound of what was recalled at that time."""


@dataclass(frozen=True, kw_only=True)
class RecalledContent:
    """What memories recalled for one query, by their kinds, the best of each memory first.

    Each item says which `memory` it is of, and why it was found: `score`, `words` and `passage`.
    """

    static: tuple[MemoryItem, ...] = ()
    """Of `StaticMemory`: facts for everyone."""
    extracted: tuple[MemoryItem, ...] = ()
    """Of `ExtractiveMemory` and all other memories of facts."""
    vector: tuple[MemoryItem, ...] = ()
    """Of `VectorMemory`: what was said."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why memories recalled nothing, by their names."""

    def _repr_html_(self) -> str:
        failed = [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        return items_html((*self.static, *self.extracted, *self.vector), *failed)
