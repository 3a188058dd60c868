"""Requests that wait for a run: while it runs or is suspended, no dialect asks its session again and again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from servers.http_service import ANN, TOKENS, on_server
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.adapters import mcp_server
from turnwise.http import create_app
from turnwise.testing import LocalProvider, Message, tool_script

PROMPT = "Pay the bill."
WINDOW_S = 3.0
"""For how long calls are counted: longer than any pause after which somebody who polls would look again."""


@tool(approval=True)
def pay(euros: int) -> str:
    """Pay the bill."""
    return f"paid {euros} euros"


class Calls:
    """Counts the calls that the clients of this process make to sessions, by verb."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        ask = AsyncSessionHost.ask

        async def counted(host: AsyncSessionHost, call: VerbCall[Any], **settings: Any) -> Any:
            self.counts[call.verb.name] += 1
            return await ask(host, call, **settings)

        monkeypatch.setattr(AsyncSessionHost, "ask", counted)

    async def until(self, waits: int, follows: int) -> None:
        """Return when so many waits, and readers of events, have asked since the last `check_quiet`."""
        while self.counts["wait"] < waits or self.counts["events"] < follows:
            await asyncio.sleep(0.01)

    async def check_quiet(self, waits: int, follows: int) -> None:
        """Check that so many who wait, and who read events, ask for no more than the next slice of their wait.

        Readers that still get the events of the runs' starts ask again at once, so those are waited for; whoever polls
        is never done.
        """
        earlier = None
        while earlier != (earlier := dict(self.counts)):
            await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        self.counts.clear()
        await asyncio.sleep(WINDOW_S)
        slices = 1 + (asyncio.get_running_loop().time() - began) // SLICE_S
        assert self.counts.keys() <= {"wait", "events"}, self.counts
        assert self.counts["wait"] <= waits * slices and self.counts["events"] <= follows * slices, self.counts
        self.counts.clear()


@pytest.fixture
def may_answer() -> Iterator[threading.Event]:
    """Set to let the model answer."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def provider_url(may_answer: threading.Event) -> Iterator[str]:
    script = tool_script([[("pay", {"euros": 7})], "It is paid."])

    def reply(messages: list[Message]) -> Any:
        may_answer.wait(120)
        return script(messages)

    with LocalProvider(reply=reply) as provider:
        yield provider.base_url
        may_answer.set()  # else the provider waits for it after a test that failed


@asynccontextmanager
async def service(folder: Path, provider_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, Client]]:
    """Yield a client of the service, and one of the MCP server beside it."""
    async with (
        AsyncSessionManager(
            f"sqlite:///{folder}/chats.db",
            engine=OpenAIEngine("local", base_url=provider_url, max_retries=0, tools=[pay]),
            placement=InProcess(),
        ) as manager,
        on_server(create_app(manager, auth=TOKENS)) as url,
        httpx.AsyncClient(base_url=url, headers=ANN, timeout=120) as client,
        Client(mcp_server(manager, user_id="ann")) as agent,
    ):
        yield client, agent


async def test_no_dialect_polls_while_a_run_goes_on_or_is_suspended(
    tmp_path: Path,
    provider_url: str,
    may_answer: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = {"role": "user", "content": PROMPT}
    user_message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": PROMPT}]}
    thread = {"threadId": "ag-ui", "runId": "r1", "messages": [{"id": "u1", **message}], "state": {}, "tools": []}
    async with service(tmp_path, provider_url) as (client, agent):
        await client.post("/v1/sessions", json={"id": "native"})
        calls = Calls(monkeypatch)
        bodies: dict[str, dict[str, Any]] = {
            "/openai/v1/chat/completions": {"model": "local", "messages": [message]},
            "/openai/v1/responses": {"model": "local", "input": PROMPT},
            "/v1/sessions/native/runs?wait_s=60": {"prompt": PROMPT},
            "/v1/ui/chat": {"id": "ui", "messages": [user_message], "trigger": "submit-message"},
            "/v1/ag-ui": {**thread, "context": [], "forwardedProps": {}},
        }
        posts = [asyncio.create_task(client.post(path, json=body)) for path, body in bodies.items()]
        called = asyncio.create_task(agent.call_tool("send", {"prompt": PROMPT}))
        await calls.until(waits=4, follows=2)
        await calls.check_quiet(waits=4, follows=2)
        assert not any(task.done() for task in (*posts, called))

        may_answer.set()
        chat, response, native, ui, ag_ui = await asyncio.gather(*posts)
        assert chat.json()["error"]["code"] == "approval_required"
        assert response.json()["status"] == "completed"
        assert response.json()["output"][-1]["type"] == "mcp_approval_request"
        assert native.json()["state"] == "awaiting_approval"
        assert "tool-approval-request" in ui.text and "interrupt" in ag_ui.text
        assert (await called).structured_content["state"] == "awaiting_approval"
        assert calls.counts["wait"] <= 4, "each has waited once"

        run = f"/v1/runs/{native.json()['id']}"
        settled = await client.get(f"{run}/wait?timeout_s=60&until=settled")
        assert settled.json()["state"] == "awaiting_approval"
        calls.counts.clear()
        waiting = asyncio.create_task(client.get(f"{run}/wait?timeout_s=60"))
        following = asyncio.create_task(client.get(f"{run}/events?stream=true"))
        await calls.until(waits=1, follows=2)
        await calls.check_quiet(waits=1, follows=1)
        assert not waiting.done() and not following.done()
        (pending,) = (await client.get(f"{run}/pending")).json()["items"]
        await client.post(f"{run}/approve", json={"call_id": pending["call_id"]})
        assert (await waiting).json()["text"] == "It is paid."
        assert "run_completed" in (await following).text
