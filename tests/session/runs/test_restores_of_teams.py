"""A restore of an earlier copy while deliveries between sessions are carried out: each is carried out in the end.

A failing schedule prints its seed, which replays it: `TURNWISE_SEED=<seed> pytest -k <test>` with this file.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from scale import share
from schedules import spread
from teams import RESEARCHER, Team, asks
from turnwise.engines import agent_tool
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.blocks import User
from turnwise.testing.faults import Faults, Kind
from turnwise.testing.scripted_engine import ScriptedAnswer

pytestmark = pytest.mark.usefixtures("quiet")


class Restores(Faults):
    """Copies a store at one request to it, and restores the copy at a later one."""

    def __init__(self, copied_at: int, restored_at: int) -> None:
        super().__init__()
        self.store: Any = None
        """None: nothing is copied yet."""
        self._copied_at, self._restored_at = copied_at, restored_at
        self._requests = 0
        self._copy: dict[str, Any] = {}
        self.restored_s = 0.0
        """When the copy was restored, 0: never."""

    def strike(self, point: str, *offers: Kind) -> Kind | None:
        if self.store is not None:
            self._requests += 1
            if self._requests == self._copied_at:
                self._copy = copy.deepcopy(vars(self.store))
            if self._requests == self._restored_at:
                vars(self.store).update(copy.deepcopy(self._copy))
                self.restored_s = asyncio.get_running_loop().time()
        return super().strike(point, *offers)


BEHIND = agent_tool("researcher", engine="research", description="Finds things out.", background=True)
NOBODYS = agent_tool("researcher", engine="nobody", description="Finds things out.")
AGAIN = agent_tool("researcher", engine="research", description="Finds things out.", on_lost="restart")

REQUESTS = 60
"""How many requests to the store a copy and a restore are spread over."""


GONE = "the agent's session was deleted"
"""The result of an agent whose session was restored away after it was made, and before the call was stored."""


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("tool", "script"),
    [
        (RESEARCHER, [asks("a", "b"), "done"]),
        (NOBODYS, [asks("a", "b"), "done"]),
        (BEHIND, [asks("a"), "meanwhile", "done"]),
        (AGAIN, [asks("a", "b"), "done"]),
    ],
    ids=["agents", "missing", "background", "restart"],
)
def test_agents_answer_though_the_store_goes_back(tool: Any, script: Sequence[ScriptedAnswer]) -> None:
    async def life(seed: int) -> None:
        dice = random.Random(seed)
        first = dice.randrange(1, REQUESTS)
        faults = Restores(first, first + dice.randrange(1, REQUESTS // 3))
        team = Team(script, faults, tools=[tool], hands_over=seed % 2 == 1)
        await team.begin()
        faults.store = team.store

        async def has_ended() -> bool:
            if faults.restored_s and asyncio.get_running_loop().time() > faults.restored_s + 1.0:
                for world in list(team.worlds.values()):
                    with suppress(SessionNotFoundError):
                        await world.ask("ownership.check_own")  # as somebody visits the session
            return await team.has_ended()

        await team.hand_over(has_ended)
        assert (await team.store.run("go")).state == "completed"
        latest = await team.lead.ask("reads.latest")
        if tool is BEHIND:
            said = [block.text for block in latest.blocks if isinstance(block, User)]
            assert sum("about a" in text or GONE in text for text in said) == 1, said
        elif tool is NOBODYS:
            assert [is_error for _, is_error in await team.results()] == [True, True]
        else:
            for (text, is_error), task in zip(await team.results(), "ab", strict=True):
                assert text == f"about {task}" or (is_error and text == GONE), text

    spread(share(300), life)
