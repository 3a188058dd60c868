"""While a run goes on, the last message is what it has answered so far; afterwards the same place has all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from copy import copy

import pytest

from engines import ScriptedEngine
from schedules import SESSION
from stored.open_stores import closing
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import AnyBlock, Text, ToolResult, ToolUse
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import ChatMessage
from turnwise.memory.stores.conformance.fixtures import own
from turnwise.memory.stores.in_memory import InMemoryStore


class Steps:
    """An engine that emits one part, or records one step, for each permission that the test gives."""

    def __init__(self) -> None:
        self.permission = asyncio.Semaphore(0)
        self.arrived = asyncio.Semaphore(0)

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        use, result = ToolUse(call_id="c", name="look"), ToolResult(call_id="c", text="42")
        async for step in self._steps():
            if step == 0:
                context.emit("Let me ")
            elif step == 1:
                context.emit("look. ")
            elif step == 2:
                await context.record(Text(text="Let me look. "), use)
                await context.record(result)
            elif step == 3:
                context.emit("It is 42")
        return [Text(text="It is 42, as ever.")]

    async def _steps(self) -> AsyncIterator[int]:
        for step in range(5):
            self.arrived.release()
            await self.permission.acquire()
            yield step
        self.arrived.release()

    async def go_on(self) -> None:
        self.permission.release()
        await self.arrived.acquire()


def lines_of(messages: Sequence[ChatMessage]) -> list[tuple[int, str, str, bool]]:
    return [(message.number, message.role, message.text, message.is_partial) for message in messages]


async def test_the_last_message_grows_and_is_marked_until_it_is_stored() -> None:
    store, engine = InMemoryStore(), Steps()
    async with asyncio.timeout(60), closing(store):
        await own(store, SESSION)
        core = SessionCore(SessionKey(SESSION), store, engine)
        await core.transactor.activate()
        await core.admission.start(["how many?"], run_id="run")
        await engine.arrived.acquire()

        async def messages() -> list[tuple[int, str, str, bool]]:
            newest, is_more = await core.reads.messages(None, 100)
            assert not is_more
            return lines_of(newest)

        prompt, step = (0, "user", "how many?", False), (1, "assistant", "Let me look. ", False)
        assert await messages() == [prompt]
        await engine.go_on()
        assert await messages() == [prompt, (1, "assistant", "Let me ", True)]
        await engine.go_on()
        assert await messages() == [prompt, (1, "assistant", "Let me look. ", True)]
        await engine.go_on()
        assert await messages() == [prompt, step, (2, "tool", "42", False)], "a step that is stored is not partial"
        await engine.go_on()
        assert await messages() == [prompt, step, (2, "tool", "42", False), (3, "assistant", "It is 42", True)]
        active = core.state.active
        assert active and active.attempt
        ledger, active.attempt.ledger = active.attempt.ledger, Ledger(map(copy, active.output.blocks))
        assert await messages() == [prompt, step, (2, "tool", "42", False)], "its answer was lost"
        active.attempt.ledger = ledger
        stored, _ = await SessionReads(StoredSource(SessionKey(SESSION), store, None)).messages(None, 100)
        assert lines_of(stored) == [prompt, step, (2, "tool", "42", False)], "the store alone has what is stored"
        engine.permission.release()
        await core.reads.wait("run")
        assert (await messages())[-1] == (3, "assistant", "It is 42, as ever.", False)


async def test_a_partial_message_is_not_removed_and_one_that_is_stopped_is_no_longer_partial() -> None:
    async with AsyncSessionManager("memory://partial", engine=ScriptedEngine(), placement=InProcess()) as manager:
        chat = await manager.open("chat")
        run = await chat.run("slow 100000")
        while not (message := (await chat.messages())[-1]).is_partial:
            await asyncio.sleep(0.01)
        assert message.text.startswith("0 ") and message.turn_status == "running"
        with pytest.raises(InvalidInputError, match="still being answered"):
            await chat.remove(message)
        await run.cancel()
        stopped = (await chat.messages())[-1]
        assert stopped.text.startswith(message.text) and not stopped.is_partial and stopped.places
