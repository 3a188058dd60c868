"""`turnwise mcp` by the official client of the mcp package, over stdio and HTTP: one user's sessions and memories."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from filled import filled, turnwise
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tools.agent_team import team
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.cli.chat.command import engine_of
from turnwise.errors import ConfigError
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.lexical import LexicalMemory

HOSTILE = [
    "money",
    "bob/money",
    '["bob","money"]',
    "money\x1f",
    "long",
    "../money",
    "' OR user_id = 'bob",
    "%",
    "*",
    "money\x00",
    "",
    "x" * 10_000,
]
"""Ids by which a client may try to reach sessions of others."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(f"sqlite:///{tmp_path_factory.mktemp('mcp')}/chats.db")


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('memory')}/items.db"

    async def fill() -> None:
        memory = LexicalMemory(url)
        for user in ("ann", "bob"):
            await memory.remember(Scope(user_id=user), [MemoryItem(id=user, text=f"{user} lives in Oslo")])
        await memory.close()

    asyncio.run(fill())
    return url


def environ(**more: str) -> dict[str, str]:
    return {"PYTHONPATH": os.environ["PYTHONPATH"], **more}


def served(*args: str, **variables: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "turnwise", "mcp", *args], env=environ(**variables)
    )


async def called(client: Client, name: str, **arguments: Any) -> Any:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    content = result.structured_content
    return content["result"] if isinstance(content, dict) and content.keys() == {"result"} else content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.content
    (content,) = result.content
    assert content.type == "text"
    return content.text


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


def test_a_client_over_stdio_sees_only_its_users_sessions_and_memories(store: str, memory: str) -> None:
    async def main() -> None:
        async with Client(served(store, "--user", "ann", "--read-only", "--memory", memory)) as client:
            assert await names(client) == {
                *("list_sessions", "show_session", "show_agents", "list_schedules", "recall")
            }
            page = await called(client, "list_sessions")
            assert {session["session_id"] for session in page["sessions"]} == {"chat", "mine"}
            first = await called(client, "list_sessions", limit=1)
            rest = await called(client, "list_sessions", cursor=first["cursor"])
            assert [*first["sessions"], *rest["sessions"]] == page["sessions"]

            shown = await called(client, "show_session", session_id="chat")
            assert shown["title"] == "A week in Oslo"
            assert [message["text"] for message in shown["messages"] if message["role"] == "user"] == [
                "Will it rain?",
                "And tomorrow?",
            ]
            assert shown["messages"][-1]["text"] == "So it seems."
            newest = await called(client, "show_session", session_id="chat", limit=1)
            assert newest["messages"] == shown["messages"][-1:] and newest["cursor"]
            assert (await called(client, "show_session", session_id="mine"))["messages"][-1]["text"] == "Hello, Ann."

            for session_id in HOSTILE:
                refusal = await refused(client, "show_session", session_id=session_id)
                assert "Pay 7" not in refusal and "bob" not in refusal.replace(repr(session_id), ""), refusal
            unknown = await refused(client, "show_session", session_id="monet")
            assert (await refused(client, "show_session", session_id="money")).replace("money", "monet") == unknown
            assert "Unknown tool" in await refused_or_error(client, "send", prompt="Hello")

            memories = await called(client, "recall", query="Who lives in Oslo?")
            assert [memory["text"] for memory in memories] == ["ann lives in Oslo"]
            assert "limit" in await refused(client, "recall", query="Oslo", limit=0)

    asyncio.run(main())


def test_prompts_are_answered_and_memories_saved_where_no_ray_runs(tmp_path: Path) -> None:
    store, memory = f"sqlite:///{tmp_path}/chats.db", f"sqlite:///{tmp_path}/memory.db"

    def of(user: str) -> StdioServerParameters:
        return served(store, "--user", user, "--demo", "--memory", memory, RAY_TMPDIR=str(tmp_path))

    async def main() -> None:
        async with Client(of("ann")) as ann:
            first = await called(ann, "send", prompt="What do I like?")
            assert (first["state"], first["text"]) == (
                "completed",
                "You said: What do I like? (message 1 of our conversation)",
            )
            await called(ann, "save", text="Ann likes tea")
            again = await called(ann, "send", prompt="And now?", session_id=first["session_id"])
            assert again["text"] == "You said: And now? (message 3 of our conversation)"
        async with Client(of("bob")) as bob:
            assert await called(bob, "list_sessions") == {"sessions": [], "cursor": None}
            assert f"there is no session '{first['session_id']}'" in await refused(
                bob, "send", session_id=first["session_id"], prompt="What did she say?"
            )
            assert await called(bob, "recall", query="Who likes tea?") == []
        async with Client(of("ann")) as ann:
            assert (await called(ann, "recall", query="Who likes tea?"))[0]["text"] == "Ann likes tea"

    asyncio.run(main())


def test_a_client_sets_lists_and_cancels_schedules_of_its_user(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"

    def of(user: str) -> StdioServerParameters:
        return served(store, "--user", user, "--demo", RAY_TMPDIR=str(tmp_path))

    async def main() -> None:
        async with Client(of("ann")) as ann:
            session_id = (await called(ann, "send", prompt="Hello"))["session_id"]
            line = {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Lisbon", "until": "2090-01-01T00:00:00Z"}
            news = await called(ann, "set_schedule", session_id=session_id, prompt="What is new?", key="news", **line)
            assert news["recurs"] == "0 9 * * MON-FRI Europe/Lisbon until 2090-01-01 00:00:00 UTC"
            assert (news["key"], news["prompt"], news["attempts"], news["why"]) == ("news", "What is new?", 0, "")
            once = await called(
                ann, "set_schedule", session_id=session_id, prompt="Tea", at="2090-05-01T09:00:00+02:00"
            )
            assert (once["next"], once["recurs"]) == ("2090-05-01T07:00:00+00:00", "")
            page = await called(ann, "list_schedules", session_id=session_id)
            assert {line["key"] for line in page["schedules"]} == {"news", once["key"]}
            assert await called(ann, "cancel_schedule", session_id=session_id, key=once["key"]) is True
            page = await called(ann, "list_schedules", session_id=session_id)
            assert page["schedules"] == [news] and page["now"] < news["next"]
            for wrong, reason in (
                ({}, "pass at, after_s, every_s or cron"),
                ({"at": "tomorrow"}, "2030-05-01T09:00:00+02:00"),
                ({"cron": "0 9 * *"}, "five fields"),
            ):
                assert reason in await refused(ann, "set_schedule", session_id=session_id, prompt="x", **wrong)
        async with Client(of("bob")) as bob:
            assert (await called(bob, "list_schedules"))["schedules"] == []
            for name, more in (
                ("list_schedules", {}),
                ("set_schedule", {"prompt": "x", "after_s": 60}),
                ("cancel_schedule", {"key": "news"}),
            ):
                refusal = await refused(bob, name, session_id=session_id, **more)
                assert f"there is no session '{session_id}'" in refusal
        async with Client(of("ann")) as ann:
            assert (await called(ann, "list_schedules"))["schedules"] == [news]
            assert await called(ann, "cancel_schedule", session_id=session_id, key="news") is True
            assert await called(ann, "cancel_schedule", session_id=session_id, key="news") is False

    asyncio.run(main())


def test_a_client_sees_the_agents_of_its_users_runs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(store, engine=team(), placement=InProcess()) as manager:
        run = manager.open("chat", user_id="ann").run("go")
        run.wait(60)

    async def main() -> None:
        async with Client(served(store, "--user", "ann", "--read-only")) as ann:
            shown = await called(ann, "show_agents", run_id=run.run_id)
            assert (shown["run_id"], shown["state"], shown["is_cut"]) == (run.run_id, "completed", False)
            lines = [(line["agent"], line["depth"], line["state"], line["why"]) for line in shown["agents"]]
            assert lines == [("researcher", 1, "completed", ""), ("assistant", 2, "completed", "")] * 2
            first = shown["agents"][0]
            assert (await called(ann, "show_session", session_id=first["session_id"]))["messages"][-1][
                "text"
            ] == "found"
        async with Client(served(store, "--user", "bob", "--read-only")) as bob:
            for run_id in (run.run_id, first["run_id"], "none"):
                assert f"run {run_id!r}" in await refused(bob, "show_agents", run_id=run_id)

    asyncio.run(main())


async def refused_or_error(client: Client, name: str, **arguments: Any) -> str:
    try:
        return await refused(client, name, **arguments)
    except Exception as error:  # noqa: BLE001 - a protocol error
        return str(error)


def test_a_client_over_http_needs_the_token(store: str) -> None:
    async def main() -> None:
        args = [sys.executable, "-m", "turnwise", "mcp", store, "--user", "ann", "--read-only", "--port", "0"]
        env = {**os.environ, "TURNWISE_TOKEN": "a-secret"}
        server = await asyncio.create_subprocess_exec(*args, env=env, stderr=asyncio.subprocess.PIPE)
        try:
            assert server.stderr
            url = (await server.stderr.readline()).decode().split()[-1]
            async with httpx2.AsyncClient() as anybody:
                assert (await anybody.post(url, json={})).status_code == 401
            headers = {"Authorization": "Bearer a-secret"}
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                page = await called(client, "list_sessions")
                assert {session["session_id"] for session in page["sessions"]} == {"chat", "mine"}
                assert "money" in await refused(client, "show_session", session_id="money")
        finally:
            server.terminate()
            await server.communicate()
        assert server.returncode in (0, -15, 143)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--read-only", "--host", "0.0.0.0", "--port", "0"], "set TURNWISE_TOKEN, or listen on 127.0.0.1"),
        ([], "OPENAI_API_KEY"),
    ],
)
def test_what_would_be_open_to_all_or_without_a_model_is_refused(
    store: str, args: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TURNWISE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    result = turnwise("mcp", store, "--user", "ann", *args)
    assert result.exit_code == 1 and reason in result.stderr
    assert turnwise("mcp", store).exit_code == 2, "nobody is the user"
    missing = turnwise("mcp", "sqlite:////no/such.db", "--user", "ann", "--read-only")
    assert missing.exit_code == 1 and "there is no file" in missing.stderr


def test_a_list_of_tools_is_given_to_a_model_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["from turnwise import tool", *(f"def {name}() -> str: return ''" for name in ("a", "b"))]
    (tmp_path / "many_tools.py").write_text("\n".join([*lines, "both = [tool(a), tool(b)]", "wrong = [a]"]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    engine, model = engine_of("local", None, None, ["many_tools:both"], demo=True)
    assert isinstance(engine, OpenAIEngine) and model == "local", "there is a key, so nothing is simulated"
    assert [tool.name for tool in engine.registry.tools] == ["a", "b"]
    with pytest.raises(ConfigError, match="it is a function: make it with @tool"):
        engine_of("local", None, None, ["many_tools:wrong"], demo=True)
