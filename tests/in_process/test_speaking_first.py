"""What sessions say by themselves, on each store and in both families, up to followers, archives and memories."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from patience import within
from turnwise import AsyncSessionManager, EchoEngine, InProcess, OpenAIEngine, SessionConfig, SessionManager
from turnwise.errors import IdempotencyConflictError, InvalidInputError, SessionEndedError
from turnwise.events import RunCompleted, RunStarted
from turnwise.memories import LexicalMemory
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.values.ids import new_id
from turnwise.strategies import DeleteOldest, KeepLast
from turnwise.testing import LocalProvider

SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}

LONG_S = 30.0

until = within(LONG_S)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{new_id()}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    return str(request.getfixturevalue("database" if request.param == "postgresql" else "redis_url"))


def test_each_store_keeps_what_a_session_has_said(store_url: str) -> None:
    with SessionManager(store_url, **SETTINGS) as manager:
        chat = manager.open("chat", user_id="ann")
        said = chat.say("Hello!", key="greeting")
        assert said.wait().new_blocks == (Text(text="Hello!"),)
        assert chat.say("Hello!", key="greeting").run_id == said.run_id
        with pytest.raises(IdempotencyConflictError):
            chat.say("Goodbye!", key="greeting")
        chat.run("Hi").wait()
    with SessionManager(store_url, **SETTINGS) as manager:
        chat = manager.get("chat", user_id="ann")
        assert chat.say("Hello!", key="greeting").run_id == said.run_id
        record = chat.execution(said.run_id).info()
        assert (record.says, record.state, record.idempotency_key) == ("Hello!", "completed", "greeting")
        assert [(message.role, message.text) for message in chat.messages()] == [
            *[("assistant", "Hello!"), ("user", "Hi"), ("assistant", "Hi")]
        ]
        fork = chat.fork(0)
        fork.say("And?")
        assert [message.text for message in fork.messages()] == ["Hello!", "And?"]
        assert [block.text for block in fork.say("So?").wait().blocks] == ["Hello!", "And?", "So?"]  # type: ignore[union-attr]
        chat.end()
        with pytest.raises(SessionEndedError):
            chat.say("Too late.")


async def test_followers_see_it_come_once_and_in_order(store_url: str) -> None:
    async with AsyncSessionManager(store_url, **{**SETTINGS, "engine": EchoEngine(0.01)}) as manager:
        chat = await manager.open("chat", user_id="ann")
        other = await manager.open("chat", user_id="bob")
        told: list[Any] = []

        async def follow() -> None:
            after = 0
            while sum(isinstance(event, RunCompleted) for event in told) < 4:
                page = await chat.events(after, wait_s=LONG_S)
                told.extend(page)
                after = page[-1].seq if page else after

        following = asyncio.create_task(follow())
        await chat.say("Hello!")
        run = await chat.run("one two three four five six")
        queued = await chat.say("Wait for it.")
        assert (await queued.info()).state == "queued"
        await chat.run("seven", if_busy="enqueue")
        await asyncio.wait_for(following, LONG_S)
        assert (await queued.wait()).text == "Wait for it." and (await run.wait()).turn_id is None
        ends = [event.text for event in told if isinstance(event, RunCompleted)]
        assert ends == ["Hello!", "one two three four five six", "Wait for it.", "seven"]
        numbers = [event.seq for event in told]
        assert numbers == sorted(set(numbers))
        assert sum(isinstance(event, RunStarted) for event in told) == 4
        assert not await other.events()


def test_long_term_memories_get_what_was_said_as_other_turns(tmp_path: Path) -> None:
    memory = LexicalMemory(tmp_path / "facts.db")
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", memory=[memory], **SETTINGS) as manager:
        chat = manager.open("chat", user_id="ann")
        chat.say("The ferry to Oslo leaves at nine.")
        assert chat.memory.wait(LONG_S)
        assert [item.text for item in chat.memory.recall("ferry")]
        manager.open("private", user_id="ann", memory=False).say("The bus to Bergen leaves at ten.")
        assert not [item for item in chat.memory.recall("bus") if "Bergen" in item.text]


@pytest.mark.parametrize(
    ("strategy", "window", "sent_numbers"),
    [(KeepLast(turns=2), 100_000, [7]), (DeleteOldest(count=1), 400, [5, 6, 7])],
    ids=["by turns", "by tokens"],
)
def test_the_window_counts_what_was_said(strategy: Any, window: int, sent_numbers: list[int]) -> None:
    config = SessionConfig(max_context_tokens=window, reserve_output_tokens=0, token_counter=ByteCounter())
    with LocalProvider(reply="Well.") as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="local")
        settings = {**SETTINGS, "engine": engine, "overflow": strategy, "config": config}
        with SessionManager(f"memory://{new_id()}", **settings) as manager:
            chat = manager.open("chat")
            for number in range(8):
                chat.say(f"Number {number} {'x' * 80}")
                chat.run("Go on.").wait()
            sent = json.dumps(provider.requests[-1].body)
            assert [number for number in range(8) if f"Number {number}" in sent] == sent_numbers
            assert len(chat.turns()) == 16


def test_a_schedule_may_have_instructions_instead_of_a_prompt() -> None:
    with LocalProvider(reply="Your tea has drawn.") as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="local")
        with SessionManager(f"memory://{new_id()}", **{**SETTINGS, "engine": engine}) as manager:
            chat = manager.open("chat")
            chat.schedule(after_s=0.1, instructions="The reminder is due: tell her that the tea has drawn.")
            until(lambda: bool(chat.runs()) and chat.runs()[0].state == "completed")
            (message,) = chat.messages()
            assert (message.role, message.text) == ("assistant", "Your tea has drawn.")
            assert "The reminder is due" in json.dumps(provider.requests[0].body)
            chat.schedule("Tea?", after_s=1e6, key="tea")
            changed = chat.change_schedule("tea", instructions="Tell her of the tea.")
            assert changed.payload["prompts"] == () and changed.payload["instructions"] == "Tell her of the tea."
            with pytest.raises(InvalidInputError, match="prompts"):
                chat.change_schedule("tea", timeout_s=5.0)
            for nothing in ("", " "):
                with pytest.raises(InvalidInputError):
                    chat.schedule(after_s=1.0, instructions=nothing)
