"""What became of a window, or would: for those who ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from turnwise.strategies.ranges import Range


class Reason(NamedTuple):
    """Why a part of the window stays or goes."""

    part: Range
    fate: Literal["kept", "dropped", "summarised", "flushed"]
    tokens: int
    why: str

    def __str__(self) -> str:
        return f"{self.fate}: blocks {self.part.start} to {self.part.stop - 1}, {self.tokens} tokens, {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What goes, what stays, why, and how many tokens that is. `str()` has a line for each part of the window."""

    strategy: str
    """Who decided."""
    tokens_before: int
    """What the next request takes without it, the next prompt aside."""
    tokens_after: int
    """What it takes then; at most, as long as it is not `done`."""
    reasons: tuple[Reason, ...]
    """Parts of the window, as places of its blocks from 0."""
    summary: str | None = None
    """What takes the place of what goes, if it is `done` and the strategy has something put there."""
    done: bool = False
    """Whether it was carried out."""

    def __str__(self) -> str:
        tokens = f"{self.tokens_before} tokens become {self.tokens_after}{' at most' * (not self.done)}"
        return "\n".join([f"{self.strategy}: {tokens}", *map(str, self.reasons)])
