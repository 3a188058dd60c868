"""`FlushToMemory`: exchanges leave the window only after every memory has acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from random import Random

from scale import share
from turnwise.errors import WindowOverflowError
from turnwise.memory.conversation.blocks import (
    Summary,
    System,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.spans import Span
from turnwise.memory.longterm.base import Scope, is_read_only
from turnwise.strategies.conformance_conversations import random_case
from turnwise.strategies.flush_task import unacknowledged
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.plan import Plan
from turnwise.strategies.ranges import Range
from turnwise.strategies.strategy import decide
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window
from windows.conversations import (
    YES,
    Memory,
    exchange,
    exchanges,
    seeds,
    talk,
    tokens,
)


def flush(plan: Plan, window: Window, memories: Sequence[Memory]) -> list[Collection[str]]:
    """Do the first phase as a session does."""
    assert plan.flush
    scope = Scope(user_id="sarah", session_id="s")
    items = plan.flush.items(window, "s")
    return [asyncio.run(memory.remember(scope, items)) for memory in memories]


def unsaved(plan: Plan, window: Window, acknowledged: Collection[Collection[str]]) -> Sequence[Range]:
    """Return the exchanges that some memory has not acknowledged."""
    assert plan.flush
    return unacknowledged(plan.flush.hand_over(window, "s"), acknowledged)


def test_flushed_exchanges_are_saved_completely_with_their_source() -> None:
    """Case 42."""
    memory = Memory()
    call, result = ToolUse(call_id="a", name="look", input={"at": "Paris"}), ToolResult(call_id="a", text="rain")
    blocks = [
        System(text="Be brief."),
        Summary(text="They met."),
        User(text="Paris?"),
        call,
        result,
        YES,
        *exchanges(*range(8)),
    ]
    conversation = talk(*blocks)
    window = conversation.window()
    plan = decide(FlushToMemory([memory]), window, TokenBudget(300))
    assert plan and plan.flush
    assert plan.flush.memories == (memory,)
    acknowledged = flush(plan, window, [memory])
    assert unsaved(plan, window, acknowledged) == ()
    assert plan.retaining(window, TokenBudget(300), ()) is plan
    first, *_ = memory.items.values()
    assert first.text == 'user: Paris?\nassistant calls look: {"at": "Paris"}\nresult: rain\nassistant: Yes.'
    assert first.blocks == tuple(blocks[2:6])
    assert (first.source.session_id, first.source.spans) == ("s", (Span("own", 2, 6),))
    kept_blocks = list(window.blocks(plan.keep))
    assert [block for item in memory.items.values() for block in item.blocks] + kept_blocks[1:] == blocks[2:]
    assert kept_blocks[0] == Summary(text="They met.")
    assert window.tokens_from(plan.keep[-1].start, TokenBudget(300)) <= 150


def test_exchanges_that_a_memory_did_not_save_stay_in_the_window() -> None:
    """Case 42: one memory's failure is not another's."""
    good, bad, static = Memory("good"), Memory("bad"), Memory("static", read_only=True)
    strategy = FlushToMemory([static, good, bad])
    budget = TokenBudget(300)
    conversation = talk(*exchanges(*range(10)))
    window = conversation.window()
    plan = decide(strategy, window, budget)
    assert plan and plan.flush and plan.flush.memories == (good, bad)
    everything = len(plan.flush.items(window, "s"))
    bad.fails_from = 2
    stay = unsaved(plan, window, flush(plan, window, [good, bad]))
    assert len(stay) == everything - 2
    less = plan.retaining(window, budget, stay)
    assert less and less.flush
    less.check(window, TokenBudget(10**6))
    assert list(window.blocks(less.keep)) == exchanges(*range(2, 10))
    assert "has not acknowledged" in str(less.explain())
    assert less.tokens_after == tokens(exchanges(*range(2, 10)))
    conversation.spans = less.spans(window)
    bad.fails_from = 10**9
    conversation.add(exchange(10))
    window = conversation.window()
    again = decide(strategy, window, budget)
    assert again and again.flush
    assert unsaved(again, window, flush(again, window, [good, bad])) == ()
    for memory in (good, bad):
        texts = [item.text for item in memory.items.values()]
        assert len(texts) == len(set(texts)) == memory.writes
    assert set(good.items) == set(bad.items)
    assert static.items == {} and is_read_only(static)


def test_without_acknowledgements_nothing_is_removed() -> None:
    """Case 42."""
    memory = Memory()
    memory.fails_from = 0
    window = talk(*exchanges(*range(10))).window()
    plan = decide(FlushToMemory([memory], otherwise=Trim()), window, TokenBudget(200))
    assert plan and plan.flush
    stay = unsaved(plan, window, flush(plan, window, [memory]))
    assert plan.retaining(window, TokenBudget(200), stay) is None
    assert unsaved(plan, window, []) == stay
    assert plan.otherwise == Trim(), "who decides then"


def test_the_laws_hold_whichever_exchanges_stay() -> None:
    """Case 42: on random conversations, with random failures."""
    for seed in seeds(800_000, share(1500, 4)):
        dice = Random(seed)
        conversation, budget = random_case(dice)
        window = conversation.window()
        try:
            plan = decide(FlushToMemory([Memory()]), window, budget)
        except WindowOverflowError:
            continue
        if plan is None or plan.flush is None:
            continue
        ids = [item.id for item in plan.flush.items(window, "s")]
        assert len(ids) == len(set(ids)) > 0, seed
        acknowledged = [dice.sample(ids, dice.randrange(len(ids) + 1)) for _ in range(2)]
        stay = unsaved(plan, window, acknowledged)
        less = plan.retaining(window, budget, stay)
        if less is None:
            continue
        less.check(window, TokenBudget(10**6))
        both = set(acknowledged[0]) & set(acknowledged[1])
        assert less.flush
        assert {item.id for item in less.flush.items(window, "s")} == both, seed
