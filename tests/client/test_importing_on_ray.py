"""Conversations from elsewhere on Ray: both families, by the manager and by the session, with a user's own sessions."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from turnwise import AsyncSessionManager, EchoEngine, Packed, SessionManager
from turnwise.errors import InvalidInputError, SessionNotFoundError
from turnwise.transcripts import from_messages

pytestmark = pytest.mark.ray

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "here"},
    {"role": "assistant", "content": "1"},
]
MORE: list[Any] = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "2"}]


def test_a_conversation_from_elsewhere_is_imported_continued_and_exported(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Any
) -> None:
    manager = make_ray_manager(engine=EchoEngine(), placement=Packed(hosts=1))
    with pytest.raises(InvalidInputError, match=r"messages\[3\].*leave the result out"):
        manager.import_messages("chat", [*CHAT[:2], CHAT[4], CHAT[3]], user_id="ada")
    with pytest.raises(SessionNotFoundError):
        manager.get("chat", user_id="ada")
    session = manager.import_messages("chat", CHAT, user_id="ada", title="Old", agent="guide")
    again = manager.import_messages("chat", CHAT, user_id="ada")
    assert again.info().session == session.info().session and session.info().session.title == "Old"
    assert manager.import_messages("chat", MORE, user_id="bob").turn(0).text == "2"
    assert session.import_messages(MORE).index == session.import_messages(MORE).index == 1
    turn = session.run("three").wait()
    assert list(turn.blocks)[:-2] == from_messages([*CHAT, *MORE]) and turn.index == 2
    assert (
        session.export_messages("openai_chat")
        == turn.to("openai_chat")
        == [
            *CHAT,
            *MORE,
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "three"},
        ]
    )
    assert session.fork(1).export_messages("openai_chat") == [*CHAT, *MORE]
    session.append("waits")
    assert session.export_messages("anthropic")[-1] == {"role": "user", "content": [{"type": "text", "text": "waits"}]}
    with pytest.raises(InvalidInputError, match="wait for a run"):
        session.import_messages(MORE, idempotency_key="later")

    async def check() -> None:
        store, namespace = f"sqlite:///{tmp_path}/chats.db", f"test-{tmp_path.name}"
        async with AsyncSessionManager(
            store, engine=EchoEngine(), placement=Packed(hosts=1), namespace=namespace
        ) as async_manager:
            imported = await async_manager.import_messages("async", CHAT, system="You are Al.", user_id="ada")
            assert (await imported.import_messages(MORE)).text == "2"
            exported = await imported.export_messages("openai_responses")
            assert exported[0]["content"] == "You are Al.\n\nBe brief." and len(exported) == 7
            with pytest.raises(InvalidInputError, match="format"):
                await imported.export_messages("html")  # type: ignore[arg-type]

    asyncio.run(check())
