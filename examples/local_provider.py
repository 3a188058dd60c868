"""A stand-in for a model provider: the Chat Completions wire format over real HTTP on loopback, without a model.

    python examples/local_provider.py --port 8000          then: OPENAI_BASE_URL=http://127.0.0.1:8000/v1

    with LocalProvider() as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)

It serves POST /v1/chat/completions (streamed or not), POST /v1/embeddings and GET /v1/models, refuses what the real API
would refuse, and records what it was sent and when a client hung up. Any model name will do. One that ends in
`/<fault>`, or is just that, or the header `x-fault: <fault>`, has it misbehave:

    fault            what happens
    slow             50 ms pass before each token
    hang             the request is taken and never answered
    stall            the answer stops after three tokens; the connection stays open
    cut              the connection closes after three tokens, in the middle of the stream
    unfinished       the stream ends properly after three tokens, but without a finish_reason
    malformed        after three tokens comes a chunk that is not JSON
    error            after three tokens comes a chunk that is an error
    empty            the answer is empty, with finish_reason "stop"
    length           the answer ends after three tokens, with finish_reason "length"
    400 ... 599      that status; 429 and 503 with Retry-After, in `retry_after_s`
    <fault>-once     the fault at the first request for that model, and an answer from then on

Without a stream, those in the middle of an answer close the connection instead of it.

Standard library only, apart from `check_chat`, which says what a valid request is.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import math
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from turnwise.errors import EngineError
from turnwise.memory.validate import check_chat

Message: TypeAlias = dict[str, Any]
Answer: TypeAlias = str | Message | list[Message]
"""A text; an assistant message, which may have `reasoning_content`, `content` and `tool_calls`; or the deltas of one,
to be streamed as they are."""
Reply: TypeAlias = Answer | Callable[[list[Message]], Answer]
"""An answer, or what makes one of the request's messages."""

CUT_AFTER = 3
"""How many tokens come before a fault in the middle of an answer."""

SLOW_S = 0.05

EMBEDDING_SIZE = 256

_BREAKS = ("stall", "cut", "unfinished", "malformed", "error")
_ENDS_EARLY = (*_BREAKS, "length")

MAX_HEAD_BYTES = 65_536


@dataclass
class Record:
    """A request as it arrived, and what became of it. Times are `time.monotonic()` seconds."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name, without `authorization`."""
    body: Any = None
    """The JSON of the body; None if there was none."""
    connection: int = 0
    """Which connection it came over, counted from 1."""
    started_at: float = field(default_factory=time.monotonic)
    hung_up_at: float | None = None
    """When the client closed the connection before the response was complete."""
    finished: bool = False
    """Whether the response, whichever it was, was sent to its end."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the request is finished, cut off or hung up on."""


class LocalProvider:
    """Serves on 127.0.0.1, on a thread and an event loop of its own, while it is entered as a context manager.

    Args:
        token_delay_s: pause before each token, in seconds.
        reply: what to answer; by default, a sentence about the last message and how many there were.
        api_key: refuse requests with any other, with status 401 and, as careless servers do, quoting what they sent.
        retry_after_s: what a refusal for now asks for, in seconds.
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
        self.requests: list[Record] = []
        self._arrived = threading.Condition()
        self._asked: Counter[str] = Counter()
        self._connections = 0
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="local-provider", daemon=True)
        self._thread.start()
        listening.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and the connections, and return when they are. Closing twice is fine."""
        if self._thread and self._thread.is_alive():
            self._stop()
            self._thread.join()

    def wait_for_request(self, number: int = 1, timeout_s: float = 5.0) -> Record:
        """Return the `number`th request, from 1, as soon as it has arrived. Blocks; TimeoutError after `timeout_s`."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= number, timeout_s):
                raise TimeoutError(f"{len(self.requests)} requests within {timeout_s} s, not {number}")
        return self.requests[number - 1]

    async def serve(self, listening: Callable[[], object]) -> None:
        """Serve until cancelled or left; call `listening` when clients may connect."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=MAX_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        listening()
        try:
            await stopped.wait()
        finally:
            server.close()

    def _run(self, listening: Future[None]) -> None:
        try:
            asyncio.run(self.serve(lambda: listening.set_result(None)))
        except OSError as error:
            listening.set_exception(error)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until either side closes it."""
        next_head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        self._connections += 1
        connection = self._connections
        try:
            while True:
                record, authorization = _parse_head(await next_head)
                body = await reader.readexactly(int(record.headers.get("content-length") or 0))
                record.connection = connection
                with contextlib.suppress(ValueError):
                    record.body = json.loads(body)
                # Waiting for the next request meanwhile is how a hang-up is noticed at once.
                next_head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
                with self._arrived:
                    self.requests.append(record)
                    self._arrived.notify_all()
                if not await self._attend(record, self._respond(record, authorization, _Response(writer)), next_head):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has left
        except asyncio.CancelledError:
            pass  # the provider is closing, and asyncio would log that as an error
        finally:
            writer.close()
            next_head.cancel()
            await asyncio.gather(next_head, return_exceptions=True)

    @staticmethod
    async def _attend(record: Record, responding: Coroutine[Any, Any, bool], next_head: asyncio.Task[bytes]) -> bool:
        """Respond for as long as the client is there; return whether the connection goes on."""
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

    async def _respond(self, record: Record, authorization: str, response: _Response) -> bool:
        """Respond to a request; return False to close the connection in the middle of it."""
        try:
            if self.api_key is not None and authorization != f"Bearer {self.api_key}":
                given = authorization.removeprefix("Bearer ")
                raise _RefusedError(401, f"Incorrect API key provided: {given}.", "invalid_api_key")
            match record.method, record.path:
                case "GET", "/v1/models":
                    models = [{"id": "local", "object": "model", "created": 0, "owned_by": "turnwise"}]
                    await response.json(200, {"object": "list", "data": models})
                case "POST", "/v1/embeddings":
                    await self._take_fault(record)
                    await response.json(200, _embeddings(_checked(record.body, "input")))
                case "POST", "/v1/chat/completions":
                    fault = await self._take_fault(record)
                    body = _checked(record.body, "messages")
                    _check_chat_body(body)
                    return await self._chat(body, fault, response)
                case _, path:
                    raise _RefusedError(404, f"Unknown request URL: {record.method} {path}", "unknown_url")
        except _RefusedError as error:
            await response.json(error.status, error.body(), self._retry_after(error.status))
        return True

    async def _take_fault(self, record: Record) -> str:
        """Return the fault that the request asks for, or nothing; refuse and hang right here."""
        model = record.body.get("model") if isinstance(record.body, dict) else None
        name = record.headers.get("x-fault") or str(model).rpartition("/")[2]
        fault = name.removesuffix("-once")
        if fault != name:
            self._asked[f"{name} {model}"] += 1
            if self._asked[f"{name} {model}"] > 1:
                return ""
        if re.fullmatch("[45][0-9][0-9]", fault):
            why = f"The model `{model}` does not exist" if fault == "404" else f"You asked for a {fault}"
            raise _RefusedError(int(fault), why, "model_not_found" if fault == "404" else None)
        if fault == "hang":
            await _forever()
        return fault

    def _retry_after(self, status: int) -> dict[str, str]:
        if status not in (429, 503):
            return {}
        return {"Retry-After": str(math.ceil(self.retry_after_s)), "Retry-After-Ms": str(self.retry_after_s * 1000)}

    async def _chat(self, body: Message, fault: str, response: _Response) -> bool:
        reply = self.reply(body["messages"]) if callable(self.reply) else self.reply
        answer = _Pieces(body, reply, fault)
        delay_s = max(self.token_delay_s, SLOW_S if fault == "slow" else 0.0)
        if body.get("stream"):
            return await _stream(body, answer, fault, delay_s, response)
        await asyncio.sleep(delay_s * len(answer.tokens))
        if fault == "stall":
            await _forever()
        if fault in _BREAKS:
            return False
        await response.json(200, answer.whole())
        return True


async def _stream(body: Message, answer: _Pieces, fault: str, delay_s: float, response: _Response) -> bool:
    """Stream the answer as far as the fault allows; return False to close the connection in the middle of it."""
    await response.start_stream()
    await response.event(answer.chunk({"role": "assistant", "content": ""}))
    for delta in answer.tokens:
        await asyncio.sleep(delay_s)
        await response.event(answer.chunk(delta))
    match fault:
        case "stall":
            await _forever()
        case "cut":
            return False
        case "malformed":
            await response.event("{this is no JSON")
        case "error":
            await response.event(_RefusedError(500, "The model broke down", "server_error").body())
        case "unfinished":
            pass
        case _:
            await response.event(answer.chunk({}, answer.finish_reason))
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.event({**answer.chunk({}), "choices": [], "usage": answer.usage})
            await response.event("[DONE]")
    await response.end_stream()
    return True


class _RefusedError(Exception):
    """A request is answered with an error status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


class _Response:
    """Writes one HTTP/1.1 response."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def json(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})})
        self._writer.write(data)
        await self._writer.drain()

    async def start_stream(self) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        await self._writer.drain()

    async def event(self, data: object) -> None:
        event = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self._writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} ", *(f"{name}: {value}" for name, value in headers.items())]
        self._writer.write("\r\n".join([*lines, "\r\n"]).encode())


class _Pieces:
    """An answer taken apart as the API streams it. `tokens` are the deltas that carry some of it."""

    def __init__(self, body: Message, answer: Answer, fault: str) -> None:
        self._model = body["model"]
        self._id = "chatcmpl-" + _digest(json.dumps(body["messages"])).hex()
        message = {"content": answer} if isinstance(answer, str) else answer
        deltas = message if isinstance(message, list) else list(_deltas(message))
        self.tokens = [] if fault == "empty" else deltas
        limit = CUT_AFTER if fault in _ENDS_EARLY else body.get("max_completion_tokens") or body.get("max_tokens")
        is_cut = fault in _ENDS_EARLY or (limit and limit < len(self.tokens))
        self.tokens = self.tokens[:limit]
        calls = any("tool_calls" in delta for delta in self.tokens)
        self.finish_reason = "length" if is_cut else "tool_calls" if calls else "stop"
        thoughts = sum("reasoning_content" in delta for delta in self.tokens)
        prompt = sum(len(_words(_text(sent))) for sent in body["messages"])
        self.usage = {
            "prompt_tokens": prompt,
            "completion_tokens": len(self.tokens),
            "total_tokens": prompt + len(self.tokens),
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        }

    def chunk(self, delta: Message, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return {**self._envelope("chat.completion.chunk"), "choices": [choice]}

    def whole(self) -> dict[str, Any]:
        """Return the response that is not streamed."""
        message: Message = {"role": "assistant", "content": None}
        for delta in self.tokens:
            for key in ("reasoning_content", "content"):
                if key in delta:
                    message[key] = (message.get(key) or "") + delta[key]
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if "id" in call:
                    calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": self.usage}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": 0, "model": self._model}


def _deltas(message: Message) -> Iterator[Message]:
    for key in ("reasoning_content", "content"):
        for token in _words(message.get(key) or ""):
            yield {key: token}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]}
        for piece in re.findall(r".{1,8}", call["function"]["arguments"], re.DOTALL):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def default_reply(messages: Sequence[Message]) -> str:
    """Say what the last message was and how many there were."""
    said = [message for message in messages if message["role"] not in ("system", "developer")]
    last = said[-1] if said else {"role": "user", "content": ""}
    source = "The tool says" if last["role"] == "tool" else "You said"
    return f"{source}: {_text(last)} (message {len(said)} of our conversation)"


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or f"[{part['type']}]" for part in content)


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


def _parse_head(head: bytes) -> tuple[Record, str]:
    """Return the request, and the value of its authorization header, which is not recorded."""
    request, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = request.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    authorization = headers.pop("authorization", "")
    return Record(method, target.partition("?")[0], headers), authorization


def _checked(body: Any, required: str) -> Message:
    if not isinstance(body, dict):
        raise _RefusedError(400, "We could not parse the JSON body of your request")
    for name in ("model", required):
        if not body.get(name):
            raise _RefusedError(400, f"Missing required parameter: '{name}'", "missing_required_parameter")
    return body


def _check_chat_body(body: Message) -> None:
    try:
        check_chat(body["messages"])
    except EngineError as error:
        raise _RefusedError(400, str(error)) from error
    if body.get("stream_options") and not body.get("stream"):
        raise _RefusedError(400, "'stream_options' is only allowed when 'stream' is enabled")
    if not _is_between(body.get("temperature"), 0, 2):
        raise _RefusedError(400, "'temperature' must be between 0 and 2")
    for name in ("max_completion_tokens", "max_tokens"):
        if not _is_between(body.get(name), 1, math.inf):
            raise _RefusedError(400, f"'{name}' must be at least 1")


def _is_between(value: object, low: float, high: float) -> bool:
    return value is None or (isinstance(value, int | float) and low <= value <= high)


def _embeddings(body: Message) -> dict[str, Any]:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _RefusedError(400, "'input' must be a text that is not empty, or a list of such")
    size = body.get("dimensions") or EMBEDDING_SIZE
    vectors: list[list[float] | str] = []
    for text in texts:
        vector = embed(text, size)
        packed = struct.pack(f"<{size}f", *vector)
        vectors.append(base64.b64encode(packed).decode() if body.get("encoding_format") == "base64" else vector)
    count = sum(len(_words(text)) for text in texts)
    return {
        "object": "list",
        "model": body["model"],
        "data": [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def embed(text: str, size: int = EMBEDDING_SIZE) -> list[float]:
    """Return a vector of length 1 that depends on the text's words alone, so texts that share words are near."""
    vector = [0.0] * size
    for word in re.findall(r"\w+", text.lower()) or [text]:
        number = int.from_bytes(_digest(word), "big")
        vector[number % size] += 1.0 if number >> 63 else -1.0
    length = math.hypot(*vector) or 1.0
    return [value / length for value in vector]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


async def _forever() -> None:
    await asyncio.Event().wait()


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A stand-in for a model provider on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--token-delay-s", type=float, default=0.02, help="pause before each token")
    parser.add_argument("--api-key", help="refuse requests with another")
    options = parser.parse_args()
    provider = LocalProvider(options.token_delay_s, api_key=options.api_key, port=options.port)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(provider.serve(lambda: print(f"OPENAI_BASE_URL={provider.base_url}", flush=True)))


if __name__ == "__main__":
    main()
