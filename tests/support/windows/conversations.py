"""Conversations, and models and memories that do nothing, for tests of overflow strategies."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.strategies.conformance import check_case
from turnwise.strategies.conformance_conversations import COUNTER, Case, Conversation
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window

HELLO, YES = User(text="Hello"), Text(text="Yes.")


def seeds(start: int, count: int) -> Iterable[int]:
    only = os.environ.get("TURNWISE_SEED")
    return [int(only)] if only else range(start, start + count)


def talk(*blocks: Block) -> Conversation:
    conversation = Conversation()
    conversation.add(blocks)
    return conversation


def exchange(number: int, length: int = 10) -> list[Block]:
    return [User(text=f"q{number:03}".ljust(length, ".")), Text(text=f"a{number:03}".ljust(length, "."))]


def exchanges(*numbers: int, length: int = 10) -> list[Block]:
    return [block for number in numbers for block in exchange(number, length)]


def tokens(blocks: Sequence[Block]) -> int:
    return sum(map(COUNTER.count, blocks))


def after(strategy: OverflowStrategy, budget: TokenBudget, *blocks: Block) -> list[Block]:
    """Return the request's blocks once the strategy has had its way, all laws held."""
    conversation = talk(*blocks)
    check_case(strategy, Case(conversation, budget))
    return read(conversation.window())


def read(window: Window) -> list[Block]:
    return list(window.blocks([Range(0, len(window))]))


class Memory:
    """A long-term memory in a dict, which a test can make fail."""

    def __init__(self, name: str = "memory", *, read_only: bool = False) -> None:
        self.name = name
        self.read_only = read_only
        self.items: dict[str, MemoryItem] = {}
        self.fails_from = 10**9
        self.writes = 0

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        assert not self.read_only
        durable = []
        for item in items[: self.fails_from]:
            self.writes += item.id not in self.items
            self.items.setdefault(item.id, item)
            durable.append(item.id)
        return durable

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        return [item for item in self.items.values() if query in item.text][:limit]

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        if id not in self.items:
            return False
        self.items[id] = replace(self.items[id], text=text or self.items[id].text)
        return True

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        names = [name for name in self.items if ids is None or name in ids]
        return len([self.items.pop(name) for name in names])

    async def close(self) -> None:
        pass


def summarize(case: Case, **settings: Any) -> OverflowStrategy:
    budget = case.budget.max_tokens
    if budget < 120:
        return Trim()  # no summary fits, and Summarize says so: see the bad settings below
    most = max(64, min(budget // 4, 300))
    return Summarize(None, max_summary_tokens=most, keep_turns=1 + budget % 3, **settings)


class CountingCache(BlockCache):
    """Says how many blocks were read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks_read = 0

    def read(self, spans: Iterable[Span]) -> tuple[AnyBlock, ...]:
        blocks = super().read(spans)
        self.blocks_read += len(blocks)
        return blocks


def long_conversation(blocks: int, cache: BlockCache | None = None) -> Conversation:
    """Return a conversation of so many blocks, in exchanges of four, with a call each."""
    conversation = Conversation()
    conversation.cache = cache or conversation.cache
    conversation.add([System(text="Be brief.")])
    turn = [
        User(text="What is it like?"),
        ToolUse(call_id="a", name="look"),
        ToolResult(call_id="a", text="It is raining."),
        Text(text="It rains."),
    ]
    for _ in range(blocks // 4):
        conversation.add(turn)
    return conversation


def said_in(request: Sequence[Block]) -> str:
    return "\n".join(getattr(block, "text", None) or "" for block in request)


@dataclass(frozen=True)
class Engine:
    """Stands for the engine that sums up."""

    name: str = "small"


def rolling(**settings: Any) -> Summarize:
    return Summarize(Engine(), **{"max_summary_tokens": 100, "keep_turns": 2, **settings})


def read_ranges(window: Window, ranges: Sequence[Range]) -> list[Block]:
    return list(window.blocks(ranges))


CALL, RESULT = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")


FULL: list[Block] = [
    *(System(text="Be brief."), Summary(text="They met.")),
    *(HELLO, CALL, RESULT, YES),  # 2 to 5
    *(HELLO, Thinking(text="Hm.", signature="EqoB"), YES),  # 6 to 8
    *(HELLO, CALL, RESULT, YES),  # 9 to 12
]
