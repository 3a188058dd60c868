"""`AnthropicEngine` on the official client, against a stand-in for Anthropic's API over HTTP."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from engine_calls import SESSION, Recorder, answer, failure, run, turn
from frameworks.anthropic_types import check_request
from quirks import JSON, QuirkServer
from schedules import inline
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import AnthropicEngine
from turnwise.errors import ConfigError, ContextOverflowError, EngineError, RequestRefusedError
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    CacheCheckpoint,
    Image,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing import LocalProvider, tool_script
from turnwise.testing.local_provider.anthropic_messages import sign
from turnwise.testing.local_provider.http_protocol import RefusedError

KEY = "sk-ant-secret-4711"
MARK = {"type": "ephemeral", "ttl": "1h"}
HEARD = "You said: Hello (message 1 of our conversation)"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    """A stand-in; what the test has sent to it must be of the official client's types, which `extra_body` bypasses."""
    with LocalProvider(api_key=KEY) as provider:
        yield provider
    for request in provider.requests:
        check_request(request.body)


def engine_of(provider: LocalProvider, model: str = "claude", **settings: Any) -> AnthropicEngine:
    return AnthropicEngine(model, base_url=provider.anthropic_url, **settings)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_streamed_returned_and_counted(provider: LocalProvider, stream: bool) -> None:
    engine = engine_of(provider, stream=stream, system="Be brief.", max_output_tokens=50, cache=None)
    blocks, context = answer(engine, System(text="Be long."), "Hello")
    assert blocks == [Text(text=HEARD)]
    assert context.text == HEARD and len(context.parts) == (len(HEARD.split()) if stream else 1)
    assert context.usage == Usage(input_tokens=5, output_tokens=len(HEARD.split()), calls=1)
    assert (context.stop_reason, context.model) == ("end_turn", "claude")
    assert provider.requests[0].body == {
        "model": "claude",
        "system": "Be brief.\n\nBe long.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "max_tokens": 50,
        "stream": stream,
    }


def test_thoughts_come_back_signed_and_redacted_as_they_were(provider: LocalProvider) -> None:
    """The stand-in refuses a thought whose signature does not fit."""
    provider.reply = [
        {"reasoning_content": "Hm, "},
        {"reasoning_content": "hm."},
        {"redacted_thinking": "c2VjcmV0"},
        {"content": "Hi."},
    ]
    engine = engine_of(provider, thinking=2048)
    blocks, context = answer(engine)
    thoughts = [Thinking(text="Hm, hm.", signature=sign("Hm, hm.")), Thinking(redacted="c2VjcmV0")]
    assert blocks == [*thoughts, Text(text="Hi.")]
    assert context.parts[:2] == [Thinking(text="Hm, "), Thinking(text="hm.")]
    assert context.usage is not None and context.usage.reasoning_tokens == 2
    answer(engine, "Hello", *blocks, "And?")
    content = provider.requests[1].body["messages"][1]["content"]
    assert content[0] == {"type": "thinking", "thinking": "Hm, hm.", "signature": sign("Hm, hm.")}
    assert content[1] == {"type": "redacted_thinking", "data": "c2VjcmV0"}
    assert provider.requests[1].body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert provider.requests[1].body["max_tokens"] == 2048 + 8192


def test_thoughts_that_the_server_does_not_accept_are_left_out(provider: LocalProvider) -> None:
    forged = Thinking(text="Hm.", signature="Zm9yZ2Vk")
    blocks, _ = answer(engine_of(provider), "Hello", forged, Text(text="Hi"), "And?")
    assert [block.kind for block in blocks] == ["text"] and len(provider.requests) == 2


def test_a_step_after_calls_without_thoughts_is_asked_without_thinking(provider: LocalProvider) -> None:
    """As Anthropic requires: thinking cannot begin in the middle of a turn that another model began."""
    calls = [ToolUse(call_id="c1", name="look", input={}), ToolResult(call_id="c1", text="seen")]
    answer(engine_of(provider, thinking=1024), "Hello", *calls)
    assert "thinking" not in provider.requests[0].body


def test_marks_of_the_cache_and_what_was_read_from_it(provider: LocalProvider) -> None:
    engine = engine_of(provider, cache="1h", system="A long handbook.")
    blocks, context = answer(engine)
    first = provider.requests[0].body
    assert first["system"] == [{"type": "text", "text": "A long handbook.", "cache_control": MARK}]
    assert first["messages"][-1]["content"][-1]["cache_control"] == MARK
    assert context.usage is not None and context.usage.cached_tokens == 0
    _, context = answer(engine, "Hello", *blocks, "And?")
    assert context.usage is not None and 0 < context.usage.cached_tokens < context.usage.input_tokens
    answer(engine_of(provider), "Hello")
    by_default = provider.requests[-1].body["messages"][-1]["content"][-1]["cache_control"]
    assert by_default == {"type": "ephemeral", "ttl": "5m"}
    answer(engine_of(provider, cache=None), "One", CacheCheckpoint(), "Two")
    marked = [part for part in provider.requests[-1].body["messages"][0]["content"] if "cache_control" in part]
    assert marked == [{"type": "text", "text": "One", "cache_control": {"type": "ephemeral"}}]


def test_marks_of_the_callers_own_tools_count_among_the_four(provider: LocalProvider) -> None:
    schema = {"type": "object", "properties": {}}
    for own in range(5):
        tools = [{"name": f"t{number}", "description": "d", "input_schema": schema} for number in range(4)]
        marked = [{**tool, "cache_control": {"type": "ephemeral"}} for tool in tools[:own]]
        engine = engine_of(provider, system="A handbook.", extra={"tools": marked + tools[own:]})
        answer(engine, "One", CacheCheckpoint(), "Two", CacheCheckpoint(), "Three")
        assert json.dumps(provider.requests[-1].body).count("cache_control") == 4
    assert len(provider.requests) == 5


def test_a_gateway_that_refuses_marks_gets_none_from_then_on(provider: LocalProvider) -> None:
    def refuse(messages: Any) -> str:
        if "cache_control" in json.dumps(provider.requests[-1].body):
            raise RefusedError(400, "messages.0.content.0.cache_control: Extra inputs are not permitted")
        return "Hi."

    provider.reply = refuse
    for _ in range(2):
        blocks, _ = answer(engine_of(provider, "behind-a-gateway"), "One", CacheCheckpoint(), "Two")
        assert blocks == [Text(text="Hi.")]
    assert ["cache_control" in json.dumps(request.body) for request in provider.requests] == [True, False, False]


def test_parameters_of_a_run_are_sent_in_anthropics_terms_or_refused(provider: LocalProvider) -> None:
    engine = engine_of(provider, tools=[look])
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    params = {
        "max_output_tokens": 9,
        "stop": "END",
        "reasoning_effort": "low",
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "response_format": form,
        "service_tier": "default",
        "safety_identifier": "u1",
    }
    assert engine.not_taken(None, params) == {}

    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        context.params = params
        await runner.run(turn("Hello"), context)

    run(engine, use, engine.registry.definitions())
    body = provider.requests[0].body
    assert (
        body.items()
        >= {
            "max_tokens": 9,
            "stop_sequences": ["END"],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "service_tier": "standard_only",
            "metadata": {"user_id": "u1"},
        }.items()
    )
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    refused = {"seed": 1, "verbosity": "low", "temperature": 1.5, "metadata": {"a": "b"}, "prompt_cache_key": "k"}
    assert engine.not_taken(None, refused).keys() == refused.keys()
    thinking = engine_of(provider, thinking=1024, tools=[look])
    refused = {"temperature": 0.5, "tool_choice": "required", "max_output_tokens": 1000}
    assert thinking.not_taken(None, refused).keys() == refused.keys()


OLD = {"Anthropic-Version": "2023-06-01"}


def test_sampling_is_for_the_version_of_the_api_that_takes_it(provider: LocalProvider) -> None:
    """Later versions answer it with 400, and the official client asks for one of them."""
    sampling = {"temperature": 0.5, "top_p": 0.5}
    new, old = engine_of(provider), engine_of(provider, temperature=0.5, default_headers=OLD)
    assert new.not_taken(None, sampling).keys() == sampling.keys()
    assert "default_headers={'anthropic-version': '2023-06-01'}" in new.not_taken(None, sampling)["top_p"]
    assert old.not_taken(None, sampling) == {} and "0 to 1" in old.not_taken(None, {"temperature": 1.5})["temperature"]
    blocks, _ = answer(old)
    assert blocks and provider.requests[-1].body["temperature"] == 0.5
    with pytest.raises(EngineError, match="temperature: Extra inputs are not permitted"):
        answer(engine_of(provider, extra={"temperature": 1.0}))
    provider.requests.clear()  # whose types the client does not have


class City(BaseModel):
    """A city."""

    name: str


SCHEMA = {**City.model_json_schema(), "additionalProperties": False}


@pytest.mark.parametrize("refuses", [False, True])
def test_a_typed_answer_is_requested_by_schema_and_else_by_a_tool(refuses: bool) -> None:
    """An older model knows no schemas; with thinking, Anthropic lets no request force a call."""

    def reply(messages: Any) -> Any:
        body = stand_in.requests[-1].body
        if "output_config" in body:
            return json.dumps({"name": "Rome"})
        return tool_script([[(tool["name"], {"name": "Rome"}) for tool in body["tools"]]])(messages)

    with LocalProvider(reply=reply) as stand_in:
        engine = engine_of(stand_in, f"claude-{refuses}", thinking="adaptive" if refuses else None).answering(City)
        if refuses:
            engine._runner()._api.settings.refused.add("strict")  # noqa: SLF001 - as after its refusal
        blocks, context = answer(engine)
    assert blocks == [Text(text='{"name": "Rome"}')]
    output = OutputType.read(engine.output_type)
    assert output is not None and output.errors(context.text) is None
    assert stand_in.requests[0].body.get("tool_choice") is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("400", "Error code: 400 - .*You asked for a 400.*; the provider refuses the request: see its message"),
        ("401", "Error code: 401 - .*; check the variable of api_key_variable=, in the session's process"),
        ("429", "Error code: 429 - .*raise max_retries="),
        ("529", "Error code: 529 - .*it failed after 0 retries: run the prompt again later"),
        ("error", "reported an error within its answer: The model broke down; run the prompt again"),
        ("cut", r"cut the connection within its answer \(.+\): run the prompt again"),
        ("unfinished", "without a stop reason.*run the prompt again"),
        ("malformed", r"sent a malformed stream \(.+\): check base_url="),
        ("empty", "returned nothing .*'end_turn'.*run the prompt again"),
    ],
)
def test_a_failure_says_what_happened_and_what_to_do(provider: LocalProvider, model: str, reason: str) -> None:
    error, context = failure(engine_of(provider, model, max_retries=0))
    assert re.fullmatch(f"model '{model}' at 127.0.0.1 .*{reason}.*", str(error))
    assert len(provider.requests) == 1
    if model in ("cut", "unfinished", "malformed", "error"):
        assert context.text == "You said: Hello "


def test_a_temporary_refusal_is_repeated_and_a_cut_answer_keeps_its_text(provider: LocalProvider) -> None:
    assert answer(engine_of(provider, "529-once"))[0] == [Text(text=HEARD)]
    blocks, context = answer(engine_of(provider, "length"))
    assert blocks == [Text(text="You said: Hello ")] and context.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", ContextOverflowError),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", ContextOverflowError),
        ("messages.0.content.1.image.source.base64: Could not process image", RequestRefusedError),
        ("thinking.enabled.budget_tokens: Input should be less than 9", EngineError),
    ],
)
def test_a_refusal_of_the_conversation_is_told_from_others(message: str, kind: type[Exception]) -> None:
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}}).encode()
    with QuirkServer((400, JSON, body)) as server:
        engine = AnthropicEngine("claude", base_url=server.base_url, thinking=1024, max_retries=0)
        error, _ = failure(engine)
    assert type(error) is kind and message in str(error)


def test_a_cancel_closes_the_connection(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> Sequence[AnyBlock]:
        answering = asyncio.create_task(runner.run(turn("Hello"), context))
        record = await asyncio.to_thread(provider.wait_for_request)
        await context.began.wait()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert await asyncio.to_thread(record.ended.wait, 30) and record.hung_up_at is not None
        return await runner.run(turn("Hello"), context)

    blocks, _ = run(engine_of(provider, "stall-once"), use)
    assert blocks == [Text(text=HEARD)]


def test_the_key_is_read_where_the_session_runs_and_never_pickled(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(provider, api_key_variable="OTHER_KEY")
    assert KEY.encode() not in pickle.dumps(engine) and pickle.loads(pickle.dumps(engine)) == engine
    error, _ = failure(engine)
    assert "Error code: 401" in str(error)
    monkeypatch.setenv("OTHER_KEY", KEY)
    assert answer(engine)[0] == [Text(text=HEARD)]
    monkeypatch.setenv("OTHER_KEY", "wrong-key-0123456789")
    error, _ = failure(engine)
    assert "wrong-key" not in str(error) and "***" in str(error)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(EngineError, match="there are no credentials: set ANTHROPIC_API_KEY where the session runs"):
        AnthropicEngine("claude").build(SESSION)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "no url")
    with pytest.raises(EngineError, match="ANTHROPIC_BASE_URL"):
        AnthropicEngine("claude").build(SESSION)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("thinking", 100),
        ("thinking", "much"),
        ("cache", "2h"),
        ("temperature", 0.5),
        ("max_output_tokens", 1),
        ("extra", {"max_tokens": 5}),
        ("base_url", "ftp://example.org"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {"thinking": 2048} if setting == "max_output_tokens" else {}
    with pytest.raises(ConfigError, match=setting):
        AnthropicEngine("claude", **{**settings, setting: value})


LOOKED: list[str] = []


@tool
def look(at: str = "it") -> ToolResult:
    """Look at a thing."""
    LOOKED.append(at)
    return ToolResult.of(f"saw {at}", Image(data="aGk=", media_type="image/png"))


@tool(approval=True)
def touch() -> str:
    """Touch it."""
    LOOKED.append("touched")
    return "soft"


async def test_a_session_with_an_approval_goes_on_in_another_process(
    provider: LocalProvider,
) -> None:
    """Each request has the thoughts before the calls: the stand-in checks the order and the signatures."""
    LOOKED.clear()
    steps = tool_script([[("look", {"at": "the sea"})], [("touch", {})], "Wet."], reasoning="Let me see.")
    provider.reply = steps
    engine = engine_of(provider, thinking=1024, cache="5m", tools=[look, touch])
    store: Any = InMemoryStore()
    await store.create(SessionRecord(session_id="s1"))

    def process() -> SessionCore:
        return SessionCore(SessionKey("s1"), store, engine, SessionConfig(), off_loop=inline)

    core = process()
    await core.admission.start(["go"], run_id="run")
    while (await core.reads.run("run")).state != "awaiting_approval":
        await asyncio.sleep(0.01)
    await core.engines.close(core.engines.remove_all())
    core = process()
    (call,) = await core.reads.pending("run")
    await core.approvals.decide("run", call.call_id, ApprovalDecision(verdict="approved"))
    outcome = await core.reads.wait("run")
    assert outcome is not None and outcome.turn is not None
    assert outcome.run.state == "completed", outcome.run.why
    kinds = ["thinking", "tool_use", "tool_result"]
    assert [block.kind for block in outcome.turn.output] == [*kinds, *kinds, "thinking", "text"]
    assert LOOKED == ["the sea", "touched"]
    assert outcome.run.usage is not None
    assert outcome.run.usage.calls == 3 and outcome.run.usage.cached_tokens > 0
    content = provider.requests[1].body["messages"][2]["content"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image"]
    await core.engines.close(core.engines.remove_all())
