"""The messages of a session, as chat interfaces list them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines import ScriptedEngine
from turnwise.actors.hosting.stored_source import StoredSource
from turnwise.actors.inference.engine import InferenceRunner, RunContext, SessionView
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state import reads
from turnwise.actors.session.state.reads import SessionReads
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import AnyBlock, Image, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.chat_messages import ChatMessage
from turnwise.memory.stores.in_memory import InMemoryStore

PICTURE = Image(url="https://example.org/a.png")


class Looking:
    """Thinks, calls two tools, and answers."""

    def build(self, session: SessionView) -> InferenceRunner:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        calls = [ToolUse(call_id=name, name="look") for name in "ab"]
        results = [ToolResult(call_id=name, text=f"seen {name}") for name in "ab"]
        return [
            Thinking(text="hm"),
            Text(text="Let me look."),
            *calls,
            *results,
            Text(text="It is "),
            Text(text="a boat."),
        ]


async def talk(core: SessionCore, *prompts: str | AnyBlock, run_id: str) -> None:
    await core.admission.start(prompts, run_id=run_id)
    await core.reads.wait(run_id)


async def test_a_turn_is_prompts_answers_calls_and_results() -> None:
    clock = iter(range(100))
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, Looking(), clock=lambda: float(next(clock)))
    await talk(core, PICTURE, "What is it?", "Tell me.", run_id="run")
    await core.admission.append(["And?"], "key")
    messages, is_more = await core.reads.messages(None, 100)
    assert not is_more and [(message.role, message.text, message.run_id) for message in messages] == [
        ("user", "What is it?", "run"),
        ("user", "Tell me.", "run"),
        ("assistant", "Let me look.", "run"),
        ("tool", "seen a", "run"),
        ("tool", "seen b", "run"),
        ("assistant", "It is a boat.", "run"),
        ("user", "And?", None),
    ]
    assert messages[0].blocks[0] == PICTURE and [message.id for message in messages][-2:] == ["s#0:5", "s#1:0"]
    run = await core.reads.run("run")
    assert {message.at for message in messages[2:6]} == {run.ended_at}
    assert messages[0].at < messages[2].at < messages[-1].at
    assert [message.turn_status for message in messages][-2:] == ["completed", "pending"]
    assert (await SessionReads(StoredSource(SessionKey("s"), store, None)).messages(None, 100)) == (messages, False)


async def test_pages_have_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MESSAGES_PAGE", 3)
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine())
    assert await core.reads.messages(None, 5) == ([], False)
    for number in range(8):
        await talk(core, f"prompt {number}", run_id=f"run {number}")
        if number == 4:  # a gap between indexes
            await core.admission.start(["slow 100000"], run_id="gone")
            await core.admission.start(["slow 100000"], run_id="next", if_busy="rollback")
            await core.reads.wait("gone")
            await core.admission.cancel("enough", "next")
    whole = (await core.reads.messages(None, 1000))[0]
    assert len(whole) > 16 and [(message.turn_index, message.number) for message in whole] == sorted(
        {(message.turn_index, message.number) for message in whole}
    )
    for limit in (1, 2, 3, 7, 100):
        messages: list[ChatMessage] = []
        before, is_more = None, True
        while is_more:
            page, is_more = await core.reads.messages(before, limit)
            assert len(page) == limit or not is_more
            messages, before = [*page, *messages], page[0].cursor
        assert messages == whole
    assert await core.reads.messages(whole[0].cursor, 5) == ([], False)
    assert await core.reads.messages("999999:7", 2) == (whole[-2:], True)
    for cursor in ("", "x", "1", "1:", ":1", "-1:0", "1:1 ", "9" * 19 + ":1"):
        with pytest.raises(InvalidInputError, match="before"):
            await core.reads.messages(cursor, 5)
