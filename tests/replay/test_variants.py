"""What a variant may change beside the engine: memories, windows, engines by name, time limits."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from turnwise import (
    EchoEngine,
    FlushToMemory,
    InProcess,
    LexicalMemory,
    Price,
    SessionConfig,
    SessionManager,
    StaticMemory,
    Summarize,
    Trim,
    Usage,
)
from turnwise.actors.memory.config import MemoryConfig
from turnwise.blocks import Summary
from turnwise.engines import FunctionEngine
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.blocks import Recalled
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.replay import Selection, replay
from turnwise.testing.scripted_engine import RecordingEngine


def recorder() -> RecordingEngine:
    return RecordingEngine(["new"], repeat=True)


def summarised(turn: Turn) -> Iterator[str | Usage]:
    yield "A summary."
    yield Usage(input_tokens=500, output_tokens=500)


def recalled(engine: RecordingEngine) -> list[str]:
    return [block.text for turn in engine.calls for block in turn.blocks if isinstance(block, Recalled)]


def test_other_memories_are_searched_for_the_prompts_and_get_nothing(url: str, tmp_path: Path) -> None:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open().run("When do we close?").wait()
        manager.open().run("When do we close?", memory=False).wait()
        engine, memory = recorder(), StaticMemory(["We close at six on Fridays."])
        result = replay(manager, engine=engine, memory=[memory, LexicalMemory(tmp_path / "empty.db")])
        assert ["six on Fridays" in text for text in recalled(engine)] == [True]
        assert not any(turn.inexact for turn in result.turns)
        assert replay(manager, engine=recorder(), memory=[]).summary.turns == 2


def test_what_was_said_after_a_turn_does_not_help_it(url: str, tmp_path: Path) -> None:
    memory = LexicalMemory(tmp_path / "memory.db")
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), memory=[memory]) as manager:
        chat = manager.open("asked", user_id="ann")
        chat.run("What is the code of the harbour?").wait()
        told = manager.open("told", user_id="ann")
        told.run("The code of the harbour is 4711.").wait()
        assert told.memory.wait()
        chat.run("And what is the code of the harbour now?").wait()
        engine = recorder()
        replay(manager, engine=engine, memory=[memory], select=Selection(sessions=["asked"], user_id="ann"))
        first, second = engine.calls
        assert [block.text for block in first.blocks if isinstance(block, Recalled)] == []
        assert any("4711" in block.text for block in second.blocks if isinstance(block, Recalled))


def test_kept_memories_are_recalled_again_though_the_memory_has_changed(url: str, tmp_path: Path) -> None:
    config = SessionConfig(memory=MemoryConfig(keep_recalled=True))
    memory = LexicalMemory(tmp_path / "memory.db")
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), memory=[memory], config=config) as manager:
        first = manager.open(user_id="ann")
        first.run("My leave begins on 2 March.").wait()
        first.memory.wait()
        second = manager.open("second", user_id="ann")
        second.run("When does my leave begin?").wait()
        second.run("Thanks.", memory=False).wait()
        first.delete()
        engine = recorder()
        result = replay(manager, engine=engine, select=Selection(user_id="ann"))
        assert ["2 March" in text for text in recalled(engine)] == [True]
        assert [turn.inexact for turn in result.turns] == [(), ()]


def test_a_summary_of_a_new_strategy_is_part_of_what_its_turn_costs(url: str) -> None:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), overflow=None) as manager:
        chat = manager.open()
        for number in range(6):
            chat.run(f"Prompt {number}: {'words ' * 30}").wait()
        engine = recorder()
        config = SessionConfig(max_context_tokens=1200, token_counter=ByteCounter())
        prices = {"": Price(input=1.0, output=1.0)}
        config = replace(config, prices=prices)
        summary = Summarize(FunctionEngine(summarised), max_summary_tokens=100)
        result = replay(manager, engine=engine, overflow=summary, config=config)
        assert any(isinstance(block, Summary) for turn in engine.calls for block in turn.blocks)
        assert result.summary.turns == 6
        assert {turn.answer.status for turn in result.turns} == {"completed"}
        assert max(turn.answer.usage.cost for turn in result.turns) > 0.001  # a summary's 1,000 tokens


def test_forward_and_a_strategy_go_together(url: str) -> None:
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), overflow=None) as manager:
        chat = manager.open()
        for number in range(8):
            chat.run(f"Prompt {number}: {'words ' * 30}").wait()
        engine = recorder()
        result = replay(
            manager, engine=engine, overflow=Trim(), forward=True, config=SessionConfig(max_context_tokens=300)
        )
        assert result.summary.turns == 8
        assert max(len(turn.blocks) for turn in engine.calls) < 12
        assert all("Prompt" not in str(turn.output) for turn in engine.calls)


def test_a_strategy_that_saves_in_memories_is_refused(tmp_path: Path) -> None:
    with SessionManager("memory://flush", engine=EchoEngine(), placement=InProcess()) as manager:
        strategy = FlushToMemory([LexicalMemory(tmp_path / "memory.db")])
        with pytest.raises(InvalidInputError, match="saves in memories"):
            replay(manager, engine=EchoEngine(), overflow=strategy)
        with pytest.raises(ConfigError, match="max_context_tokens"):
            replay(manager, engine=EchoEngine(), overflow=Trim())


def test_each_session_gets_the_engine_of_the_name_that_it_has(url: str) -> None:
    engines = {"one": EchoEngine(), "two": EchoEngine()}
    with SessionManager(url, engine=engines, placement=InProcess()) as manager:
        manager.open(engine="one").run("Hello.").wait()
        manager.open(engine="two").run("Hello.").wait()
        answers = {name: FunctionEngine(lambda turn, name=name: f"by {name}") for name in engines}
        assert sorted(turn.answer.text for turn in replay(manager, engine=answers).turns) == ["by one", "by two"]
        single = replay(manager, engine=answers["one"])
        assert [turn.answer.text for turn in single.turns] == ["by one"] * 2
        lacking = replay(manager, engine={"one": answers["one"]})
        assert sorted(turn.answer.status for turn in lacking.turns) == ["completed", "failed"]


def test_an_answer_that_takes_too_long_is_a_failed_one(url: str) -> None:
    async def hang(turn: Turn) -> str:
        await asyncio.Event().wait()
        return ""

    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        manager.open().run("Hello.").wait()
        (turn,) = replay(manager, engine=FunctionEngine(hang), timeout_s=0.05).turns
    assert (turn.answer.status, turn.answer.code) == ("failed", "timeout")
