"""`Compaction`: the result or the preview of a compaction, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from turnwise.memory.values.named_tuples import Reduced, by_name
from turnwise.strategies.ranges import Range


class Reason(NamedTuple):
    """Why a part of the window is kept or removed."""

    part: Range
    fate: Literal["kept", "dropped", "summarised", "flushed"]
    tokens: int
    why: str

    def __reduce__(self) -> Reduced:
        return by_name(self)

    def __str__(self) -> str:
        return f"{self.fate}: blocks {self.part.start} to {self.part.stop - 1}, {self.tokens} tokens, {self.why}"


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Which parts of the window are removed and kept, why, and their tokens. `str()` has a line for each part."""

    strategy: str
    """The name of the strategy."""
    tokens_before: int
    """The tokens of the next request before the compaction, without the next prompt."""
    tokens_after: int
    """The tokens of the next request after the compaction; an upper bound until it is `done`."""
    reasons: tuple[Reason, ...]
    """The parts of the window, as ranges of block positions from 0."""
    summary: str | None = None
    """The summary that replaces the removed blocks, if the compaction is `done` and the strategy makes one."""
    done: bool = False
    """Whether the compaction was carried out."""

    def __str__(self) -> str:
        tokens = f"{self.tokens_before} tokens become {self.tokens_after}{' at most' * (not self.done)}"
        return "\n".join([f"{self.strategy}: {tokens}", *map(str, self.reasons)])
