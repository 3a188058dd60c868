"""A refused request leaves no session that it would have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servers.http_service import in_process


def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/openai/v1/chat/completions", {"model": "echo", "messages": [{"role": "user", "content": text}], **more}


def response(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/openai/v1/responses", {"model": "echo", "input": text, **more}


def front_end(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return "/v1/ui/chat", {"id": "new", "messages": [message], "trigger": "submit-message", "engine": "echo", **more}


def agent(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    body = {"threadId": "new", "runId": "r", "messages": [{"id": "m1", "role": "user", "content": text}]}
    return "/v1/ag-ui/echo", {**body, "state": {}, "tools": [], "context": [], "forwardedProps": {}, **more}


TOOL = {"role": "tool", "tool_call_id": "no-such-call", "content": "x"}
REFUSED = {
    "chat: blank": chat(" "),
    "chat: parameter": chat("hi", temperature=1.0),
    "chat: result": ("/openai/v1/chat/completions", {"model": "echo", "messages": [TOOL]}),
    "response: blank": response(" "),
    "response: parameter": response("hi", temperature=1.0),
    "front end: blank": front_end(" "),
    "front end: parameter": front_end("hi", params={"temperature": 1.0}),
    "agent: blank": agent(" "),
}


async def test_a_refused_run_leaves_no_new_session(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        for name, (path, body) in REFUSED.items():
            answer = await client.post(path, json=body, headers={"X-Session-Id": "new"})
            assert 400 <= answer.status_code < 500, (name, answer.status_code, answer.text)
            assert (await client.get("/v1/count")).json() == {"sessions": 0}, name
        for path, body in (chat("hi"), response("hi")):
            answer = await client.post(path, json=body, headers={b"X-Session-Id": "文字".encode()})
            assert answer.status_code == 200, answer.text
        assert (await client.get("/v1/sessions/文字")).json()["id"] == "文字"
        assert (await client.get("/v1/count")).json() == {"sessions": 2}
