from __future__ import annotations

import asyncio
import logging
import pickle
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

import openai
import pytest

from local_provider import LocalProvider
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.actors.inference.openai import OpenAIEngine, OpenAIRunner
from turnwise.errors import ConfigError, EngineError
from turnwise.memory.blocks import Block, System, Text, Thinking, ToolResult, ToolUse, User, encode
from turnwise.memory.spans import Span
from turnwise.memory.turns import Turn, TurnRecord, turn_of
from turnwise.memory.usage import Usage

KEY = "sk-secret-4711"
SESSION = SessionView(session_id="chat-1", user_id="sarah", agent=None, metadata={})


class Recorder:
    """A run's context that keeps what its engine tells it."""

    session = SESSION
    run_id = "run-1"
    labels: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.parts: list[str | Block] = []
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.began = asyncio.Event()

    def emit(self, part: str | Block) -> None:
        self.parts.append(part)
        self.began.set()

    def report(self, *, usage: Usage | None = None, stop_reason: str | None = None) -> None:
        self.usage, self.stop_reason = usage, stop_reason

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


def turn(*blocks: Block | str) -> Turn:
    encoded = [encode(User(text=block) if isinstance(block, str) else block) for block in blocks]
    spans = (Span("chat-1", 0, len(encoded)),)
    return turn_of("chat-1", TurnRecord(index=0, input=spans), spans, encoded)


def run(
    engine: OpenAIEngine, use: Callable[[OpenAIRunner, Recorder], Coroutine[Any, Any, Any]]
) -> tuple[Any, Recorder]:
    """Run `use` with a runner of the engine and a context; close the runner's connections."""

    async def body() -> tuple[Any, Recorder]:
        runner, context = engine.build(SESSION), Recorder()
        try:
            return await use(runner, context), context
        finally:
            await runner.close()

    return asyncio.run(body())


def answer(engine: OpenAIEngine, *blocks: Block | str) -> tuple[list[Block], Recorder]:
    """Return the engine's answer to a conversation, and its context."""

    async def use(runner: OpenAIRunner, context: Recorder) -> list[Block]:
        return list(await runner.run(turn(*(blocks or ("Hello",))), context))

    return run(engine, use)


def failure(engine: OpenAIEngine, *blocks: Block | str) -> tuple[EngineError, Recorder]:
    """Return the error that answering ends in, and the context."""

    async def use(runner: OpenAIRunner, context: Recorder) -> EngineError:
        with pytest.raises(EngineError) as caught:
            await runner.run(turn(*(blocks or ("Hello",))), context)
        return caught.value

    return run(engine, use)


def engine_of(provider: LocalProvider, model: str = "local", **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(model, base_url=provider.base_url, **settings)


def calling(*, index: int | None = 0, id: str | None = None, **function: str) -> dict[str, Any]:
    """Return a delta with a tool call."""
    return {"tool_calls": [{"index": index, "id": id, "function": function}]}


# Answers


def test_an_answer_is_streamed_returned_and_counted(provider: LocalProvider) -> None:
    blocks, context = answer(engine_of(provider), "What's the weather in Paris?")
    text = "You said: What's the weather in Paris? (message 1 of our conversation)"
    assert blocks == [Text(text=text)]
    assert context.text == text
    assert len(context.parts) == len(text.split())
    assert context.usage == Usage(input_tokens=5, output_tokens=len(text.split()))
    assert context.stop_reason == "stop"


def test_the_provider_is_sent_the_conversation_and_the_settings(provider: LocalProvider) -> None:
    engine = engine_of(
        provider, system="Be brief.", temperature=0.5, max_output_tokens=50, extra={"seed": 7, "stop": ["END"]}
    )
    answer(engine, System(text="Be long."), "Hello", Text(text="Hi, th", interrupted=True), "And?")
    (record,) = provider.requests
    assert record.body == {
        "model": "local",
        "messages": [
            {"role": "system", "content": "Be brief."},
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


def test_settings_that_were_left_out_are_not_sent(provider: LocalProvider) -> None:
    answer(engine_of(provider))
    assert set(provider.requests[0].body) == {"model", "messages", "stream", "stream_options"}


def test_thoughts_come_before_the_text_even_when_they_arrive_late() -> None:
    """Acceptance 24."""
    late = [{"reasoning": "Rain"}, {"content": "Sun"}, {"reasoning_content": "? No."}, {"content": "."}]
    with LocalProvider(reply=late) as provider:
        blocks, context = answer(engine_of(provider))
    assert blocks == [Thinking(text="Rain? No."), Text(text="Sun.")]
    assert context.parts == [Thinking(text="Rain"), "Sun", Thinking(text="? No."), "."]


def test_tokens_that_the_model_thought_with_are_counted() -> None:
    with LocalProvider(reply={"reasoning_content": "Well, well", "content": "Yes"}) as provider:
        _, context = answer(engine_of(provider))
    assert context.usage == Usage(input_tokens=1, output_tokens=3, reasoning_tokens=2)


def test_the_calls_of_the_model_are_returned_after_its_text() -> None:
    """Acceptance 24."""
    calls = [
        {"id": "a", "function": {"name": "weather", "arguments": '{"city": "Zürich", "days": [1, 2]}'}},
        {"id": "b", "function": {"name": "now", "arguments": ""}},
    ]
    with LocalProvider(reply={"content": "Let me look.", "tool_calls": calls}) as provider:
        blocks, context = answer(engine_of(provider))
    assert blocks == [
        Text(text="Let me look."),
        ToolUse(call_id="a", name="weather", input={"city": "Zürich", "days": [1, 2]}),
        ToolUse(call_id="b", name="now"),
    ]
    assert context.stop_reason == "tool_calls"


@pytest.mark.parametrize("indices", [(0, 0), (None, None)])
def test_calls_are_told_apart_by_id_where_a_server_does_not_number_them(indices: tuple[int | None, ...]) -> None:
    deltas = [
        calling(index=index, id=call_id, name="look", arguments=f'{{"at": "{call_id}"}}')
        for index, call_id in zip(indices, "ab", strict=True)
    ]
    with LocalProvider(reply=deltas) as provider:
        blocks, _ = answer(engine_of(provider))
    assert blocks == [ToolUse(call_id=call_id, name="look", input={"at": call_id}) for call_id in "ab"]


def test_a_refusal_of_the_model_is_its_answer() -> None:
    with LocalProvider(reply=[{"refusal": "I will not."}]) as provider:
        assert answer(engine_of(provider))[0] == [Text(text="I will not.")]


def test_text_beyond_ascii_arrives_and_half_a_character_is_replaced() -> None:
    with LocalProvider(reply=[{"content": "Zürich 😀 "}, {"content": "\ud83d!"}]) as provider:
        assert answer(engine_of(provider))[0] == [Text(text="Zürich 😀 \ufffd!")]


def test_an_answer_that_met_its_limit_says_so(provider: LocalProvider) -> None:
    blocks, context = answer(engine_of(provider, max_output_tokens=2))
    assert blocks == [Text(text="You said: ")]
    assert context.stop_reason == "length"


def test_a_call_and_its_result_go_back_to_the_provider(provider: LocalProvider) -> None:
    history: list[Block | str] = ["Weather?", ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="sun")]
    blocks, _ = answer(engine_of(provider), *history)
    assert blocks == [Text(text="The tool says: sun (message 3 of our conversation)")]


def test_the_connection_is_kept_between_turns(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        for _ in range(3):
            await runner.run(turn("Hello"), context)

    run(engine_of(provider), use)
    assert len({record.connection for record in provider.requests}) == 1


# Cancelling


@pytest.mark.parametrize("model", ["local/stall", "local/hang", "local/slow"])
def test_the_provider_sees_the_hang_up_within_50_ms_of_a_cancel(provider: LocalProvider, model: str) -> None:
    """Acceptance 20: what had come by then was emitted."""

    async def use(runner: OpenAIRunner, context: Recorder) -> float:
        answering = asyncio.create_task(runner.run(turn("Hello"), context))
        record = await asyncio.to_thread(provider.wait_for_request)
        if model != "local/hang":
            await context.began.wait()
        cancelled_at = time.monotonic()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert await asyncio.to_thread(record.ended.wait, 5)
        assert record.hung_up_at is not None
        return record.hung_up_at - cancelled_at

    delay_s, context = run(engine_of(provider, model), use)
    assert delay_s < 0.05
    assert context.text in ("" if model == "local/hang" else "You said: Hello (message 1 of our conversation)")
    assert not provider.requests[0].finished


def test_a_runner_answers_after_a_cancel(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> Sequence[Block]:
        answering = asyncio.create_task(runner.run(turn("Hello"), context))
        await asyncio.to_thread(provider.wait_for_request)
        answering.cancel()
        await asyncio.wait({answering})
        return await runner.run(turn("Hello"), context)

    blocks, _ = run(engine_of(provider, "hang-once"), use)
    assert [block.kind for block in blocks] == ["text"]


def test_the_provider_sees_the_hang_up_on_an_answer_that_cannot_be_read() -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        with pytest.raises(EngineError, match="malformed stream"):
            await runner.run(turn("Hello"), context)
        assert await asyncio.to_thread(stand_in.requests[0].ended.wait, 5)
        assert stand_in.requests[0].hung_up_at is not None

    with LocalProvider(reply=[{"content": 5}]) as stand_in:
        run(engine_of(stand_in, "stall"), use)


# Failing


def test_a_malformed_reply_fails_its_turn_only(provider: LocalProvider) -> None:
    """Acceptance 23."""

    async def use(runner: OpenAIRunner, context: Recorder) -> Sequence[Block]:
        with pytest.raises(EngineError, match="malformed stream"):
            await runner.run(turn("Hello"), context)
        return await runner.run(turn("Hello"), context)

    blocks, _ = run(engine_of(provider, "malformed-once"), use)
    assert blocks == [Text(text="You said: Hello (message 1 of our conversation)")]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("400", "Error code: 400 - You asked for a 400; the provider refuses the request: see its message"),
        ("401", "Error code: 401 - You asked for a 401; check api_key= or OPENAI_API_KEY"),
        ("403", "Error code: 403 - .*use another key or model="),
        ("404", "Error code: 404 - The model `404` does not exist; check model= and base_url="),
        ("429", "Error code: 429 - .*raise max_retries="),
        ("500", "Error code: 500 - .*the same after 0 retries: run the prompt again later"),
        ("error", "broke its answer off: The model broke down"),
        ("cut", r"cut the connection within its answer \(.+\): run the prompt again"),
        ("unfinished", "without a finish_reason.*run the prompt again"),
        ("malformed", r"sent a malformed stream \(.+\): check base_url="),
        ("empty", "returned nothing .*'stop'.*run the prompt again"),
    ],
)
def test_a_failure_of_the_provider_says_what_happened_and_what_to_do(
    provider: LocalProvider, model: str, why: str
) -> None:
    error, _ = failure(engine_of(provider, model, max_retries=0))
    assert re.fullmatch(f"model '{model}' at 127.0.0.1 .*{why}.*", str(error))
    assert len(provider.requests) == 1


@pytest.mark.parametrize("model", ["cut", "unfinished", "malformed", "error"])
def test_an_answer_that_breaks_off_keeps_what_was_emitted_and_the_error_of_the_client(
    provider: LocalProvider, model: str
) -> None:
    """Acceptance 20."""
    error, context = failure(engine_of(provider, model))
    assert context.text == "You said: Hello "
    assert context.stop_reason is None
    assert (error.__cause__ is None) is (model == "unfinished")


def test_a_server_that_cannot_be_reached_is_an_error_that_says_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error, _ = failure(OpenAIEngine("local", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0))
    assert re.search(r"at 127.0.0.1 cannot be reached \(.+\), after 0 retries: check base_url=", str(error))


@pytest.mark.parametrize(("model", "why"), [("hang", "sent nothing"), ("stall", "fell silent")])
def test_silence_is_an_error_after_its_time(provider: LocalProvider, model: str, why: str) -> None:
    error, _ = failure(engine_of(provider, model, timeout_s=0.1, max_retries=0))
    assert re.search(f"{why} .*timeout_s=0.1", str(error))
    (record,) = provider.requests
    assert record.ended.wait(5)
    assert record.hung_up_at is not None
    assert record.hung_up_at - record.started_at < 5


def test_a_request_that_is_refused_for_now_is_sent_again(provider: LocalProvider) -> None:
    blocks, _ = answer(engine_of(provider, "429-once"))
    assert [block.kind for block in blocks] == ["text"]
    assert len(provider.requests) == 2


def test_a_request_is_not_sent_again_without_end(provider: LocalProvider) -> None:
    failure(engine_of(provider, "429", max_retries=3))
    assert len(provider.requests) == 4


@pytest.mark.parametrize(
    ("deltas", "why"),
    [
        (
            [{"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"at": "P'}}]}],
            "'look' are not JSON",
        ),
        ([{"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"at": NaN}'}}]}], "are not JSON"),
        ([{"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "[1]"}}]}], "not a JSON object"),
        ([{"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}], "lacks its id or its name"),
        ([{"tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}], "lacks its id or its name"),
        ([{"tool_calls": {"id": "a"}}], "malformed stream .tool_calls is not a list"),
        ([{"content": 5}], "malformed stream .content is not a string"),
        ([{"reasoning_content": "Hm."}], "returned nothing"),
    ],
    ids=str,
)
def test_an_answer_that_is_none_is_an_error(deltas: list[Any], why: str) -> None:
    """Acceptance 10, 23."""
    with LocalProvider(reply=deltas) as provider:
        error, _ = failure(engine_of(provider))
    assert re.search(why, str(error))


def test_a_call_that_met_the_output_limit_says_so() -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": '{"at": "Paris"}'}}
    with LocalProvider(reply={"tool_calls": [call]}) as provider:
        error, _ = failure(engine_of(provider, max_output_tokens=2))
    assert "raise max_output_tokens=" in str(error)


def test_a_conversation_that_cannot_be_sent_is_not(provider: LocalProvider) -> None:
    error, _ = failure(engine_of(provider), "Hello", ToolUse(call_id="a", name="look"))
    assert re.search(r"messages\[1\]: tool call 'a' has no result", str(error))
    assert provider.requests == []


# Keys and settings


def test_no_key_and_no_base_url_is_an_error_at_build() -> None:
    """Acceptance 10."""
    with pytest.raises(EngineError, match="set OPENAI_API_KEY where the session runs, or pass api_key="):
        OpenAIEngine("gpt-5-mini").build(SESSION)


def test_a_server_of_ones_own_needs_no_key(provider: LocalProvider) -> None:
    assert answer(engine_of(provider))[0]


def test_key_and_base_url_come_from_the_environment_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalProvider(api_key=KEY) as provider:
        engine = OpenAIEngine("local")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        assert answer(engine)[0]


@pytest.mark.parametrize(
    ("name", "value"), [("OPENAI_API_KEY", f"{KEY}\n"), ("OPENAI_BASE_URL", "localhost:8000")], ids=["key", "url"]
)
def test_an_environment_that_cannot_be_used_is_an_error_at_build(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=name) as caught:
        OpenAIEngine("gpt-5-mini").build(SESSION)
    assert KEY not in str(caught.value)


def test_the_key_is_in_no_text_even_if_the_provider_quotes_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with LocalProvider(api_key="another") as provider:
        engine = engine_of(provider, api_key=KEY)
        error, _ = failure(engine)
    assert "Error code: 401 - Incorrect API key provided: ***.; check api_key= or OPENAI_API_KEY" in str(error)
    assert KEY not in "".join(traceback.format_exception(error))
    assert KEY not in repr(engine)
    assert KEY not in caplog.text
    assert "HTTP" in caplog.text


def test_an_engine_survives_pickling_key_included() -> None:
    engine = OpenAIEngine("local", base_url="http://127.0.0.1:1/v1", api_key=KEY, system="Be brief.", extra={"seed": 7})
    assert pickle.loads(pickle.dumps(engine)) == engine
    assert pickle.loads(pickle.dumps(engine)).api_key == KEY


def test_engine_and_runner_fulfil_their_protocols(provider: LocalProvider) -> None:
    engine: EngineBuilder = engine_of(provider)
    runner: InferenceRunner = engine.build(SESSION)
    assert isinstance(engine, EngineBuilder)
    assert isinstance(runner, InferenceRunner)


def test_the_client_library_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, turnwise.actors.inference.openai as own; own.OpenAIEngine('m'); print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"model": " "},
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://localhost/v1"},
        {"base_url": ""},
        {"base_url": "http://"},
        {"base_url": "http://localhost:port/v1"},
        {"base_url": "http://[::1/v1"},
        {"api_key": ""},
        {"api_key": f"{KEY}\n"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"max_retries": -1},
        {"temperature": -0.1},
        {"max_output_tokens": 0},
        {"extra": {"stream": False}},
        {"extra": {"stop": object()}},
        {"extra": ["seed"]},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_an_error_that_names_it(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=f"{name}=") as caught:
        OpenAIEngine(**{"model": "local", **settings})
    assert KEY not in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    extra = {"stop": ["END"]}
    engine = OpenAIEngine("local", extra=extra)
    extra["stop"].append("FIN")
    assert engine.extra == {"stop": ("END",)}
    with pytest.raises(AttributeError):
        engine.model = "another"  # type: ignore[misc]


# The provider


def test_the_provider_refuses_what_the_api_would(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> None:
        create = runner._client.chat.completions.create
        orphan: Any = [{"role": "tool", "tool_call_id": "a", "content": "seen"}]
        hello: Any = [{"role": "user", "content": "Hello"}]
        bodies: list[dict[str, Any]] = [
            {"messages": orphan},
            {"messages": []},
            {"messages": hello, "temperature": 3},
            {"messages": hello, "max_tokens": 0},
            {"messages": hello, "stream_options": {"include_usage": True}},
        ]
        for body in bodies:
            with pytest.raises(openai.BadRequestError):
                await create(model="local", **body)

    run(engine_of(provider), use)


def test_the_provider_answers_the_same_streamed_or_not() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "Paris, France"}'}}
    reply = {"reasoning_content": "Hm, hm.", "content": "Let me look.", "tool_calls": [call]}
    with LocalProvider(reply=reply) as provider:
        blocks, context = answer(engine_of(provider))

        async def use(runner: OpenAIRunner, _: Recorder) -> Any:
            return await runner._client.chat.completions.create(
                model="local", messages=[{"role": "user", "content": "Hello"}]
            )

        whole, _ = run(engine_of(provider), use)
    assert blocks[2] == ToolUse(call_id="a", name="look", input={"at": "Paris, France"})
    (choice,) = whole.choices
    assert choice.message.reasoning_content == "Hm, hm."
    assert choice.message.content == "Let me look."
    assert [made.model_dump() for made in choice.message.tool_calls] == [call]
    assert choice.finish_reason == context.stop_reason
    assert context.usage is not None
    assert whole.usage.completion_tokens == context.usage.output_tokens


def test_the_provider_embeds_texts_near_those_that_share_their_words(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> Any:
        texts = ["the cat sat", "The cat slept", "stocks fell"]
        packed = await runner._client.embeddings.create(model="local", input=texts)
        plain = await runner._client.embeddings.create(model="local", input=texts, encoding_format="float")
        return packed, plain

    (packed, plain), _ = run(engine_of(provider), use)
    cat, kitten, stocks = ([float(x) for x in item.embedding] for item in packed.data)
    assert [item.embedding[:5] for item in plain.data] == [
        pytest.approx(vector[:5]) for vector in (cat, kitten, stocks)
    ]

    def near(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert near(cat, cat) == pytest.approx(1)
    assert near(cat, kitten) > near(cat, stocks)


def test_the_provider_leaves_open_connections_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with LocalProvider() as provider, socket.create_connection(("127.0.0.1", provider.port)) as idle:
        idle.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX-Fault: hang\r\n\r\n")
        record = provider.wait_for_request()
        provider.close()
        assert idle.recv(1) == b""
    assert caplog.messages == []
    assert record.hung_up_at is None
    assert not record.finished


def test_the_provider_lists_its_model_and_records_no_key(provider: LocalProvider) -> None:
    async def use(runner: OpenAIRunner, context: Recorder) -> list[str]:
        return [model.id async for model in runner._client.models.list()]

    assert run(engine_of(provider, api_key=KEY), use)[0] == ["local"]
    assert KEY not in repr(provider.requests)
