"""What tells a server, or a router before it, which requests begin alike: the key of their prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.split import Split
from turnwise.actors.inference.tools.agent_tool import agent_tool
from turnwise.errors import ConfigError
from turnwise.memory.conversation.spans import Span, prefix_key
from turnwise.memory.providers.endpoints import PROFILES
from turnwise.memory.values.ids import new_id
from turnwise.testing import LocalProvider, Message, tool_script
from turnwise.testing.local_provider.replies import text_of


def managed(engine: Any) -> AsyncSessionManager:
    return AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess())


async def keys_of(provider: LocalProvider, engine: OpenAIEngine) -> list[tuple[Any, Any]]:
    """Return the keys in bodies and headers of: two turns of a session, one of its fork, one of another session."""
    async with managed(engine) as manager:
        chat = await manager.open("chat")
        await (await chat.run("one")).wait()
        await (await chat.run("two")).wait()
        await (await (await chat.fork()).run("three")).wait()
        await (await (await manager.open("other")).run("one")).wait()
    requests = provider.requests
    return [(request.body.get("prompt_cache_key"), request.headers.get("x-session-id")) for request in requests]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_forks_share_the_key_of_what_they_share(api: Any) -> None:
    with LocalProvider() as provider:
        engine = OpenAIEngine("local", api=api, base_url=provider.base_url, provider="openai")
        first, second, fork, other = await keys_of(provider, engine)
    assert first == second == fork != other
    assert len(first[0]) == 32 and first[1] is None, "OpenAI needs no header"


async def test_a_router_gets_the_key_in_a_header() -> None:
    ways: list[dict[str, Any]] = [{"provider": "vllm"}, {"session_header": "X-Session-Id"}]
    for settings in ways:
        with LocalProvider() as provider:
            first, *_, fork, other = await keys_of(
                provider, OpenAIEngine("local", base_url=provider.base_url, **settings)
            )
        assert first == fork != other and first[0] is None and len(first[1]) == 32


def reply(messages: list[Message]) -> Message:
    """Call the agents that are named before the prompt's first colon, with the rest as their task; then answer."""
    prompt = next(text_of(message) for message in reversed(messages) if message["role"] == "user")
    names, colon, task = prompt.partition(":")
    calls = [(name, {"task": task}) for name in names.split("+")]
    return tool_script([calls, "Done."] if colon else ["Seen."])(messages)


async def test_an_agent_has_its_callers_key_if_their_requests_begin_alike() -> None:
    like = agent_tool("like", description="Has its caller's engine.")
    unlike = agent_tool("unlike", engine="other", description="Has an engine of its own.")
    with LocalProvider(reply=reply) as provider:
        engine = OpenAIEngine(
            "local", base_url=provider.base_url, provider="vllm", system="Be brief.", tools=[like, unlike]
        )
        engines = {"main": engine, "other": replace(engine, system="Be long.", tools=[])}
        async with managed(engines) as manager:
            chat = await manager.open("chat")

            async def keys_of_run(prompt: str, session: AsyncSession = chat, **options: Any) -> tuple[str, list[str]]:
                """Return the key of the caller's requests, and those of its agents'."""
                count = len(provider.requests)
                await (await session.run(prompt, **options)).wait()
                keys = [request.headers["x-session-id"] for request in provider.requests[count:]]
                assert keys[0] == keys[-1]
                return keys[0], keys[1:-1]

            key, agents = await keys_of_run("like+unlike:Look.")
            assert len(agents) == 2 and agents.count(key) == 1
            assert (await keys_of_run("like:like:Look."))[1] == [key] * 3, "and so do its own agents"
            assert key not in (await keys_of_run("like:Look.", model="another"))[1], "another model's cache"
            fork = await chat.fork()
            assert await keys_of_run("like:Look.", fork) == (key, [key])
            agent = next(one for one in await manager.list(agents=True) if one.agent == "like")
            assert await keys_of_run("Go on.", await (await manager.open(agent.session_id)).fork()) == (key, [])


async def test_an_agent_for_which_a_split_chooses_another_engine_has_a_key_of_its_own() -> None:
    tool = agent_tool("agent", description="Has an engine of the split.")
    with LocalProvider(reply=reply) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, provider="vllm", system="a", tools=[tool])
        engines = {"main": Split({"a": 1, "b": 1}, by="session"), "a": engine, "b": replace(engine, system="b")}
        async with managed(engines) as manager:
            for _ in range(20):
                await (await (await manager.open()).run("agent:Look.")).wait()
        requests = provider.requests
    prompts = [request.body["messages"][0]["content"] for request in requests]
    keys = [request.headers["x-session-id"] for request in requests]
    is_same_engine, is_same_key = (
        [caller == agent for caller, agent in zip(values[::3], values[1::3], strict=True)] for values in (prompts, keys)
    )
    assert is_same_engine == is_same_key and len(set(is_same_key)) == 2


async def test_nothing_is_sent_to_servers_that_are_not_known_to_take_it() -> None:
    ways: list[dict[str, Any]] = [{}, {"provider": "llama.cpp"}, {"provider": "vllm", "session_header": ""}]
    for settings in ways:
        with LocalProvider() as provider:
            keys = await keys_of(provider, OpenAIEngine("local", base_url=provider.base_url, **settings))
        assert set(keys) == {(None, None)}


async def test_a_callers_own_key_is_sent() -> None:
    with LocalProvider() as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, provider="openai", extra={"prompt_cache_key": "a"})
        async with managed(engine) as manager:
            chat = await manager.open()
            await (await chat.run("one")).wait()
            await (await chat.run("two", params={"prompt_cache_key": "b"})).wait()
        assert [request.body["prompt_cache_key"] for request in provider.requests] == ["a", "b"]


async def test_a_callers_own_header_is_sent() -> None:
    with LocalProvider() as provider:
        engine = OpenAIEngine(
            "local", base_url=provider.base_url, provider="vllm", default_headers={"X-Session-ID": "mine"}
        )
        keys = await keys_of(provider, engine)
    assert keys == [(None, "mine")] * 4


def test_a_key_says_nothing_of_the_log_and_follows_the_first_block() -> None:
    assert prefix_key((Span("7", 0, 3), Span("9", 0, 1)), "9") == prefix_key((Span("7", 2, 3),), "7")
    assert prefix_key((), "9") == prefix_key((Span("9", 4, 5),), "9") != prefix_key((Span("7", 0, 3),), "9")
    assert prefix_key((), "") == "" and prefix_key((), "7") != "7"


def test_profiles_that_take_the_key_do_not_lack_it() -> None:
    assert not [name for name, each in PROFILES.items() if each.takes_cache_key and "prompt_cache_key" in each.lacks]


def test_a_header_has_a_name() -> None:
    for name in ("x session", "x:y", 5):
        with pytest.raises(ConfigError, match="session_header"):
            OpenAIEngine("local", session_header=name)  # type: ignore[arg-type]
