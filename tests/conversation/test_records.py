"""Copies and pickles of frozen records."""

import copy
import dataclasses
import pickle
import sys
from typing import Any

import pytest
from pydantic import PrivateAttr

from turnwise.memory.conversation.blocks import Block, Text, ToolUse, decode, encode
from turnwise.memory.conversation.events import PromptAppended, RunCompleted, RunQueued, decode_event
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import lean, replace

RECORDS: dict[str, Any] = {
    "session": SessionRecord(session_id="s", title="Greetings", usage=Usage(calls=2)),
    "turn": TurnRecord(index=1, input=(Span("7", 0, 1),)),
    "run": RunRecord(run_id="r", session_id="s", turn_index=0, state="queued", first_seq=1, created_at=0.0),
    "usage": Usage(calls=1),
    "commit": Commit(session=SessionRecord(session_id="s")),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_pickled_record_names_its_fields(record: Any) -> None:
    pickled = pickle.dumps(record)
    assert pickle.loads(pickled) == record
    assert all(field.name.encode() in pickled for field in dataclasses.fields(record))


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (RECORDS["session"], {"epoch": 3, "usage": Usage(calls=3)}),
        (RECORDS["turn"], {"index": 2}),
        (RECORDS["run"], {"state": "running"}),
        (RECORDS["commit"], {"forget_events": 7}),
        (RECORDS["usage"], {}),
    ],
)
def test_a_copy_equals_that_of_dataclasses(record: Any, changes: dict[str, Any]) -> None:
    before = dataclasses.asdict(record)
    changed = replace(record, **changes)
    assert changed == dataclasses.replace(record, **changes)
    assert changed is not record
    assert dataclasses.asdict(record) == before, "the record is as it was"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(changed, dataclasses.fields(record)[0].name, None)


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_copies_of_a_record_share_the_names_of_its_fields(record: Any) -> None:
    """Python shares them among the objects of a class that has fewer than 30; a copy without is five times as large."""
    assert sys.getsizeof(vars(replace(record))) < sys.getsizeof(dict.fromkeys(vars(record)))


def test_a_field_that_a_record_does_not_have_is_refused() -> None:
    unknown_fields: dict[str, Any] = {"cals": 1, "apples": 2}
    with pytest.raises(TypeError, match="Usage has no field apples, cals"):
        replace(Usage(), **unknown_fields)


BLOCK = ToolUse(call_id="c", name="look", input={"at": {"all": [1, 2]}})

EVENT = RunQueued(session_id="s", seq=3, at=1.5, run_id="r", span=(0, 1))


@pytest.mark.parametrize("record", [BLOCK, EVENT, lean(EVENT.model_copy(update={"blocks": (BLOCK,)}))])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_block_or_event_comes_back_whole_and_frozen(record: Any, protocol: int) -> None:
    unpickled = pickle.loads(pickle.dumps(record, protocol))
    assert unpickled == record
    assert unpickled.model_fields_set == record.model_fields_set
    assert unpickled.model_dump_json(exclude_unset=True) == record.model_dump_json(exclude_unset=True)
    assert copy.deepcopy(unpickled) == copy.copy(unpickled) == record
    with pytest.raises(ValueError, match="frozen"):
        unpickled.kind = "other"


def test_a_pickled_tool_call_has_arguments_that_nobody_can_change() -> None:
    unpickled = pickle.loads(pickle.dumps(BLOCK))
    assert isinstance(unpickled.input["at"], FrozenDict)
    with pytest.raises(TypeError, match="immutable"):
        unpickled.input["at"]["all"] = []


def test_events_of_a_page_share_the_set_of_their_fields() -> None:
    events = [RunCompleted(session_id="s", seq=number, at=1.0, span=(number, number + 1)) for number in range(50)]
    unpickled = pickle.loads(pickle.dumps(events))
    assert unpickled == events
    assert len({id(event.model_fields_set) for event in unpickled}) == 1
    longer = unpickled[0].model_copy(update={"run_id": "r"})
    assert longer.model_fields_set == {*events[0].model_fields_set, "run_id"}
    assert unpickled[1].model_fields_set == events[1].model_fields_set, "a changed copy has a set of its own"


def test_decoded_blocks_and_events_share_the_sets_of_their_fields() -> None:
    place = {"session_id": "s", "at": 1.0, "turn_index": 0, "run_id": "r", "key": None}
    body = '{"call_id":"c","name":"look"}'
    for pair in (
        [decode(encode(block)) for block in (BLOCK, BLOCK)],
        [decode_event("tool_started", body, {**place, "seq": seq}) for seq in (1, 2)],
    ):
        assert pair[0].model_fields_set is pair[1].model_fields_set


class Loose(Block, frozen=False):
    """A block of an engine's own that can be changed."""

    kind: str = "loose"
    note: str = ""


def test_a_block_that_can_be_changed_has_a_set_of_its_own() -> None:
    first, second = pickle.loads(pickle.dumps([Loose(), Loose()]))
    first.note = "seen"
    assert (first.model_fields_set, second.model_fields_set) == ({"note"}, set())
    assert pickle.loads(pickle.dumps(Text(text="x"))).model_fields_set == {"text"}


class Marked(Block):
    """A block of an engine's own, with more than fields."""

    kind: str = "marked"
    _mark: str = PrivateAttr(default="none")

    def mark(self, mark: str) -> None:
        self._mark = mark

    def is_marked(self, mark: str) -> bool:
        return self._mark == mark


def test_a_pickled_block_keeps_what_only_its_own_class_has() -> None:
    block = Marked()
    block.mark("seen")
    assert pickle.loads(pickle.dumps(block)).is_marked("seen")
    event = PromptAppended(session_id="s", seq=1, at=0.0, blocks=(block,))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(event)).blocks[0].is_marked("seen")
    assert pickle.loads(pickle.dumps(Text(text="x"))) == Text(text="x")
