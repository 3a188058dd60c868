"""`RecalledContent`: what each kind of memory recalled for one query, apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnwise.memory.conversation.views.notebook_display import items_html
from turnwise.memory.longterm.base import MemoryItem


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
