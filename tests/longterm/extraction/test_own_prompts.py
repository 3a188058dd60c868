"""Prompts of a user's own, and facts of the assistant's that come from a tool's result."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from memories.extraction_models import USER, Model, all_stated, fact, texts, told
from turnwise.memory.conversation.blocks import Block, System, Text, ToolResult, ToolUse, User
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.extraction.grounding import quoted_in
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.memory_types import MemoryType

DAY = 1_770_000_000.0  # 2 February 2026
TURN = (
    User(text="Book me a table at Steirereck for Friday."),
    ToolUse(call_id="1", name="book_table", input={"place": "Steirereck"}),
    ToolResult(call_id="1", text='{"status": "confirmed", "restaurant": "Steirereck", "table": 12, "time": "19:30"}'),
    Text(text="Your table 12 at the restaurant Steirereck is confirmed for 19:30. Enjoy your evening!"),
)
SAID = "Your table 12 at the restaurant Steirereck is confirmed for 19:30."


class Prompted:
    """A model that records its instructions."""

    def __init__(self, answer: Any) -> None:
        self.prompts: list[str] = []
        self.reply = answer

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        self.prompts += [block.text for block in request if isinstance(block, System)]
        text = "\n".join(block.text for block in request if isinstance(block, User))
        return all_stated(text) or json.dumps(self.reply)


async def test_extraction_checking_and_choosing_use_prompts_of_the_users_own() -> None:
    model = Prompted({"facts": [fact("The user owns a boat.", "I own a boat.")], "names": ["f1"]})
    prompts = {"facts_prompt": "Only boats.", "checking_prompt": "Check boats.", "choosing_prompt": "Choose boats."}
    plain = ExtractiveMemory(None, InMemoryItems(), chooses=True, **prompts)  # type: ignore[arg-type]
    make, *_ = plain.__reduce__()
    assert pickle.loads(pickle.dumps(make)).keywords["facts_prompt"] == "Only boats."
    bound = plain.bind(model)
    await bound.remember(USER, [told(1, "I own a boat.")])
    model.reply = {"names": ["f1"]}
    assert [item.text for item in await bound.recall(USER, "boat")] == ["The user owns a boat."]
    assert model.prompts == ["Only boats.", "Check boats.", "Choose boats."]


async def remembered(candidate: dict[str, Any], *blocks: Any, policy: Any = "sourced") -> ExtractiveMemory:
    memory = ExtractiveMemory(Model(lambda _: [candidate]), InMemoryItems(), assistant_facts=policy)
    await memory.remember(USER, [told(1, *(blocks or TURN), at=DAY)])
    return memory


async def test_what_the_assistant_states_from_a_tools_result_is_kept_and_marked() -> None:
    memory = await remembered(fact("The table has the number 12.", SAID, type="preferences"))
    (item,) = await memory.recall(USER, "Which table at Steirereck?")
    assert item.text == f'On 2 February 2026 the assistant said, from the result of book_table: "{SAID}"'
    assert item.type is MemoryType.CONTEXT and quoted_in(item.text) == SAID
    assert [span.start for span in item.source.spans] == [13]  # the assistant's own block
    assert memory.stats["sourced"] == 1
    profiled = await memory.remind(USER, "")
    assert profiled.profile == []
    await memory.remember(USER, [told(2, *TURN, at=DAY + 86_400)])
    assert len(await texts(memory.store)) == 1 and memory.stats["same"] == 1


@pytest.mark.parametrize(
    ("evidence", "blocks"),
    [
        (
            SAID.replace("12", "13"),
            (*TURN[:3], Text(text=SAID.replace("12", "13"))),
        ),  # another number than the result's
        ("Enjoy your evening!", TURN),  # which the result does not say
        (SAID, (TURN[0], TURN[3])),  # no tool was called
        (SAID, (TURN[0], TURN[3], *TURN[1:3])),  # the result came later
        (SAID, (*TURN[:2], ToolResult(call_id="1", text=TURN[2].text, is_error=True), TURN[3])),
        ("Your table 14 is confirmed.", TURN),  # nobody said so
    ],
)
async def test_what_no_result_bears_out_is_not_kept(evidence: str, blocks: tuple[Any, ...]) -> None:
    memory = await remembered(fact("The table has a number.", evidence), *blocks)
    assert await texts(memory.store) == [] and memory.stats.get("no_evidence", 1) == 1


async def test_without_the_policy_only_users_give_facts() -> None:
    memory = await remembered(fact("The table has the number 12.", SAID), policy="none")
    assert await texts(memory.store) == []
    boat: list[MemoryItem] = [told(2, "I own a boat.", at=DAY)]
    model = Prompted({"facts": [fact("The user owns a boat.", "I own a boat.")]})
    for policy, count in (("none", 0), ("sourced", 1)):
        bound = ExtractiveMemory(model, InMemoryItems(), assistant_facts=policy)  # type: ignore[arg-type]
        await bound.remember(USER, boat)
        assert await texts(bound.store) == ["The user owns a boat."]
        assert model.prompts[-2].count("what a tool has returned") == count
