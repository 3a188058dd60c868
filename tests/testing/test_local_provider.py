"""The simulated provider, used by the real client."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from turnwise.testing import LocalProvider, Message, embed, tool_script

KEY = "sk-secret-4711"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


def ask(provider: LocalProvider, path: str, **body: Any) -> Any:
    """Return the JSON of a response that is not streamed."""
    with openai.OpenAI(api_key=KEY, base_url=provider.base_url, max_retries=0) as client:
        return client.post(path, cast_to=object, body={"model": "local", **body})


def chat(provider: LocalProvider, **body: Any) -> Any:
    return ask(provider, "/chat/completions", **{"messages": HELLO, **body})


def respond(provider: LocalProvider, **body: Any) -> Any:
    return ask(provider, "/responses", **{"input": "Hello", **body})


def streamed(provider: LocalProvider, **body: Any) -> list[Any]:
    """Return the events of a response."""
    with (
        openai.OpenAI(api_key=KEY, base_url=provider.base_url, max_retries=0) as client,
        client.responses.create(stream=True, **{"model": "local", "input": "Hello", **body}) as stream,
    ):
        return list(stream)


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**LOOK, **fields}}


# Answers


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "Paris, France"}'}}
SAID = {"reasoning_content": "Hm, hm.", "content": "Let me look.", "tool_calls": [CALL]}


def test_a_completion_is_the_same_streamed_or_not() -> None:
    with LocalProvider(reply=SAID) as provider:
        whole = chat(provider)
        with (
            openai.OpenAI(api_key=KEY, base_url=provider.base_url) as client,
            client.chat.completions.stream(model="local", messages=HELLO) as stream,
        ):
            final = stream.get_final_completion()
    assert whole["choices"][0]["message"] == {"role": "assistant", **SAID}
    assert whole["choices"][0]["finish_reason"] == final.choices[0].finish_reason == "tool_calls"
    message = final.choices[0].message
    assert (message.content, message.to_dict()["reasoning_content"]) == (SAID["content"], SAID["reasoning_content"])
    assert message.tool_calls is not None
    assert [(call.id, call.function.arguments) for call in message.tool_calls] == [("a", '{"at": "Paris, France"}')]


def test_a_response_is_the_same_streamed_or_not() -> None:
    with LocalProvider(reply=SAID) as provider:
        whole = respond(provider)
        *_, last = streamed(provider)
    name, streamed_name = (response_id.removeprefix("resp_") for response_id in (whole["id"], last.response.id))
    assert last.response == Response.model_validate_json(json.dumps(whole).replace(name, streamed_name))
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["usage"]["output_tokens"] == 2 + 3 + 4
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


def test_the_events_of_a_response_are_ordered_as_in_the_real_api() -> None:
    with LocalProvider(reply={"reasoning_content": "Hm.", "content": "I look.", "tool_calls": [CALL]}) as provider:
        events = streamed(provider, include=["reasoning.encrypted_content"])
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        *["function_call_arguments.delta"] * 3,
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in events[-1].response.output] == [item.id for item in done]
    assert [getattr(item, "status", None) for item in done] == [None, "completed", "completed"]
    assert done[0].encrypted_content
    assert events[2].item.encrypted_content is None
    assert done[2].arguments == '{"at": "Paris, France"}'


def test_the_client_parses_each_event() -> None:
    """Each event has its own type, and every field that the type requires."""
    with LocalProvider(reply=[SAID | {"content": "", "tool_calls": []}, {"refusal": "No."}, SAID]) as provider:
        events = [*streamed(provider), *streamed(provider, model="length"), *streamed(provider, model="error")]
    for event in events:
        type(event).model_validate(event.to_dict(mode="json"))
        (kind,) = type(event).model_fields["type"].annotation.__args__
        assert kind == event.type
    assert {"error", "response.failed", "response.incomplete", "response.refusal.delta"} <= {
        event.type for event in events
    }


def test_a_provider_that_closes_leaves_no_connection_open() -> None:
    """Also those that were just accepted, and those of clients that do not read their answers."""
    for _ in range(5):
        with LocalProvider(reply="word " * 20_000) as provider:
            clients = [socket.create_connection(("127.0.0.1", provider.port)) for _ in range(8)]
            for client in clients[::2]:
                body = json.dumps({"model": "local", "stream": True, "messages": HELLO}).encode()
                client.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
                )
        for client in clients:
            client.close()
        gc.collect()  # what was left open would warn here, which is an error


def test_a_model_reasons_on_request(provider: LocalProvider) -> None:
    (item, message) = respond(provider, reasoning={"effort": "low"})["output"]
    assert (item["type"], item["summary"], "encrypted_content" in item) == ("reasoning", [], False)
    assert message["type"] == "message"


def test_a_reply_function_gets_the_same_conversation_from_both_apis() -> None:
    conversations: list[list[Message]] = []

    def reply(messages: list[Message]) -> str:
        conversations.append(messages)
        return "Sun."

    calls = [CALL, {**CALL, "id": "b"}]
    picture = {"url": "https://example.org/sun.png"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "See?"}, {"type": "image_url", "image_url": picture}]},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": "And now?"},
    ]
    parts = [{"type": "input_text", "text": "See?"}, {"type": "input_image", "image_url": picture["url"]}]
    items = [
        {"role": "user", "content": parts},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        *({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls),  # type: ignore[dict-item]
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "Both."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    with LocalProvider(reply=reply) as provider:
        chat(provider, messages=messages)
        respond(provider, instructions="Be brief.", input=items)
    assert conversations[0] == conversations[1] == messages


def test_a_script_restarts_with_each_user_message_and_repeats_its_last_step() -> None:
    script = tool_script([[("look", {"at": "Paris"}), ("look", "as it is")], "Sun."], reasoning="Hm.")
    question: list[Message] = [{"role": "user", "content": "Weather?"}]
    first = script(question)
    assert first["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == ['{"at": "Paris"}', "as it is"]
    steps = [{"role": "assistant", **first}, *({"role": "tool", "content": "sun"} for _ in first["tool_calls"])]
    assert script([*question, *steps])["content"] == "Sun."
    assert script([*question, *steps, {"role": "assistant", "content": "Sun."}])["content"] == "Sun."
    again = script([*question, *steps, {"role": "user", "content": "And now?"}])
    assert len({call["id"] for message in (first, again) for call in message["tool_calls"]}) == 4


# Refusals


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "seen"}]}, "messages", "'a'"),
        ({"messages": []}, "messages", "Missing"),
        ({"model": None}, "model", "Missing required parameter: 'model'"),
        ({"temperature": 3}, "temperature", "above maximum value. Expected a value <= 2, but got 3"),
        ({"temperature": "hot"}, "temperature", "expected an integer or a decimal, but got a string"),
        ({"max_tokens": 0}, "max_tokens", "below minimum value. Expected a value >= 1, but got 0"),
        ({"max_tokens": True}, "max_tokens", "expected an integer, but got a boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed when 'stream' is enabled"),
        ({"input": "Hello"}, "input", "Unknown parameter: 'input'"),
        ({"tools": []}, "tools", "empty array"),
        ({"tools": [LOOK]}, "tools[0].type", "Invalid value"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "Missing"),
        ({"tools": [function(name="look up")]}, "tools[0].function.name", "does not match pattern"),
        ({"tools": [function(description=5)]}, "tools[0].function.description", "expected a string"),
        ({"tools": [function(parameters={})]}, "tools[0].function.parameters", "got 'type: \"None\"'"),
        ({"tools": [function(parameters={"type": "object"})]}, "tools[0].function.parameters", "missing properties"),
        ({"tool_choice": "auto"}, "tool_choice", "only allowed when 'tools' are specified"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "only allowed when 'tools' are specified"),
        ({"tools": [function()], "tool_choice": "any"}, "tool_choice", "Invalid value: 'any'"),
        ({"tools": [function()], "tool_choice": function(name="see")}, "tool_choice", "'see' not found in 'tools'"),
    ],
    ids=str,
)
def test_a_completion_is_refused_like_by_the_real_api(
    provider: LocalProvider, body: dict[str, Any], param: str, reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        chat(provider, **body)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "seen"}]}, "input", "a"),
        ({"input": []}, "input", "Missing"),
        ({"max_output_tokens": 15}, "max_output_tokens", "Expected a value >= 16, but got 15"),
        ({"max_tokens": 100}, "max_tokens", "Unknown parameter: 'max_tokens'"),
        ({"tools": [function()]}, "tools[0].parameters", "Missing"),
        ({"tools": [{"type": "function", "parameters": None}]}, "tools[0].name", "Missing"),
        ({"tools": [{"type": "function", **LOOK, "parameters": {"type": "array"}}]}, "tools[0].parameters", "array"),
        (
            {"tools": [{"type": "function", **LOOK}], "tool_choice": {"type": "function", "name": "see"}},
            "tool_choice",
            "'see' not found in 'tools'",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not found"),
    ],
    ids=str,
)
def test_a_response_is_refused_like_by_the_real_api(
    provider: LocalProvider, body: dict[str, Any], param: str, reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        respond(provider, **body)
    assert caught.value.param == param


def test_tools_are_accepted_like_by_the_real_api(provider: LocalProvider) -> None:
    city = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    properties: dict[str, dict[str, Any]] = {
        "cities": {"type": "array", "items": city},
        "more": {"type": "object", "additionalProperties": True},
    }
    look = {**LOOK, "parameters": {"type": "object", "properties": properties, "required": ["cities"]}}
    chosen = {"type": "function", "function": {"name": "look"}}
    assert chat(provider, tools=[{"type": "function", "function": look}], tool_choice=chosen)
    tools = [{"type": "function", **look}, {"type": "web_search"}]
    assert respond(provider, tools=tools, tool_choice={"type": "function", "name": "look"})
    assert respond(provider, tools=[])
    properties["cities"].pop("items")
    with pytest.raises(openai.BadRequestError, match=r"'cities'.*array schema missing items"):
        respond(provider, tools=tools)


def test_reasoning_is_accepted_only_unchanged_and_with_its_following_item() -> None:
    with LocalProvider(reply={"reasoning_content": "Hm.", "content": "Sun."}) as provider:
        item, message = respond(provider, include=["reasoning.encrypted_content"], store=False)["output"]
        followed = {"role": "assistant", "content": message["content"]}

        def sent(reasoning: dict[str, Any], *rest: dict[str, Any]) -> Any:
            return respond(provider, input=[*HELLO, reasoning, *rest, *HELLO])

        assert sent(item, followed)
        for changes, reason in [
            ({"encrypted_content": item["encrypted_content"][:-8] + "AAAA" * 2}, "could not be decrypted"),
            ({"encrypted_content": "Zürich"}, "could not be decrypted"),
            ({"id": "rs_1"}, "item_id did not match"),
            ({"encrypted_content": None}, "encrypted_content"),
        ]:
            with pytest.raises(openai.BadRequestError, match=reason):
                sent({**item, **changes}, followed)
        with pytest.raises(openai.BadRequestError, match="is not followed by its item"):
            sent(item)


# Faults


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
@pytest.mark.parametrize("fault", ["cut", "unfinished", "malformed", "error"])
def test_an_answer_without_streaming_is_cut_instead_of_broken(provider: LocalProvider, path: str, fault: str) -> None:
    with pytest.raises(openai.APIConnectionError):
        ask(provider, path, model=fault, **({"messages": HELLO} if "chat" in path else {"input": "Hello"}))
    assert not provider.requests[0].finished


def test_a_response_of_maximum_length_is_incomplete_with_its_last_item(provider: LocalProvider) -> None:
    *_, last = streamed(provider, model="length")
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in last.response.output] == ["incomplete"]


def test_an_empty_response_is_complete(provider: LocalProvider) -> None:
    *_, last = streamed(provider, model="empty")
    assert (last.type, last.response.output) == ("response.completed", [])


# The rest


def test_texts_that_share_words_have_near_embeddings(provider: LocalProvider) -> None:
    texts = ["the cat sat", "The cat slept", "stocks fell"]
    with openai.OpenAI(api_key=KEY, base_url=provider.base_url) as client:
        packed = client.embeddings.create(model="local", input=texts)
        plain = client.embeddings.create(model="local", input=texts, encoding_format="float")
    cat, kitten, stocks = ([float(x) for x in item.embedding] for item in packed.data)
    assert [item.embedding for item in plain.data] == [pytest.approx(embed(text)) for text in texts]

    def near(left_vector: list[float], right_vector: list[float]) -> float:
        return sum(a * b for a, b in zip(left_vector, right_vector, strict=True))

    assert near(cat, cat) == pytest.approx(1)
    assert near(cat, kitten) > near(cat, stocks)


@pytest.mark.parametrize("size", [0, -5])
def test_embeddings_of_no_dimensions_are_refused_like_by_the_real_api(provider: LocalProvider, size: int) -> None:
    reason = f"Invalid 'dimensions': integer below minimum value. Expected a value >= 1, but got {size} instead."
    with (
        openai.OpenAI(api_key=KEY, base_url=provider.base_url, max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as raised,
    ):
        client.embeddings.create(model="local", input="a cat", dimensions=size)
    assert raised.value.body == {
        "message": reason,
        "type": "invalid_request_error",
        "param": "dimensions",
        "code": "integer_below_min_value",
    }


def test_open_connections_are_closed_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with LocalProvider() as provider, socket.create_connection(("127.0.0.1", provider.port)) as idle:
        idle.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX-Fault: hang\r\n\r\n")
        record = provider.wait_for_request()
        provider.close()
        assert idle.recv(1) == b""
    assert caplog.messages == []
    assert record.hung_up_at is None
    assert not record.finished


def test_the_provider_lists_its_model_and_records_no_key(provider: LocalProvider) -> None:
    with openai.OpenAI(api_key=KEY, base_url=provider.base_url) as client:
        assert [model.id for model in client.models.list()] == ["local"]
    assert KEY not in repr(provider.requests)
