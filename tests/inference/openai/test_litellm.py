"""LiteLLM's proxy as a real server in between: `make test-litellm` installs it and runs these tests.

turnwise sends requests to it over HTTP, and it sends requests to servers of these tests, as several kinds of provider.
Each stored conversation is checked.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socketserver
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel
from test_strict_servers import converse, engine as engine_of_strict, script

from engine_calls import answer, failure
from frameworks.litellm_proxy import KEY, LiteLLM
from frameworks.strict_servers import STRICT, StrictServer
from quirks import (
    EVENTS,
    HI,
    JSON,
    PARIS,
    QUIRKS,
    ROME,
    STREAM,
    Quirk,
    QuirkServer,
    call,
    chunk,
    events,
    function,
    message,
)
from stored.audit import check_session
from tools.agent_tools import whoami
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import ContextOverflowError, EngineError, RequestRefusedError
from turnwise.memory.conversation.blocks import Block, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import TextDelta
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.transcript import repair
from turnwise.memory.conversation.turns import Outcome
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.strategies.trim import Trim
from turnwise.testing import LocalProvider, tool_script

pytestmark = [pytest.mark.litellm, pytest.mark.timeout(600)]

SESSION = "session"
API = Literal["chat", "responses"]
APIS: Sequence[API] = get_args(API)
BREAKS = ("cut", "unfinished", "malformed", "error")
LIKE_OPENAI = ("openai", "deepseek", "mistral", "hosted_vllm")
"""The providers whose upstream is the local provider."""

TAKEN_FOR = {
    "DeepSeek": "deepseek/local",
    "Kimi": "moonshot/local",
    "Mistral": "mistral/local",
    "Gemini 3": "openai/local",
    "Ollama": "openai/local",
    "Groq": "groq/local",
    "vLLM with the template of Mistral": "hosted_vllm/local",
    "llama.cpp": "llamafile/local",
    "Azure with the API version 2023-05-15": "azure/local",
    "a model of OpenAI's that thinks": "openai/local",
    "gpt-4o by the Responses API": "openai/gpt-4o",
}
"""The provider that LiteLLM is configured with for each strict server."""

DOT = Image(
    data="iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    media_type="image/png",
)
HEALTHY = (200, EVENTS, events(*STREAM, chunk("stop")))


@tool
def look(at: str) -> str:
    """Look at a city."""
    return f"Sun in {at}"


# What stands on both sides of LiteLLM


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def raw() -> Iterator[QuirkServer]:
    """The server behind `groq`, `anthropic` and `gemini`, which sends the given answers to any request."""
    with QuirkServer(HEALTHY) as server:
        yield server


@pytest.fixture(scope="module")
def asked_elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A proxy for LiteLLM's requests to other hosts: its URL, and the requests."""
    requests: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            requests.append(self.rfile.readline().decode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()


@pytest.fixture(scope="module")
def proxy(
    provider: LocalProvider,
    raw: QuirkServer,
    asked_elsewhere: tuple[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiteLLM]:
    upstreams = dict.fromkeys(LIKE_OPENAI, provider.base_url) | {
        "groq": raw.base_url,
        "anthropic": raw.base_url.removesuffix("/v1"),
        "gemini": raw.base_url.removesuffix("/v1"),
    }
    # Answers of models that it does not know, LiteLLM only streams as completions.
    faulty = {
        f"gpt-4o/{fault}": {
            "model": "openai/gpt-4o",
            "api_base": provider.base_url,
            "extra_headers": {"x-fault": fault},
        }
        for fault in ("slow", *BREAKS)
    }
    strict = {
        f"strict/{name}": {"model": model, "api_base": raw.base_url, "api_version": "2023-05-15"}
        for name, model in TAKEN_FOR.items()
    }
    proxy = LiteLLM(tmp_path_factory.mktemp("litellm"), upstreams, {**faulty, **strict}, trap=asked_elsewhere[0])
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.kill(signal.SIGTERM)


@pytest.fixture(autouse=True)
def as_before(provider: LocalProvider, raw: QuirkServer) -> Iterator[None]:
    reply = provider.reply
    provider.requests.clear()
    raw.serve(HEALTHY)
    yield
    provider.reply, provider.token_delay_s = reply, 0.0


def engine(proxy: LiteLLM, model: str, **settings: Any) -> OpenAIEngine:
    options = {"provider": "litellm", "api_key": KEY, "max_retries": 0, **settings}
    return OpenAIEngine(model, base_url=proxy.base_url, **options)


class Chat:
    """A session without Ray."""

    def __init__(self, core: SessionCore, store: InMemoryStore) -> None:
        self.core = core
        self.store = store
        self._runs = 0

    async def start(self, *prompts: str | Image, **settings: Any) -> str:
        self._runs += 1
        await self.core.admission.start(list(prompts), run_id=f"run-{self._runs}", **settings)
        return f"run-{self._runs}"

    async def ask(self, *prompts: str | Image, **settings: Any) -> Outcome:
        return await self.core.reads.wait(await self.start(*prompts, **settings))

    async def say(self, *prompts: str | Image) -> str:
        """Run a prompt that must complete; return its turn."""
        outcome = await self.ask(*prompts)
        assert outcome.turn and outcome.run.state == "completed", outcome.run.why
        return outcome.turn.text

    async def text_of(self, run_id: str) -> str:
        """Wait until the run has emitted text; return it."""
        after = 0
        while True:
            events, after, done = await self.core.reads.events(after, run_id=run_id, timeout_s=30)
            if texts := [event.text for event in events if isinstance(event, TextDelta)]:
                return "".join(texts)
            assert not done


def play(
    engine: OpenAIEngine,
    story: Callable[[Chat], Coroutine[Any, Any, None]],
    config: SessionConfig | None = None,
    **settings: Any,
) -> None:
    """Run a story on a session with this engine; then check the stored records."""

    async def body() -> None:
        store = InMemoryStore()
        await store.create(SessionRecord(session_id=SESSION))
        core = SessionCore(SessionKey(SESSION), store, engine, config, **settings)
        await story(Chat(core, store))
        assert await core.ownership.leave()
        await check_session(store, SESSION, compacts=bool(settings))

    asyncio.run(asyncio.wait_for(body(), 120))


# Answers


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", LIKE_OPENAI)
def test_text_is_streamed_and_counted(upstream: str, api: API, proxy: LiteLLM, provider: LocalProvider) -> None:
    blocks, context = answer(engine(proxy, f"{upstream}/local", api=api), "Hello, who are you?")
    text = "You said: Hello, who are you? (message 1 of our conversation)"
    assert (blocks, context.text) == ([Text(text=text)], text)
    assert len(context.parts) > 5
    assert context.stop_reason == "stop"
    assert context.usage and context.usage.output_tokens

    async def story(chat: Chat) -> None:
        assert "message 1 " in await chat.say("Hello")
        await chat.core.admission.append(["Wait."], "key")
        assert await chat.say("And now?") == "You said: Wait.\n\nAnd now? (message 3 of our conversation)"

    play(engine(proxy, f"{upstream}/local", api=api, system="Be brief."), story)
    assert "Be brief." in json.dumps(provider.requests[-1].body)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", LIKE_OPENAI)
def test_parallel_calls_are_made_and_their_results_go_back(
    upstream: str, api: API, proxy: LiteLLM, provider: LocalProvider
) -> None:
    provider.reply = tool_script([[("look", {"at": "Paris"}), ("look", {"at": "Rome"})], "Both have sun."])

    async def story(chat: Chat) -> None:
        outcome = await chat.ask("Compare Paris and Rome.")
        assert outcome.turn and outcome.turn.text == "Both have sun.", outcome.run.why
        results = [block.text for block in outcome.turn.new_blocks if isinstance(block, ToolResult)]
        assert results == ["Sun in Paris", "Sun in Rome"]
        assert await chat.say("Once more.") == "Both have sun."

    play(engine(proxy, f"{upstream}/local", api=api, tools=[look]), story)
    sent = json.dumps(provider.requests[-1].body)
    assert sent.count("Sun in Paris") == sent.count("Sun in Rome") == 2


def test_calls_without_ids_are_told_apart(proxy: LiteLLM, raw: QuirkServer) -> None:
    pieces = [call(index=index, id="", function=function("look", city)) for index, city in enumerate((PARIS, ROME))]
    calls = (200, EVENTS, events(*pieces, chunk("tool_calls")))

    async def story(chat: Chat) -> None:
        raw.serve(calls, HEALTHY)
        outcome = await chat.ask("Compare Paris and Rome.")
        assert outcome.turn and outcome.turn.text == "Hi there", outcome.run.why
        results = [block.text for block in outcome.turn.new_blocks if isinstance(block, ToolResult)]
        assert sorted(results) == ["Sun in Paris", "Sun in Rome"]
        # In the other API, LiteLLM drops them.
        chat.core.use(engine(proxy, "groq/local", api="responses", tools=[look]), SessionConfig())
        raw.serve(calls)
        assert "returned nothing" in str((await chat.ask("And Oslo?")).run.why)
        raw.serve(HEALTHY)
        assert await chat.say("And now?") == "Hi there"

    play(engine(proxy, "groq/local", tools=[look]), story)


@pytest.mark.parametrize("upstream", LIKE_OPENAI)
def test_a_picture_reaches_the_upstream(upstream: str, proxy: LiteLLM, provider: LocalProvider) -> None:
    async def story(chat: Chat) -> None:
        await chat.say("What is this?", DOT)

    play(engine(proxy, f"{upstream}/local"), story)
    assert DOT.data
    assert (DOT.data in json.dumps(provider.requests[-1].body)) == (upstream != "deepseek")  # which takes texts alone


def anthropic(*contents: dict[str, Any], reason: str = "end_turn") -> tuple[int, str, bytes]:
    """Return a stream of Anthropic's: texts, thoughts and calls."""
    server_events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {}}}
    ]
    for index, content in enumerate(contents):
        start, deltas = dict(content["start"]), content["deltas"]
        server_events.append({"type": "content_block_start", "index": index, "content_block": start})
        server_events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        server_events.append({"type": "content_block_stop", "index": index})
    server_events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
    server_events.append({"type": "message_stop"})
    return (
        200,
        EVENTS,
        b"".join(
            f"event: {server_event['type']}\ndata: {json.dumps(server_event)}\n\n".encode()
            for server_event in server_events
        ),
    )


def anthropic_text(text: str) -> dict[str, Any]:
    return {"start": {"type": "text", "text": ""}, "deltas": [{"type": "text_delta", "text": text}]}


def anthropic_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {
        "start": {"type": "tool_use", "id": call_id, "name": "look", "input": {}},
        "deltas": [{"type": "input_json_delta", "partial_json": arguments}],
    }


THOUGHT = {
    "start": {"type": "thinking", "thinking": "", "signature": ""},
    "deltas": [
        {"type": "thinking_delta", "thinking": "Both, "},
        {"type": "thinking_delta", "thinking": "then."},
        {"type": "signature_delta", "signature": "EuYBCkQYAiJA=="},
    ],
}


def test_thoughts_of_claude_go_back_with_their_signature(proxy: LiteLLM, raw: QuirkServer) -> None:
    raw.serve(
        anthropic(THOUGHT, anthropic_call("toolu_1", PARIS), anthropic_call("toolu_2", ROME), reason="tool_use"),
        anthropic(anthropic_text("Both have sun.")),
    )

    async def story(chat: Chat) -> None:
        outcome = await chat.ask("Compare Paris and Rome.")
        assert outcome.turn and outcome.turn.text == "Both have sun.", outcome.run.why
        assert [block.text for block in outcome.turn.new_blocks if isinstance(block, Thinking)] == ["Both, then."]
        assert await chat.say("Thank you.") == "Both have sun."

    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    play(engine(proxy, "anthropic/claude-sonnet-4-5", tools=[look], max_output_tokens=4000, extra=thinking), story)
    assert raw.heads[0][0] == "/v1/messages"
    for request in raw.requests[1:]:
        thought, *calls = request["messages"][1]["content"]
        assert thought == {"type": "thinking", "thinking": "Both, then.", "signature": "EuYBCkQYAiJA=="}
        assert [call["input"] for call in calls] == [{"at": "Paris"}, {"at": "Rome"}]
        assert [content["content"] for content in request["messages"][2]["content"][:2]] == [
            "Sun in Paris",
            "Sun in Rome",
        ]


def gemini(*parts: dict[str, Any]) -> tuple[int, str, bytes]:
    """Return a stream of Gemini's own API."""
    content = {"role": "model", "parts": list(parts)}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}
    return (
        200,
        EVENTS,
        events(
            {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage},
            done=False,
        ),
    )


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("named", ["litellm", None])
def test_signatures_of_gemini_go_back_with_their_calls(
    named: str | None, api: API, proxy: LiteLLM, raw: QuirkServer
) -> None:
    signature = "AY89a1" * 50  # as long as they are
    raw.serve(
        gemini(
            {"functionCall": {"name": "look", "args": {"at": "Paris"}}, "thoughtSignature": signature},
            {"functionCall": {"name": "look", "args": {"at": "Rome"}}},
        ),
        gemini({"text": "Both have sun."}),
    )

    async def story(chat: Chat) -> None:
        assert await chat.say("Compare Paris and Rome.") == "Both have sun."
        assert await chat.say("Thank you.") == "Both have sun."

    play(engine(proxy, "gemini/gemini-3-pro-preview", tools=[look], api=api, provider=named), story)
    for request in raw.requests[1:]:
        parts = [part for content in request["contents"] for part in content["parts"]]
        first, second = [part for part in parts if "function_call" in part or "functionCall" in part]
        assert (first["thoughtSignature"], second.get("thoughtSignature")) == (signature, None)


# Ends


@pytest.mark.parametrize("api", APIS)
def test_a_cancel_in_the_middle_reaches_the_upstream(api: API, proxy: LiteLLM, provider: LocalProvider) -> None:
    async def story(chat: Chat) -> None:
        run_id = await chat.start("Hello")
        assert await chat.text_of(run_id)
        record = await asyncio.to_thread(provider.wait_for_request)
        assert await chat.core.admission.cancel("enough", run_id)
        outcome = await chat.core.reads.wait(run_id)
        assert outcome.run.state == "cancelled"
        assert await asyncio.to_thread(record.ended.wait, 60)
        assert record.hung_up_at and not record.finished
        assert "message" in await chat.say("And now?")

    provider.reply = lambda messages: "word " * 200 if len(messages) == 1 else "a message"
    play(engine(proxy, "gpt-4o/slow", api=api), story)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_temporary_refusal_is_retried(status: int, api: API, proxy: LiteLLM, provider: LocalProvider) -> None:
    blocks, _ = answer(engine(proxy, f"openai/{api}/{status}-once", api=api, max_retries=1), "Hello")
    assert blocks == [Text(text="You said: Hello (message 1 of our conversation)")]
    assert len(provider.requests) == 2


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", ["openai", "mistral"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("400", RequestRefusedError),
        ("401", EngineError),
        ("404", EngineError),
        ("429", EngineError),
        ("503", EngineError),
    ],
)
def test_an_error_of_the_upstream_is_typed(
    fault: str, kind: type[EngineError], upstream: str, api: API, proxy: LiteLLM
) -> None:
    error, _ = failure(engine(proxy, f"{upstream}/{fault}", api=api), "Hello")
    assert type(error) is kind
    assert f"refused the request: Error code: {fault}" in str(error)
    assert ("does not exist" if fault == "404" else f"You asked for a {fault}") in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(("upstream", "api"), [("gpt-4o", "chat"), ("gpt-4o", "responses"), ("hosted_vllm", "chat")])
@pytest.mark.parametrize("fault", BREAKS)
def test_an_answer_that_breaks_off_keeps_its_text_and_the_session_continues(
    fault: str, upstream: str, api: API, proxy: LiteLLM, provider: LocalProvider
) -> None:
    provider.token_delay_s = 0.05

    async def story(chat: Chat) -> None:
        outcome = await chat.ask("Hello, who are you?")
        state = "completed" if (fault, upstream, api) in HIDDEN else "failed"
        assert outcome.run.state == state, outcome.run.why
        texts = [event.text for event in (await chat.core.reads.events())[0] if isinstance(event, TextDelta)]
        assert outcome.turn and outcome.turn.text == "".join(texts)
        assert texts and "You said: Hello, ".startswith(outcome.turn.text)
        chat.core.use(engine(proxy, "openai/local", api=api), SessionConfig())
        assert "message 3 " in await chat.say("And now?")

    play(engine(proxy, f"{upstream}/{fault}", api=api), story)


HIDDEN = {
    ("unfinished", "gpt-4o", "chat"),
    ("unfinished", "hosted_vllm", "chat"),
    ("malformed", "hosted_vllm", "chat"),
}
"""What LiteLLM hides: it ends a completion that was cut short with the reason `stop`."""

TOO_LONG = {
    "groq": {
        "error": {
            "message": "Please reduce the length of the messages or completion.",
            "code": "context_length_exceeded",
        }
    },
    "anthropic": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
    },
    "gemini": {
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
        }
    },
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", TOO_LONG)
def test_litellms_message_for_a_too_long_conversation_is_recognized(
    upstream: str, api: API, proxy: LiteLLM, raw: QuirkServer
) -> None:
    raw.serve((400, JSON, json.dumps(TOO_LONG[upstream]).encode()))
    error, _ = failure(engine(proxy, f"{upstream}/claude-sonnet-4-5", api=api), "Hello")
    assert isinstance(error, ContextOverflowError), error


def test_the_overflow_strategy_makes_room_for_a_model_behind_litellm(proxy: LiteLLM, raw: QuirkServer) -> None:
    refused = (400, JSON, json.dumps(TOO_LONG["groq"]).encode())

    async def story(chat: Chat) -> None:
        for number in range(4):
            raw.serve(HEALTHY)
            await chat.say(f"Number {number}: " + "word " * 200)
        raw.serve(refused, HEALTHY)
        assert await chat.say("And now?") == "Hi there"
        first, last = (len(json.dumps(request)) for request in raw.requests)
        assert last < first

    play(engine(proxy, "groq/local"), story, SessionConfig(max_context_tokens=100_000), overflow=Trim())


# Parameters


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", LIKE_OPENAI)
def test_parameters_reach_the_upstream(upstream: str, api: API, proxy: LiteLLM, provider: LocalProvider) -> None:
    answer(
        engine(proxy, f"{upstream}/local", api=api, temperature=0.5, max_output_tokens=40, extra={"top_p": 0.9}), "Hi"
    )
    body = provider.requests[-1].body
    limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    assert (body["temperature"], body["top_p"], [limit for limit in limits if limit]) == (0.5, 0.9, [40])


@pytest.mark.parametrize("api", APIS)
def test_a_run_can_choose_model_and_parameters(api: API, proxy: LiteLLM, provider: LocalProvider) -> None:
    async def story(chat: Chat) -> None:
        for model, temperature in (("hosted_vllm/one", 0.1), ("openai/two", 0.2)):
            outcome = await chat.ask("Hello", model=model, params={"temperature": temperature, "max_output_tokens": 40})
            assert outcome.run.state == "completed", outcome.run.why
            body = provider.requests[-1].body
            assert (body["model"], body["temperature"]) == (model.rpartition("/")[2], temperature)

    play(engine(proxy, "openai/local", api=api), story)


class City(BaseModel):
    name: str
    is_sunny: bool


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("upstream", LIKE_OPENAI)
def test_a_run_with_tools_can_have_a_typed_answer(
    upstream: str, api: API, proxy: LiteLLM, provider: LocalProvider
) -> None:
    options = {"output": output_record(City, 1)}
    provider.reply = tool_script([[("look", {"at": "Paris"})], '{"name": "Paris", "is_sunny": true}'])

    async def story(chat: Chat) -> None:
        outcome = await chat.ask("What of Paris?", **options)
        assert outcome.run.state == "completed" and outcome.turn, outcome.run.why
        assert City.model_validate_json(outcome.turn.text) == City(name="Paris", is_sunny=True)
        provider.reply = "It is sunny."
        failed = await chat.ask("And Rome?", **options)
        assert failed.run.state == "failed" and "no JSON object" in str(failed.run.why)
        assert await chat.say("Say it in words.") == "It is sunny."

    play(engine(proxy, f"{upstream}/local", api=api, tools=[look]), story)


def test_an_unsupported_parameter_is_a_typed_error(proxy: LiteLLM) -> None:
    error, _ = failure(engine(proxy, "anthropic/claude-sonnet-4-5", extra={"logit_bias": {"1": 2}}), "Hello")
    assert isinstance(error, EngineError)
    assert "logit_bias" in str(error)


def test_a_wrong_key_is_a_typed_error_without_the_key(proxy: LiteLLM) -> None:
    error, _ = failure(engine(proxy, "openai/local", api_key="sk-wrong-4711-wrong"), "Hello")
    assert "refused the request: Error code: 400 - No connected db." in str(error)  # it looks for keys of users there
    assert "sk-wrong-4711-wrong" not in str(error)


# Every quirk


CHANGED = {
    "content as a list of parts": "another answer",
    "thoughts as a part of the content": "another answer",
    "text only in the last chunk, as a message": "error",
    "a whole completion where a stream was asked for": "error",
    "a whole completion with a call": "error",
    "an error within the stream": "another answer",
    "a finish reason that is an error": "another answer",
}
"""The results of quirks behind LiteLLM that turnwise handles differently without it."""


@pytest.mark.parametrize("quirk", [quirk for quirk in QUIRKS if quirk.api == "chat"], ids=lambda quirk: quirk.name)
def test_a_quirk_behind_litellm_leads_to_an_answer_or_a_typed_error(
    quirk: Quirk, proxy: LiteLLM, raw: QuirkServer
) -> None:
    raw.serve((quirk.status, quirk.content_type, quirk.served), HEALTHY)
    chosen = engine(proxy, "groq/local")
    blocks: Sequence[Block] = []
    try:
        blocks, _ = answer(chosen, "Hello")
        outcome = "answer" if without_signatures(blocks) == without_signatures(quirk.blocks) else "another answer"
    except EngineError as error:
        outcome = "error" if len(str(error)) < 1000 else str(error)
    assert outcome == CHANGED.get(quirk.name, "error" if quirk.error else "answer")
    results = [ToolResult(call_id=use.call_id, text="Sun") for use in blocks if isinstance(use, ToolUse)]
    history = [User(text="Hello"), *repair([*blocks, *results], why="it broke off", interrupted=True)]
    raw.serve(HEALTHY)
    again, _ = answer(chosen, *history, User(text="And now?"))
    assert again == HI


def test_a_server_behind_litellm_that_cannot_stream_is_used_without_streaming(proxy: LiteLLM, raw: QuirkServer) -> None:
    raw.serve((200, JSON, json.dumps(message(content="Hi there")).encode()))
    assert answer(engine(proxy, "strict/Ollama", stream=False), "Hello")[0] == HI


def without_signatures(blocks: Sequence[Block]) -> list[Block]:
    return [
        block.model_copy(update={"signature": None}) if isinstance(block, Thinking | ToolUse) else block
        for block in blocks
    ]


@pytest.mark.parametrize("strict", STRICT, ids=lambda strict: strict.name)
def test_a_strict_server_behind_litellm_accepts_a_whole_conversation(
    strict: StrictServer, proxy: LiteLLM, raw: QuirkServer
) -> None:
    raw.serve(*script(strict), refuse=strict.judge)
    chosen = engine_of_strict(strict, f"strict/{strict.name}", base_url=proxy.base_url, provider="litellm", api_key=KEY)
    asyncio.run(asyncio.wait_for(converse(strict, chosen), 60))
    refused = [words for _, _, words in raw.refused]
    assert len(refused) == len(set(refused))


# The proxy itself


def test_after_a_killed_proxy_the_next_prompt_reaches_the_new_one(proxy: LiteLLM) -> None:
    async def story(chat: Chat) -> None:
        run_id = await chat.start("Hello")
        text = await chat.text_of(run_id)
        proxy.kill()
        outcome = await chat.core.reads.wait(run_id)
        assert outcome.run.state == "failed"
        assert outcome.turn and text in outcome.turn.text
        down = await chat.ask("Are you there?")
        assert down.run.state == "failed" and "cannot be reached" in str(down.run.why)
        await asyncio.to_thread(proxy.start)
        chat.core.use(engine(proxy, "openai/local"), SessionConfig())
        assert await chat.say("And now?") == "You said: Are you there?\n\nAnd now? (message 3 of our conversation)"

    play(engine(proxy, "openai/slow"), story)


def test_a_session_on_ray_uses_litellm(
    proxy: LiteLLM, provider: LocalProvider, make_manager: Callable[..., SessionManager]
) -> None:
    provider.reply = tool_script([[("whoami", {"user_id": "one"}), ("whoami", {"user_id": "two"})], "That is all."])
    manager = make_manager(engine=engine(proxy, "openai/local", tools=[whoami]))
    session = manager.open("chat", user_id="sarah")
    turn = session.run("Who are you?").wait()
    assert turn.text == "That is all."
    results = [block.text for block in turn.new_blocks if isinstance(block, ToolResult)]
    assert results == ["sarah in chat, not one", "sarah in chat, not two"]
    assert session.run("Once more.").wait().text == "That is all."


def test_litellm_connects_to_no_other_host(proxy: LiteLLM, asked_elsewhere: tuple[str, list[str]]) -> None:
    assert asked_elsewhere[1] == []
    assert "Uvicorn running" in proxy.log
