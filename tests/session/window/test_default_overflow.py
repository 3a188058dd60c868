"""What sessions do by default when their conversation outgrows the window, and when the vocabulary is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from turnwise import EchoEngine
from turnwise.actors.inference.engine import RequestFrame, RunContext
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.window import compaction_tasks
from turnwise.actors.session.window.compaction_tasks import default_overflow
from turnwise.errors import StrategyError
from turnwise.memory.conversation.blocks import AnyBlock, Summary, System, Text
from turnwise.memory.conversation.events import WindowCompacted
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.strategy import acts
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim
from turnwise.strategies.window import TokenBudget, Window
from windows.stage import Talker, chat, events_of, opened, said

pytestmark = pytest.mark.virtual_time


class Known(Talker):
    """Answers prompts and writes summaries, as a model whose window has 8,192 tokens."""

    def __init__(self, summary: str = "they spoke of much", model: str = "gpt-4") -> None:
        super().__init__()
        self.summary = summary
        self.model = model

    def frame(self) -> RequestFrame:
        return RequestFrame(model=self.model)

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        if isinstance(turn.blocks[0], System):  # the instructions for a summary
            return [Text(text=self.summary)]
        return await super().run(turn, context)


@dataclass(frozen=True)
class Quarter(ByteCounter):
    """Counts four bytes as a token, about as vocabularies do."""

    def text(self, text: str) -> int:
        return (super().text(text) + 3) // 4


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models whose vocabulary was loaded."""
    loaded: list[str] = []

    def load(model: str) -> Quarter:
        loaded.append(model)
        return Quarter(model)

    monkeypatch.setattr(compaction_tasks, "counter_for", load)
    return loaded


async def stage_of(engine: Any, overflow: Any = None, **settings: Any) -> Any:
    settings = {"token_counter": None, "max_context_tokens": None, "reserve_output_tokens": None, **settings}
    return await opened(overflow or default_overflow(engine, SessionConfig(**settings)), engine, **settings)


async def test_by_default_the_engine_itself_summarises_what_outgrows_its_window(loads: list[str]) -> None:
    stage = await stage_of(engine := Known())
    for number in range(6):
        outcome = await chat(stage, f"{number} " + "word " * 800)
        assert outcome.run.state == "completed"
    assert loads == ["gpt-4"]
    assert any(isinstance(block, Summary) for block in engine.given[-1]) and said(engine.given[-1])[-1][0] == "5"
    assert await events_of(stage, WindowCompacted)


async def test_a_conversation_far_from_its_limit_loads_no_vocabulary(loads: list[str]) -> None:
    stage = await stage_of(engine := Known())
    for number in range(5):
        await chat(stage, f"prompt {number}")
    assert not loads and said(engine.given[-1]) == [f"prompt {number}" for number in range(5)]


async def test_nothing_is_removed_by_an_estimate(loads: list[str]) -> None:
    """The bytes are more than the window has tokens, and the tokens are half of it."""
    stage = await stage_of(engine := Known(), Trim())
    for number in range(4):
        await chat(stage, f"{number} " + "word " * 500)
    assert loads == ["gpt-4"] and [text[0] for text in said(engine.given[-1])] == ["0", "1", "2", "3"]
    assert not await events_of(stage, WindowCompacted)


async def test_without_a_summary_the_oldest_exchanges_go(loads: list[str]) -> None:
    stage = await stage_of(engine := Known(summary=""))
    for number in range(9):
        outcome = await chat(stage, f"{number} " + "word " * 800)
        assert outcome.run.state == "completed"
    assert not any(isinstance(block, Summary) for block in engine.given[-1])
    assert said(engine.given[-1])[0][0] != "0" and said(engine.given[-1])[-1][0] == "8"


def test_where_the_window_is_not_known_there_is_no_default() -> None:
    assert default_overflow(EchoEngine(), SessionConfig()) is None
    assert default_overflow(Known(model="somebody's own"), SessionConfig()) is None
    assert isinstance(default_overflow(Known(model="somebody's own"), SessionConfig(max_context_tokens=500)), Summarize)
    assert default_overflow(Known(), SessionConfig(max_context_tokens=1)) is None


def test_a_strategy_that_fails_acts() -> None:
    class Fails:
        def decide(self, window: Window, budget: TokenBudget) -> None:
            raise StrategyError("Fails", "decides", "it cannot")

        def due(self, window: Window, budget: TokenBudget) -> bool:
            return False

    window: Any = None
    assert acts(Fails(), window, TokenBudget(1))
