"""Growing and random conversations, with blocks that a session could have, for the laws of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    encode,
)
from turnwise.memory.conversation.spans import Span, Spans, join, size
from turnwise.memory.conversation.transcript import repair
from turnwise.memory.tokens.counter import ByteCounter, TokenCounter
from turnwise.memory.tokens.index import TokenIndex
from turnwise.strategies.plan import Plan
from turnwise.strategies.ranges import Range
from turnwise.strategies.window import TokenBudget, Window

COUNTER = ByteCounter()
"""The counter of these conversations, which is the same on every machine."""


class Conversation:
    """A growing conversation as a session stores it: logs, spans over them, and token counts."""

    def __init__(self, counter: TokenCounter = COUNTER) -> None:
        self.cache = BlockCache()
        self.index = TokenIndex(counter)
        self.spans: Spans = ()
        self.newest_turn: int | None = None
        self._sizes: dict[str, int] = {}

    def store(self, log: str, blocks: Sequence[Block], *, encoded: bool = False) -> Span:
        """Append blocks to a log; return their span. The conversation does not change."""
        start = self._sizes.get(log, 0)
        self.cache.add(log, start, list(map(encode, blocks)) if encoded else list(blocks))
        self._sizes[log] = start + len(blocks)
        return Span(log, start, start + len(blocks))

    def add(self, blocks: Sequence[Block], log: str = "own") -> None:
        """Continue the conversation with these blocks."""
        if self.newest_turn is not None:
            self.newest_turn = size(self.spans)
        self.spans = join(self.spans, [self.store(log, blocks)])

    def window(self) -> Window:
        """Return the window of the next request."""
        return Window(self.spans, self.cache, self.index, newest_turn=self.newest_turn)

    def carry_out(self, plan: Plan) -> None:
        """Carry out a plan, with a summary of the longest length."""
        window = self.window()
        summary = None
        if plan.summary:
            summary = self.store("own", [plan.summary.block(window, _longest(plan.summary.max_tokens))])
        turn = [] if self.newest_turn is None else window.without(Range(self.newest_turn, len(window)), System)
        self.spans = plan.spans(window, summary)
        if self.newest_turn is not None:
            self.newest_turn = size(self.spans) - sum(part.stop - part.start for part in turn)


def _longest(max_tokens: int) -> str:
    return "s" * max(max_tokens - COUNTER.count(Summary(text="")), 1)


class Case(NamedTuple):
    """A conversation and the budget of a request."""

    conversation: Conversation
    budget: TokenBudget


def random_case(dice: Random) -> Case:
    """Return a conversation that every provider accepts, and a budget that it may or may not fit."""
    conversation = Conversation()
    blocks: list[Block] = []
    newest_turn = 0
    if _happens(dice, 0.5):
        blocks.append(System(text=_text(dice)))
    if _happens(dice, 0.2):
        blocks.append(dice.choice([CacheCheckpoint(), Unknown(stored_kind="hologram")]))
    if _happens(dice, 0.25):
        blocks.append(Summary(text=_text(dice), of=(("gone", 0, 3),)))
    for _ in range(dice.choice([0, 1, 1, 2, 3, 4, 6])):
        newest_turn = len(blocks)
        blocks += random_exchange(dice)
    cuts = sorted(dice.choices(range(len(blocks) + 1), k=dice.randrange(4)))
    chunks = [blocks[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(blocks)], strict=True)]
    spans: list[list[Span]] = [[] for _ in chunks]
    for number in dice.sample(range(len(chunks)), len(chunks)):
        conversation.store(log := dice.choice(["parent", "own"]), [User(text="elsewhere")] * dice.randrange(3))
        spans[number] = [conversation.store(log, chunks[number], encoded=_happens(dice, 0.5))]
    conversation.spans = join(*spans)
    conversation.newest_turn = newest_turn if _happens(dice, 0.5) else None
    return Case(conversation, random_budget(dice, conversation.window()))


def random_budget(dice: Random, window: Window) -> TokenBudget:
    """Return a budget that the window fits, fits in part, or sometimes does not fit at all."""
    overhead = dice.choice([0, 0, 7, 300])
    least = window.overflow(TokenBudget(1, overhead)).needed
    room = window.total + overhead - least
    share = dice.choice([-0.5, 0, 0.05, 0.2, 0.4, 0.6, 0.8, 1, 1.5])
    return TokenBudget(max(1, least + int(room * share) + dice.choice([-1, 0, 100])), overhead)


def random_exchange(dice: Random) -> list[Block]:
    """Return the prompts of a user and the answer, as a session could have them."""
    blocks: list[Block] = [_prompt(dice) for _ in range(dice.choice([0, 0, 0, 1, 2]))]
    blocks.append(User(text=_text(dice)))
    if _happens(dice, 0.15):
        blocks.append(System(text=_text(dice)))
    output: list[Block] = []
    for _ in range(dice.choice([0, 0, 1, 1, 2, 3])):
        output += _answer_blocks(dice)
        calls = dice.sample(["a", "b", "c", "functions.look:0"], dice.choice([1, 1, 2, 3]))
        output += [ToolUse(call_id=call, name="look", input={"at": _text(dice)}) for call in calls]
        dice.shuffle(calls)
        output += [_result(dice, call) for call in calls]
    if _happens(dice, 0.8):
        output += [*_answer_blocks(dice), Text(text=_text(dice))]
    output = output[: dice.choice([0, len(output), len(output), len(output), dice.randrange(len(output) + 1)])]
    blocks += repair(output, why="enough", interrupted=_happens(dice, 0.2))
    if _happens(dice, 0.1):
        blocks.append(dice.choice([CacheCheckpoint(), Unknown(stored_kind="hologram"), System(text=_text(dice))]))
    return blocks


def _result(dice: Random, call_id: str) -> ToolResult:
    blocks = (Image(url="https://example.org/chart.png"),) if call_id == "functions.look:0" else ()
    return ToolResult(call_id=call_id, text=_text(dice), is_error=_happens(dice, 0.1), blocks=blocks)


def _prompt(dice: Random) -> Block:
    return dice.choice(
        [
            User(text=" "),
            User(text=_text(dice)),
            Image(url="https://example.org/cat.png"),
            Document(name="a.txt", text=_text(dice)),
            CacheCheckpoint(),
            Unknown(stored_kind="hologram"),
            Summary(text="[image is left out: the provider refused it]", of=(("gone", 0, 1),)),
        ]
    )


def _answer_blocks(dice: Random) -> list[Block]:
    blocks: list[Block] = []
    if _happens(dice, 0.3):
        blocks.append(Thinking(text=_text(dice), signature="EqoB"))
    if _happens(dice, 0.5):
        blocks.append(Text(text=_text(dice)))
    if _happens(dice, 0.1):
        blocks.append(Citations(items=({"url": "https://example.org"},)))
    return blocks


def _text(dice: Random) -> str:
    return "x" * dice.choice([1, 5, 20, 20, 80, 400])


def _happens(dice: Random, share: float) -> bool:
    return dice.random() < share
