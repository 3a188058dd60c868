"""Functions that the client calls, tools that the service calls, and approvals; also when servers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from servers import served as processes
from servers.threaded_service import Served, served
from tools.city_tools import look, pay
from turnwise.actors.hosting.placement import InProcess
from turnwise.engines import OpenAIEngine, ToolRegistry
from turnwise.http import BearerTokens
from turnwise.testing import LocalProvider

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": "bob"})

RESPONSE, ITEM = TypeAdapter(Response), TypeAdapter(ResponseItem)


def function(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "name": name, "description": f"Looks for {name}.", "parameters": schema, "strict": True}


TOOLS = [function("weather"), function("trains")]

ASKED, GO_ON = threading.Event(), threading.Event()
"""Set when the model was given an output `held ...`, and when it may answer."""


def reply(messages: Sequence[dict[str, Any]]) -> Any:
    """Make the calls that the last prompt names; answer with the results."""
    last = messages[-1]
    if last["role"] == "tool" and not last["content"].startswith("call "):
        if last["content"].startswith("held "):
            ASKED.set()
            GO_ON.wait(60)
        results = [message["content"] for message in messages if message["role"] == "tool"]
        return f"Results: {', '.join(results)}."
    text = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
    if not text.startswith("call "):
        return f"{len(messages)}: {text}"
    calls = []
    for name in text.split()[1:]:
        function = {"name": name, "arguments": json.dumps({"city": "Rome"})}
        calls.append({"id": f"call_{name}_{len(messages)}", "type": "function", "function": function})
    return {"content": "I look.", "tool_calls": calls}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with LocalProvider(reply=reply) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="k", tools=ToolRegistry(pay, look))
        yield {"engine": engine, "placement": InProcess(), "auth": TOKENS, "namespace": "response-calls"}


@pytest.fixture(scope="module")
def service(store: str, options: dict[str, Any]) -> Iterator[Served]:
    with served(store, **options) as running:
        yield running


def client_of(service: Served, user: str = "ann") -> Any:
    return service.openai_client(f"{user}'s-secret-token")


def checked(response: Any) -> Any:
    """Return a response after it was checked by the client's own models, strictly."""
    RESPONSE.validate_json(response.to_json(), strict=True)
    return response


def outputs(response: Any, text: str = "sun") -> list[dict[str, Any]]:
    """Return an output for each function that a response calls."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{text} {call.name}"} for call in calls
    ]


def refusal(call: Any, **fields: Any) -> str:
    """Return why a request is refused."""
    with pytest.raises(openai.BadRequestError) as refused:
        call(**fields)
    return str(refused.value.message)


def test_a_response_with_calls_is_continued_by_their_outputs(service: Served) -> None:
    ann = client_of(service)
    first = checked(ann.responses.create(model="local", input="call weather trains", tools=TOOLS, metadata={"n": "1"}))
    assert first.status == "completed" and first.output_text == "I look."
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert json.loads(first.output[1].arguments) == {"city": "Rome"} and len(first.tools) == 2
    call_outputs = outputs(first)
    create, previous = ann.responses.create, {"model": "local", "previous_response_id": first.id}
    assert "No tool output found for function call call_weather" in refusal(create, input="well?", **previous)
    assert "No tool output found for function call call_trains" in refusal(create, input=call_outputs[:1], **previous)
    assert "No tool call found" in refusal(
        create, input=[*call_outputs, {**call_outputs[0], "call_id": "other"}], **previous
    )
    assert "two outputs" in refusal(create, input=[*call_outputs, call_outputs[0]], **previous)
    assert "send messages after" in refusal(
        create, input=[*call_outputs, {"role": "user", "content": "and?"}], **previous
    )
    assert "temperature" in refusal(create, input=call_outputs, temperature=0.1, **previous)
    bob = client_of(service, "bob")
    assert "not found" in refusal(bob.responses.create, input=call_outputs, **previous)
    second = checked(create(input=call_outputs, tools=TOOLS, metadata={"n": "2"}, **previous))
    assert second.output_text == "Results: sun weather, sun trains."
    assert (second.previous_response_id, second.metadata, first.metadata) == (first.id, {"n": "2"}, {"n": "1"})
    assert checked(ann.responses.retrieve(first.id)).to_dict() == first.to_dict()
    assert checked(ann.responses.retrieve(second.id)).to_dict() == second.to_dict()
    assert create(input=call_outputs, **previous).id == second.id
    assert "provided" in refusal(create, input=outputs(first, "rain"), **previous)
    items = list(ann.responses.input_items.list(second.id, order="asc"))
    assert [(item.type, item.output) for item in items] == [
        ("function_call_output", "sun weather"),
        ("function_call_output", "sun trains"),
    ]
    for item in items:
        ITEM.validate_json(item.to_json(), strict=True)
    third = create(model="local", input="thanks", previous_response_id=second.id)
    assert third.output_text.endswith("thanks") and third.previous_response_id == second.id


def test_a_response_is_deleted_and_the_one_that_brought_its_outputs_stays(service: Served) -> None:
    ann = client_of(service)
    first = ann.responses.create(model="local", input="call weather", tools=TOOLS)
    second = ann.responses.create(input=outputs(first), previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        ann.responses.delete(f"{first.id[:-2]}02")
    assert ann.responses.delete(first.id) is None
    with pytest.raises(openai.NotFoundError):
        ann.responses.retrieve(first.id)
    assert checked(ann.responses.retrieve(second.id)).to_dict() == second.to_dict()
    count = service.call(service.manager.count(user_id="ann"))
    ann.responses.delete(second.id)
    assert service.call(service.manager.count(user_id="ann")) == count - 1


def test_cancelling_an_ended_response_leaves_the_running_one(service: Served) -> None:
    ann = client_of(service)
    first = ann.responses.create(model="local", input="call weather", tools=TOOLS)
    second = ann.responses.create(input=outputs(first, "held"), previous_response_id=first.id, background=True)
    assert ASKED.wait(60)
    assert ann.responses.cancel(first.id).status == "completed"
    with pytest.raises(openai.NotFoundError):
        ann.responses.cancel(f"{first.id[:-2]}02")
    ann.responses.delete(first.id)
    assert ann.responses.retrieve(second.id).status == "in_progress"
    GO_ON.set()
    with ann.responses.retrieve(second.id, stream=True) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
    assert ann.responses.retrieve(second.id).output_text == "Results: held weather."


def test_responses_that_are_deleted_at_once_stay_deleted(service: Served) -> None:
    async def delete() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token", max_retries=0
        ) as ann:
            conversation = await ann.conversations.create(metadata={"topic": "rome"})
            settings: dict[str, Any] = {"model": "local", "conversation": conversation.id}
            responses = [await ann.responses.create(input=f"{number}", **settings) for number in range(4)]
            change = ann.conversations.update(conversation.id, metadata={"place": "ostia"})
            await asyncio.gather(change, *(ann.responses.delete(response.id) for response in responses))
            for response in responses:
                with pytest.raises(openai.NotFoundError):
                    await ann.responses.retrieve(response.id)
            assert (await ann.conversations.retrieve(conversation.id)).metadata == {"place": "ostia"}
            with pytest.raises(openai.BadRequestError, match="are the service's"):
                await ann.conversations.update(conversation.id, metadata={f"openai.deleted.{responses[0].id}": "no"})
            session = await service.manager.get(conversation.id.removeprefix("conv_"), user_id="ann")
            await session.update(metadata={"openai.deleted": 5})
            assert (await ann.responses.create(input="on", **settings)).status == "completed"

    asyncio.run(delete())


def test_outputs_with_changed_settings_are_refused_by_the_settings_name(service: Served) -> None:
    ann = client_of(service)
    choice = {"type": "function", "name": "weather"}
    own = {"tools": TOOLS, "tool_choice": choice, "instructions": "Be brief.", "user": "u", "include": []}
    first = ann.responses.create(model="local", input="call weather", **own)
    continuation = {"input": outputs(first), "previous_response_id": first.id}
    changed_tool = {**TOOLS[0], "description": "Looks for something else."}
    schema = {**TOOLS[0], "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}
    for name, value in (
        ("store", False),
        ("include", ["reasoning.encrypted_content"]),
        ("user", "v"),
        ("tool_choice", "none"),
        ("tool_choice", "required"),
        ("tools", TOOLS[:1]),
        ("tools", [changed_tool, TOOLS[1]]),
        ("tools", [schema, TOOLS[1]]),
        ("instructions", "brief."),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ann.responses.create(**continuation, **{name: value})
        assert refused.value.param == name, (name, value)
    same = ann.responses.create(**continuation, **own)
    assert same.output_text == "Results: sun weather."
    assert ann.responses.create(**continuation, **{**own, "tool_choice": "auto"}).id == same.id


def test_a_streamed_call_is_continued_as_a_stream(service: Served) -> None:
    ann = client_of(service)
    with ann.responses.stream(model="local", input="call weather", tools=TOOLS[:1]) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds and kinds[-1] == "response.completed"
    assert first.output[-1].parsed_arguments == {"city": "Rome"}
    with ann.responses.stream(model="local", input=outputs(first), previous_response_id=first.id) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == "Results: sun weather."


def test_a_conversation_waits_for_outputs_and_goes_on_after_a_restart(store: str, options: dict[str, Any]) -> None:
    with served(store, **options) as service:
        ann = client_of(service)
        conversation = ann.conversations.create()
        settings = {"model": "local", "conversation": conversation.id}
        first = ann.responses.create(input="call weather", tools=TOOLS, **settings)
        assert "No tool output found for function call" in refusal(ann.responses.create, input="well?", **settings)
    with served(store, **options) as service:
        ann = client_of(service)
        second = checked(ann.responses.create(input=outputs(first), **settings))
        assert second.output_text == "Results: sun weather." and second.conversation.id == conversation.id
        kinds = [item.type for item in ann.conversations.items.list(conversation.id, order="asc")]
        assert kinds == ["message", "message", "function_call", "function_call_output", "message"]
        third = ann.responses.create(input="call weather", tools=TOOLS, **settings)
        assert ann.responses.cancel(third.id).status == "completed"
        assert ann.responses.create(input="never mind", **settings).status == "completed"
        ann.responses.create(input="call weather", tools=TOOLS, **settings)
        assert ann.conversations.delete(conversation.id).deleted


def test_outputs_that_are_sent_to_a_conversation_again_get_the_same_response(service: Served) -> None:
    ann = client_of(service)
    conversation = ann.conversations.create()
    settings = {"model": "local", "conversation": conversation.id, "tools": TOOLS}
    first = ann.responses.create(input="call weather", **settings)
    call_outputs = [{**outputs(first)[0], "output": "call trains"}]
    second = ann.responses.create(input=call_outputs, metadata={"n": "2"}, **settings)
    assert [item.name for item in second.output if item.type == "function_call"] == ["trains"]
    again = ann.responses.create(input=call_outputs, metadata={"n": "2"}, **settings)
    assert again.to_dict() == second.to_dict()
    GO_ON.clear()
    ASKED.clear()
    held = outputs(second, "held")
    third = ann.responses.create(input=held, background=True, **settings)
    assert ASKED.wait(60)
    again = ann.responses.create(input=held, background=True, **settings)
    GO_ON.set()
    assert again.id == third.id and third.metadata == {}
    again = ann.responses.create(input=held, **settings)
    assert again.id == third.id and again.output_text == "Results: call trains, held trains."
    assert "provided" in refusal(ann.responses.create, input=outputs(second, "rain"), **settings)
    unknown = {"type": "function_call_output", "call_id": "other", "output": "sun"}
    assert "No tool call found" in refusal(ann.responses.create, input=[unknown], **settings)


def test_an_output_may_have_pictures_and_files(service: Served) -> None:
    ann = client_of(service)
    first = ann.responses.create(model="local", input="call weather", tools=TOOLS)
    parts = [
        {"type": "input_text", "text": "sun"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
    ]
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": parts}
    second = checked(ann.responses.create(model="local", input=[output], previous_response_id=first.id))
    assert second.status == "completed"
    (item,) = ann.responses.input_items.list(second.id)
    ITEM.validate_json(item.to_json(), strict=True)
    assert [part.type for part in item.output] == ["input_text", "input_image"]


def test_calls_that_are_not_stored_are_made_again_from_the_whole_input(service: Served) -> None:
    ann = client_of(service)
    prompt = [{"role": "user", "content": "call weather"}]
    first = checked(ann.responses.create(model="local", input=prompt, tools=TOOLS, store=False))
    whole = [*prompt, *(item.to_dict() for item in first.output), *outputs(first)]
    second = checked(ann.responses.create(model="local", input=whole, tools=TOOLS, store=False))
    assert second.output_text == "Results: sun weather."


def test_tools_of_the_service_are_shown_and_approved(service: Served) -> None:
    ann = client_of(service)
    first = checked(ann.responses.create(model="local", input="call look pay weather", tools=TOOLS))
    kinds = [item.type for item in first.output]
    assert kinds == ["message", "mcp_call", "mcp_approval_request", "function_call"]
    look, request = first.output[1], first.output[2]
    assert (look.output, look.status, look.name, request.name) == ("saw Rome", "completed", "look", "pay")
    approval = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    previous = {"model": "local", "previous_response_id": first.id}
    assert "No tool output found" in refusal(ann.responses.create, input=[approval], **previous)
    with ann.responses.stream(input=[approval, *outputs(first)], **previous) as stream:
        kinds = [event.type for event in stream]
        second = checked(stream.get_final_response())
    assert "response.mcp_call.completed" in kinds
    assert [item.type for item in second.output] == ["mcp_call", "message"]
    assert second.output_text == "Results: saw Rome, paid Rome, sun weather."
    assert second.output[0].approval_request_id == request.id
    second_call = ann.responses.create(model="local", input="call pay")
    rejection = {"approval_request_id": second_call.output[-1].id, "approve": False, "reason": "too dear"}
    rejected = ann.responses.create(
        model="local", input=[{"type": "mcp_approval_response", **rejection}], previous_response_id=second_call.id
    )
    assert "rejected: too dear" in rejected.output_text


TEXT = " ".join(f"word{n}" for n in range(60))


def test_a_server_killed_in_the_middle_of_a_stream_loses_no_event(ray_address: str, tmp_path: Path) -> None:
    with LocalProvider(token_delay_s=0.1, reply=lambda _: TEXT) as provider:
        base = ["--model", "m", "--base-url", provider.base_url, "--port", "0", "--packed", "1"]
        words = [f"sqlite:///{tmp_path}/chats.db", *base]
        events: list[Any] = []
        with processes.served(*words, RAY_ADDRESS=ray_address) as running:
            with openai.OpenAI(base_url=f"{running.url}/openai/v1", api_key="none", max_retries=0) as client:
                stream = client.responses.create(model="m", input="Tell me a story.", stream=True)
                with contextlib.suppress(openai.APIError, httpx2.TransportError):
                    for event in stream:
                        events.append(event)
                        if len(events) == 9:
                            os.kill(running.process.pid, signal.SIGKILL)
            assert events[-1].type == "response.output_text.delta"
        with processes.served(*words, RAY_ADDRESS=ray_address) as running:
            response_id = events[0].response.id
            with openai.OpenAI(base_url=f"{running.url}/openai/v1", api_key="none", max_retries=0) as client:
                with client.responses.retrieve(
                    response_id, stream=True, starting_after=events[-1].sequence_number
                ) as rest:
                    events += rest
                assert checked(client.responses.retrieve(response_id)).output_text == TEXT
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers)) and events[-1].type == "response.completed"
        assert len(provider.requests) == 1
