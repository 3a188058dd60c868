"""Responses by the real `openai` client, over a real server, with a model behind the stand-in provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from threaded_service import Served, served
from turnwise.actors.cluster.placement import Packed
from turnwise.engines import OpenAIEngine
from turnwise.http import BearerTokens, HttpSettings
from turnwise.testing import LocalProvider

pytestmark = pytest.mark.ray

MODELS = HttpSettings(models=("slow", "stall", "500", "length"))

TOKENS = BearerTokens({"ann's-secret-token": "ann", "bob's-secret-token": "bob"})

RESPONSE, EVENT, ITEM = TypeAdapter(Response), TypeAdapter(ResponseStreamEvent), TypeAdapter(ResponseItem)


def reply(messages: Sequence[dict[str, Any]]) -> Any:
    """Answer as the last message asks: with calls, slowly, with thoughts, or with all messages that there are."""
    asked = [message for message in messages if message["role"] not in ("system", "developer")]
    last = asked[-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("text", "")
    if last["role"] == "tool":
        return f"The tool says {text}."
    if text.startswith("call "):
        names = text.split()[1:]
        calls = [
            {
                "id": f"call_{name}_{len(asked)}",
                "type": "function",
                "function": {"name": name, "arguments": '{"city": "Rome"}'},
            }
            for name in names
        ]
        return {"content": "I look.", "tool_calls": calls}
    if text.startswith("think"):
        return {"reasoning_content": "First this, then that. ", "content": "So it is."}
    if text.startswith("json"):
        return '{"city": "Rome", "people": 3}'
    if text.startswith("long"):
        return " ".join(f"word{number}" for number in range(int(text.split()[1])))
    return f"{len(asked)}: " + " | ".join(str(message["content"]) for message in asked)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(reply=reply) as running:
        yield running


@pytest.fixture(scope="module")
def service(
    ray_session: ModuleType, provider: LocalProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    engine = OpenAIEngine("local", base_url=provider.base_url, api_key="k")
    store = f"sqlite:///{tmp_path_factory.mktemp('http')}/chats.db"
    with served(
        store, engine=engine, placement=Packed(hosts=1), auth=TOKENS, settings=MODELS, namespace="responses"
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
    made = checked(ann.responses.create(model="local", input="hello", metadata={"a": "b" * 512}, temperature=0.5))
    assert (made.status, made.output_text) == ("completed", "1: hello")
    assert made.metadata == {"a": "b" * 512} and made.temperature == 0.5 and made.usage.total_tokens > 0
    assert checked(ann.responses.retrieve(made.id)).to_dict() == made.to_dict()
    items = ann.responses.input_items.list(made.id)
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
            forbidden(made.id)
    ann.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        ann.responses.retrieve(made.id)


def test_responses_continue_each_other_and_fork(ann: Any) -> None:
    first = ann.responses.create(model="local", input="one")
    second = checked(ann.responses.create(model="local", input="two", previous_response_id=first.id))
    assert second.output_text == "3: one | 1: one | two" and second.previous_response_id == first.id
    other = ann.responses.create(model="local", input="other", previous_response_id=first.id)
    assert other.output_text == "3: one | 1: one | other"
    third = ann.responses.create(model="local", input="three", previous_response_id=second.id)
    assert third.output_text.startswith("5: one | 1: one | two |")
    with pytest.raises(openai.BadRequestError) as refused:
        ann.responses.create(model="local", input="x", previous_response_id="resp_" + "0" * 26)
    assert refused.value.code == "previous_response_not_found"


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
    text = httpx.get(f"{service.url}/openai/v1/responses/{id}", params=query, headers=headers).text
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
