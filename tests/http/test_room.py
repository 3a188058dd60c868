"""A request that would stream or wait is refused before it starts a run, or its answer can be had."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from servers.http_service import ANN, TOKENS, manager_of
from turnwise.http import HttpSettings, create_app
from turnwise.testing import LocalProvider

SSE = {"Accept": "text/event-stream"}

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]

CHAT = {"id": "chat", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}]}

AG_UI = {"threadId": "chat", "runId": "r1", "messages": [{"id": "m2", "role": "user", "content": "Hello"}]}

REQUESTS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("/v1/sessions/chat/runs", {"prompt": "Hello"}, SSE),
    ("/v1/sessions/chat/runs?wait_s=60", {"prompt": "Hello"}, {}),
    ("/v1/run", {"prompt": "Hello", "engine": "agent"}, SSE),
    ("/v1/run?wait_s=60", {"prompt": "Hello", "engine": "agent"}, {}),
    ("/v1/ui/chat", CHAT, {}),
    ("/v1/ag-ui/agent", AG_UI, {}),
    ("/openai/v1/responses", {"model": "agent", "input": "Hello"}, {}),
    ("/openai/v1/responses", {"model": "agent", "input": "Hello", "stream": True}, {}),
    ("/openai/v1/chat/completions", {"model": "agent", "messages": HELLO}, {}),
    ("/openai/v1/chat/completions", {"model": "agent", "messages": HELLO, "stream": True}, {}),
    ("/openai/v1/chat/completions", {"model": "agent", "messages": HELLO}, {"X-Session-Id": "chat"}),
    ("/openai/v1/chat/completions", {"model": "agent", "messages": HELLO, "stream": True}, {"X-Session-Id": "chat"}),
]
"""Requests that start a run, and stream or wait."""


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", headers=ANN, timeout=60)


async def test_a_request_beyond_the_stream_limit_starts_no_run(tmp_path: Path) -> None:
    with LocalProvider() as provider:
        async with manager_of(tmp_path, provider.base_url) as manager:
            app = create_app(manager, auth=TOKENS, settings=HttpSettings(max_streams_per_user=1))
            await manager.open("chat", user_id="ann", engine="agent")
            async with client_of(app) as client:
                with app.state.service.count_stream("ann"):
                    for path, body, headers in REQUESTS:
                        response = await client.post(path, json=body, headers=headers)
                        assert response.status_code == 429 and response.headers["retry-after"] == "1", (path, body)
                        openai = response.json().get("error")
                        assert (openai["code"] if "/openai" in path else openai) == "too_many_streams", path
                assert not await manager.runs(user_id="ann") and not provider.requests
                for path, body, headers in REQUESTS:
                    response = await client.post(path, json=body, headers=headers)
                    assert response.is_success, (path, response.text)
                gc.collect()  # where a coroutine that was never awaited is told of


@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS[2:4] + REQUESTS[6:10])
async def test_of_concurrent_requests_exactly_the_answered_ones_start_runs(
    tmp_path: Path, path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    with LocalProvider() as provider:
        async with manager_of(tmp_path, provider.base_url) as manager:
            app = create_app(manager, auth=TOKENS, settings=HttpSettings(max_streams_per_user=2))
            async with client_of(app) as client:
                responses = await asyncio.gather(*(client.post(path, json=body, headers=headers) for _ in range(6)))
                statuses = Counter(response.status_code for response in responses)
                assert statuses[429] == 4 and len(provider.requests) == 2, statuses
                assert (await client.post(path, json=body, headers=headers)).is_success
