"""The codec of records: fields that versions add, and values that do not fit."""

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.codec import decode_record, decoded, decoded_events
from turnwise.memory.conversation.events import EventRow
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.memory.values.records import record_of, record_text

USAGE = Usage(input_tokens=7, seconds=0.1)


@dataclass(frozen=True, kw_only=True)
class LaterTurn(TurnRecord):
    """A turn of a later version."""

    colour: str | None = None
    notes: FrozenDict = field(default_factory=FrozenDict)
    score: float = 0.5


def test_a_new_field_of_a_record_is_stored_and_older_records_have_its_default() -> None:
    names = {field.name for field in fields(LaterTurn)}
    older = {field.name for field in fields(TurnRecord)}
    notes = freeze({"of": [{"text": "\u00fc"}]})
    later = LaterTurn(index=1, colour="red", notes=notes, score=1, input=(Span("7", 0, 2**60),), usage=USAGE)
    assert decode_record(LaterTurn, "key", record_text(later, names)) == later
    old = TurnRecord(index=1, created_at=1.5, usage=USAGE)
    assert record_text(old, older) == record_text(LaterTurn(index=1, created_at=1.5, usage=USAGE), names)
    assert decode_record(LaterTurn, "key", record_text(old, older)).score == 0.5
    with pytest.raises(CorruptRecordError, match="key"):
        decode_record(TurnRecord, "key", record_text(later, names))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "asleep"),
        ("state", ["running"]),
        ("first_seq", "1"),
        ("first_seq", True),
        ("first_seq", 1.0),
        ("first_seq", None),
        ("why", 5),
        ("labels", ["a"]),
        ("usage", []),
        ("usage", {"calls": 0.5}),
        ("usage", {"canary": 1}),
        ("canary", 1),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused_and_not_quoted(name: str, value: Any) -> None:
    values = {"run_id": "r", "session_id": "s", "turn_index": 0, "state": "running", "first_seq": 1, "created_at": 1}
    assert record_of(RunRecord, values).run_id == "r"
    with pytest.raises(CorruptRecordError, match="run r") as raised:
        decoded("run r", lambda: record_of(RunRecord, values | {name: value}))
    assert "asleep" not in str(raised.value) and "canary" not in str(raised.value)


@pytest.mark.parametrize("spans", [[["7", 0]], [[7, 0, 1]], [["7", "0", 1]], [["7", 0, True]], [5], 5])
def test_a_span_is_a_log_and_two_integers(spans: Any) -> None:
    with pytest.raises(CorruptRecordError, match="turn"):
        decoded("turn", lambda: record_of(TurnRecord, {"index": 0, "input": spans}))


@pytest.mark.parametrize(
    "body",
    ["{", "[]", '{"call_id":"hushhush"}', '{"call_id":"hushhush","name":"pay","seq":9}', '{"call_id":1,"name":2}'],
)
def test_an_event_that_does_not_fit_its_kind_is_named_and_not_quoted(body: str) -> None:
    fit = EventRow(3, 1.5, 2, "r", None, "tool_started", '{"call_id":"c","name":"pay"}')
    assert [event.seq for event in decoded_events(SessionKey("s"), [fit])] == [3]
    with pytest.raises(CorruptRecordError, match="event s:4") as refused:
        decoded_events(SessionKey("s"), [fit, fit._replace(seq=4, body=body), fit._replace(seq=5)])
    assert "hushhush" not in str(refused.value)
