"""How callers of both families answer turns anew and choose versions, in each store, plain and encrypted."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from stored.audit import check_session, store_of
from turnwise import AsyncSessionManager, EchoEngine, SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.errors import InvalidInputError, SessionBusyError, TurnReplacedError
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.encrypted.settings import Encryption

FIXTURES = {"postgresql": "database", "redis": "redis_url"}


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param in FIXTURES:
        return str(request.getfixturevalue(FIXTURES[request.param]))
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/chats.db"


def settings(*, is_encrypted: bool) -> dict[str, Any]:
    encryption = Encryption(lambda _: bytes(32)) if is_encrypted else None
    return {"engine": EchoEngine(), "placement": InProcess(), "encryption": encryption}


def texts(turns: list[Turn]) -> list[str]:
    return [turn.text for turn in turns]


async def test_versions_come_back_in_another_manager(store_url: str) -> None:
    with SessionManager(store_url, **settings(is_encrypted=False)) as manager:
        chat = manager.open("chat")
        for prompt in ("one", "two", "three"):
            chat.run(prompt).wait()
        edited = chat.rerun("another two", at=chat.turn(1), labels={"why": "typo"}).wait()
        assert (edited.version, edited.is_shown, texts(chat.turns())) == (2, True, ["one", "another two"])
        assert pickle.loads(pickle.dumps(edited)).versions == edited.versions
        assert chat.rerun().wait().text == "another two"
        with pytest.raises(TurnReplacedError, match="shows turn 4 in place of turn 3"):
            chat.rerun(at=edited)
        with pytest.raises(InvalidInputError, match="not of session"):
            chat.choose(chat.fork().turns()[0])
    async with AsyncSessionManager(store_url, **settings(is_encrypted=False)) as async_manager:
        session = await async_manager.get("chat")
        assert texts(await session.turns()) == ["one", "another two"]
        assert await session.choose(edited) and not await session.choose(3)
        latest = await session.latest()
        assert latest and (latest.index, latest.version, len(latest.versions)) == (3, 2, 3)
        assert [message.versions for message in await session.messages()] == [(0,), (0,), (1, 3, 4), (1, 3, 4)]
        run = await session.rerun("word " * 50, at=0)
        assert (await run.wait()).version == 2
        assert await session.choose(1)
        exported = [message["content"] for message in await session.export_messages("openai_chat")]
        assert exported == ["one", "one", "two", "two", "three", "three"]
        assert (await (await session.run("four"))).text == "four"
        assert texts(await session.turns()) == ["one", "two", "three", "four"]
        assert texts(await session.turns(after=1, limit=2)) == ["three", "four"]
        store = store_of(async_manager)
        await check_session(store, "chat")
        await store.close()


async def test_versions_of_encrypted_sessions(store_url: str) -> None:
    async with AsyncSessionManager(store_url, **settings(is_encrypted=True)) as manager:
        session = await manager.open("chat")
        await (await session.run("one"))
        await (await session.rerun("secret"))
        await session.choose(0)
        assert texts(await session.turns()) == ["one"]
        await session.choose(1)
        assert texts(await session.turns()) == ["secret"]


async def test_a_busy_session_is_edited_after_its_run_is_cancelled(store_url: str) -> None:
    options = settings(is_encrypted=False) | {"engine": EchoEngine(token_delay_s=0.05)}
    async with AsyncSessionManager(store_url, **options) as manager:
        session = await manager.open("chat")
        run = await session.run("word " * 1000)
        with pytest.raises(SessionBusyError):
            await session.rerun("other")
        assert await run.cancel()
        run = await session.rerun("other")
        assert (await run).text == "other"
        first = await session.turn(0)
        assert first.status == "cancelled" and not first.is_shown
