"""Conversations by the real `openai` client and the OpenAI Agents SDK, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai.types.conversations import Conversation, ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from servers.threaded_service import Served, served
from turnwise.actors.hosting.placement import InProcess
from turnwise.engines import OpenAIEngine
from turnwise.http import BearerTokens, HttpSettings
from turnwise.testing import LocalProvider

MODELS = HttpSettings(models=("slow", "stall", "500", "length"))

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": "bob"})


def reply(messages: Sequence[dict[str, Any]]) -> Any:
    """Call the tool `weather` if asked about it; else answer with the number of messages and the last one."""
    conversation = [message for message in messages if message["role"] not in ("system", "developer")]
    last = conversation[-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
    if "weather" in text and last["role"] == "user":
        function = {"name": "weather", "arguments": '{"city": "Rome"}'}
        return {"tool_calls": [{"id": f"call_{len(conversation)}", "type": "function", "function": function}]}
    return f"{len(conversation)}: {text}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with LocalProvider(reply=reply) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="k")
        store = f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"
        with served(
            store, engine=engine, placement=InProcess(), auth=TOKENS, settings=MODELS, namespace="conversations"
        ) as running:
            yield running


def client_of(service: Served, user: str) -> Any:
    return service.openai_client(f"{user}'s-secret-token")


def checked(kind: Any, value: Any) -> Any:
    """Return an answer after it was checked by the client's own models, strictly."""
    TypeAdapter(kind).validate_json(value.to_json(), strict=True)
    return value


def test_a_conversation_lists_what_its_session_has_said(service: Served) -> None:
    ann = client_of(service, "ann")
    conversation = ann.conversations.create()

    async def say() -> None:
        session = await service.manager.get(conversation.id.removeprefix("conv_"), user_id="ann")
        for text in ("Hello!", "Are you there?"):
            await session.say(text)

    service.call(say())
    answer = ann.responses.create(model="local", input="Yes.", conversation=conversation.id)
    items = [checked(ConversationItem, item) for item in ann.conversations.items.list(conversation.id, order="asc")]
    assert [(item.role, item.content[0].text) for item in items] == [
        *(("assistant", text) for text in ("Hello!", "Are you there?")),
        *(("user", "Yes."), ("assistant", answer.output_text)),
    ]
    for item in items:
        assert ann.conversations.items.retrieve(item.id, conversation_id=conversation.id).to_dict() == item.to_dict()


def test_a_conversation_is_created_changed_listed_and_deleted(service: Served) -> None:
    ann, bob = client_of(service, "ann"), client_of(service, "bob")
    message = {"role": "user", "content": "hello"}
    conversation = checked(Conversation, ann.conversations.create(metadata={"topic": "rome"}, items=[message]))
    assert conversation.metadata == {"topic": "rome"}
    assert checked(Conversation, ann.conversations.retrieve(conversation.id)).to_dict() == conversation.to_dict()
    changed = ann.conversations.update(conversation.id, metadata={"topic": "ostia"})
    assert changed.metadata == {"topic": "ostia"}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    spoken = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi.", "annotations": []}],
    }
    added = checked(ConversationItemList, ann.conversations.items.create(conversation.id, items=[spoken, call, output]))
    assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
    answer = ann.responses.create(model="local", input="and?", conversation=conversation.id)
    assert answer.output_text == "4: and?" and answer.conversation and answer.conversation.id == conversation.id
    items = list(ann.conversations.items.list(conversation.id, order="asc", limit=2))
    for item in items:
        checked(ConversationItem, item)
        again = ann.conversations.items.retrieve(item.id, conversation_id=conversation.id)
        assert again.to_dict() == item.to_dict()
    assert [item.type for item in items] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert [item.id for item in added.data] == [item.id for item in items[1:4]]
    assert items[-1].id == answer.output[0].id
    newest_first = list(ann.conversations.items.list(conversation.id, limit=4))
    assert [item.id for item in newest_first] == [item.id for item in reversed(items)]
    for forbidden in (bob.conversations.retrieve, bob.conversations.delete, bob.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            forbidden(conversation.id)
    with pytest.raises(openai.NotFoundError):
        bob.responses.create(model="local", input="and?", conversation=conversation.id)
    assert ann.conversations.delete(conversation.id).deleted
    for request in (ann.conversations.retrieve, ann.conversations.delete, ann.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            request(conversation.id)
    with pytest.raises(openai.NotFoundError):
        ann.responses.retrieve(answer.id)


def test_a_conversation_whose_items_are_refused_is_not_there(service: Served) -> None:
    orphan = {"type": "function_call_output", "call_id": "of no call", "output": "seen"}
    before = service.call(service.manager.count())
    with pytest.raises(openai.BadRequestError, match="of no call"):
        client_of(service, "ann").conversations.create(items=[orphan])
    assert service.call(service.manager.count()) == before


def test_a_deleted_item_is_in_no_later_response_but_in_earlier_ones(service: Served) -> None:
    ann, bob = client_of(service, "ann"), client_of(service, "bob")
    conversation = ann.conversations.create(metadata={"topic": "rome"})
    items = ann.conversations.items
    first = ann.responses.create(model="local", input="one", conversation=conversation.id)
    second = ann.responses.create(model="local", input="two", conversation=conversation.id)
    assert second.output_text == "3: two"
    listed = [item.id for item in items.list(conversation.id, order="asc")]
    with pytest.raises(openai.NotFoundError):
        bob.conversations.items.delete(listed[0], conversation_id=conversation.id)
    deleted = checked(Conversation, items.delete(listed[2], conversation_id=conversation.id))
    assert (deleted.id, deleted.metadata) == (conversation.id, {"topic": "rome"})
    for call in (items.retrieve, items.delete):
        with pytest.raises(openai.NotFoundError):
            call(listed[2], conversation_id=conversation.id)
    assert [item.id for item in items.list(conversation.id, order="asc")] == [*listed[:2], listed[3]]
    assert [item.id for item in items.list(conversation.id, order="asc", after=listed[2])] == [listed[3]]
    assert ann.responses.create(model="local", input="three", conversation=conversation.id).output_text == "3: three"
    assert ann.responses.retrieve(second.id).output_text == "3: two"
    inputs = list(ann.responses.input_items.list(second.id))
    assert [item.id for item in inputs] == [listed[2]], "what a response was given stays"
    assert ann.responses.retrieve(first.id).output[0].id == listed[1]
    for item in items.list(conversation.id, order="asc"):
        items.delete(item.id, conversation_id=conversation.id)
    assert items.list(conversation.id).data == []
    assert ann.responses.create(model="local", input="anew", conversation=conversation.id).output_text == "1: anew"


def test_deleting_a_call_deletes_its_output_too(service: Served) -> None:
    ann = client_of(service, "ann")
    items = ann.conversations.items
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    messages = [{"role": "user", "content": text} for text in ("one", "two")]
    conversation = ann.conversations.create(items=[*messages, call, output])
    listed = [item.id for item in items.list(conversation.id, order="asc")]
    items.delete(listed[0], conversation_id=conversation.id)
    items.delete(listed[2], conversation_id=conversation.id)
    assert [item.id for item in items.list(conversation.id)] == [listed[1]]
    assert ann.responses.create(model="local", input="three", conversation=conversation.id).output_text == "2: three"


def test_an_item_is_not_deleted_while_a_response_runs_or_waits(service: Served) -> None:
    ann = client_of(service, "ann")
    conversation = ann.conversations.create(items=[{"role": "user", "content": "one"}])
    (item,) = ann.conversations.items.list(conversation.id)
    running = ann.responses.create(model="stall", input="two", conversation=conversation.id, background=True)
    with pytest.raises(openai.BadRequestError) as refused:
        ann.conversations.items.delete(item.id, conversation_id=conversation.id)
    assert refused.value.code == "conversation_locked"
    ann.responses.cancel(running.id)
    ann.conversations.items.delete(item.id, conversation_id=conversation.id)
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    ask = {"model": "local", "input": "The weather?", "conversation": conversation.id}
    waiting = ann.responses.create(**ask, tools=[tool])
    (prompt, *_) = ann.conversations.items.list(conversation.id, order="asc")
    with pytest.raises(openai.BadRequestError, match="No tool output found"):
        ann.conversations.items.delete(prompt.id, conversation_id=conversation.id)
    outputs = [{"type": "function_call_output", "call_id": waiting.output[0].call_id, "output": "Rain."}]
    answer = ann.responses.create(model="local", input=outputs, conversation=conversation.id)
    # The last item first, as who goes back does: each delete takes one item off the list, whatever is sent without it.
    for kind in ("message", "function_call_output", "function_call", "message"):
        newest = ann.conversations.items.list(conversation.id).data[0]
        assert newest.type == kind
        ann.conversations.items.delete(newest.id, conversation_id=conversation.id)
    assert answer.output_text == "5: Rain."
    assert ann.responses.create(model="local", input="Well?", conversation=conversation.id).output_text.endswith(
        ": Well?"
    )


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"It is raining in {city}"


async def test_the_agents_sdk_keeps_its_session_as_a_conversation(service: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token") as client:
        model = OpenAIResponsesModel("local", client)
        agent = Agent(name="Ann's", instructions="Be brief.", model=model, tools=[weather])
        quiet = RunConfig(tracing_disabled=True)
        session = OpenAIConversationsSession(openai_client=client)
        first = await Runner.run(agent, "How is the weather?", session=session, run_config=quiet)
        assert first.final_output == "3: It is raining in Rome"
        second = await Runner.run(agent, "Thank you.", session=session, run_config=quiet)
        assert second.final_output == "5: Thank you."
        items = await session.get_items()
        kinds = [item.get("type") for item in items]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]
        assert len(await session.get_items(limit=2)) == 2
        streamed = Runner.run_streamed(agent, "How is the weather now?", session=session, run_config=quiet)
        types = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
        assert types.count("response.completed") == 2 and "response.output_text.delta" in types
        assert streamed.final_output == "9: It is raining in Rome"
        for kind in ("message", "function_call_output", "function_call", "message"):
            spoken = await session.get_items()
            popped = await session.pop_item()
            assert popped == spoken[-1] and popped is not None and popped.get("type") == kind
            assert await session.get_items() == spoken[:-1]
        third = await Runner.run(agent, "Thanks again.", session=session, run_config=quiet)
        assert third.final_output == "7: Thanks again."
        await session.add_items([{"role": "user", "content": "and"}])
        assert (await session.get_items())[-1].get("content") == [{"type": "input_text", "text": "and"}]
        while await session.pop_item():
            pass
        assert await session.get_items() == []
        await session.clear_session()


async def test_the_agents_sdk_continues_on_the_server(service: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token") as client:
        settings = ModelSettings(parallel_tool_calls=False, temperature=0.1)
        agent = Agent(
            name="Ann's", model=OpenAIResponsesModel("local", client), tools=[weather], model_settings=settings
        )
        quiet = RunConfig(tracing_disabled=True)
        conversation = await client.conversations.create()
        first = await Runner.run(agent, "How is the weather?", conversation_id=conversation.id, run_config=quiet)
        assert first.final_output == "3: It is raining in Rome"
        first = await Runner.run(agent, "How is the weather?", run_config=quiet, auto_previous_response_id=True)
        assert first.final_output == "3: It is raining in Rome"
        second = await Runner.run(agent, "Well.", run_config=quiet, previous_response_id=first.last_response_id)
        assert second.final_output == "5: Well."


async def test_two_responses_at_once_in_one_conversation(service: Served) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{service.url}/openai/v1", api_key="ann's-secret-token", max_retries=0
    ) as client:
        conversation = await client.conversations.create()
        requests = [client.responses.create(model="slow", input=f"{n}", conversation=conversation.id) for n in range(4)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        done = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, openai.BadRequestError)]
        assert (len(done), len(refused)) == (1, 3)
        assert {error.code for error in refused} == {"conversation_locked"}
        assert {error.body["response_id"] for error in refused} == {done[0].id}  # type: ignore[index]
