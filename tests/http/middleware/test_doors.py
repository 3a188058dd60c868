"""What reaches the service by other doors than its routes is bounded before it is read: MCP, and websockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from turnwise.http.middleware.counts import TOO_LARGE
from turnwise.http.middleware.size_limits import within_limits
from turnwise.http.settings import HttpSettings

SETTINGS = HttpSettings(max_body_bytes=50_000, max_body_values=1_000)

TOO_MUCH = {
    "bytes": b'{"method": "' + b"x" * 60_000 + b'"}',
    "values": b'{"params": [' + b"1," * 2_000 + b"1]}",
    "levels": b"[" * 200 + b"]" * 200,
    "digits": b"[" + b"1" * 500 + b"]",
}


class App:
    """Notes the contents that reach it."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.ended: Message | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            self.contents.append(message.get("body") or message.get("bytes") or message["text"].encode())
            if message["type"] == "http.request":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        self.ended = message


async def sent(scope_type: str, *messages: Message) -> tuple[App, list[Message]]:
    app, answers, remaining = App(), list[Message](), iter(messages)

    async def receive() -> Message:
        return next(remaining)

    async def send(message: Message) -> None:
        answers.append(message)

    scope: dict[str, Any] = {"type": scope_type, "method": "POST", "path": "/mcp", "query_string": b"", "headers": []}
    await within_limits(app, SETTINGS)(scope, receive, send)
    return app, answers


@pytest.mark.parametrize("content", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_body_that_is_too_much_reaches_no_app(content: bytes) -> None:
    app, answers = await sent("http", {"type": "http.request", "body": content})
    assert answers[0]["status"] in (413, 422) and app.contents == []


def messages_with(content: bytes) -> Iterator[Message]:
    yield {"type": "websocket.receive", "text": content.decode()}
    yield {"type": "websocket.receive", "bytes": content}


@pytest.mark.parametrize("content", TOO_MUCH.values(), ids=TOO_MUCH)
async def test_a_message_that_is_too_much_ends_its_websocket(content: bytes) -> None:
    for message in messages_with(content):
        small: Message = {"type": "websocket.receive", "text": "hello"}
        app, answers = await sent("websocket", small, message, small)
        assert app.contents == [b"hello"] and app.ended is not None
        assert [answer["code"] for answer in answers] == [TOO_LARGE]


async def test_what_is_within_the_bounds_arrives_as_it_was_sent() -> None:
    content = b'{"params": [' + b"1," * 500 + b"1]}"
    app, _ = await sent("http", {"type": "http.request", "body": content})
    assert app.contents == [content]
    app, answers = await sent("websocket", *messages_with(content), {"type": "websocket.disconnect", "code": 1000})
    assert app.contents == [content, content] and answers == []
