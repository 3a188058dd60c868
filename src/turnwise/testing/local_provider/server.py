"""The server: `LocalProvider`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self

from turnwise.testing.local_provider.anthropic_messages import MessagesAnswer, MessagesRequest
from turnwise.testing.local_provider.chat_completions import ChatAnswer, ChatRequest
from turnwise.testing.local_provider.embeddings import embeddings
from turnwise.testing.local_provider.http_protocol import RecordedRequest, RefusedError, Response, parse_head
from turnwise.testing.local_provider.replies import BREAKS, Completion, Reply, default_reply
from turnwise.testing.local_provider.responses import ResponsesAnswer, ResponsesRequest

SLOW_S = 0.05

MAX_HEAD_BYTES = 65_536

_ACCEPTING = 5
"""In how many steps of the event loop a connection that was accepted gets its task."""


class LocalProvider:
    """Serves on 127.0.0.1, on its own thread and event loop, while it is entered as a context manager.

    Args:
        token_delay_s: pause before each token, in seconds.
        reply: what to answer; by default, a sentence about the last message and how many there were.
        api_key: requests with another key are refused with status 401, quoting the key, as careless servers do.
        retry_after_s: the Retry-After of a temporary refusal, in seconds.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        token_delay_s: float = 0.0,
        *,
        reply: Reply | None = None,
        api_key: str | None = None,
        retry_after_s: float = 0.01,
        port: int = 0,
    ) -> None:
        self.token_delay_s = token_delay_s
        self.reply: Reply = default_reply if reply is None else reply
        self.api_key = api_key
        self.retry_after_s = retry_after_s
        self.port = port
        self.requests: list[RecordedRequest] = []
        self._arrived = threading.Condition()
        self._request_counts: Counter[str] = Counter()
        self._connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._cached: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` for an Anthropic client."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="local-provider", daemon=True)
        self._thread.start()
        listening.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and the connections. Idempotent."""
        if self._thread and self._thread.is_alive():
            self._stop()
            self._thread.join()

    def wait_for_request(self, number: int = 1, timeout_s: float = 5.0) -> RecordedRequest:
        """Return the `number`th request, from 1, as soon as it has arrived. Blocks; TimeoutError after `timeout_s`."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= number, timeout_s):
                raise TimeoutError(f"{len(self.requests)} requests within {timeout_s} s, not {number}")
        return self.requests[number - 1]

    async def serve(self, listening: Callable[[], object]) -> None:
        """Serve until cancelled or closed; call `listening` when clients may connect."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=MAX_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        listening()
        try:
            await stopped.wait()
        finally:
            for listening_socket in server.sockets:
                loop.remove_reader(listening_socket.fileno())
            for _ in range(_ACCEPTING):  # of a server that is closed, what was just accepted would stay open
                await asyncio.sleep(0)
            server.close()
            for writer in self._open:
                writer.transport.abort()  # `close` would wait for clients that do not read
            await asyncio.sleep(0)

    def _run(self, listening: Future[None]) -> None:
        try:
            asyncio.run(self.serve(lambda: listening.set_result(None)))
        except OSError as error:
            listening.set_exception(error)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until either side closes it."""
        next_head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        self._open.add(writer)
        self._connections += 1
        connection = self._connections
        try:
            while True:
                record, authorization = parse_head(await next_head)
                body = await reader.readexactly(int(record.headers.get("content-length") or 0))
                record.connection = connection
                with contextlib.suppress(ValueError):
                    record.body = json.loads(body)
                # Waiting for the next request meanwhile is how a hang-up is noticed at once.
                next_head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
                with self._arrived:
                    self.requests.append(record)
                    self._arrived.notify_all()
                if not await self._attend(record, self._respond(record, authorization, Response(writer)), next_head):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # the provider is closing, and asyncio would log that as an error
        finally:
            self._open.discard(writer)
            writer.close()
            next_head.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(next_head, return_exceptions=True)

    @staticmethod
    async def _attend(
        record: RecordedRequest, responding: Coroutine[Any, Any, bool], next_head: asyncio.Task[bytes]
    ) -> bool:
        """Respond while the client is connected; return whether the connection stays open."""
        response = asyncio.create_task(responding)
        try:
            await asyncio.wait({response, next_head}, return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and next_head.exception():
                record.hung_up_at = time.monotonic()
                return False
            record.finished = await response
        except OSError:
            record.hung_up_at = time.monotonic()
            return False
        else:
            return record.finished
        finally:
            record.ended.set()
            response.cancel()
            await asyncio.gather(response, return_exceptions=True)

    async def _respond(self, record: RecordedRequest, authorization: str, response: Response) -> bool:
        """Respond to a request; return False to close the connection in the middle of it."""
        try:
            if self.api_key is not None and authorization != f"Bearer {self.api_key}":
                key = authorization.removeprefix("Bearer ")
                raise RefusedError(401, f"Incorrect API key provided: {key}.", "invalid_api_key")
            match record.method, record.path:
                case "GET", "/v1/models":
                    models = [{"id": "local", "object": "model", "created": 0, "owned_by": "turnwise"}]
                    await response.json(200, {"object": "list", "data": models})
                case "POST", "/v1/embeddings":
                    await self._fault_of(record)
                    await response.json(200, embeddings(record.body))
                case "POST", "/v1/chat/completions":
                    fault = await self._fault_of(record)
                    return await self._answer(ChatRequest(record.body), fault, response)
                case "POST", "/v1/responses":
                    fault = await self._fault_of(record)
                    return await self._answer(ResponsesRequest(record.body), fault, response)
                case "POST", "/v1/messages":
                    fault, version = await self._fault_of(record), record.headers.get("anthropic-version", "")
                    return await self._answer(
                        MessagesRequest(record.body, self._cached, version=version), fault, response
                    )
                case _, path:
                    raise RefusedError(404, f"Unknown request URL: {record.method} {path}", "unknown_url")
        except RefusedError as error:
            body = error.anthropic_body() if record.path == "/v1/messages" else error.body()
            await response.json(error.status, body, self._retry_after(error.status))
        return True

    async def _fault_of(self, record: RecordedRequest) -> str:
        """Return the fault that the request selects, or nothing. Refusals and `hang` happen here."""
        model = record.body.get("model") if isinstance(record.body, dict) else None
        name = record.headers.get("x-fault") or str(model).rpartition("/")[2]
        fault = name.removesuffix("-once")
        if fault != name:
            self._request_counts[f"{name} {model}"] += 1
            if self._request_counts[f"{name} {model}"] > 1:
                return ""
        if re.fullmatch("[45][0-9][0-9]", fault):
            reason = f"The model `{model}` does not exist" if fault == "404" else f"You asked for a {fault}"
            raise RefusedError(int(fault), reason, "model_not_found" if fault == "404" else None)
        if fault == "hang":
            await _forever()
        return fault

    def _retry_after(self, status: int) -> dict[str, str]:
        if status not in (429, 503):
            return {}
        return {"Retry-After": str(math.ceil(self.retry_after_s)), "Retry-After-Ms": str(self.retry_after_s * 1000)}

    async def _answer(
        self, request: ChatRequest | ResponsesRequest | MessagesRequest, fault: str, response: Response
    ) -> bool:
        reply = self.reply(request.messages) if callable(self.reply) else self.reply
        completion = Completion.of(reply, request.messages, fault, request.limit)
        answer = request.answer(completion)
        delay_s = max(self.token_delay_s, SLOW_S if fault == "slow" else 0.0)
        if request.streamed:
            return await _stream(answer, fault, delay_s, response)
        await asyncio.sleep(delay_s * len(completion.tokens))
        if fault == "stall":
            await _forever()
        if fault in BREAKS:
            return False
        await response.json(200, answer.whole())
        return True


async def _stream(
    answer: ChatAnswer | ResponsesAnswer | MessagesAnswer, fault: str, delay_s: float, response: Response
) -> bool:
    """Stream the answer as far as the fault allows; return False to close the connection in the middle of it."""
    await response.start_stream()
    for event in answer.opening():
        await response.event(event)
    for token in answer.completion.tokens:
        await asyncio.sleep(delay_s)
        for event in answer.token_events(token):
            await response.event(event)
    match fault:
        case "stall":
            await _forever()
        case "cut":
            return False
        case "malformed":
            await response.event("{this is no JSON")
        case "error":
            for event in answer.failure("The model broke down"):
                await response.event(event)
        case "unfinished":
            pass
        case _:
            for last in answer.closing():
                await response.event(last)
    await response.end_stream()
    return True


async def _forever() -> None:
    await asyncio.Event().wait()
