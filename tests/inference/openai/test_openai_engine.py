from __future__ import annotations

import asyncio
import json
import pickle
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine_calls import SESSION, Recorder, answer, engine_of, failure, run, turn
from turnwise.actors.inference.engine import RequestFrame
from turnwise.actors.inference.middleware import LogCalls, SystemPrompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.tool import ToolDefinition, tool
from turnwise.errors import EngineError, InvalidRequestError
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_responses import pack_reasoning, unpack_reasoning
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.testing import LocalProvider, tool_script

KEY = "sk-secret-4711"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


def unsigned(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks without the signatures of thoughts."""
    return [Thinking(text=block.text) if isinstance(block, Thinking) else block for block in blocks]


def calling(*, index: int | None = 0, id: str | None = None, **function: Any) -> dict[str, Any]:
    """Return a delta with a tool call."""
    return {"tool_calls": [{"index": index, "id": id, "function": function}]}


# Answers


def test_an_answer_is_streamed_returned_and_counted(provider: LocalProvider, api: str) -> None:
    blocks, context = answer(engine_of(provider, api=api), "What's the weather in Paris?")
    text = "You said: What's the weather in Paris? (message 1 of our conversation)"
    assert blocks == [Text(text=text)]
    assert context.text == text
    assert len(context.parts) == len(text.split())
    assert context.usage == Usage(input_tokens=5, output_tokens=len(text.split()), calls=1)
    assert context.stop_reason == "stop"
    assert context.model == "local"


def test_the_provider_is_sent_the_conversation_and_the_settings(provider: LocalProvider) -> None:
    engine = engine_of(
        provider, system="Be brief.", temperature=0.5, max_output_tokens=50, extra={"seed": 7, "stop": ["END"]}
    )
    answer(engine, System(text="Be long."), "Hello", Text(text="Hi, th", interrupted=True), "And?")
    (record,) = provider.requests
    assert record.body == {
        "model": "local",
        "messages": [
            {"role": "system", "content": "Be brief.\n\nBe long."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi, th [interrupted]"},
            {"role": "user", "content": "And?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_completion_tokens": 50,
        "seed": 7,
        "stop": ["END"],
    }


def test_the_responses_api_is_sent_the_same_in_its_format(provider: LocalProvider) -> None:
    extra = {"reasoning": {"effort": "low"}, "include": []}
    engine = engine_of(
        provider, api="responses", system="Be brief.", temperature=0.5, max_output_tokens=50, extra=extra
    )
    answer(engine, System(text="Be long."), "Hello", Text(text="Hi, th", interrupted=True), "And?")
    (record,) = provider.requests
    text = {"type": "output_text", "text": "Hi, th [interrupted]"}
    assert record.body == {
        "model": "local",
        "instructions": "Be brief.\n\nBe long.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "message", "role": "assistant", "content": [text]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And?"}]},
        ],
        "stream": True,
        "store": False,
        "temperature": 0.5,
        "max_output_tokens": 50,
        "reasoning": {"effort": "low"},
        "include": [],
    }


def test_omitted_settings_are_not_sent(provider: LocalProvider) -> None:
    answer(engine_of(provider))
    answer(engine_of(provider, api="responses"))
    chat, responses = (record.body for record in provider.requests)
    assert set(chat) == {"model", "messages", "stream", "stream_options"}
    assert set(responses) == {"model", "input", "stream", "store", "include"}
    assert responses["include"] == ["reasoning.encrypted_content"]


def test_tools_are_declared_in_the_format_of_the_api(provider: LocalProvider, api: str) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Zürich"]}},
        "required": ["city"],
    }
    tools = [ToolDefinition("weather", "Looks.", freeze(parameters)), ToolDefinition("now", "", FrozenDict())]
    search: dict[str, Any] = {"type": "function", "function": {"name": "search"}}
    if api == "responses":
        search = {"type": "web_search"}

    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        await runner.run(turn("Hello"), context)

    run(engine_of(provider, api=api, extra={"tools": [search]}), use, tools)
    first = {"name": "weather", "description": "Looks.", "parameters": parameters}
    second = {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}
    declared: list[dict[str, Any]] = [{"type": "function", "function": first}, {"type": "function", "function": second}]
    if api == "responses":
        declared = [{"type": "function", **function, "strict": False} for function in (first, second)]
    assert provider.requests[0].body["tools"] == [*declared, search]


def test_late_thoughts_are_put_before_the_text() -> None:
    """Acceptance 24."""
    late = [{"reasoning": "Rain"}, {"content": "Sun"}, {"reasoning_content": "? No."}, {"content": "."}]
    with LocalProvider(reply=late) as provider:
        blocks, context = answer(engine_of(provider))
    assert blocks == [Thinking(text="Rain? No."), Text(text="Sun.")]
    assert context.parts == [Thinking(text="Rain"), "Sun", Thinking(text="? No."), "."]


def test_thoughts_between_two_messages_are_put_before_both() -> None:
    late = [{"reasoning": "Rain?"}, {"content": "Wait."}, {"reasoning_content": "No."}, {"content": "Sun."}]
    with LocalProvider(reply=late) as provider:
        blocks, context = answer(engine_of(provider, api="responses"))
    assert unsigned(blocks) == [Thinking(text="Rain?"), Thinking(text="No."), Text(text="Wait.\n\nSun.")]
    assert context.parts == [Thinking(text="Rain?"), "Wait.", Thinking(text="No."), "\n\nSun."]


def test_reasoning_tokens_are_counted(api: str) -> None:
    with LocalProvider(reply={"reasoning_content": "Well, well", "content": "Yes"}) as provider:
        blocks, context = answer(engine_of(provider, api=api))
    assert unsigned(blocks) == [Thinking(text="Well, well"), Text(text="Yes")]
    assert context.parts == [Thinking(text="Well, "), Thinking(text="well"), "Yes"]
    assert context.usage == Usage(input_tokens=1, output_tokens=3, reasoning_tokens=2, calls=1)


def test_tool_calls_are_returned_after_the_text(api: str) -> None:
    """Acceptance 24."""
    calls = [
        {"id": "a", "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": [1, 2]}'}},
        {"id": "b", "function": {"name": "now", "arguments": ""}},
    ]
    with LocalProvider(reply={"content": "Let me look.", "tool_calls": calls}) as provider:
        blocks, context = answer(engine_of(provider, api=api))
    assert blocks == [
        Text(text="Let me look."),
        ToolUse(call_id="a", name="weather", input={"city": "Zürich", "days": [1, 2]}),
        ToolUse(call_id="b", name="now"),
    ]
    assert context.stop_reason == "tool_calls"


@pytest.mark.parametrize("indices", [(0, 0), (None, None)])
def test_calls_without_distinct_indexes_are_told_apart_by_id(indices: tuple[int | None, ...]) -> None:
    deltas = [
        calling(index=index, id=call_id, name="look", arguments=f'{{"at": "{call_id}"}}')
        for index, call_id in zip(indices, "ab", strict=True)
    ]
    with LocalProvider(reply=deltas) as provider:
        blocks, _ = answer(engine_of(provider))
    assert blocks == [ToolUse(call_id=call_id, name="look", input={"at": call_id}) for call_id in "ab"]


def test_a_refusal_of_the_model_is_its_answer(api: str) -> None:
    with LocalProvider(reply=[{"refusal": "I will not."}]) as provider:
        assert answer(engine_of(provider, api=api))[0] == [Text(text="I will not.")]


def test_non_ascii_text_arrives_and_half_a_surrogate_pair_is_replaced(api: str) -> None:
    with LocalProvider(reply=[{"content": "Zürich 😀 "}, {"content": "\ud83d!"}]) as provider:
        assert answer(engine_of(provider, api=api))[0] == [Text(text="Zürich 😀 \ufffd!")]


def test_an_answer_at_its_maximum_length_has_the_stop_reason(provider: LocalProvider) -> None:
    blocks, context = answer(engine_of(provider, max_output_tokens=2))
    assert blocks == [Text(text="You said: ")]
    assert context.stop_reason == "length"


def test_an_answer_of_maximum_length_has_the_apis_stop_reason() -> None:
    with LocalProvider(reply="la " * 20) as provider:
        blocks, context = answer(engine_of(provider, api="responses", max_output_tokens=16))
    assert blocks == [Text(text="la " * 16)]
    assert context.stop_reason == "max_output_tokens"


def test_a_call_and_its_result_are_sent_to_the_provider(provider: LocalProvider, api: str) -> None:
    history: list[Block | str] = ["Weather?", ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="sun")]
    blocks, _ = answer(engine_of(provider, api=api), *history)
    assert blocks == [Text(text="The tool says: sun (message 3 of our conversation)")]


def looped(provider: LocalProvider, *blocks: Block | str, **settings: Any) -> tuple[list[Block], list[Usage | None]]:
    """Answer the model's calls with "sun" until it makes none; return all blocks, and the usage of each call."""

    async def use(runner: OpenAIRunner, _: Recorder) -> tuple[list[Block], list[Usage | None]]:
        output: list[Block] = []
        spent: list[Usage | None] = []
        while not output or isinstance(output[-1], ToolResult):
            context = Recorder()
            output += await runner.run(turn(*blocks, *output), context)
            spent.append(context.usage)
            output += [ToolResult(call_id=use.call_id, text="sun") for use in output[-2:] if isinstance(use, ToolUse)]
        return output, spent

    done: tuple[list[Block], list[Usage | None]] = run(engine_of(provider, **settings), use)[0]
    return done


def test_reasoning_is_sent_back_unchanged_after_tool_calls_and_in_later_turns() -> None:
    script = tool_script([[("look", {"at": "Paris"}), ("look", {"at": "Rome"})], "Sun."], reasoning="Let me see.")
    with LocalProvider(reply=script) as provider:
        output, spent = looped(provider, "Weather?", api="responses")
        again, _ = looped(provider, "Weather?", *output, "And now?", api="responses")
    assert [block.kind for block in output] == [
        *("thinking", "tool_use", "tool_use", "tool_result", "tool_result"),
        *("thinking", "text"),
    ]
    assert [block.kind for block in again] == [block.kind for block in output]
    assert [usage and usage.calls for usage in spent] == [1, 1]
    thoughts = [block for block in [*output, *again] if isinstance(block, Thinking)]
    packed = [unpack_reasoning(thought.signature) for thought in thoughts]
    assert len({reasoning.id for reasoning in filter(None, packed)}) == 4
    sent = [item for item in provider.requests[-1].body["input"] if item["type"] == "reasoning"]
    summary = [{"type": "summary_text", "text": "Let me see."}]
    assert sent == [
        {"type": "reasoning", "id": reasoning.id, "encrypted_content": reasoning.encrypted_content, "summary": summary}
        for reasoning in filter(None, packed[:3])
    ]
    assert all(record.finished for record in provider.requests)


def test_reasoning_without_text_is_sent_back() -> None:
    with LocalProvider(reply=tool_script([[("look", {})], "Sun."])) as provider:
        output, _ = looped(provider, "Weather?", api="responses", extra={"reasoning": {"effort": "high"}})
    assert [block.kind for block in output] == ["thinking", "tool_use", "tool_result", "thinking", "text"]
    (sent,) = [item for item in provider.requests[-1].body["input"] if item["type"] == "reasoning"]
    assert sent["summary"] == []


def test_chat_requests_have_no_thoughts_and_responses_requests_only_their_own(
    provider: LocalProvider, api: str
) -> None:
    answer(engine_of(provider, api=api), "Hello", Thinking(text="Secret.", signature="s"), Text(text="Hi"), "And?")
    assert "Secret" not in str(provider.requests[0].body)


def test_reasoning_that_the_provider_refuses_is_left_out(provider: LocalProvider) -> None:
    forged = Thinking(text="Hm.", signature=pack_reasoning("rs_1", "forged"))
    blocks, _ = answer(engine_of(provider, api="responses"), "Hello", forged, Text(text="Hi"), "And?")
    assert [block.kind for block in blocks] == ["text"]
    sent = [[item["type"] for item in record.body["input"]] for record in provider.requests]
    assert sent == [["message", "reasoning", "message", "message"], ["message"] * 3]
    assert all("include" in record.body for record in provider.requests)


def test_reasoning_of_another_model_is_not_sent(provider: LocalProvider) -> None:
    foreign = Thinking(text="Hm.", signature=pack_reasoning("rs_1", "gAAAA", "another-model"))
    answer(engine_of(provider, api="responses"), "Hello", foreign, Text(text="Hi"), "And?")
    assert [item["type"] for item in provider.requests[0].body["input"]] == ["message"] * 3


def test_the_connection_is_reused_between_turns(provider: LocalProvider, api: str) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        for _ in range(3):
            await runner.run(turn("Hello"), context)

    run(engine_of(provider, api=api), use)
    assert len({record.connection for record in provider.requests}) == 1


# Frames


@tool
def weather(city: str, days: int = 1) -> str:
    """Look up the weather."""
    return f"{city}: sun for {days} days"


PROMPTS = [SystemPrompt("Outer."), SystemPrompt("Inner."), SystemPrompt("Kept.", if_present="keep"), LogCalls()]
SEARCH: dict[str, Any] = {"name": "search", "parameters": {"type": "object", "properties": {}}}
ALSO = {"type": "function", **SEARCH, "function": SEARCH}
"""A tool in the form of either API."""


def held(engine: OpenAIEngine, provider: LocalProvider, *blocks: Block | str) -> RequestFrame:
    """Return the fixed part of the engine's next request, as the provider gets it."""

    async def body() -> None:
        runner, context = engine.build(SESSION), Recorder()
        context.begin_call = lambda limit: None  # type: ignore[attr-defined]
        try:
            await runner.run(turn(*blocks), context)  # type: ignore[arg-type]
        finally:
            await runner.close()

    asyncio.run(body())
    sent = provider.requests[-1].body
    limits = [sent[name] for name in ("max_completion_tokens", "max_tokens", "max_output_tokens") if name in sent]
    systems = [message["content"] for message in sent.get("messages", ()) if message["role"] == "system"]
    return RequestFrame(
        model=sent["model"],
        system=systems[0] if systems else sent.get("instructions"),
        tools=tuple(sent.get("tools", ())),
        max_output_tokens=limits[0] if limits else None,
    )


def as_sent(frame: RequestFrame) -> RequestFrame:
    """Return the frame with its tools as plain JSON."""
    return replace(frame, tools=tuple(json.loads(json.dumps(frame.tools))))


@pytest.mark.parametrize(
    "settings",
    [
        {"system": "Be brief."},
        {"system": "Be brief.", "middleware": PROMPTS},
        {"system": "Be brief.", "tools": [weather], "max_output_tokens": 50},
        {"middleware": PROMPTS},
        {"middleware": PROMPTS[::-1], "extra": {"tools": [ALSO]}},
        {"middleware": PROMPTS, "tools": [weather], "extra": {"tools": [ALSO]}},
    ],
    ids=["system", "both", "tools", "middleware", "another", "more tools"],
)
def test_a_frame_describes_the_fixed_part_of_requests(
    provider: LocalProvider, settings: dict[str, Any], api: str
) -> None:
    engine = engine_of(provider, api=api, **settings)
    replaces = "middleware" in settings
    sent = replace(held(engine, provider, *([System(text="Be long.")] * replaces), "Hello"), replaces_system=replaces)
    assert as_sent(engine.frame()) == sent
    assert as_sent(pickle.loads(pickle.dumps(engine)).frame()) == sent
    assert engine.frame().system


def test_a_frame_has_no_system_prompt_if_the_conversations_is_sent(provider: LocalProvider, api: str) -> None:
    keep_prompt = SystemPrompt("Kept.", if_present="keep")
    plain, keeping = engine_of(provider, api=api), engine_of(provider, api=api, middleware=[keep_prompt])
    for engine in (plain, keeping):
        assert held(engine, provider, System(text="Be long."), "Hello").system == "Be long."
        assert engine.frame() == RequestFrame(model="local")
    assert held(keeping, provider, "Hello").system == "Kept."


def test_the_conversations_system_prompt_follows_the_engines(provider: LocalProvider, api: str) -> None:
    for own, sent in (("", "Be long."), ("Be brief.", "Be brief.\n\nBe long.")):
        engine = engine_of(provider, api=api, system=own)
        assert held(engine, provider, System(text="Be short."), "Hello", System(text="Be long.")).system == sent
        assert engine.frame() == RequestFrame(model="local", system=own)
    engine = engine_of(provider, api=api, system="Be brief.", middleware=[SystemPrompt("Be kind.")])
    assert held(engine, provider, System(text="Be long."), "Hello").system == "Be brief.\n\nBe kind."
    assert engine.frame().replaces_system


@pytest.mark.parametrize(
    ("api", "name"), [("chat", "max_completion_tokens"), ("chat", "max_tokens"), ("responses", "max_output_tokens")]
)
def test_a_frame_has_the_output_limit_that_extra_sets(provider: LocalProvider, api: str, name: str) -> None:
    engine = engine_of(provider, api=api, system="Be brief.", extra={name: 20})
    assert engine.frame() == held(engine, provider, "Hello")
    assert engine.frame().max_output_tokens == 20


@pytest.mark.parametrize(
    ("extra", "limit"),
    [
        ({"max_tokens": 20}, 50),
        ({"max_tokens": 70}, 70),
        ({"max_completion_tokens": 70}, 70),
        ({"max_completion_tokens": 20}, 20),
        ({"max_completion_tokens": None}, None),
        ({"max_completion_tokens": None, "max_tokens": -1}, None),
    ],
    ids=str,
)
def test_a_frame_has_the_largest_output_limit(extra: dict[str, Any], limit: int | None) -> None:
    assert OpenAIEngine("local", max_output_tokens=50, extra=extra).frame().max_output_tokens == limit


# Cancelling


@pytest.mark.parametrize("model", ["local/stall", "local/hang", "local/slow"])
def test_a_cancel_closes_the_connection_before_the_answer_ends(provider: LocalProvider, model: str, api: str) -> None:
    """Acceptance 20: earlier text was emitted. `make bench ARGS=hang-ups` measures how soon the provider notices."""

    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        answering = asyncio.create_task(runner.run(turn("Hello"), context))
        record = await asyncio.to_thread(provider.wait_for_request)
        if model != "local/hang":
            await context.began.wait()
        assert record.hung_up_at is None
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert await asyncio.to_thread(record.ended.wait, 30)
        assert record.hung_up_at is not None

    _, context = run(engine_of(provider, model, api=api), use)
    assert context.text in ("" if model == "local/hang" else "You said: Hello (message 1 of our conversation)")
    assert not provider.requests[0].finished


def test_a_runner_answers_after_a_cancel(provider: LocalProvider, api: str) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> Sequence[AnyBlock]:
        answering = asyncio.create_task(runner.run(turn("Hello"), context))
        await asyncio.to_thread(provider.wait_for_request)
        answering.cancel()
        await asyncio.wait({answering})
        return await runner.run(turn("Hello"), context)

    blocks, _ = run(engine_of(provider, "hang-once", api=api), use)
    assert [block.kind for block in blocks] == ["text"]


def test_an_unreadable_answer_closes_the_connection(api: str) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        with pytest.raises(EngineError, match="malformed stream"):
            await runner.run(turn("Hello"), context)
        assert await asyncio.to_thread(stand_in.requests[0].ended.wait, 5)
        assert stand_in.requests[0].hung_up_at is not None

    with LocalProvider(reply=[{"content": 5}]) as stand_in:
        run(engine_of(stand_in, "stall", api=api), use)


# Failing


def test_a_malformed_reply_fails_its_turn_only(provider: LocalProvider, api: str) -> None:
    """Acceptance 23."""

    async def use(runner: OpenAIRunner, context: Recorder) -> Sequence[AnyBlock]:
        with pytest.raises(EngineError, match="malformed stream"):
            await runner.run(turn("Hello"), context)
        return await runner.run(turn("Hello"), context)

    blocks, _ = run(engine_of(provider, "malformed-once", api=api), use)
    assert blocks == [Text(text="You said: Hello (message 1 of our conversation)")]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("400", "Error code: 400 - You asked for a 400; the provider refuses the request: see its message"),
        ("401", "Error code: 401 - You asked for a 401; check api_key= or OPENAI_API_KEY"),
        ("403", "Error code: 403 - .*use another key or model="),
        ("404", "Error code: 404 - The model `404` does not exist; check model= and base_url="),
        ("429", "Error code: 429 - .*raise max_retries="),
        ("500", "Error code: 500 - .*it failed after 0 retries: run the prompt again later"),
        ("error", "reported an error within its answer: The model broke down; run the prompt again"),
        ("cut", r"cut the connection within its answer \(.+\): run the prompt again"),
        ("unfinished", "without a stop reason.*run the prompt again"),
        ("malformed", r"sent a malformed stream \(.+\): check base_url="),
        ("empty", "returned nothing .*'stop'.*run the prompt again"),
    ],
)
def test_a_failure_of_the_provider_says_what_happened_and_what_to_do(
    provider: LocalProvider, model: str, reason: str, api: str
) -> None:
    error, _ = failure(engine_of(provider, model, api=api, max_retries=0))
    assert re.fullmatch(f"model '{model}' at 127.0.0.1 .*{reason}.*", str(error))
    assert len(provider.requests) == 1


@pytest.mark.parametrize("model", ["cut", "unfinished", "malformed", "error"])
def test_an_answer_that_breaks_off_keeps_emitted_text_and_the_clients_error(
    provider: LocalProvider, model: str, api: str
) -> None:
    """Acceptance 20."""
    error, context = failure(engine_of(provider, model, api=api))
    assert context.text == "You said: Hello "
    assert context.stop_reason is None
    assert context.usage is not None and context.usage.calls == 1
    assert (error.__cause__ is None) is (model == "unfinished")


def test_an_unreachable_server_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error, _ = failure(OpenAIEngine("local", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0))
    assert re.search(r"at 127.0.0.1 cannot be reached \(.+\), after 0 retries: check base_url=", str(error))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("hang", "sent nothing within timeout_s=0.5, retries included"),
        ("stall", "sent nothing for timeout_s=0.5 within"),
    ],
)
def test_silence_is_an_error_after_the_timeout(provider: LocalProvider, model: str, reason: str, api: str) -> None:
    begins: dict[str, Any] = {"first_byte_s": 30.0} if model == "stall" else {}
    error, _ = failure(engine_of(provider, model, api=api, timeout_s=0.5, max_retries=0, **begins))
    assert re.search(reason, str(error))
    (record,) = provider.requests
    assert record.ended.wait(30)
    assert record.hung_up_at is not None


def test_a_temporarily_refused_request_is_retried(provider: LocalProvider, api: str) -> None:
    blocks, _ = answer(engine_of(provider, "429-once", api=api))
    assert [block.kind for block in blocks] == ["text"]
    assert len(provider.requests) == 2


def test_retries_have_a_limit(provider: LocalProvider, api: str) -> None:
    failure(engine_of(provider, "429", api=api, max_retries=3))
    assert len(provider.requests) == 4


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        ([calling(id="a", arguments="{}")], "has no name"),
        ([calling(id="a", name="look", arguments=5)], "malformed stream .(arguments|delta) is not a string"),
        ([{"content": 5}], "malformed stream .(content|delta) is not a string"),
        ([{"reasoning_content": "Hm."}], "returned nothing"),
    ],
    ids=str,
)
def test_an_invalid_answer_is_an_error(deltas: list[Any], reason: str, api: str) -> None:
    """Acceptance 10, 23."""
    with LocalProvider(reply=deltas) as provider:
        error, _ = failure(engine_of(provider, api=api))
    assert re.search(reason, str(error))


def test_tool_calls_that_are_not_a_list_are_an_error() -> None:
    with LocalProvider(reply=[{"tool_calls": {"id": "a"}}]) as provider:
        error, _ = failure(engine_of(provider))
    assert re.search("malformed stream .tool_calls is not a list", str(error))


@pytest.mark.parametrize("text", ['{"at": "P', '{"at": NaN}', "[1]", "Paris", '{"at": "\\ud800"}'])
def test_arguments_that_are_no_json_object_are_refused_and_retried(text: str, api: str) -> None:
    with LocalProvider(reply=tool_script([[("look", text)], "Sun."])) as provider:
        output, _ = looped(provider, "Weather?", api=api)
    assert isinstance(use := output[0], ToolUse)
    assert use.input == {"unparsed": text}
    assert output[-1] == Text(text="Sun.")


@pytest.mark.parametrize("text", ["", '{"at": "Paris, France"}'])
def test_a_call_that_is_cut_off_has_a_flaw_that_says_so(text: str, api: str) -> None:
    calls = [{"id": call_id, "function": {"name": "look", "arguments": text}} for call_id in "abc"]
    with LocalProvider(reply={"content": "Well:", "tool_calls": calls}) as provider:
        blocks, context = answer(engine_of(provider, "length", api=api))
    assert context.text == "Well:"
    last = blocks[-1]
    assert isinstance(last, ToolUse) and last.flaw and "maximum length" in last.flaw
    assert last.input["unparsed"] in text


def test_thoughts_that_are_cut_off_are_an_error(api: str) -> None:
    with LocalProvider(reply={"reasoning_content": "la " * 20, "content": "Yes"}) as provider:
        error, context = failure(engine_of(provider, api=api, max_output_tokens=16))
    assert re.search("returned nothing .*: raise max_output_tokens=", str(error))
    assert context.usage == Usage(input_tokens=1, output_tokens=16, reasoning_tokens=16, calls=1)


def test_an_invalid_conversation_is_not_sent(provider: LocalProvider, api: str) -> None:
    error, context = failure(engine_of(provider, api=api), "Hello", ToolUse(call_id="a", name="look"))
    assert isinstance(error, InvalidRequestError)
    assert "call 'a' has no result" in str(error)
    assert provider.requests == []
    assert context.usage is None
