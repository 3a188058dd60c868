"""Blocks and events of kinds of later versions are stored and written back unchanged."""

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from turnwise.memory.archive.format import Line, event_line
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Unknown, decode, encode
from turnwise.memory.conversation.codec import decoded_events
from turnwise.memory.conversation.events import AnyEvent, Event, TextDelta, UnknownEvent, decode_event, encode_body
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.stores.redis import rows as redis_rows
from turnwise.memory.stores.sql import rows as sql_rows
from turnwise.memory.values.frozen_json import freeze

KINDS = ["hologram", "unknown", "stored_kind", ""]
"""Among them those that could be mistaken for the fields of the classes here."""
PAYLOAD = freeze({"stored_kind": "x", "depth": [1, {"text": "ü"}]})
BODY = '{"stored_kind":"x","depth":[1,{"text":"ü"}]}'


def by_sql(event: Event) -> tuple[Event, object]:
    row = sql_rows.event_row(7, event)
    return decoded_events(SessionKey("s"), [[*row.values()][1:]])[0], row


def by_redis(event: Event) -> tuple[Event, object]:
    text = redis_rows.encode_event(event)
    row = redis_rows.event_row("k", (redis_rows.padded(event.seq) + text).encode())
    return decoded_events(SessionKey("s"), [row])[0], text


def by_archive(event: Event) -> tuple[Event, object]:
    line = event_line(event)
    return Line(1, "event", json.loads(json.dumps(line))).event(SessionKey("s")), line


def by_pickle(event: Event) -> tuple[Event, object]:
    return pickle.loads(pickle.dumps(event)), encode_body(event)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (
            by_sql,
            lambda kind: {
                "session": 7,
                "seq": 3,
                "at": 1.5,
                "turn_index": 2,
                "run_id": "r",
                "event_key": "k",
                "kind": kind,
                "body": BODY,
            },
        ),
        (by_redis, lambda kind: f'["{kind}",1.5,2,"r","k"]\n{BODY}'),
        (by_archive, lambda kind: [3, 1.5, 2, "r", "k", kind, BODY]),
        (by_pickle, lambda kind: (kind, BODY)),
    ],
    ids=["sql", "redis", "archive", "pickle"],
)
def test_an_event_of_an_unknown_kind_is_written_back_unchanged(
    kind: str, codec: Callable[[Event], tuple[Event, object]], expected: Callable[[str], object]
) -> None:
    place = {"session_id": "s", "seq": 3, "at": 1.5, "turn_index": 2, "run_id": "r", "key": "k"}
    event = decode_event(kind, BODY, place)
    assert isinstance(event, UnknownEvent)
    assert (event.kind, event.stored_kind, event.payload) == ("unknown", kind, PAYLOAD)
    read_event, stored = codec(event)
    assert read_event == event
    assert stored == expected(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_an_unknown_kind_is_written_back_unchanged(kind: str) -> None:
    """Stores and archives keep blocks as `encode` writes them; a turn travels with them encoded too."""
    text = f'{{"kind":"{kind}",{BODY[1:]}'
    block = decode(text)
    assert isinstance(block, Unknown)
    assert (block.kind, block.stored_kind, block.payload) == ("unknown", kind, PAYLOAD)
    assert encode(block) == text
    assert pickle.loads(pickle.dumps(block)) == block
    cache = BlockCache()
    cache.add("log", 0, [block])
    turn = pickle.loads(pickle.dumps(Turn("s", TurnRecord(index=0, prompt=(Span("log", 0, 1),)), cache)))
    assert turn.blocks == (block,)
    assert turn.cache.read_encoded(turn.record.spans) == [text]


@pytest.mark.parametrize(("union", "base"), [(AnyBlock, Block), (AnyEvent, Event)])
def test_a_union_has_each_class_that_has_a_kind_of_its_own(union: Any, base: type[Block | Event]) -> None:
    """Otherwise a type checker would take what a program does with that class for unreachable."""
    assert set(get_args(get_args(union)[0])) == {cls for cls in _derived(base) if "kind" in cls.__annotations__}


def _derived(base: Any) -> Iterator[Any]:
    for cls in base.__subclasses__():
        if cls.__module__.startswith("turnwise."):
            yield cls
        yield from _derived(cls)


def test_pydantic_models_of_callers_may_have_events_and_blocks() -> None:
    holder = TypeAdapter(tuple[AnyBlock | AnyEvent, ...])
    values = (Unknown(stored_kind="hologram"), Text(text="hi"), TextDelta(session_id="s", seq=1, at=1.5, text="hi"))
    assert holder.validate_json(holder.dump_json(values)) == values
