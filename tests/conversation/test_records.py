"""Copies of records with some fields changed."""

import dataclasses
import pickle
from typing import Any

import pytest

from turnwise.memory.conversation.records import replace
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit

RECORDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "session": (SessionRecord(session_id="s", title="Greetings"), {"epoch": 3, "usage": Usage(calls=2)}),
    "turn": (TurnRecord(index=1), {"index": 2}),
    "run": (
        RunRecord(run_id="r", session_id="s", turn_index=0, state="queued", first_seq=1, created_at=0.0),
        {"state": "running"},
    ),
    "usage": (Usage(calls=1), {"seconds": 0.5}),
    "commit": (Commit(session=SessionRecord(session_id="s")), {"forget_events": 7}),
    "nothing": (Usage(calls=1), {}),
}


@pytest.mark.parametrize(("record", "changes"), RECORDS.values(), ids=RECORDS)
def test_a_copy_is_what_dataclasses_would_have_made(record: Any, changes: dict[str, Any]) -> None:
    before = dataclasses.asdict(record)
    copy: Any = replace(record, **changes)
    assert copy == dataclasses.replace(record, **changes)
    assert copy is not record
    assert dataclasses.asdict(record) == before, "the record is as it was"
    assert pickle.loads(pickle.dumps(copy)) == copy


def test_a_copy_is_frozen_too() -> None:
    copy: Any = replace(Usage(), calls=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        copy.calls = 2


def test_a_field_that_a_record_does_not_have_is_refused() -> None:
    wrong: dict[str, Any] = {"cals": 1, "apples": 2}
    with pytest.raises(TypeError, match="Usage has no field apples, cals"):
        replace(Usage(), **wrong)
