"""Responses by the real `openai` client, over a real server, with a model behind the stand-in provider."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

import httpx
import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseErrorEvent,
    ResponseItem,
    ResponseStreamEvent,
    response_create_params,
)
from pydantic import BaseModel, TypeAdapter

from servers.threaded_service import Served, served
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.hosting.placement import InProcess
from turnwise.engines import OpenAIEngine
from turnwise.errors import StoreError
from turnwise.http import BearerTokens, HttpSettings, create_app
from turnwise.http.openai.items import ENCRYPTED
from turnwise.memory.conversation.events import AnyEvent
from turnwise.testing import LocalProvider

MODELS = HttpSettings(models=("slow", "stall", "500", "length"))

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": "bob"})

RESPONSE, EVENT, ITEM = TypeAdapter(Response), TypeAdapter(ResponseStreamEvent), TypeAdapter(ResponseItem)


RELEASED = threading.Event()
"""Set when the model may answer `hold`."""


def reply(messages: Sequence[dict[str, Any]]) -> Any:
    """Answer as the last message asks: with calls, slowly, with thoughts, or with all messages that there are."""
    conversation = [message for message in messages if message["role"] not in ("system", "developer")]
    last = conversation[-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
    if last["role"] == "tool":
        return f"The tool says {text}."
    if text == "hold":
        RELEASED.wait(60)
    if text.startswith("think"):
        return {"reasoning_content": "First this, then that. ", "content": "So it is."}
    if text.startswith("json"):
        return '{"city": "Rome", "people": 3}'
    if text.startswith("long"):
        return " ".join(f"word{number}" for number in range(int(text.split()[1])))
    return f"{len(conversation)}: " + " | ".join(str(message["content"]) for message in conversation)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=reply) as running:
        yield running


@pytest.fixture(scope="module")
def service(provider: LocalProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    local = OpenAIEngine("local", base_url=provider.base_url, api_key="k")
    engine = {"local": local, "strict": replace(local, model="m", system="Be strict.")}
    store = f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"
    with served(
        store, engine=engine, placement=InProcess(), auth=TOKENS, settings=MODELS, namespace="responses"
    ) as running:
        yield running


@pytest.fixture
def ann(service: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token", max_retries=0) as client:
        yield client


@pytest.fixture
def bob(service: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{service.url}/openai/v1", api_key="bob's-secret-token", max_retries=0) as client:
        yield client


def checked(response: Any) -> Any:
    """Return a response after it was checked by the client's own models, strictly."""
    RESPONSE.validate_json(response.to_json(), strict=True)
    return response


def test_a_response_is_created_retrieved_and_deleted(ann: Any, bob: Any) -> None:
    response = checked(ann.responses.create(model="local", input="hello", metadata={"a": "b" * 512}, temperature=0.5))
    assert (response.status, response.output_text) == ("completed", "1: hello")
    assert response.metadata == {"a": "b" * 512} and response.temperature == 0.5 and response.usage.total_tokens > 0
    assert checked(ann.responses.retrieve(response.id)).to_dict() == response.to_dict()
    items = ann.responses.input_items.list(response.id)
    assert [item.content[0].text for item in items.data] == ["hello"]
    for item in items.data:
        ITEM.validate_json(item.to_json(), strict=True)
    for forbidden in (
        bob.responses.retrieve,
        bob.responses.delete,
        bob.responses.cancel,
        bob.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            forbidden(response.id)
    ann.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        ann.responses.retrieve(response.id)


def test_responses_continue_each_other_and_fork(ann: Any) -> None:
    first = ann.responses.create(model="local", input="one")
    second = checked(ann.responses.create(model="local", input="two", previous_response_id=first.id))
    assert second.output_text == "3: one | 1: one | two" and second.previous_response_id == first.id
    fork = ann.responses.create(model="local", input="other", previous_response_id=first.id)
    assert fork.output_text == "3: one | 1: one | other"
    third = ann.responses.create(model="local", input="three", previous_response_id=second.id)
    assert third.output_text.startswith("5: one | 1: one | two |")
    with pytest.raises(openai.BadRequestError) as refused:
        ann.responses.create(model="local", input="x", previous_response_id="resp_" + "0" * 26)
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.by_turns
def test_a_stream_has_each_event_once_wherever_it_is_cut(ann: Any, service: Served) -> None:
    with ann.responses.stream(model="local", input="long 40") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    whole = follow(service, final.id, -1)
    for event in whole:
        EVENT.validate_json(json.dumps(event), strict=True)
    numbers = [event["sequence_number"] for event in whole]
    assert numbers == sorted(set(numbers))
    text = final.output_text
    for cut in [*range(12), 100, 200, numbers[-2], numbers[-1] - 1]:
        rest = follow(service, final.id, cut)
        shown = "".join(event["delta"] for event in rest if event["type"] == "response.output_text.delta")
        assert text.endswith(shown) and len(shown) == max(0, len(text) - max(0, cut - 3))
        assert rest[-1]["type"] == "response.completed" and all(event["sequence_number"] > cut for event in rest)


def follow(service: Served, id: str, after: int) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    headers = {"Authorization": "Bearer ann's-secret-token"}
    text = httpx.get(f"{service.url}/openai/v1/responses/{id}", params=query, headers=headers, timeout=100).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


class City(BaseModel):
    city: str
    people: int


def test_a_stream_is_parsed_to_a_class(ann: Any) -> None:
    with ann.responses.stream(model="local", input="json", text_format=City) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed == City(city="Rome", people=3)
    parsed = ann.responses.parse(model="local", input="json", text_format=City)
    assert parsed.output_parsed == City(city="Rome", people=3)
    assert checked(ann.responses.retrieve(parsed.id)).text.format.type == "json_schema"


@pytest.mark.by_turns
def test_a_cut_stream_resumed_at_seeded_points_has_each_event_once(
    ann: Any, service: Served, provider: LocalProvider
) -> None:
    dice = random.Random(18)
    for _ in range(4):
        provider.token_delay_s = 0.01
        answer = ann.responses.create(model="local", input="long 50", background=True, stream=True)
        with answer as stream:
            first = next(iter(stream))
        made_id, events, after = first.response.id, [first.to_dict()], first.sequence_number
        while events[-1]["type"] != "response.completed":
            rest = ann.responses.retrieve(made_id, stream=True, starting_after=after)
            with rest as stream:
                for _, event in zip(range(dice.randint(1, 12)), stream, strict=False):
                    events.append(event.to_dict())
                    after = event.sequence_number
        provider.token_delay_s = 0.0
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers))
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert text == events[-1]["response"]["output"][0]["content"][0]["text"]
        once = [event["type"] for event in events if event["type"] != "response.output_text.delta"]
        assert once == [
            *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
            *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
            "response.completed",
        ]
        assert checked(ann.responses.retrieve(made_id)).to_dict() == events[-1]["response"]


async def test_a_response_in_the_background_is_polled_and_cancelled(service: Served, provider: LocalProvider) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token") as ann:
        response = checked(await ann.responses.create(model="stall", input="hello", background=True))
        assert response.background and response.status in ("queued", "in_progress")
        assert checked(await ann.responses.retrieve(response.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError) as refused:
            await ann.responses.create(model="local", input="and?", previous_response_id=response.id)
        assert refused.value.code == "previous_response_not_completed"
        ended = checked(await ann.responses.cancel(response.id))
        assert ended.status == "cancelled" and (await ann.responses.cancel(response.id)).status == "cancelled"
        again = await ann.responses.create(model="local", input="and?", previous_response_id=response.id)
        assert again.status == "completed" and again.output_text.endswith("and?")


async def test_a_response_that_its_client_waits_for_is_cancelled_by_another(service: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token") as ann:
        stream = await ann.responses.create(model="stall", input="hello", stream=True)
        first = await anext(stream)
        assert first.type == "response.created"
        assert checked(await ann.responses.cancel(first.response.id)).status == "cancelled"
        events = [event async for event in stream]
        assert (await ann.responses.retrieve(first.response.id)).status == "cancelled"
        assert events[-1].type == "response.incomplete"
        talk = (await ann.conversations.create()).id
        waiting = asyncio.create_task(ann.responses.create(model="stall", input="hello", conversation=talk))
        while (response_id := await running_in(ann, talk)) is None:
            await asyncio.sleep(0.1)
        assert checked(await ann.responses.cancel(response_id)).status == "cancelled"
        assert checked(await waiting).id == response_id and (await waiting).status == "cancelled"


async def running_in(ann: openai.AsyncOpenAI, conversation: str) -> str | None:
    """Return the response that a busy conversation names; None while it has no turn."""
    if not (await ann.conversations.items.list(conversation)).data:
        return None
    with pytest.raises(openai.APIStatusError) as refused:
        await ann.responses.create(model="local", input="and?", conversation=conversation)
    assert refused.value.code == "conversation_locked"
    body: Any = refused.value.body
    return str(body["response_id"])


def test_a_failed_response_says_why_and_a_cut_one_is_incomplete(ann: Any) -> None:
    failed = checked(ann.responses.create(model="500", input="hello"))
    assert failed.status == "failed" and failed.error.code == "server_error" and "500" in failed.error.message
    cut = checked(ann.responses.create(model="length", input="hello, how are you today?"))
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    with ann.responses.stream(model="length", input="hello, how are you today?") as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


def test_a_response_that_is_not_stored_can_continue_a_stored_one(ann: Any, service: Served) -> None:
    before = service.call(service.manager.count(user_id="ann"))
    response = checked(ann.responses.create(model="local", input="hello", store=False))
    assert response.output_text == "1: hello" and response.store is False
    with pytest.raises(openai.NotFoundError):
        ann.responses.retrieve(response.id)
    history = [{"role": "user", "content": "hello"}, *response.output, {"role": "user", "content": "again"}]
    with ann.responses.stream(model="local", input=history, store=False) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == "3: hello | 1: hello | again"
    assert service.call(service.manager.count(user_id="ann")) == before
    stored = ann.responses.create(model="local", input="one")
    then = ann.responses.create(model="local", input="two", store=False, previous_response_id=stored.id)
    assert then.output_text == "3: one | 1: one | two"
    with pytest.raises(openai.BadRequestError):
        ann.responses.create(model="local", input="x", store=False, background=True)


def test_reasoning_is_shown_and_sent_back(ann: Any) -> None:
    response = checked(ann.responses.create(model="local", input="think", include=["reasoning.encrypted_content"]))
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].summary[0].text == "First this, then that. " and response.output[0].encrypted_content
    history = [{"role": "user", "content": "think"}, *response.output, {"role": "user", "content": "well?"}]
    again = ann.responses.create(model="local", input=history)
    assert again.output_text == "3: think | So it is. | well?"
    assert [item.type for item in ann.responses.input_items.list(again.id, order="asc")] == [
        *("message", "reasoning", "message", "message")
    ]
    with ann.responses.stream(model="local", input="think") as stream:
        deltas = [event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(deltas) == "First this, then that. "
    forged = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "nonsense"}]
    with pytest.raises(openai.BadRequestError) as refused:
        ann.responses.create(model="local", input=forged)
    assert refused.value.param == "input[0].encrypted_content"


def test_pictures_files_and_instructions_reach_the_model(ann: Any, provider: LocalProvider) -> None:
    picture = "data:image/png;base64," + base64.b64encode(b"png").decode()
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": picture, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
    ]
    developer = {"role": "developer", "content": "Be kind."}
    response = ann.responses.create(
        model="local", input=[developer, {"role": "user", "content": parts}], instructions="Be brief."
    )
    sent = provider.requests[-1].body["messages"]
    system = " ".join(str(message["content"]) for message in sent if message["role"] in ("system", "developer"))
    assert "Be brief." in system and "Be kind." in system
    assert [part["type"] for part in sent[-1]["content"]] == ["text", "image_url", "file"]
    assert response.instructions == "Be brief."
    items = list(ann.responses.input_items.list(response.id, order="asc"))
    assert [part.type for part in items[-1].content] == ["input_text", "input_image", "input_file"]
    for item in items:
        ITEM.validate_json(item.to_json(), strict=True)


def test_a_conversation_may_use_several_models_and_all_get_the_instructions(ann: Any, provider: LocalProvider) -> None:
    conversation = ann.conversations.create()
    for model, own in (("local", ""), ("strict", "Be strict.\n\n"), ("local", "")):
        kind = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}]
        settings = {"model": model, "conversation": conversation.id, "input": kind, "instructions": "Be brief."}
        response = ann.responses.create(**settings)
        assert response.model == model
        sent = provider.requests[-1].body["messages"]
        assert sent[0]["content"] == f"{own}Be kind.\n\nBe brief." and len(sent) > 1
    with pytest.raises(openai.NotFoundError) as refused:
        ann.responses.create(model="unheard-of", input="hello")
    assert refused.value.code == "model_not_found"


def test_a_refused_request_or_a_fork_leaves_the_sessions_engine(ann: Any, service: Served) -> None:
    def engine_of(session_id: str) -> str | None:
        async def look() -> str | None:
            session = await service.manager.get(session_id, user_id="ann")
            return (await session.info()).session.engine

        engine: str | None = service.call(look())
        return engine

    conversation = ann.conversations.create()
    settings, session_id = {"conversation": conversation.id}, conversation.id.removeprefix("conv_")
    ann.responses.create(model="local", input="hello", **settings)
    running = ann.responses.create(model="local", input="hold", background=True, **settings)
    with pytest.raises(openai.BadRequestError) as locked:
        ann.responses.create(model="strict", input="hello", **settings)
    assert locked.value.code == "conversation_locked" and engine_of(session_id) == "local"
    RELEASED.set()
    with ann.responses.retrieve(running.id, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
    with pytest.raises(openai.BadRequestError):
        ann.responses.create(model="strict", input="hello", temperature=-1, **settings)
    assert engine_of(session_id) == "local"

    first = ann.responses.create(model="local", input="one")
    second = ann.responses.create(model="local", input="two", previous_response_id=first.id)
    fork = ann.responses.create(model="strict", input="other", previous_response_id=first.id)
    sessions = [
        service.call(service.manager.execution(response.id[5:29], user_id="ann")) for response in (second, fork)
    ]
    assert [engine_of(session.session_id) for session in sessions] == ["local", "strict"]

    durable = {"extra_headers": {"X-Session-Id": "engines"}}
    prompt = {"role": "user", "content": "hello"}
    ann.chat.completions.create(model="local", messages=[prompt], **durable)
    other_messages = [{"role": "user", "content": "other"}, {"role": "assistant", "content": "x"}, prompt]
    with pytest.raises(openai.UnprocessableEntityError):
        ann.chat.completions.create(model="strict", messages=other_messages, **durable)
    assert engine_of("engines") == "local"


def test_a_stream_whose_store_fails_ends_with_an_error_and_is_resumed(
    ann: Any, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = ann.responses.create(model="local", input="hello")
    whole = AsyncExecutionHandle.events

    async def events(self: AsyncExecutionHandle) -> AsyncIterator[AnyEvent]:
        async for event in whole(self):
            yield event
            if event.kind == "run_started":
                raise StoreError("store s: no answer")

    monkeypatch.setattr(AsyncExecutionHandle, "events", events)
    with ann.responses.retrieve(response.id, stream=True) as stream:
        *_, last = stream
    assert isinstance(last, ResponseErrorEvent) and (last.type, last.code) == ("error", "store")
    EVENT.validate_json(last.to_json(), strict=True)
    assert "no answer" in last.message
    monkeypatch.undo()
    assert follow(service, response.id, last.sequence_number)[-1]["type"] == "response.completed"


def test_a_fault_of_the_service_is_answered_in_openai_s_form(
    ann: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a secret of the service")

    monkeypatch.setattr("turnwise.http.openai.models.models_of", fails)
    with pytest.raises(openai.InternalServerError) as failed:
        ann.models.list()
    assert (failed.value.code, failed.value.type) == ("internal", "server_error")
    assert "secret" not in failed.value.message and "a secret of the service" in caplog.text


def test_what_a_query_may_say_is_supported_or_refused_by_name(ann: Any) -> None:
    response = ann.responses.create(model="local", input="think")
    shown = [ann.responses.retrieve(response.id, include=include).output[0] for include in ([], [ENCRYPTED])]
    assert [bool(item.encrypted_content) for item in shown] == [False, True]
    conversation = ann.conversations.create(items=[{"role": "user", "content": "hello"}])
    (item,) = ann.conversations.items.list(conversation.id)
    added = {"conversation_id": conversation.id, "items": [{"role": "user", "content": "hello"}]}
    for call, arguments in (
        (ann.responses.retrieve, {"response_id": response.id}),
        (ann.responses.input_items.list, {"response_id": response.id}),
        (ann.conversations.items.list, {"conversation_id": conversation.id}),
        (ann.conversations.items.retrieve, {"conversation_id": conversation.id, "item_id": item.id}),
        (ann.conversations.items.create, added),
    ):
        assert call(**arguments, include=[ENCRYPTED])
        with pytest.raises(openai.BadRequestError) as refused:
            call(**arguments, include=["message.output_text.logprobs"])
        assert refused.value.param == "include[0]", call
        with pytest.raises(openai.BadRequestError) as refused:
            call(**arguments, extra_query={"colour": "red"})
        assert (refused.value.param, refused.value.code) == ("colour", "unknown_parameter"), call
    assert len(list(ann.conversations.items.list(conversation.id))) == 2


def test_a_repeated_request_is_answered_with_the_first_response(ann: Any) -> None:
    key = {"Idempotency-Key": "once"}
    first = ann.responses.create(model="local", input="hello", extra_headers=key)
    assert ann.responses.create(model="local", input="hello", extra_headers=key).id == first.id
    with pytest.raises(openai.APIStatusError) as refused:
        ann.responses.create(model="local", input="other", extra_headers=key)
    assert refused.value.code == "idempotency_conflict"
    ids = {first.id, ann.responses.create(model="local", input="a", previous_response_id=first.id).id}
    for _ in range(2):  # a fork, once
        later = {"previous_response_id": first.id, "extra_headers": {"Idempotency-Key": "twice"}}
        ids.add(ann.responses.create(model="local", input="b", **later).id)
    assert len(ids) == 3


UNSUPPORTED: dict[str, Any] = {
    "access_programs": {"cyber": "standard"},
    "context_management": [{"type": "compaction"}],
    "image": {"context_compression": "auto"},
    "max_tool_calls": 3,
    "moderation": {"model": "omni-moderation-latest"},
    "prompt": {"id": "pmpt_1"},
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "truncation": "disabled",
    "top_logprobs": 3,
}

SUPPORTED: dict[str, Any] = {
    "background": False,
    "conversation": None,
    "include": ["reasoning.encrypted_content"],
    "input": "hello",
    "instructions": "Be brief.",
    "max_output_tokens": 100,
    "metadata": {"a": "b"},
    "model": "local",
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low"},
    "safety_identifier": "s",
    "service_tier": "default",
    "store": True,
    "stream": False,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0.5,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 0.5,
    "user": "u",
}


def test_every_field_of_openai_is_supported_or_refused_by_name(ann: Any) -> None:
    every = get_type_hints(response_create_params.ResponseCreateParamsNonStreaming)
    assert set(every) == {*UNSUPPORTED, *SUPPORTED}
    answer = checked(ann.responses.create(**SUPPORTED))
    fields = answer.to_dict()
    same = ("instructions", "max_output_tokens", "metadata", "model", "prompt_cache_key", "safety_identifier")
    for name in (*same, "service_tier", "temperature", "top_p", "text", "user"):
        assert fields[name] == SUPPORTED[name], name
    for name, value in UNSUPPORTED.items():
        with pytest.raises(openai.BadRequestError) as refused:
            ann.responses.create(model="local", input="hello", extra_body={name: value})
        assert refused.value.param == name, name
    with pytest.raises(openai.BadRequestError) as refused:
        ann.responses.create(model="local", input="hello", extra_body={"surprise": 1})
    assert (refused.value.code, refused.value.param) == ("unknown_parameter", "surprise")


def part(of: dict[str, Any]) -> dict[str, Any]:
    """Return a request whose message has this part."""
    return {"input": [{"role": "user", "content": [of]}]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"type": "message"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]},
            "input[0].content[0].file_data",
        ),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "no"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": ""}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": "x", "temperature": "hot"}, "temperature"),
        ({"input": "x", "temperature": -1}, "temperature"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tools": [{"type": "function", "name": "a b", "parameters": {}}]}, "tools[0].name"),
        (
            {"input": "x", "tools": [{"type": "function", "name": "a", "parameters": {"type": "object", "$ref": "#"}}]},
            "tools[0].parameters",
        ),
        (
            {"input": "x", "tools": [{"type": "function", "name": "a", "parameters": {"type": 7}}]},
            "tools[0].parameters",
        ),
        ({"input": "x", "include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"input": "x", "metadata": {"a": "b" * 513}}, "metadata.a"),
        ({"input": "x", "conversation": "conv_none", "previous_response_id": "resp_x"}, "conversation"),
        ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": "x", "text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"input": "x", "reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"input": "x", "service_tier": "gold"}, "service_tier"),
    ],
)
def test_a_malformed_request_is_refused_with_the_place(ann: Any, service: Served, body: Any, param: str | None) -> None:
    count = service.call(service.manager.count(user_id="ann"))
    headers = {"Authorization": "Bearer ann's-secret-token", "Content-Type": "application/json"}
    answer = httpx.post(f"{service.url}/openai/v1/responses", content=json.dumps(body), headers=headers, timeout=100)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"] and error["param"] == param, error
    assert service.call(service.manager.count(user_id="ann")) == count


def test_hostile_ids_and_bodies_are_refused(service: Served) -> None:
    headers = {"Authorization": "Bearer ann's-secret-token"}
    with httpx.Client(base_url=f"{service.url}/openai/v1", headers=headers, timeout=100) as client:
        zeros, long = "resp_" + "0" * 26, "resp_" + "f" * 40
        for made_up in ("resp_", "resp_%00", "x" * 5000, long, "conv_chat", zeros, "%2f..%2fv1"):
            for path in (f"/responses/{made_up}", f"/conversations/{made_up}", f"/responses/{made_up}/input_items"):
                assert client.get(path).status_code == 404, path
            assert client.post(f"/responses/{made_up}/cancel").status_code == 404, made_up
        for body in (b"", b"{", b"[]", b"null", b'{"input": NaN', b"\xff\xfe", b"[" * 100_000):
            answer = client.post("/responses", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", body[:20]
        large = client.post("/responses", content=b"x" * (5 << 20))
        assert large.status_code == 413 and large.json()["error"]["code"] == "body_too_large"
        nobody = client.post("/responses", json={"input": "x"}, headers={"Authorization": "Bearer nonsense"})
        assert nobody.status_code == 401 and nobody.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.by_turns
@pytest.mark.parametrize(("header", "status"), [({}, "completed"), ({"X-On-Disconnect": "cancel"}, "cancelled")])
def test_a_client_that_leaves_keeps_its_response_unless_it_says_otherwise(
    ann: Any, header: dict[str, str], status: str
) -> None:
    with ann.responses.create(model="slow", input="long 30", stream=True, extra_headers=header) as stream:
        events = iter(stream)
        made_id = next(events).response.id
        while next(events).type != "response.output_text.delta":
            pass
    while (response := ann.responses.retrieve(made_id)).status == "in_progress":
        pass
    assert checked(response).status == status
    assert (len(response.output_text.split()) == 30) == (status == "completed")


async def test_responses_that_continue_one_response_at_once_are_forks(service: Served) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token", max_retries=0
    ) as ann:
        first = await ann.responses.create(model="local", input="one")
        requests = [ann.responses.create(model="local", input=f"{n}", previous_response_id=first.id) for n in range(4)]
        answers = await asyncio.gather(*requests)
        assert [answer.output_text for answer in answers] == [f"3: one | 1: one | {n}" for n in range(4)]
        assert len({answer.id for answer in answers}) == 4


def test_a_user_with_too_many_streams_is_refused_before_anything_starts(service: Served) -> None:
    async def ask() -> httpx.Response:
        app = create_app(service.manager, auth=TOKENS, settings=HttpSettings(max_streams_per_user=1))
        headers = {"Authorization": "Bearer ann's-secret-token"}
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers)
        with app.state.service.count_stream("ann"):
            async with client:
                return await client.post("/openai/v1/responses", json={"input": "x", "stream": True})

    count = service.call(service.manager.count(user_id="ann"))
    answer = service.call(ask())
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "too_many_streams"
    assert "retry-after" in answer.headers and service.call(service.manager.count(user_id="ann")) == count
