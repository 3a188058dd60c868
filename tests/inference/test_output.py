"""Typed answers: how they are requested, checked, sent back and stored."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator
from test_tool_loop import Stage
from typing_extensions import TypedDict

from engine_calls import answer, engine_at, failure, refusal
from quirks import EVENTS, JSON, QuirkServer, Reply, call, chunk, completed, events, function, item, message, spoken
from schedules import SESSION
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.structured_output import strict
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.engines.budget import Budget
from turnwise.errors import ConfigError, IdempotencyConflictError, InvalidInputError, OutputError, OutputInvalidError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, User
from turnwise.memory.conversation.events import Event, ModelCallEnded, TextDelta, ToolEnded
from turnwise.memory.conversation.output_type import ANSWER_TOOL, OutputType, object_text, read_answer, sent_back
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.conversation.views.partial_typed_answer import Partials
from turnwise.memory.conversation.views.steps import steps_of
from turnwise.memory.longterm.extraction import check as checking, prompt as extraction, rerank as choosing
from turnwise.memory.longterm.turn_items import TurnBlocks, turn_item
from turnwise.memory.providers.endpoints import PROFILES
from turnwise.memory.providers.validation import CHAT, RESPONSES, check
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.testing import LocalProvider


class City(BaseModel):
    name: str
    people: int = Field(ge=0)


PARIS = '{"name": "Paris", "people": 2100000}'
MINUS = '{"name": "Paris", "people": -1}'
SCHEMA = json.loads(json.dumps(output_record(City, 2)["schema"]))


def says(text: str, api: str = "chat") -> Reply:
    """Return an answer with this text, in two pieces where it is streamed."""
    if api == "responses":
        deltas = [item("response.output_text.delta", item_id="msg_1", delta=part) for part in (text[:9], text[9:])]
        return 200, EVENTS, events(*deltas, completed(spoken(text)))
    return 200, EVENTS, events(chunk(content=text[:9]), chunk(content=text[9:]), chunk("stop"))


def calls(name: str, arguments: str, api: str = "chat", call_id: str = "c1") -> Reply:
    """Return an answer that calls a tool, with its arguments in two pieces."""
    first, rest = arguments[:9], arguments[9:]
    if api == "responses":
        call_fields = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name}
        deltas = [item("response.function_call_arguments.delta", item_id="fc_1", delta=part) for part in (first, rest)]
        added = item("response.output_item.added", item={**call_fields, "arguments": ""})
        return 200, EVENTS, events(added, *deltas, completed({**call_fields, "arguments": arguments}))
    pieces = call(index=0, id=call_id, function=function(name, first)), call(index=0, function=function(None, rest))
    return 200, EVENTS, events(*pieces, chunk("tool_calls"))


def format_of(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the part of a request, in either API, that requests a schema."""
    if "input" in request:
        form = request.get("text", {}).get("format")
        return {"type": form["type"], "json_schema": {**form, "type": None}} if form else None
    return request.get("response_format")


class Story:
    """A session in memory, without Ray, and its events."""

    def __init__(self, chosen: OpenAIEngine) -> None:
        self.engine = chosen
        self.store = InMemoryStore()
        self.core: SessionCore
        self.events: list[Event] = []

    async def open(self, config: SessionConfig | None = None) -> None:
        await self.store.create(SessionRecord(session_id=SESSION))
        self.core = SessionCore(SessionKey(SESSION), self.store, self.engine, config or SessionConfig())

    async def run(self, prompt: str = "What of Paris?", **settings: Any) -> Outcome:
        started = await self.core.admission.start([prompt], run_id=prompt, **settings)
        return await self.core.reads.wait(started.run_id)


def play(chosen: OpenAIEngine, *prompts: str, **settings: Any) -> tuple[list[Outcome], Story]:
    """Run these prompts one after the other; return their outcomes."""

    async def body() -> tuple[list[Outcome], Story]:
        story = Story(chosen)
        await story.open()
        ended = [await story.run(prompt, **settings) for prompt in prompts or ("What of Paris?",)]
        story.events = (await story.core.reads.events())[0]
        await story.core.ownership.leave()
        return ended, story

    return asyncio.run(body())


def output(outcome: Outcome) -> Sequence[Block]:
    assert outcome.turn
    return outcome.turn.output


# How the model is asked


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_server_with_schemas_gets_a_strict_schema(api: Any) -> None:
    with QuirkServer(says(PARIS, api)) as server:
        blocks, context = answer(engine_at(server, api=api).answering(City))
        (request,) = server.requests
    assert blocks == [Text(text=PARIS)] and context.text == PARIS
    form = format_of(request)
    assert form and form["type"] == "json_schema"
    assert form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"] == {**SCHEMA, "additionalProperties": False}
    assert "tools" not in request and "tool_choice" not in request


class Loose(BaseModel):
    name: str
    people: int = 0


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_schema_that_strict_mode_refuses_is_sent_without_it(api: Any) -> None:
    with QuirkServer(says(PARIS, api)) as server:
        answer(engine_at(server, api=api).answering(Loose))
        form = format_of(server.requests[0])
    assert form and "strict" not in form["json_schema"]
    assert form["json_schema"]["schema"] == json.loads(json.dumps(output_record(Loose, 2)["schema"]))


class Inner(BaseModel):
    at: datetime
    kind: Literal["a", "b"] | None


class Outer(BaseModel):
    first: Inner = Field(description="The first.")
    others: list[Inner] = Field(min_length=1)


class Tree(BaseModel):
    value: int
    children: list[Tree]


class Words(TypedDict):
    words: dict[str, int]


@pytest.mark.parametrize(
    ("model", "takes"), [(City, True), (Loose, False), (Outer, True), (Tree, True), (Words, False)]
)
def test_strict_mode_needs_all_properties_named_and_required(model: Any, takes: bool) -> None:
    strict_schema = strict(output_record(model, 2)["schema"])
    assert (strict_schema is not None) is takes
    if strict_schema:
        assert strict_schema["additionalProperties"] is False
        assert all(held["additionalProperties"] is False for held in strict_schema.get("$defs", {}).values())
        assert '"$ref": ' not in json.dumps(strict_schema) or all(
            len(schema) == 1 for schema in _objects(strict_schema) if "$ref" in schema
        ), "nothing stands beside a reference"


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("model", [City, Loose, Outer, Tree, Words])
def test_a_provider_as_strict_as_openai_accepts_each_schema(api: Any, model: Any) -> None:
    with LocalProvider(reply=PARIS) as provider:
        answer(OpenAIEngine("local", api=api, base_url=provider.base_url).answering(model))
        assert len(provider.requests) == 1, "it was not refused and sent in another way"


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(schema for held in value.values() for schema in _objects(held))]
    return [schema for held in value for schema in _objects(held)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_model_answers_by_a_tool_if_its_server_has_no_schemas(api: Any) -> None:
    with QuirkServer(calls(ANSWER_TOOL, PARIS, api)) as server:
        blocks, context = answer(engine_at(server, api=api, provider="groq").answering(City))
        (request,) = server.requests
    assert blocks == [Text(text=PARIS)]
    assert context.text == PARIS, "its arguments are streamed as the answer's text"
    (declared,) = request["tools"]
    declared = declared.get("function", declared)
    assert (declared["name"], declared["parameters"]) == (ANSWER_TOOL, SCHEMA)
    assert request["tool_choice"] == "required" and format_of(request) is None


@pytest.mark.parametrize("provider", sorted(PROFILES))
def test_each_profile_leads_to_a_typed_answer(provider: str) -> None:
    mode = PROFILES[provider].json_mode
    with QuirkServer(calls(ANSWER_TOOL, PARIS) if mode == "tool" else says(PARIS)) as server:
        (outcome,), _ = play(engine_at(server, provider=provider).answering(City))
        assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == PARIS
        (request,) = server.requests
    form = format_of(request)
    assert (form["type"] if form else "tool") == mode


def test_an_answer_in_a_code_fence_or_between_words_is_read() -> None:
    for text in (PARIS, f"```json\n{PARIS}\n```", f"Here it is: {PARIS} Anything else?"):
        assert read_answer(City, text) == City(name="Paris", people=2100000)
    assert object_text("no object") == "no object"


def test_a_schema_that_the_caller_checks_is_not_checked() -> None:
    with QuirkServer(says(MINUS)) as server:
        (outcome,), _ = play(engine_at(server).answering(SCHEMA))
        assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == MINUS


def test_an_answer_by_tool_may_come_in_the_last_event_only() -> None:
    call_item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": ANSWER_TOOL, "arguments": PARIS}
    with QuirkServer((200, EVENTS, events(completed(call_item)))) as server:
        blocks, context = answer(engine_at(server, api="responses", provider="groq").answering(City))
    assert blocks == [Text(text=PARIS)] and context.text == PARIS


def test_an_answer_by_tool_may_come_without_streaming() -> None:
    whole = message("tool_calls", tool_calls=[{"id": "c", "function": function(ANSWER_TOOL, PARIS)}])
    with QuirkServer((200, JSON, json.dumps(whole).encode())) as server:
        blocks, context = answer(engine_at(server, provider="groq", stream=False).answering(City))
    assert blocks == [Text(text=PARIS)] and context.text == PARIS


# What servers refuse


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "message",
    [
        "This model does not support response format `json_schema`",
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
        "[{'loc': ['body', 'text.format'], 'msg': 'Extra inputs are not permitted'}]",
        "Function calling with a response mime type: 'application/json' is unsupported",
    ],
)
def test_a_server_that_refuses_schemas_gets_a_tool_from_then_on(api: Any, message: str) -> None:
    with QuirkServer(refusal(message), calls(ANSWER_TOOL, PARIS, api)) as server:
        chosen = engine_at(server, api=api).answering(City)
        for _ in range(2):
            assert answer(chosen)[0] == [Text(text=PARIS)]
        assert ["tools" in request for request in server.requests] == [False, True, True]


def test_only_a_schema_refused_as_invalid_is_sent_without_strict_mode() -> None:
    message = "Invalid schema for response_format 'answer': In context=(), 'minimum' is not permitted."
    with QuirkServer(refusal(message), says(PARIS)) as server:
        for model in (City, City, Outer):
            answer(engine_at(server).answering(model))
        forms = [format_of(request) for request in server.requests]
    assert ["strict" in form["json_schema"] for form in forms if form] == [True, False, False, True]


def test_a_server_without_tools_and_schemas_gets_instructions() -> None:
    refusals = refusal("unknown field response_format"), refusal("local does not support tools")
    with QuirkServer(*refusals, says(f"Sure! {PARIS}")) as server:
        blocks, _ = answer(engine_at(server, system="Be brief.").answering(City))
        request = server.requests[-1]
    assert read_answer(City, blocks[0].text).name == "Paris"  # type: ignore[attr-defined]
    assert request["messages"][0]["content"].startswith("Be brief.\n\nAnswer with one JSON object of this schema")
    assert "tools" not in request and "response_format" not in request


def test_a_model_that_cannot_be_forced_to_call_a_tool_gets_instructions() -> None:
    with QuirkServer(refusal("Thinking mode does not support this tool_choice"), calls(ANSWER_TOOL, PARIS)) as server:
        chosen = engine_at(server, provider="groq").answering(City)
        for _ in range(2):
            assert answer(chosen)[0] == [Text(text=PARIS)]
        assert ["tool_choice" in request for request in server.requests] == [True, False, False]
        assert f"by calling {ANSWER_TOOL}" in server.requests[-1]["messages"][0]["content"]


def test_an_unrelated_refusal_is_not_retried() -> None:
    with QuirkServer(refusal("messages.0: too rude")) as server:
        failure(engine_at(server).answering(City))
        assert len(server.requests) == 1


# Retries


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_invalid_answer_is_sent_back_with_its_errors(api: Any) -> None:
    with QuirkServer(says(MINUS, api), says("I cannot say.", api), says(PARIS, api)) as server:
        (outcome,), story = play(engine_at(server, api=api).answering(City))
        _, second, third = server.requests
    assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == PARIS
    sent_back_message = second["messages" if api == "chat" else "input"][-1]
    assert sent_back_message["role"] == "user" and "people: -1 is less than the minimum of 0" in json.dumps(
        sent_back_message
    )
    assert "no JSON object" in json.dumps(third), "each answer and what was said to it is there"
    assert MINUS in json.dumps(third).replace("\\", "")
    assert outcome.run.usage and (outcome.run.usage.calls, outcome.run.usage.tool_calls) == (3, 0)
    kinds = [block.kind for block in output(outcome)]
    assert kinds == ["tool_use", "tool_result", "tool_use", "tool_result", "text"]
    stored = [event for event in story.events if not event.live]
    assert [step.kind for step in steps_of(stored)] == ["model", "tool", "model", "tool", "model"]
    assert [type(event) for event in stored][1:5] == [ModelCallEnded, ToolEnded, ModelCallEnded, ToolEnded]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_run_fails_after_its_last_retry(retries: int) -> None:
    with QuirkServer(*[says(MINUS)] * (retries + 1), says(PARIS)) as server:
        (outcome, after), _ = play(engine_at(server).answering(City, retries=retries), "first", "second")
        assert len(server.requests) == retries + 2
        request = server.requests[-1]
    assert (outcome.run.state, outcome.run.code) == ("failed", "output_invalid")
    assert outcome.run.why and "people: -1 is less than the minimum of 0" in outcome.run.why
    assert output(outcome)[-1] == Text(text=MINUS), "what the model said last stays, and is whole"
    assert after.run.state == "completed" and after.turn
    check(messages_of(after.turn.blocks), CHAT)
    check(messages_of(after.turn.blocks), RESPONSES)
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"] * (retries + 1) + ["user"]


def test_the_errors_of_an_answer_have_a_length_limit() -> None:
    class Many(BaseModel):
        numbers: list[int]

    output_type = OutputType.read(output_record(Many, 2))
    assert output_type
    errors = output_type.errors(json.dumps({"numbers": ["x" * 5000] * 5000}))
    assert errors and len(errors) < 4000 and errors.endswith("and 4990 more") and errors.startswith("numbers.0: ")


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "[1]", "nothing", "{" * 100_000, '{"name": NaN}', "null"])
def test_a_text_that_is_not_an_object_is_invalid(text: str) -> None:
    output_type = OutputType.read(output_record(City, 2))
    assert output_type and output_type.errors(text)


class Word(BaseModel):
    letters: str = Field(pattern=r"^\p{L}+$")


def test_a_pattern_is_checked_as_the_class_checks_it() -> None:
    """By Rust's regular expressions, as pydantic does; by Python's if Rust does not support the pattern."""
    output_type = OutputType.read(output_record(Word, 2))
    assert output_type and output_type.errors('{"letters": "été"}') is None
    errors = output_type.errors('{"letters": "a1"}')
    assert errors and errors.startswith("letters: 'a1' does not match")
    ahead = OutputType(schema=freeze({"properties": {"a": {"pattern": "^(?!b)"}}}), retries=2)
    assert ahead.errors('{"a": "a"}') is None and ahead.errors('{"a": "b"}')
    slow = OutputType(schema=freeze({"properties": {"a": {"pattern": "^(a+)+$"}}}), retries=2)
    assert slow.errors(json.dumps({"a": "a" * 10_000 + "!"})), "in linear time"


def test_a_too_deeply_nested_answer_is_invalid() -> None:
    output_type = OutputType.read(output_record(Tree, 2))
    assert output_type
    errors = [
        output_type.errors('{"value": 1, "children": [' * depth + '{"value": 1, "children": []}' + "]}" * depth)
        for depth in (50, 5_000)
    ]
    assert errors[0] is None and errors[1] and "no JSON object" in errors[1]


class Times(BaseModel):
    at: datetime


def test_a_format_is_checked_as_the_class_checks_it() -> None:
    output_type = OutputType.read(output_record(Times, 2))
    assert output_type
    assert output_type.errors('{"at": "2026-01-02T03:04:05Z"}') is None
    errors = output_type.errors('{"at": "yesterday"}')
    assert errors and errors.startswith("at: 'yesterday' is not a 'date-time'")


async def test_a_budget_ends_retries() -> None:
    with QuirkServer(says(MINUS)) as server:
        story = Story(engine_at(server).answering(City, retries=9))
        await story.open(SessionConfig(run_budget=Budget(calls=2)))
        outcome = await story.run()
        assert len(server.requests) == 2
    assert outcome.run.code == "budget"


# With tools


@tool
def weather(city: str) -> str:
    """Say what the weather is."""
    return f"Sun in {city}"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_tools_are_called_before_the_answer(api: Any) -> None:
    """If the answer is requested by a schema, and if it is requested by a tool."""
    for provider in ("openai", "vllm"):
        by_tool = provider == "vllm"
        last = calls(ANSWER_TOOL, PARIS, api, "c2") if by_tool else says(PARIS, api)
        with QuirkServer(calls("weather", '{"city": "Paris"}', api), last) as server:
            chosen = replace(engine_at(server, api=api, provider=provider).answering(City), tools=[weather])
            (outcome,), _ = play(chosen)
            names = [
                ([tool_entry.get("function", tool_entry)["name"] for tool_entry in request["tools"]])
                for request in server.requests
            ]
            forms = [format_of(request) for request in server.requests]
        assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == PARIS
        assert [block.kind for block in output(outcome)] == ["tool_use", "tool_result", "text"]
        assert names == [["weather", ANSWER_TOOL] if by_tool else ["weather"]] * 2
        assert [form and form["type"] for form in forms] == [None if by_tool else "json_schema"] * 2


def test_an_answer_together_with_tool_calls_is_left_out() -> None:
    both = (
        call(index=0, id="a", function=function(ANSWER_TOOL, MINUS)),
        call(index=1, id="b", function=function("weather", '{"city": "Paris"}')),
    )
    served = 200, EVENTS, events(*both, chunk("tool_calls"))
    with QuirkServer(served, calls(ANSWER_TOOL, PARIS)) as server:
        (outcome,), _ = play(replace(engine_at(server, provider="vllm").answering(City), tools=[weather]))
    assert [block.kind for block in output(outcome)] == ["tool_use", "tool_result", "text"]
    assert outcome.turn and outcome.turn.text == PARIS


def test_an_answer_can_be_sent_back_between_tool_calls() -> None:
    looks = calls("weather", '{"city": "Paris"}')
    with QuirkServer(looks, calls(ANSWER_TOOL, MINUS), looks, says(MINUS), calls(ANSWER_TOOL, PARIS)) as server:
        (outcome, after), _ = play(
            replace(engine_at(server, provider="vllm").answering(City), tools=[weather]), "first", "second"
        )
        last_request = server.requests[4]
    assert outcome.turn and outcome.turn.text == PARIS and after.run.state == "completed"
    roles = [message["role"] for message in last_request["messages"]]
    looked = ["assistant", "tool"]
    assert roles == ["user", *looked, "assistant", "user", *looked, "assistant", "user"]
    assert outcome.run.usage and (outcome.run.usage.calls, outcome.run.usage.tool_calls) == (5, 2)


def test_a_tool_with_the_answer_tools_name_keeps_it() -> None:
    @tool(name=ANSWER_TOOL)
    def own() -> str:
        """Answer."""
        return "mine"

    with QuirkServer(calls(ANSWER_TOOL, "{}"), calls(f"{ANSWER_TOOL}_", PARIS)) as server:
        (outcome,), _ = play(replace(engine_at(server, provider="vllm").answering(City), tools=[own]))
        names = [request["function"]["name"] for request in server.requests[0]["tools"]]
    assert names == [ANSWER_TOOL, f"{ANSWER_TOOL}_"]
    assert outcome.turn and outcome.turn.text == PARIS


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_choice_still_lets_the_model_answer(choice: Any) -> None:
    with QuirkServer(calls(ANSWER_TOOL, PARIS)) as server:
        chosen = engine_at(server, provider="vllm", extra={"tool_choice": choice}).answering(City)
        play(replace(chosen, tools=[weather]))
        choice_sent = server.requests[0]["tool_choice"]
    of_answer = {"type": "function", "function": {"name": ANSWER_TOOL}}
    assert choice_sent == {"auto": "required", "none": of_answer}.get(str(choice), choice)


# As it comes


def test_partial_objects_grow_with_the_text_and_restart_with_each_answer() -> None:
    texts = ['{"name": "Rome", "people": -1}', f"Here: ```json\n{PARIS}\n```"]
    with QuirkServer(*map(says, texts)) as server:
        _, story = play(engine_at(server).answering(City))
    partials = list(Partials().add(story.events))
    assert partials[-1] == {"name": "Paris", "people": 2100000}
    assert {"name": "Rome", "people": -1} in partials
    stored = [event for event in story.events if not event.live]
    assert list(Partials().add(stored)) == partials[-1:], "what is replayed later has the whole"


def test_only_texts_of_a_partial_object_may_be_incomplete() -> None:
    about: dict[str, Any] = {"session_id": SESSION, "seq": 1, "at": 0.0}
    deltas = [TextDelta(text=part, **about) for part in PARIS]
    partials = list(Partials().add(deltas))
    assert {"name": "Pa"} in partials and partials[-1] == {"name": "Paris", "people": 2100000}
    assert all("Paris".startswith(partial_object.get("name", "")) for partial_object in partials)


# Refusals, and answers that are cut


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_refusal_of_the_model_is_not_retried(api: Any) -> None:
    served = events(chunk(refusal="I will "), chunk(refusal="not."), chunk("stop"))
    if api == "responses":
        content = [{"type": "refusal", "refusal": "I will not."}]
        delta = item("response.refusal.delta", item_id="msg_1", delta="I will not.")
        served = events(delta, completed({**spoken(""), "content": content}))
    with QuirkServer((200, EVENTS, served), says(PARIS, api)) as server:
        (outcome, after), _ = play(engine_at(server, api=api).answering(City), "first", "second")
        assert len(server.requests) == 2
    assert (outcome.run.state, outcome.run.code) == ("failed", "output_refused")
    assert outcome.run.why and "I will not." in outcome.run.why
    assert output(outcome) == (Text(text="I will not."),)
    assert after.run.state == "completed"


def test_a_refusal_may_come_in_the_last_event() -> None:
    content = [{"type": "refusal", "refusal": "I will not."}]
    with QuirkServer((200, EVENTS, events(completed({**spoken(""), "content": content})))) as server:
        error, _ = failure(engine_at(server, api="responses").answering(City))
    assert isinstance(error, OutputError) and error.code == "output_refused"


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("a text", events(chunk(content='{"name": "Pa'), chunk("length"))),
        ("a whole object", events(chunk(content=PARIS), chunk("length"))),
        ("nothing", events(chunk(reasoning_content="Hm"), chunk("length"))),
        ("a call", events(call(index=0, id="c", function=function(ANSWER_TOOL, '{"name": "Pa')), chunk("length"))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cut_off_answer_has_its_own_error(name: str, served: bytes) -> None:
    with QuirkServer((200, EVENTS, served), says(PARIS)) as server:
        provider = "groq" if name == "a call" else "openai"
        (outcome, after), _ = play(engine_at(server, provider=provider).answering(City), "first", "second")
        assert len(server.requests) == 2
    assert (outcome.run.state, outcome.run.code) == ("failed", "output_cut")
    assert outcome.run.why and "max_output_tokens" in outcome.run.why
    assert all(block.interrupted for block in output(outcome) if isinstance(block, Text))
    assert after.run.state == "completed"


def test_a_filtered_answer_is_a_refusal() -> None:
    with QuirkServer((200, EVENTS, events(chunk(content='{"na'), chunk("content_filter")))) as server:
        error, _ = failure(engine_at(server).answering(City))
    assert isinstance(error, OutputError) and error.code == "output_refused"


# Recorded with the run


class Answers:
    """A model that answers with one text after the other, shared by all its processes; None never ends."""

    def __init__(self, *texts: str | None) -> None:
        self.texts = list(texts)
        self.given: list[tuple[Block, ...]] = []

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry())

    def answering(self, schema: Any) -> Answers:
        raise AssertionError("only what is asked aside from runs asks for this")

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        self.given.append(turn.blocks)
        text = self.texts.pop(0)
        if text is None:
            await asyncio.Event().wait()
        context.emit(text or "")
        return [Text(text=text or "")]


@pytest.mark.parametrize(("last", "code"), [(PARIS, None), (MINUS, "output_invalid")])
@pytest.mark.virtual_time
async def test_a_resumed_run_has_the_same_type_and_the_remaining_retries(last: str, code: str | None) -> None:
    model = Answers(MINUS, None, MINUS, last)
    stage = Stage(model, on_lost="resume")
    await stage.start(output=output_record(City, 2))
    await stage.until(lambda: asks(model, 2))
    stage.new_core()  # the first never hears of it
    await stage.core.transactor.activate()
    outcome = await stage.outcome()
    assert (outcome.run.state, outcome.run.code) == ("failed" if code else "completed", code)
    assert outcome.run.output == output_record(City, 2) and outcome.run.resumes == 1
    assert [len(request_size) for request_size in model.given] == [1, 3, 3, 5], (
        "what was sent back is there for the next process"
    )
    assert outcome.turn and outcome.turn.text == last


async def asks(model: Answers, times: int) -> bool:
    return len(model.given) == times


@pytest.mark.virtual_time
async def test_an_engine_without_typed_answers_refuses_an_output_type() -> None:
    stage = Stage(EchoEngine())
    with pytest.raises(InvalidInputError, match="EchoEngine does not support typed answers"):
        await stage.start(output=output_record(City, 2))
    assert await stage.core.reads.runs() == []


@pytest.mark.parametrize("retries", [-1, 101, True, "2"])
def test_an_invalid_number_of_retries_is_refused(retries: Any) -> None:
    with pytest.raises(ConfigError, match="retries"):
        OpenAIEngine("local").answering(City, retries=retries)


def test_the_schemas_of_memories_are_strict() -> None:
    assert strict(extraction.SCHEMA) == json.loads(json.dumps(extraction.SCHEMA))
    assert strict(choosing.SCHEMA) == json.loads(json.dumps(choosing.SCHEMA))
    assert strict(checking.schema(3)) == json.loads(json.dumps(checking.schema(3)))


@pytest.mark.virtual_time
async def test_output_and_response_format_exclude_each_other() -> None:
    stage = Stage(OpenAIEngine("local", base_url="http://127.0.0.1:1/v1"))
    await stage.store.create(
        SessionRecord(session_id=SESSION, params=FrozenDict(response_format=FrozenDict(type="json_object")))
    )
    with pytest.raises(InvalidInputError, match="response_format"):
        await stage.core.admission.start(["go"], run_id="run", output=output_record(City, 2))
    assert await stage.core.reads.runs() == []


@pytest.mark.virtual_time
async def test_the_same_key_with_another_type_is_a_conflict() -> None:
    stage = Stage(Answers(PARIS))
    await stage.create()
    for output_type in (City, City, Loose):
        asking = stage.core.admission.start(
            ["go"], run_id=f"run-{output_type}", idempotency_key="k", output=output_record(output_type, 2)
        )
        if output_type is Loose:
            with pytest.raises(IdempotencyConflictError):
                await asking
        else:
            await asking


def test_answers_that_were_sent_back_are_not_saved_in_memory() -> None:
    call, result = sent_back([Text(text=MINUS)], "people: wrong", "1")
    blocks = [User(text="What of Paris?"), *call, result, Text(text=PARIS)]
    item = turn_item(SESSION, TurnBlocks(0, ()), (Span("log", 0, 4),), blocks)
    assert item and item.text == f"user: What of Paris?\nassistant: {PARIS}"
    assert item.blocks == (blocks[0], blocks[3])


def test_a_typed_turn_parses_its_answer() -> None:
    with QuirkServer(says(PARIS)) as server:
        (outcome,), _ = play(engine_at(server).answering(City))
    assert outcome.turn
    assert outcome.turn.parsed is None
    typed = outcome.turn.typed(City)
    assert typed.parsed == City(name="Paris", people=2100000) == outcome.turn.parse(City)
    assert typed.parsed is typed.parsed and typed == outcome.turn
    assert pickle.loads(pickle.dumps(typed)).parsed is None
    with pytest.raises(OutputInvalidError, match="at: Field required") as caught:
        outcome.turn.parse(Times)
    assert caught.value.turn == outcome.turn and caught.value.run_id == outcome.run.run_id


# Input


class Unspeakable(BaseModel):
    call: Callable[[int], int]


class Vast(BaseModel):
    name: str = Field(description="x" * 1_000_000)


@pytest.mark.parametrize(
    "value",
    [
        *(int, "x", 5, None, list[City], City | None, City(name="a", people=1), Unspeakable, Vast, object, len),
        *({"type": "string"}, {"type": "object", "properties": 5}, {"type": "object", "title": "x" * 1_000_000}),
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/schema.json"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a+)\1"}}},
        {"type": "object", "patternProperties": {"(a+)+$": {}}},
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_invalid_output_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="output") as caught:
        output_record(value, 2)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Tree, '{"value": 1, "children": [{"value": 2, "children": []}]}'),
        (Words, '{"words": {"a": 1}}'),
        (
            Outer,
            '{"first": {"at": "2026-01-02T03:04:05", "kind": null}, "others": [{"at": "2026-01-02", "kind": "a"}]}',
        ),
    ],
)
def test_a_type_with_an_object_schema_is_accepted(model: Any, text: str) -> None:
    record = output_record(model, 2)
    assert record["schema"]["type"] == "object"
    output_type = OutputType.read(record)
    assert output_type and output_type.record == record and output_type.errors(text) is None
    assert read_answer(model, text)


def test_a_json_schema_is_stored_as_that_of_a_class() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
    schema = {**tree, "required": ["children"], "$defs": {"Tree": tree}}
    assert output_record(schema, 2)["schema"] == freeze(schema)
    assert output_record(SCHEMA, 2) == output_record(City, 2)
    output_type = OutputType.read(output_record(schema, 2))
    assert output_type and output_type.errors('{"children": [{"children": []}]}') is None
    assert output_type.errors('{"children": [{"children": 5}]}') == "children.0.children: 5 is not of type 'array'"


def test_a_class_may_accept_less_than_its_schema() -> None:
    class Even(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def is_even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("must be even")
            return value

    output_type = OutputType.read(output_record(Even, 2))
    assert output_type and output_type.errors('{"number": 3}') is None
    with pytest.raises(ValueError, match="number: Value error, must be even"):
        read_answer(Even, '{"number": 3}')
