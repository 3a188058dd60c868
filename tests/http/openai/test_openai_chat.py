"""`/openai/v1/chat/completions`, with the `openai` client, over a real uvicorn and a simulated provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from pydantic import BaseModel

from servers.http_service import TOKENS, WAIT_S, on_server
from tools.agent_tools import pay
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.errors import SessionNotFoundError
from turnwise.http import HttpSettings, create_app
from turnwise.memory.conversation.blocks import System, ToolResult
from turnwise.testing import LocalProvider, Message, tool_script

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA},
}
TWO_CALLS = [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@tool
def look(place: str) -> str:
    """Look at something."""
    return f"saw {place}"


def reply(messages: list[Message]) -> Any:
    """Do what the last message of the user says: a script of steps as JSON, or else repeat it."""
    content = [message["content"] for message in messages if message["role"] == "user"][-1]
    text = content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")
    return tool_script(json.loads(text))(messages) if text.startswith("[") else f"You said: {text}"


def script(*steps: Any) -> str:
    return json.dumps(steps)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=reply) as provider:
        yield provider


class Service:
    """The service, and clients of it."""

    def __init__(self, manager: AsyncSessionManager, url: str, stop: Callable[[], None]) -> None:
        self.manager = manager
        self.stop = stop
        self.url = url

    def settings(self, user: str, headers: dict[str, str]) -> dict[str, Any]:
        base = f"{self.url}/openai/v1"
        return {"base_url": base, "api_key": f"{user}'s-secret-token", "max_retries": 0, "default_headers": headers}

    def client(self, session_id: str | None = None, *, user: str = "ann", **headers: str) -> openai.AsyncOpenAI:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return openai.AsyncOpenAI(
            **self.settings(user, {**more, **({"X-Session-Id": session_id} if session_id else {})})
        )

    async def texts(self, session_id: str) -> list[str]:
        chat = await self.manager.get(session_id, user_id="ann")
        return [message.text for message in await chat.messages()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all tests' sessions, so that one process has them."""
    return tmp_path_factory.mktemp("http")


@asynccontextmanager
async def served(
    folder: Path, provider: LocalProvider, *, is_emptied: bool = True, **settings: Any
) -> AsyncIterator[Service]:
    """Yield a service, whose store has no session of earlier tests."""
    engine = OpenAIEngine("local", base_url=provider.base_url, max_retries=0, tools=ToolRegistry(look, pay))
    slow = OpenAIEngine("local/slow", base_url=provider.base_url, max_retries=0)
    engines = {"main": engine, "slow": slow}
    store = f"sqlite:///{folder}/chats.db"
    async with AsyncSessionManager(store, engine=engines, placement=InProcess()) as manager:
        for listed in await manager.list() if is_emptied else ():
            chat = await manager.get(listed.session_id, user_id=listed.user_id)
            await chat.end()
            await chat.delete()
        app = create_app(manager, auth=TOKENS, settings=HttpSettings(**settings))
        async with on_server(app) as url:
            yield Service(manager, url, app.state.service.stop)


def answer_of(completion: Any) -> tuple[str | None, str]:
    return completion.choices[0].message.content, completion.choices[0].finish_reason


async def streamed(stream: Any) -> tuple[str, list[Any]]:
    """Return the text of a stream, and its chunks."""
    chunks = [chunk async for chunk in stream]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


async def streamed_or_whole(create: Any, messages: Any, *, stream: bool) -> str:
    answer = await create(model="main", messages=messages, stream=stream, extra_headers={"X-Session-Id": f"{stream}"})
    return (await streamed(answer))[0] if stream else answer.choices[0].message.content


async def until(holds: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.02)


async def has_run(service: Service, session_id: str) -> bool:
    try:
        return bool(await (await service.manager.get(session_id, user_id="ann")).runs())
    except SessionNotFoundError:
        return False


async def test_stateless_completions(folder: Path, provider: LocalProvider) -> None:
    async with served(folder, provider) as service, service.client() as client:
        create = client.chat.completions.create
        hello: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        plain = await create(model="local", messages=hello, temperature=0.5, max_tokens=50, stop=["END"], user="u")
        assert (
            answer_of(plain) == ("You said: hello", "stop")
            and plain.model == "local"
            and plain.id.startswith("chatcmpl-")
        )
        assert plain.usage and plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens > 0
        sent = provider.requests[-1].body
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (sent["temperature"], sent["max_completion_tokens"], sent["stop"]) == (0.5, 50, ["END"])
        assert sent["safety_identifier"] == "u"

        stream = await create(model="main", messages=hello, stream=True, stream_options={"include_usage": True})
        text, chunks = await streamed(stream)
        assert text == "You said: hello" and len(chunks) > 3
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage and not chunks[-1].choices and {chunk.id for chunk in chunks} == {chunks[0].id}

        content: list[Any] = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
        assert answer_of(await create(model="local", messages=[{"role": "user", "content": content}])) == (
            "You said: look",
            "stop",
        )
        assert provider.requests[-1].body["messages"][-1]["content"][-1]["type"] == "image_url"

        class City(BaseModel):
            name: str

        typed = await client.chat.completions.parse(
            model="local", messages=[{"role": "user", "content": script('{"name": "Oslo"}')}], response_format=City
        )
        assert typed.choices[0].message.parsed == City(name="Oslo")
        cut = await create(model="local", messages=hello, max_completion_tokens=2)
        assert cut.choices[0].finish_reason == "length"

        own: Any = [{"role": "user", "content": script([("look", {"place": "it"})], "done")}]
        assert answer_of(await create(model="local", messages=own)) == ("done", "stop"), (
            "the service calls its own tools"
        )
        assert await service.manager.count(user_id="ann") == 0, "nothing is stored"


async def test_functions_of_the_client_without_a_session(folder: Path, provider: LocalProvider) -> None:
    async with served(folder, provider) as service, service.client() as client:
        create = client.chat.completions.create
        messages: list[Any] = [{"role": "user", "content": script(TWO_CALLS, "warmer in Rome")}]
        called = await create(model="local", messages=messages, tools=[WEATHER])
        choice = called.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        calls: list[Any] = choice.message.tool_calls
        assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Rome"]

        text, chunks = await streamed(await create(model="local", messages=messages, tools=[WEATHER], stream=True))
        deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert text == "" and [(call.index, call.function.name) for call in deltas] == [(0, "weather"), (1, "weather")]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

        messages.append(choice.message.model_dump())
        messages += [{"role": "tool", "tool_call_id": call.id, "content": f"{n}°"} for n, call in enumerate(calls)]
        assert answer_of(await create(model="local", messages=messages, tools=[WEATHER])) == ("warmer in Rome", "stop")
        assert [m["content"] for m in provider.requests[-1].body["messages"][-2:]] == ["0°", "1°"]
        async with client.chat.completions.stream(model="local", messages=messages, tools=[WEATHER]) as helper:
            final = await helper.get_final_completion()
        assert answer_of(final) == ("warmer in Rome", "stop")


async def test_a_session_has_the_conversation(folder: Path, provider: LocalProvider) -> None:
    async with served(folder, provider) as service, service.client("chat") as client:
        create = client.chat.completions.create
        system: Any = {"role": "system", "content": "Be brief."}
        messages: list[Any] = [system, {"role": "user", "content": "one"}]
        raw = await client.chat.completions.with_raw_response.create(model="local", messages=messages)
        assert raw.headers["x-session-id"] == "chat" and raw.headers["x-run-id"]
        messages += [{"role": "assistant", "content": raw.parse().choices[0].message.content}]
        messages += [{"role": "user", "content": "two"}]
        text, _ = await streamed(await create(model="local", messages=messages, stream=True))
        assert text == "You said: two"
        history = ["one", "You said: one", "two", "You said: two"]
        assert await service.texts("chat") == history, "the system message is in no history"
        assert [m["content"] for m in provider.requests[-1].body["messages"]] == ["Be brief.", *history[:3]]

        again = await create(model="local", messages=messages)
        assert answer_of(again) == ("You said: two", "stop") and await service.texts("chat") == history
        alone: Any = [{"role": "user", "content": "three"}]
        key = {"Idempotency-Key": "k1"}
        first = await create(model="local", messages=alone, extra_headers=key)
        assert answer_of(first) == ("You said: three", "stop")
        assert (await create(model="local", messages=alone, extra_headers=key)).id == first.id
        assert (await service.texts("chat"))[4:] == ["three", "You said: three"], "the second one changed nothing"
        with pytest.raises(openai.UnprocessableEntityError) as conflict:
            await create(model="local", messages=messages, extra_headers=key)
        assert conflict.value.code == "idempotency_conflict"
        with pytest.raises(openai.UnprocessableEntityError) as gone_on:
            await create(model="local", messages=messages)
        assert (gone_on.value.code, gone_on.value.param) == ("conflict", "messages")
        other_start: list[Any] = [system, {"role": "user", "content": "1"}, *messages[2:]]
        with pytest.raises(openai.UnprocessableEntityError, match=r"messages\[1\] does not continue the session"):
            await create(model="local", messages=other_start)
        async with service.client("chat", user="bob") as bob:
            foreign = await bob.chat.completions.create(model="local", messages=alone)
        assert answer_of(foreign) == ("You said: three", "stop") and len(await service.texts("chat")) == 6
        chat = await service.manager.get("chat", user_id="ann")
        assert not any(isinstance(block, System) for message in await chat.messages() for block in message.blocks)


async def test_results_continue_the_run_that_waits(folder: Path, provider: LocalProvider) -> None:
    steps = script([("look", {"place": "the map"}), *TWO_CALLS], "Rome", [("weather", {"city": "Bonn"})])
    messages: list[Any] = [{"role": "user", "content": steps}]
    async with served(folder, provider) as service, service.client("chat") as client:
        called = await client.chat.completions.create(model="local", messages=messages, tools=[WEATHER])
        calls: list[Any] = called.choices[0].message.tool_calls or []
        assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Rome"]
        assert called.choices[0].finish_reason == "tool_calls"
        chat = await service.manager.get("chat", user_id="ann")
        (run,) = await chat.runs()
        assert run.state == "awaiting_approval", "the answer comes when the run waits"
    # Another service of the same store, later.
    async with served(folder, provider, is_emptied=False) as service, service.client("chat") as client:
        create = client.chat.completions.create
        chat = await service.manager.get("chat", user_id="ann")
        answer = called.choices[0].message.model_dump()
        results = [{"role": "tool", "tool_call_id": call.id, "content": f"{n}°"} for n, call in enumerate(calls)]
        wrong: Any
        for wrong, code in (
            ([*messages, answer, results[0]], "missing_tool_result"),
            ([{"role": "user", "content": "well?"}], "missing_tool_result"),
            ([{**results[0], "tool_call_id": "c9"}], "unknown_tool_call"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await create(model="local", messages=wrong, tools=[WEATHER])
            assert refused.value.code == code
        whole: list[Any] = [*messages, answer, *results]
        with pytest.raises(openai.BadRequestError, match="temperature is another than that of the run"):
            await create(model="local", messages=whole, temperature=0.1)
        done = await create(model="local", messages=whole, tools=[WEATHER])
        assert answer_of(done) == ("Rome", "stop") and done.usage and called.usage
        (run,) = await chat.runs()
        assert run.state == "completed" and run.usage
        assert run.usage.output_tokens == done.usage.completion_tokens + called.usage.completion_tokens
        turn = await chat.turn(run.turn_index)
        assert [block.text for block in turn.output if isinstance(block, ToolResult)] == ["saw the map", "0°", "1°"]
        repeated = await create(model="local", messages=whole, tools=[WEATHER])
        assert (answer_of(repeated), repeated.id) == (("Rome", "stop"), done.id)
        text, _ = await streamed(await create(model="local", messages=whole, tools=[WEATHER], stream=True))
        assert text == "Rome" and len(await chat.runs()) == 1
        whole += [{"role": "assistant", "content": "Rome"}, {"role": "user", "content": "thanks"}]
        assert answer_of(await create(model="local", messages=whole, tools=[WEATHER])) == ("You said: thanks", "stop")


@pytest.mark.by_turns
async def test_a_client_that_leaves_keeps_or_cancels_its_run(folder: Path, provider: LocalProvider) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 100}]
    async with served(folder, provider) as service:
        for name, wish, state in (("kept", "keep", "completed"), ("cut", "cancel", "cancelled")):
            for stream in (True, False):
                session_id = f"{name} {stream}"
                async with service.client(session_id, X_On_Disconnect=wish) as client:
                    if stream:
                        opened = await client.chat.completions.create(model="slow", messages=long, stream=True)
                        await anext(aiter(opened))
                        await opened.close()
                    else:
                        waiting = asyncio.create_task(
                            client.chat.completions.create(model="slow", messages=long, timeout=60)
                        )
                        await until(partial(has_run, service, session_id))
                        assert not waiting.done()
                        waiting.cancel()  # which closes its connection
                chat = await service.manager.get(session_id, user_id="ann")

                async def ended(chat: Any = chat) -> bool:
                    return not (await chat.runs())[0].is_open

                await until(ended)
                assert (await chat.runs())[0].state == state, session_id
        async with service.client("kept True") as client:
            again: Any = [*long, {"role": "assistant", "content": "You"}, {"role": "user", "content": "and?"}]
            assert answer_of(await client.chat.completions.create(model="main", messages=again)) == (
                "You said: and?",
                "stop",
            )
        async with service.client("busy") as client:
            running = await client.chat.completions.create(model="slow", messages=long, stream=True)
            chat = await service.manager.get("busy", user_id="ann")
            (run,) = await chat.runs()
            with pytest.raises(openai.ConflictError) as busy:
                await client.chat.completions.create(model="slow", messages=[{"role": "user", "content": "and?"}])
            assert busy.value.code == "session_busy" and busy.value.body["run_id"] == run.run_id  # type: ignore[index]
            await (await chat.execution(run.run_id)).cancel("enough")
            with pytest.raises(openai.APIError, match="the run was cancelled: enough"):
                await streamed(running)
        provider.requests.clear()
        async with service.client() as client:
            answer = await client.chat.completions.create(model="slow", messages=long, stream=True)
            async for chunk in answer:
                if chunk.choices[0].delta.content:  # before that the provider may not have been asked yet
                    break
            await answer.close()

            async def disconnected() -> bool:
                return any(request.hung_up_at is not None for request in provider.requests)

            await until(disconnected)


async def test_what_is_not_supported_is_refused_by_name(folder: Path, provider: LocalProvider) -> None:
    hello: list[Any] = [{"role": "user", "content": "hello"}]
    wrong: list[tuple[str, Any, str]] = [
        ("n", 2, "Invalid value"),
        ("logprobs", True, "Invalid value"),
        ("store", True, "X-Session-Id"),
        ("metadata", {"a": "b"}, "not kept"),
        ("audio", {"voice": "x", "format": "mp3"}, "does not support"),
        ("functions", [{"name": "f"}], "send tools"),
        ("logit_bias", {"1": 1}, "does not support"),
        ("web_search_options", {"x": 1}, "does not support"),
        ("temperature", -1, "greater than or equal to 0"),
        ("temperature", "hot", "Invalid value"),
        ("reasoning_effort", "huge", "must be"),
        ("max_tokens", 0, "greater than"),
        ("stop", "", "text"),
        ("tool_choice", {"type": "custom"}, "must be"),
        ("parallel_tool_calls", "yes", "Invalid value"),
        ("response_format", {"type": "yaml"}, "must be"),
        ("tools[0].type", [{"type": "custom", "custom": {"name": "x"}}], "Invalid value"),
        ("tools[0].function", [{"type": "function", "function": {"name": "a b"}}], "letters"),
        ("tools", [{"type": "function", "function": {"name": "look"}}], "the engine has a tool of this name"),
        ("stream_options", {"include_usage": True}, "only allowed when"),
        ("volume", 11, "Unknown parameter"),
        ("model", "gpt-9", "does not exist"),
        ("messages", [], "Invalid value"),
        ("messages", [{"role": "user", "content": " "}], "not blank"),
        ("messages[0].name", [{"role": "user", "content": "x", "name": "ann"}], "does not support"),
    ]
    async with served(folder, provider, max_body_bytes=10_000) as service:
        headers = {"Authorization": "Bearer ann's-secret-token"}
        async with httpx.AsyncClient(base_url=f"{service.url}/openai/v1", headers=headers, timeout=60) as client:
            for param, value, reason in wrong:
                body = {"model": "local", "messages": hello, param.partition("[")[0]: value}
                answer = await client.post("/chat/completions", json=body)
                error = answer.json()["error"]
                assert answer.status_code in (400, 404), (param, answer.text)
                assert (error["param"] or "").startswith(param) and reason in error["message"], (param, error)
            for content, status in ((b"{", 400), (b"[]", 400), (b"\xff\xfe", 400)):
                answer = await client.post(
                    "/chat/completions", content=content, headers={"Content-Type": "application/json"}
                )
                assert answer.status_code == status and "message" in answer.json()["error"], answer.text
            assert (await client.post("/chat/completions", content=b"x" * 10_001)).status_code == 413
            answer = await client.post("/chat/completions", json={"messages": hello})
            assert answer.json()["error"]["code"] == "missing_required_parameter"
            bad = await client.post(
                "/chat/completions", json={"model": "local", "messages": hello}, headers={"X-Session-Id": "x" * 257}
            )
            assert bad.status_code == 400 and bad.json()["error"]["param"] == "X-Session-Id", bad.text
        async with service.client("chat") as client_:
            create = client_.chat.completions.create
            with pytest.raises(openai.InternalServerError) as broken:
                await create(model="main", messages=[{"role": "user", "content": "[broken"}])
            assert broken.value.status_code == 502 and broken.value.response.headers["x-should-retry"] == "false"
            messages: Any = [{"role": "user", "content": script([("pay", {"euros": 5})], "done")}]
            for stream in (True, False):
                with pytest.raises(openai.APIError, match="a person must approve the call of 'pay'") as waits:
                    await streamed_or_whole(create, messages, stream=stream)
                assert waits.value.code == "approval_required"


async def test_a_failed_answer_is_asked_for_again(folder: Path, provider: LocalProvider) -> None:
    async with served(folder, provider, models=("local/500-once",)) as service, service.client("chat") as client:
        create = client.chat.completions.create
        messages: list[Any] = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "x"}]
        messages += [{"role": "user", "content": "two"}]
        with pytest.raises(openai.InternalServerError):
            await create(model="local/500-once", messages=messages)
        assert answer_of(await create(model="local/500-once", messages=messages)) == ("You said: two", "stop")
        messages += [{"role": "assistant", "content": "You said: two"}, {"role": "user", "content": "three"}]
        assert answer_of(await create(model="local", messages=messages)) == ("You said: three", "stop")
        chat = await service.manager.get("chat", user_id="ann")
        assert [run.state for run in await chat.runs()] == ["failed", "completed", "completed"]


async def test_an_agent_of_openai_s_agents_sdk_calls_its_own_tools(folder: Path, provider: LocalProvider) -> None:
    cities: list[str] = []

    @function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return f"{city}: rain"

    async with served(folder, provider) as service:
        for session_id in ("agent", None):
            async with service.client(session_id) as client:
                model = OpenAIChatCompletionsModel(model="local", openai_client=client)
                agent = Agent(name="Guide", instructions="Be brief.", model=model, tools=[weather])
                result = await Runner.run(agent, script(TWO_CALLS, "done"), run_config=RunConfig(tracing_disabled=True))
                assert result.final_output == "done"
                more = [*result.to_input_list(), {"role": "user", "content": "and you?"}]
                streaming = Runner.run_streamed(agent, more, run_config=RunConfig(tracing_disabled=True))  # type: ignore[arg-type]
                async for _ in streaming.stream_events():
                    pass
                assert streaming.final_output == "You said: and you?"
        assert sorted(cities) == ["Oslo", "Oslo", "Rome", "Rome"], "the SDK calls both at once, on threads"
        assert [run.state for run in await (await service.manager.get("agent", user_id="ann")).runs()] == [
            "completed"
        ] * 2


@pytest.mark.by_turns
async def test_a_server_that_stops_tells_its_clients_to_come_back(folder: Path, provider: LocalProvider) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 100}]
    async with served(folder, provider) as service, service.client("chat") as client:
        create = client.chat.completions.create
        running = await create(model="slow", messages=long, stream=True)
        await anext(aiter(running))
        waiting = asyncio.create_task(
            create(model="slow", messages=[*long, *long], extra_headers={"X-Session-Id": "b"})
        )

        async def begun() -> bool:
            return await service.manager.count(user_id="ann") == 2

        await until(begun)
        service.stop()
        for stopped in (streamed(running), waiting):
            with pytest.raises(openai.APIError) as caught:
                await stopped
            assert caught.value.code == "server_stops"
        chat = await service.manager.get("chat", user_id="ann")
        run = await chat.execution((await chat.runs())[0].run_id)
        assert (await run.wait(WAIT_S)).text.startswith("You said: word word"), "it goes on"


def test_the_synchronous_client(folder: Path, provider: LocalProvider) -> None:
    async def use() -> None:
        async with served(folder, provider) as service:
            await asyncio.to_thread(ask, service)

    def ask(service: Service) -> None:
        with openai.OpenAI(**service.settings("ann", {"X-Session-Id": "chat"})) as client:
            hello: Any = [{"role": "user", "content": "hello"}]
            whole = client.chat.completions.create(model="local", messages=hello)
            assert answer_of(whole) == ("You said: hello", "stop")
            more: Any = [*hello, whole.choices[0].message, {"role": "user", "content": "more"}]
            with client.chat.completions.stream(model="local", messages=more) as stream:
                assert "".join(event.delta for event in stream if event.type == "content.delta") == "You said: more"

    asyncio.run(use())
