"""Public blocks and events as pydantic's and FastAPI's types: what they write is read as an equal object."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter

from turnwise.blocks import (
    AnyBlock,
    Block,
    CacheCheckpoint,
    Citations,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
    User,
    decode,
)
from turnwise.events import AnyEvent, Event, PromptAppended, RunCompleted, UnknownEvent
from turnwise.memory.conversation.blocks import Recalled
from turnwise.stores import Usage

BLOCKS: tuple[AnyBlock, ...] = (
    System(text="Be brief."),
    User(text="hi ü"),
    Text(text="Hello", interrupted=True),
    Thinking(text="well", signature="s"),
    ToolUse(call_id="c", name="look", input={"at": {"all": [1, 2.5, None]}}),
    ToolResult(call_id="c", text="x", blocks=(Text(text="y"), Image(url="https://example.org/a.png"))),
    Image(data="aGk=", media_type="image/png"),
    Document(name="a.txt", chunks=("one", "two"), cite=True),
    Citations(items=({"url": "https://example.org"},)),
    Summary(text="so far", of=(("7", 0, 2),), folded=(("7", 1),)),
    Recalled(text="a fact"),
    CacheCheckpoint(),
    Unknown(stored_kind="hologram", payload={"depth": [1, {"text": "ü"}]}),
)


def _events() -> Iterator[AnyEvent]:
    """Yield an event of each class, with blocks of each class where it may have blocks."""
    for number, cls in enumerate(get_args(get_args(AnyEvent)[0])):
        values: dict[str, Any] = {"session_id": "s", "user_id": "ada", "seq": number, "at": 0.1 + 0.2, "run_id": "r"}
        for name, field in cls.model_fields.items():
            if name in ("blocks", "input_blocks"):
                values[name] = BLOCKS
            elif name == "usage":
                values[name] = Usage(input_tokens=7, seconds=0.1)
            elif name in ("input", "prompt") and field.default in (None, ()):
                values[name] = (("", 0, 2), ("7", 1, 3))
            elif field.is_required() and name not in values:
                values[name] = _example(field.annotation)
        yield cls(**values)


def _example(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return {_example(key): _example(value)}
    return {str: "x", int: 1, float: 0.5}[kind]


EVENTS = tuple(_events())


def test_each_class_of_blocks_and_events_is_tested() -> None:
    assert {type(block) for block in BLOCKS} == set(get_args(get_args(AnyBlock)[0]))
    assert any(event.blocks for event in EVENTS if isinstance(event, PromptAppended))


@pytest.mark.parametrize(
    ("union", "value"), [*((AnyBlock, block) for block in BLOCKS), *((AnyEvent, event) for event in EVENTS)]
)
def test_json_that_pydantic_writes_is_read_as_an_equal_object(union: Any, value: Block | Event) -> None:
    adapter = TypeAdapter[Any](union)
    assert adapter.validate_json(adapter.dump_json(value)) == value
    assert adapter.validate_json(adapter.dump_json(value, exclude_none=True)) == value
    assert adapter.validate_python(adapter.dump_python(value)) == value
    assert adapter.validate_json(value.model_dump_json()) == value
    assert type(value).model_validate_json(value.model_dump_json()) == value


class Page(BaseModel):
    """A body of an application's own."""

    events: list[AnyEvent]
    blocks: tuple[AnyBlock, ...] = ()


app = FastAPI()


@app.get("/page")
def page() -> Page:
    return Page(events=list(EVENTS), blocks=BLOCKS)


@app.post("/page")
def same_page(page: Page) -> Page:
    assert page == Page(events=list(EVENTS), blocks=BLOCKS)
    return page


@app.post("/event")
def same_event(event: AnyEvent) -> AnyEvent:
    return event


def test_blocks_and_events_pass_through_fastapi_unchanged() -> None:
    client = TestClient(app)
    body = client.get("/page").raise_for_status().json()
    assert client.post("/page", json=body).raise_for_status().json() == body
    for event in body["events"]:
        assert client.post("/event", json=event).raise_for_status().json() == event
    kinds = {"PromptAppended", "ToolUse", "Unknown", "UnknownEvent"}
    schemas = client.get("/openapi.json").raise_for_status().json()["components"]["schemas"]
    assert all(any(name.startswith(kind) for name in schemas) for kind in kinds)


def test_json_of_a_kind_of_a_later_version_is_kept() -> None:
    assert decode('{"kind":"hologram","depth":[1]}') == Unknown(stored_kind="hologram", payload={"depth": [1]})
    text = '{"kind":"teleported","session_id":"s","seq":3,"at":1.5,"blocks":[{"kind":"hologram"}]}'
    event = TypeAdapter[AnyEvent](AnyEvent).validate_json(text)
    assert event == UnknownEvent(
        stored_kind="teleported", session_id="s", seq=3, at=1.5, payload={"blocks": [{"kind": "hologram"}]}
    )


class Loose(Block):
    """A block of an engine's own."""

    kind: str = "loose"
    note: str = ""


def test_a_block_of_an_engines_own_class_is_written_whole_and_read_as_unknown() -> None:
    event = RunCompleted(session_id="s", seq=1, at=1.5, blocks=(Loose(note="seen"),))  # type: ignore[arg-type]
    adapter = TypeAdapter[AnyEvent](AnyEvent)
    read_event = adapter.validate_json(adapter.dump_json(event))
    assert isinstance(read_event, RunCompleted)
    assert read_event.blocks == (Unknown(stored_kind="loose", payload={"note": "seen"}),)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"user"}',
        '{"kind":"user","text":1}',
        '{"kind":"user","text":"a","colour":"red"}',
        '{"text":"a"}',
        '{"kind":7}',
        "[]",
    ],
)
def test_an_object_that_does_not_fit_its_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        TypeAdapter[AnyBlock](AnyBlock).validate_json(text)
