"""`Overview`: what the head of a report says of all turns."""

import json
from typing import Any

from turnwise.memory.conversation.blocks import Block, Text, ToolUse, User
from turnwise.memory.conversation.usage import Usage
from turnwise.replay.records import EARLIER_CHARS, Answer, TurnReplay, last_messages
from turnwise.replay.report.overview import MOST_MODELS, Overview


def turn(model: str | None, at: float, cost: float, **fields: Any) -> TurnReplay:
    usage = Usage(input_tokens=10, output_tokens=2, cost=cost)
    return TurnReplay(
        session_id="one",
        user_id="ann",
        agent=None,
        turn_index=0,
        run_id=None,
        labels={},
        created_at=at,
        position=0,
        window_blocks=0,
        prompt="Hello.",
        recorded=Answer(status="completed", model=model, usage=usage),
        answer=Answer(status="failed", model="new", usage=usage),
        **fields,
    )


def test_chunks_together_have_what_one_overview_has() -> None:
    turns = [turn("old", 2.0, 0.5), turn(None, 1.0, 0.0), turn(None, 3.0, 0.25, engine="main")]
    whole, first, rest = Overview(), Overview(), Overview()
    for each in turns:
        whole.add(each)
    first.add(turns[0])
    for each in turns[1:]:
        rest.add(each)
    first.merge(Overview.decode(json.loads(json.dumps(rest.encode()))))
    first.merge(Overview())
    assert first == whole
    assert whole.models == {"recorded": {"old": 1, "": 1, "main": 1}, "answer": {"new": 3}, "floor": {}}
    assert (whole.first_at, whole.last_at) == (1.0, 3.0)
    assert (whole.cost["answer"], whole.unpriced["answer"], whole.tokens["answer"]) == (0.75, 1, 36)


def test_many_models_are_counted_as_others() -> None:
    overview = Overview()
    for number in range(MOST_MODELS + 5):
        overview.add(turn(f"model {number}", 0.0, 1.0))
    assert len(overview.models["recorded"]) == MOST_MODELS + 1
    assert overview.models["recorded"]["other"] == 5


def test_the_last_messages_are_cut_and_have_no_calls() -> None:
    blocks: list[Block] = [User(text="First."), Text(text="x" * 1000), ToolUse(call_id="1", name="look", input={})]
    assert last_messages(blocks) == (("user", "First."), ("assistant", "x" * EARLIER_CHARS + " …"))
    assert last_messages([*blocks, User(text="Then?")])[1] == ("user", "Then?")
    assert last_messages([]) == ()
