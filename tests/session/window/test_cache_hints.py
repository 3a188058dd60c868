"""What a session tells the server of its model: at each of a few moments once, and no run waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from schedules import SESSION, inline
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.cache_hints import CacheHints, NoHints
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.http_hints import HTTPHints
from turnwise.actors.inference.replicas import Replicas
from turnwise.actors.inference.tools.agent_tool import agent_tool
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import ConfigError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.memory.values.ids import new_id
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider, Message, tool_script
from windows.stage import Summarizer, Talker, chat, opened, prompts, summarize

TOLD: list[tuple[str, str, Any]] = []
"""The hints of the running test."""


class Told:
    """Keeps the hints; fails or hangs after that, if asked to."""

    def __init__(self, how: str = "") -> None:
        self.how = how

    async def tell(self, name: str, key: str, value: Any = None) -> None:
        TOLD.append((name, key, value))
        if self.how == "fails":
            raise ConnectionError("the server takes no hints today")
        if self.how == "hangs":
            await asyncio.Event().wait()

    async def hold(self, key: str, seconds: float) -> None:
        await self.tell("hold", key, seconds)

    async def drop(self, key: str) -> None:
        await self.tell("drop", key)

    async def prefetch(self, key: str) -> None:
        await self.tell("prefetch", key)

    async def prioritize(self, key: str, priority: int) -> None:
        await self.tell("prioritize", key, priority)


@tool
async def look(word: str) -> str:
    """Look a word up."""
    return word


@tool(approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


SCRIPT = tool_script([[("look", {"word": "a"})], [("pay", {"euros": 5})], "It is paid."])


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    TOLD.clear()


def manager_of(provider: LocalProvider, hints: CacheHints | None, tools: Sequence[Any] = (), **more: Any) -> Any:
    engine = OpenAIEngine("local", base_url=provider.base_url, tools=tools, cache_hints=hints)
    return AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess(), **more)


async def told(count: int) -> list[str]:
    """Return the names of the hints, once there are so many."""
    async with asyncio.timeout(20):
        while len(TOLD) < count:
            await asyncio.sleep(0.005)
    return [name for name, *_ in TOLD]


async def agent_turn(manager: AsyncSessionManager, *, decided: bool = True) -> Any:
    """Hold a turn with a tool, an approval, and the tool that it allows; return its session."""
    chat = await manager.open("chat")
    run = await chat.run("Pay.")
    pending = []
    async for event in run.events():
        if event.kind == "approval_requested":
            pending.append(event.call_id)
            if decided:
                await run.approve(event.call_id)
    assert pending and (await run.wait()).text == "It is paid."
    return chat


async def test_tools_hold_a_person_drops_and_a_decision_prefetches() -> None:
    with LocalProvider(reply=SCRIPT) as provider:
        async with manager_of(provider, Told(), [look, pay]) as manager:
            chat = await agent_turn(manager)
            assert await told(4) == ["hold", "drop", "prefetch", "hold"], "the approved tool runs too"
            await chat.fork()
            assert (await told(5))[4:] == ["prioritize"] and TOLD[4][2] == 1
    assert len({key for _, key, _ in TOLD}) == 1 and len(TOLD[0][1]) == 32


async def test_only_the_caller_drops_the_prefix_that_its_agent_shares() -> None:
    def reply(messages: list[Message]) -> Message:
        is_caller = any(message["content"] == "Ask." for message in messages)
        call = ("ask", {"task": "Pay."}) if is_caller else ("pay", {"euros": 5})
        return tool_script([[call], "It is paid."])(messages)

    with LocalProvider(reply=reply) as provider:
        async with manager_of(provider, Told(), [pay, agent_tool("ask", description="Asks.")]) as manager:
            run = await (await manager.open("chat")).run("Ask.")
            await run.wait(until="settled")
            (pending,) = await run.pending()
            await run.approve(pending.call_id)
            await run.wait()
            names = await told(4)
    assert names.count("drop") == 1 and names.count("prefetch") == 2, "the agent does not drop it"
    assert len({key for _, key, _ in TOLD}) == 1


async def test_a_compaction_says_so_before_and_after() -> None:
    config = SessionConfig(max_context_tokens=2000, reserve_output_tokens=100, token_counter=ByteCounter())
    with LocalProvider() as provider:
        async with manager_of(provider, Told(), overflow=DeleteOldest(2), config=config) as manager:
            chat = await manager.open("chat")
            for number in range(8):
                await (await chat.run(f"{number} {'x' * 200}")).wait()
            assert set(await told(1)) == {"drop"}, "what waits for the window is not announced"
    assert all(name == "drop" for name, *_ in TOLD)


class Hinting(Talker):
    """A talker whose server takes hints."""

    cache_hints = Told()


@pytest.mark.virtual_time
async def test_the_priority_is_lowered_during_a_compaction_only_also_if_that_fails() -> None:
    for answers in ([], [""] * 6):
        TOLD.clear()
        stage = await opened(summarize(Summarizer(*answers)), Hinting())
        await chat(stage, *prompts(0, 16))
        told_of = [value if name == "prioritize" else name for name, _, value in TOLD]
        assert told_of[:3] == ([-1, "drop", 0] if not answers else [-1, 0, "drop"]), told_of
        assert told_of[-1] == 0 and told_of.count(-1) == told_of.count(0) > 1
    assert len({key for _, key, _ in TOLD}) == 1


@pytest.mark.virtual_time
async def test_a_fork_does_not_drop_what_its_parent_uses() -> None:
    stage = await opened(summarize(Summarizer()), Hinting())
    await chat(stage, *prompts(0, 4))
    await stage.core.forking.fork(None, "fork")
    await asyncio.sleep(1)
    assert [name for name, *_ in TOLD] == ["prioritize"], "the fork"
    ((_, parents, _),) = TOLD
    stage.core = SessionCore(
        SessionKey("fork"), stage.store, stage.engine, stage.config, overflow=stage.overflow, off_loop=inline
    )
    await chat(stage, *prompts(4, 30))
    assert len(TOLD) > 3 and parents not in {key for _, key, _ in TOLD[1:]}, "later ones are of its own summaries"
    assert ("drop", None) in {(name, value) for name, _, value in TOLD}


@pytest.mark.virtual_time
async def test_a_stored_change_does_not_fail_with_an_engine_that_cannot_say_what_it_sends() -> None:
    class Frameless(Hinting):
        def frame(self) -> Any:
            raise RuntimeError("the file of the system prompt is gone")

    stage = await opened(Trim(), NamedEngines({"first": Hinting(), "other": Frameless()}))
    await stage.core.row.use_engine("other")
    assert (await stage.store.get(SessionKey(SESSION))).engine == "other"


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_hint_that_fails_or_hangs_changes_no_run(how: str) -> None:
    with LocalProvider(reply=SCRIPT) as provider:
        async with manager_of(provider, Told(how), [look, pay]) as manager:
            await agent_turn(manager)
            await told(1)


async def test_servers_get_hints_by_http_where_their_requests_go() -> None:
    with LocalProvider(reply=SCRIPT) as first, LocalProvider(reply=SCRIPT) as second:
        router = Replicas([first.base_url, second.base_url])
        paths = {"hold": "/keep", "drop": "/evict"}
        hints = HTTPHints(router, paths=paths)  # type: ignore[arg-type]
        engine = OpenAIEngine("local", router=router, tools=[look, pay], cache_hints=hints)
        async with AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess()) as manager:
            await agent_turn(manager)
        requests = [request for provider in (first, second) for request in provider.requests]
        assert not (first.requests and second.requests), "hints go where the requests go"
    sent = [(request.path, request.body) for request in requests if request.body.get("key")]
    assert [path for path, _ in sent][:2] == ["/v1/keep", "/v1/evict"]
    assert sent[0][1]["seconds"] > 0 and len(sent[0][1]["key"]) == 32


async def test_no_hints_do_nothing() -> None:
    hints = NoHints()
    await hints.hold("key", 1.0)
    await hints.drop("key")
    await hints.prefetch("key")
    await hints.prioritize("key", 1)
    assert isinstance(hints, CacheHints)


_WRONG: list[dict[str, Any]] = [
    {"server": "ftp://a"},
    {"server": "http://a", "paths": {"keep": "/"}},
    {"server": "http://a", "timeout_s": 0},
]


def test_wrong_hints_are_refused() -> None:
    for wrong in (
        {"server": "ftp://a"},
        {"server": "http://a", "paths": {"keep": "/"}},
        {"server": "http://a", "timeout_s": 0},
    ):
        with pytest.raises(ConfigError, match="HTTPHints"):
            HTTPHints(**wrong)
    with pytest.raises(ConfigError, match="cache_hints"):
        OpenAIEngine("local", cache_hints="http://a")  # type: ignore[arg-type]
