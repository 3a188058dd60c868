"""What real servers send where they differ from OpenAI, as data; and a server that sends it, byte for byte.

Each quirk names the server that does so and its source. `served` are the bytes of the body; what must come out is an
answer (its blocks), or an error that says what it says.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

from turnwise.memory.conversation.blocks import Block, Text, Thinking, ToolUse
from turnwise.memory.providers.endpoints import pack_attached

Reply = tuple[int, str, bytes]
"""Status, content type and body."""

EVENTS = "text/event-stream"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One thing that a server does. What comes out is `blocks`, or an error that `error` (a regular expression) finds.

    `provider` is the profile that the engine has, `streamed` what of the answer's text was streamed before an error.
    """

    name: str
    server: str
    source: str
    served: bytes
    api: Literal["chat", "responses"] = "chat"
    status: int = 200
    content_type: str = EVENTS
    provider: str | None = None
    blocks: Sequence[Block] = ()
    error: str | None = None
    streamed: str = ""


def events(*objects: Any, done: bool = True) -> bytes:
    """Return a stream of events: objects as JSON, texts as they are."""
    lines = [f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in objects]
    return "".join([*lines, *["data: [DONE]\n\n"] * done]).encode()


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    """Return a chunk of a completion."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(**fields: Any) -> dict[str, Any]:
    """Return a chunk with a piece of a call."""
    return chunk(tool_calls=[fields])


def function(name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    """Return the function of a piece of a call."""
    return {"name": name, "arguments": arguments}


def message(finish: str | None = "stop", /, **fields: Any) -> dict[str, Any]:
    """Return a completion that is not streamed."""
    fields = {"role": "assistant", **fields}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": fields, "finish_reason": finish}]}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    """Return an event of the Responses API."""
    return {"type": kind, **fields}


def called(item_id: str, call_id: str, arguments: str = "") -> dict[str, Any]:
    """Return a call as an item of the Responses API."""
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": "look", "arguments": arguments}


def use(call_id: str, signature: str | None = None, **arguments: Any) -> ToolUse:
    """Return a call of the tool `look`."""
    return ToolUse(call_id=call_id, name="look", input=arguments, signature=signature)


def spoken(text: str) -> dict[str, Any]:
    """Return a message as an item of the Responses API."""
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def completed(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the last event of a response."""
    response = {"id": "resp_1", "created_at": 0, "object": "response", "status": "completed", "output": output}
    return item("response.completed", response={**response, **fields})


HI = [Text(text="Hi there")]
STREAM = (chunk(content="Hi "), chunk(content="there"))
PARIS, ROME = '{"at": "Paris"}', '{"at": "Rome"}'
GOOGLE = {"google": {"thought_signature": "AY89a1=="}}

OLLAMA = "https://github.com/ollama/ollama/issues/7881"
VLLM = "https://docs.vllm.ai/en/latest/features/tool_calling.html"
MISTRAL = "https://docs.mistral.ai/capabilities/reasoning"
GEMINI = "https://ai.google.dev/gemini-api/docs/openai"
OPENROUTER = "https://openrouter.ai/docs/api/reference/errors-and-debugging"
LITELLM = "https://docs.litellm.ai/docs/exception_mapping"
OPENAI = "https://platform.openai.com/docs/api-reference/responses-streaming"
PROXY = "https://developer.mozilla.org/docs/Web/HTTP/Reference/Status"
SSE = "https://html.spec.whatwg.org/multipage/server-sent-events.html"

MALFORMED: Sequence[Any] = ("12", [], {"prompt_tokens": "12"}, {"prompt_tokens": -1, "completion_tokens": None}, 5)
"""Usage that cannot be read."""

QUIRKS = [
    # Calls
    Quirk(
        name="a call without an id",
        server="Ollama",
        source=OLLAMA,
        served=events(call(index=0, function=function("look", PARIS)), chunk("tool_calls")),
        blocks=[use("call_1", at="Paris")],
    ),
    Quirk(
        name="calls with empty ids",
        server="vLLM",
        source=VLLM,
        served=events(
            call(index=0, id="", function=function("look", PARIS)),
            call(index=1, id="", function=function("look", ROME)),
            chunk("tool_calls"),
        ),
        blocks=[use("call_1", at="Paris"), use("call_2", at="Rome")],
    ),
    Quirk(
        name="whole calls that are all numbered 0 and have no ids",
        server="Ollama",
        source=OLLAMA,
        served=events(
            call(index=0, function=function("look", PARIS)),
            call(index=0, function=function("look", ROME)),
            chunk("stop"),
        ),
        blocks=[use("call_1", at="Paris"), use("call_2", at="Rome")],
    ),
    Quirk(
        name="calls without an index, in pieces, of which a name begins the next",
        server="llama.cpp",
        source="https://github.com/ggml-org/llama.cpp/pull/9639",
        served=events(
            call(function=function("look", '{"at": ')),
            call(function=function(None, '"Paris"}')),
            call(function=function("look", '{"at": ')),
            call(function=function(None, '"Rome"}')),
            chunk("tool_calls"),
        ),
        blocks=[use("call_1", at="Paris"), use("call_2", at="Rome")],
    ),
    Quirk(
        name="whole calls without an index that have ids",
        server="Gemini",
        source="https://github.com/springfall2008/batpred/issues/4904",
        served=events(
            call(id="a", function=function("look", PARIS)), call(id="b", function=function("look", ROME)), chunk("stop")
        ),
        blocks=[use("a", at="Paris"), use("b", at="Rome")],
    ),
    Quirk(
        name="a name that is said again with each piece",
        server="vLLM",
        source=VLLM,
        served=events(
            call(index=0, id="a", function=function("look", '{"at": ')),
            call(index=0, id="a", function=function("look", '"Paris"}')),
            chunk("tool_calls"),
        ),
        blocks=[use("a", at="Paris")],
    ),
    *(
        Quirk(
            name=f"arguments {arguments!r}",
            server="Ollama",
            source=OLLAMA,
            served=events(call(index=0, id="a", function=function("look", arguments)), chunk("tool_calls")),
            blocks=[use("a", **parsed)],
        )
        for arguments, parsed in (({"at": "Paris"}, {"at": "Paris"}), ("null", {}), ("", {}), (None, {}), ({}, {}))
    ),
    Quirk(
        name="what Gemini attaches to a call",
        server="Gemini",
        source=GEMINI,
        provider="gemini",
        served=events(
            call(index=0, id="a", extra_content=GOOGLE, function=function("look", PARIS)), chunk("tool_calls")
        ),
        blocks=[use("a", pack_attached("gemini", extra_content=GOOGLE), at="Paris")],
    ),
    Quirk(
        name="a call that ends with `stop`",
        server="Ollama",
        source=OLLAMA,
        served=events(call(index=0, id="a", function=function("look", PARIS)), chunk("stop")),
        blocks=[use("a", at="Paris")],
    ),
    # Texts and thoughts
    Quirk(
        name="content as a list of parts",
        server="Mistral",
        source=MISTRAL,
        served=events(chunk(content=[{"type": "text", "text": "Hi "}]), chunk("stop", content="there")),
        blocks=HI,
    ),
    Quirk(
        name="thoughts as a part of the content",
        server="Mistral",
        source=MISTRAL,
        served=events(
            chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]),
            chunk("stop", content="Hi there"),
        ),
        blocks=[Thinking(text="Hm."), *HI],
    ),
    Quirk(
        name="details of reasoning, in pieces",
        server="OpenRouter",
        source="https://openrouter.ai/docs/guides/best-practices/reasoning-tokens",
        provider="openrouter",
        served=events(
            chunk(reasoning="H", reasoning_details=[{"type": "reasoning.text", "text": "H", "index": 0}]),
            chunk(reasoning="m.", reasoning_details=[{"type": "reasoning.text", "text": "m.", "index": 0}]),
            chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "gAAAA", "index": 1}]),
            chunk("stop", content="Hi there"),
        ),
        blocks=[
            Thinking(
                text="Hm.",
                signature=pack_attached(
                    "openrouter",
                    reasoning_details=[
                        {"type": "reasoning.text", "text": "Hm.", "index": 0},
                        {"type": "reasoning.encrypted", "data": "gAAAA", "index": 1},
                    ],
                ),
            ),
            *HI,
        ],
    ),
    Quirk(
        name="thoughts as Claude has signed them, in pieces",
        server="LiteLLM",
        source="https://github.com/BerriAI/litellm/issues/15601",
        provider="litellm",
        served=events(
            chunk(reasoning_content="H", thinking_blocks=[{"type": "thinking", "thinking": "H"}]),
            chunk(reasoning_content="m.", thinking_blocks=[{"type": "thinking", "thinking": "m.", "signature": None}]),
            chunk(reasoning_content="", thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "EuYB=="}]),
            chunk(thinking_blocks=[{"type": "redacted_thinking", "data": "Ev4C=="}]),
            chunk(thinking_blocks=[{"type": "thinking", "thinking": "So.", "signature": "EsYB=="}]),
            chunk("stop", content="Hi there"),
        ),
        blocks=[
            Thinking(
                text="Hm.",
                signature=pack_attached(
                    "litellm",
                    thinking_blocks=[
                        {"type": "thinking", "thinking": "Hm.", "signature": "EuYB=="},
                        {"type": "redacted_thinking", "data": "Ev4C=="},
                        {"type": "thinking", "thinking": "So.", "signature": "EsYB=="},
                    ],
                ),
            ),
            *HI,
        ],
    ),
    Quirk(
        name="text only in the last chunk, as a message",
        server="FastChat",
        source="https://github.com/lm-sys/FastChat/blob/main/docs/openai_api.md",
        served=events(chunk(role="assistant"), message(content="Hi there")),
        blocks=HI,
    ),
    Quirk(
        name="the whole text once more in the last chunk",
        server="FastChat",
        source="https://github.com/lm-sys/FastChat/blob/main/docs/openai_api.md",
        served=events(*STREAM, message(content="Hi there")),
        blocks=HI,
    ),
    Quirk(
        name="a whole completion where a stream was asked for",
        server="a gateway without streams",
        source=LITELLM,
        content_type=JSON,
        served=json.dumps(message(content="Hi there"), indent=2).encode(),
        blocks=HI,
    ),
    Quirk(
        name="a whole completion with a call",
        server="a gateway without streams",
        source=LITELLM,
        content_type=JSON,
        served=json.dumps(
            message("tool_calls", content=None, tool_calls=[{"id": "a", "function": function("look", PARIS)}])
        ).encode(),
        blocks=[use("a", at="Paris")],
    ),
    Quirk(
        name="a stream that is called JSON",
        server="a misconfigured gateway",
        source=PROXY,
        content_type=JSON,
        served=events(*STREAM, chunk("stop")),
        blocks=HI,
    ),
    Quirk(
        name="no reason to finish, but [DONE] behind the text",
        server="older vLLM",
        source=VLLM,
        served=events(*STREAM),
        blocks=HI,
    ),
    Quirk(
        name="no blank line behind the last event",
        server="a hand-written server",
        source=SSE,
        served=events(*STREAM, chunk("stop"), done=False).rstrip(),
        blocks=HI,
    ),
    Quirk(
        name="blank data, pings, comments and carriage returns",
        server="proxies that keep connections open",
        source=SSE,
        served=b": keep-alive\r\n\r\ndata:\r\n\r\nevent: ping\r\ndata: {}\r\n\r\nevent: ping\r\ndata: now\r\n\r\n"
        + events(*STREAM, chunk("stop")).replace(b"\n", b"\r\n"),
        blocks=HI,
    ),
    Quirk(
        name="a second choice",
        server="servers that ignore `n`",
        source=LITELLM,
        served=events(STREAM[0], {"choices": [{"index": 1, "delta": {"content": "Ho "}}]}, STREAM[1], chunk("stop")),
        blocks=HI,
    ),
    *(
        Quirk(
            name=f"usage {usage!r}",
            server="a hand-written server",
            source=LITELLM,
            served=events(*STREAM, {**chunk("stop"), "usage": usage}),
            blocks=HI,
        )
        for usage in MALFORMED
    ),
    Quirk(
        name="no delta, and no choices",
        server="Azure's content filter",
        source="https://learn.microsoft.com/azure/ai-services/openai/concepts/content-streaming",
        served=events(
            {"choices": [], "prompt_filter_results": []},
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]},
            *STREAM,
            chunk("stop"),
        ),
        blocks=HI,
    ),
    # Failures with status 200
    Quirk(
        name="an error object in place of a stream",
        server="LiteLLM",
        source=LITELLM,
        content_type=JSON,
        served=b'{"error": {"message": "no healthy deployment", "code": "429"}}',
        error="reported an error within its answer: no healthy deployment",
    ),
    Quirk(
        name="an error object in a list",
        server="Gemini",
        source=GEMINI,
        content_type=JSON,
        served=b'[{"error": {"code": 400, "message": "thought_signature is missing", "status": "INVALID_ARGUMENT"}}]',
        error="reported an error within its answer: thought_signature is missing",
    ),
    Quirk(
        name="an error whose message is an object",
        server="Mistral",
        source="https://docs.mistral.ai/api",
        content_type=JSON,
        served=b'{"object": "error", "message": {"detail": [{"loc": ["body", "n"], "msg": "Extra inputs"}]}}',
        error="reported an error within its answer: .*Extra inputs",
    ),
    Quirk(
        name="an error that is a text",
        server="Ollama",
        source="https://docs.ollama.com/api/errors",
        served=events(*STREAM, {"error": "an error was encountered while running the model"}),
        error="reported an error within its answer: an error was encountered while running the model",
        streamed="Hi there",
    ),
    Quirk(
        name="an error within the stream",
        server="vLLM",
        source=VLLM,
        served=events(*STREAM, {"object": "error", "message": "CUDA out of memory", "code": 500}),
        error="reported an error within its answer: CUDA out of memory",
        streamed="Hi there",
    ),
    Quirk(
        name="a finish reason that is an error",
        server="OpenRouter",
        source=OPENROUTER,
        served=events(*STREAM, {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}),
        error="reported an error within its answer: without a reason",
        streamed="Hi there",
    ),
    Quirk(
        name="a choice with an error",
        server="OpenRouter",
        source=OPENROUTER,
        served=events({"choices": [{"error": {"code": 502, "message": "Provider disconnected"}, "delta": {}}]}),
        error="reported an error within its answer: Provider disconnected",
    ),
    Quirk(
        name="a page of HTML",
        server="a proxy's log-in page",
        source=PROXY,
        content_type="text/html",
        served=b"<!doctype html>\n<html><title>Sign in</title></html>",
        error="malformed stream .text/html instead of an answer, beginning with '<!doctype html>",
    ),
    Quirk(
        name="nothing at all",
        server="a proxy that gave up",
        source=PROXY,
        served=b"",
        error="without a stop reason",
    ),
    Quirk(
        name="an event that is no object",
        server="a hand-written server",
        source=SSE,
        served=events("[1, 2]"),
        error="an event is not an object but list",
    ),
    # Failures with a status of their own
    Quirk(
        name="a refusal whose message is an object",
        server="Mistral",
        source="https://docs.mistral.ai/api",
        status=422,
        content_type=JSON,
        served=b'{"object": "error", "message": {"detail": [{"msg": "Extra inputs", "loc": ["body", "seed"]}]}}',
        error="Extra inputs",
    ),
    Quirk(
        name="a refusal in HTML",
        server="nginx",
        source=PROXY,
        status=502,
        content_type="text/html",
        served=b"<html><h1>502 Bad Gateway</h1></html>",
        error="502 Bad Gateway",
    ),
    # The other API
    Quirk(
        name="two calls with the same place in the output",
        server="LiteLLM",
        source=LITELLM,
        api="responses",
        served=events(
            item("response.output_item.added", output_index=0, item=called("fc_1", "a")),
            item("response.output_item.added", output_index=0, item=called("fc_2", "b")),
            item("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta=PARIS),
            item("response.function_call_arguments.delta", output_index=0, item_id="fc_2", delta=ROME),
            completed(),
        ),
        blocks=[use("a", at="Paris"), use("b", at="Rome")],
    ),
    Quirk(
        name="calls that are whole in the last event only",
        server="a gateway",
        source=OPENAI,
        api="responses",
        served=events(completed(called("fc_1", "a", PARIS), called("fc_2", "b", ROME))),
        blocks=[use("a", at="Paris"), use("b", at="Rome")],
    ),
    Quirk(
        name="text in the last event only",
        server="a gateway",
        source=OPENAI,
        api="responses",
        served=events(completed(spoken("Hi there"))),
        blocks=HI,
    ),
    Quirk(
        name="text in pieces and in the last event",
        server="OpenAI",
        source=OPENAI,
        api="responses",
        served=events(
            item("response.output_text.delta", item_id="msg_1", output_index=0, delta="Hi there"),
            completed(spoken("Hi there")),
        ),
        blocks=HI,
    ),
    Quirk(
        name="events without the ids of items",
        server="vLLM",
        source=VLLM,
        api="responses",
        served=events(
            item("response.output_item.added", output_index=0, item={**called("", "a"), "id": None}),
            item("response.function_call_arguments.delta", output_index=0, delta=PARIS),
            completed(),
        ),
        blocks=[use("a", at="Paris")],
    ),
    Quirk(
        name="a whole response where a stream was asked for",
        server="a gateway without streams",
        source=OPENAI,
        api="responses",
        content_type=JSON,
        served=json.dumps(completed(spoken("Hi there"))["response"]).encode(),
        blocks=HI,
    ),
    Quirk(
        name="a response whose usage is a text",
        server="a hand-written server",
        source=OPENAI,
        api="responses",
        served=events(completed(spoken("Hi there"), usage="none")),
        blocks=HI,
    ),
    Quirk(
        name="an error event",
        server="OpenAI",
        source=OPENAI,
        api="responses",
        served=events(item("error", message="Too much at once", code="rate_limit_exceeded")),
        error="reported an error within its answer: Too much at once",
    ),
    Quirk(
        name="a response that was cancelled elsewhere",
        server="OpenAI",
        source=OPENAI,
        api="responses",
        content_type=JSON,
        served=b'{"object": "response", "status": "cancelled", "output": []}',
        error="reported an error within its answer: the response is cancelled",
    ),
]


class QuirkServer:
    """A server of raw sockets that answers each request with the given answers, and keeps the requests.

    Args:
        answers: status, content type and body, one a request, or what returns them and may wait first; the last is
            repeated.
        refuse: returns how a request is refused, which then takes no answer; None if it is not.
    """

    def __init__(
        self,
        *answers: Reply | Callable[[], Reply],
        refuse: Callable[[dict[str, Any]], Reply | None] | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refused: list[Reply] = []
        self.answers = answers
        self.refuse = refuse
        self.heads: list[tuple[str, dict[str, str]]] = []
        """Of each request, its target and its headers."""
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                target = self.rfile.readline().split()[1].decode()
                headers = {}
                while line := self.rfile.readline().strip().decode():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                server.heads.append((target, headers))
                server.requests.append(json.loads(self.rfile.read(int(headers["content-length"]))))
                if refused := server.refuse and server.refuse(server.requests[-1]):
                    server.refused.append(refused)
                answered_count = len(server.requests) - len(server.refused)
                answer = refused or server.answers[min(answered_count, len(server.answers)) - 1]
                status, content_type, body = answer() if callable(answer) else answer
                head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n"
                with suppress(OSError):  # the client has left
                    self.wfile.write(head.encode() + body)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def serve(
        self,
        *answers: Reply | Callable[[], Reply],
        refuse: Callable[[dict[str, Any]], Reply | None] | None = None,
    ) -> None:
        """Give these answers from now on, and forget the requests."""
        self.answers, self.refuse = answers, refuse
        self.requests, self.refused, self.heads = [], [], []

    @property
    def base_url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
