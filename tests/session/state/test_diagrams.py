"""The diagram of a run's states in docs/concepts/run.md is the real one."""

import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from pages.markdown_blocks import blocks_of
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import CallDecidedError
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, decode_calls
from turnwise.memory.conversation.runs import OPEN_STATES, RunState
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.schedules import explore
from turnwise.testing.world import World

PAGE = Path(__file__).parents[3] / "docs/concepts/run.md"


def drawn() -> set[tuple[str, str]]:
    """Return the arrows of the diagram."""
    (diagram,) = [block.text for block in blocks_of(PAGE) if block.kind == "mermaid"]
    return set(re.findall(r"^ +(\S+) --> (\w+|\[\*\])", diagram, re.MULTILINE))


class WatchedStore(InMemoryStore):
    """Notes how the states of runs change."""

    def __init__(self, changes: set[tuple[str, str]]) -> None:
        super().__init__()
        self._changes = changes

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        before: dict[str, str] = {}
        for run in commit.runs:
            before[run.run_id] = (await self.run(run.run_id)).state
        await super().commit(key, epoch, commit)
        if commit.new_run:
            self._changes.add(("[*]", commit.new_run.state))
        self._changes.update((before[run.run_id], run.state) for run in commit.runs)


@tool(approval=True)
async def book() -> str:
    """Book it."""
    return "booked"


def test_the_diagram_has_all_states_and_every_open_one_can_be_left() -> None:
    arrows = drawn()
    states = {state for arrow in arrows for state in arrow} - {"[*]"}
    assert states == set(get_args(RunState))
    assert {start for start, end in arrows if end == "[*]"} == states - set(OPEN_STATES)
    assert {start for start, end in arrows if end not in ("[*]", start)} == {"[*]", *OPEN_STATES}


@pytest.mark.by_turns
def test_the_arrows_are_the_changes_that_happen_in_random_lives() -> None:
    changes: set[tuple[str, str]] = set()

    async def life(seed: int) -> None:
        dice = Random(seed)
        faults = Faults(FaultPlan(rates={"raise": 0.1, "crash": 0.1, "nothing": 0.05}), seed=seed)
        config = SessionConfig(on_lost=dice.choice(["resume", "interrupt"]), idle_s=1e9, cancel_grace_s=0.5)
        engine = FaultyEngine(faults, tools=ToolRegistry(book), word_s=0.01)
        world = World(faults, engine=engine, config=config, store=WatchedStore(changes))
        await world.create()
        for number in range(3):
            first = await world.start(f"call:book {number}", if_busy="enqueue")
            second = await world.start(f"and then {number}", if_busy="enqueue")
            await world.start(f"and also {number}", if_busy="merge")
            if dice.random() < 0.3:
                await world.cancel(dice.choice([first, second]))
            while (record := await world.store.inner.run(first)).state in OPEN_STATES:
                for call_id, state in decode_calls(record.calls).items():
                    if state.is_waiting:
                        with suppress(CallDecidedError):  # its process was killed before the run waited
                            await world.decide(first, call_id, ApprovalDecision(verdict="approved"))
                await world.ask("reads.wait", first, 0.1)
            for run_id in (first, second):
                if dice.random() < 0.2:
                    await world.cancel(run_id)

    explore(40, life, kills=0.002)
    shown = {(start, end) for start, end in drawn() if end != "[*]"}
    unchanged = {(state, state) for state in OPEN_STATES}
    assert changes - unchanged <= shown
    assert shown - unchanged <= changes
