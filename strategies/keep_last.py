"""`KeepLast`: keeps a number of the newest turns or messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from turnwise.errors import ConfigError
from turnwise.memory.conversation.blocks import AnyBlock, CacheCheckpoint, Summary, System
from turnwise.memory.values.checked_settings import PositiveCount, ShareOrZero, checked_settings
from turnwise.memory.values.ranges import MAX_COUNT
from turnwise.strategies.plan import Plan
from turnwise.strategies.trim import trimmed
from turnwise.strategies.window import TokenBudget, Window


@dataclass(frozen=True, kw_only=True)
@checked_settings("KeepLast.")
class KeepLast:
    """Sends the newest turns or messages only, whatever their size, and fewer if they do not fit the model's window.

    An exchange is kept or removed as a whole, so that each tool result keeps its call; the newest one always stays.
    What is removed stays in the history, from which `session.clear(keep_last=...)` deletes it. The size of the model's
    window need not be known.
    """

    turns: PositiveCount | None = None
    """The most exchanges of a request: prompts, with all that follows up to the next prompt."""
    messages: PositiveCount | None = None
    """The most messages of a request: blocks of one role that follow each other are one message."""
    max_tokens: PositiveCount = MAX_COUNT
    """The most tokens of a request, if below its budget. The newest exchange stays even if it takes more."""
    slack: ShareOrZero = 0.33
    """The share of the turns or messages that goes at once, from 0: with 20 turns and 0.33, a request has 14 to 20, and
    moves at every sixth prompt or so. With 0, it moves at every prompt. See `Trim`."""

    def __post_init__(self) -> None:
        if (self.turns is None) == (self.messages is None):
            raise ConfigError("KeepLast", self, "give either turns or messages")

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        cut, limit = self._cut(window), min(self.max_tokens, budget.max_tokens)
        if not cut and window.taken(budget) <= limit:
            return None
        is_over = window.tokens_from(cut, budget) > limit
        return trimmed(
            window,
            budget,
            limit,
            strategy="KeepLast",
            at_least=self._cut(window, self.slack) if cut else 0,
            reason=self._reason,
            down_to=int(limit * (1 - self.slack)) if is_over else None,
        )

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False

    @property
    def _reason(self) -> str:
        limit_text = f"{self.turns} turns" if self.messages is None else f"{self.messages} messages"
        return f"it is oldest, and a request may have {limit_text}"

    def _cut(self, window: Window, slack: float = 0) -> int:
        """Return where the exchanges to keep begin, less a share of them. O(blocks of these and of one more)."""
        turns, most = (limit and max(1, limit - int(limit * slack)) for limit in (self.turns, self.messages))
        cut = window.newest.start
        messages = 0
        for number, exchange in enumerate(window.exchanges(), 1):
            messages += _messages(window.blocks([exchange])) if most is not None else 0
            if number > (turns or number) or messages > (most or messages):
                break
            cut = exchange.start
        return cut


def _messages(blocks: Iterable[AnyBlock]) -> int:
    sent_blocks = (block for block in blocks if not isinstance(block, System | Summary | CacheCheckpoint))
    return sum(1 for _ in groupby(sent_blocks, key=lambda block: block.role))
