"""`Forgotten`: the report of what was deleted from sessions and memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add

from turnwise.memory.longterm.retention.deletion import Erasure


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """Counts of deleted data, and the results of the verification. The turns of a deleted session count, too."""

    sessions: int = 0
    turns: int = 0
    """Turns that no later request contains."""
    summaries: int = 0
    """Summaries that covered a forgotten turn. The conversation has the other blocks that they covered again."""
    waiting: int = 0
    """Turns that waited to be saved to long-term memory, and will not be."""
    notes: int = 0
    """Texts of working memory."""
    webhooks: int = 0
    """Webhooks that were told of the user's sessions alone."""
    in_use: tuple[str, ...] = ()
    """The ids of sessions that had a run: `SessionManager.clear` removed nothing of them. After
    `forget(only_memory=True)`, those of which a turn is still to be saved."""
    items: Mapping[str, int] = field(default_factory=dict)
    """Items deleted from long-term memories, by the name of the memory."""
    erased: Mapping[str, Erasure] = field(default_factory=dict)
    """The verification of each memory's deletion, by the name of the memory; empty if none was requested."""
    was_checked: bool = False
    """Whether a verification was requested and made in all long-term memories."""

    @property
    def verified(self) -> bool:
        """Whether the deletion was verified in all long-term memories and nothing was found.

        Without a memory nothing can be left in one.
        """
        is_whole = self.was_checked and self.items.keys() <= self.erased.keys()
        return is_whole and all(erasure.verified for erasure in self.erased.values())

    def __add__(self, other: Forgotten) -> Forgotten:
        """Return the report of both deletions. A memory is verified if it is in each of them that deleted from it."""
        counts = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name not in ("items", "erased", "was_checked")
        }
        names = [*dict.fromkeys((*self.items, *other.items))]
        items = {name: self.items.get(name, 0) + other.items.get(name, 0) for name in names}
        erased = {
            name: reduce(add, [part for report in (self, other) if (part := report._erasure(name))])  # noqa: SLF001
            for name in dict.fromkeys((*self.erased, *other.erased))
        }
        was_checked = self.was_checked or other.was_checked
        return Forgotten(items=items, erased=erased, was_checked=was_checked, **counts)

    def _erasure(self, name: str) -> Erasure | None:
        """Return the verification of a memory's deletion, which may not have been made; None if nothing was deleted."""
        if name in self.erased or not self.items.get(name):
            return self.erased.get(name)
        return Erasure(items=self.items[name], files=0, found=(), verified=False, why="a part of it was not verified")
