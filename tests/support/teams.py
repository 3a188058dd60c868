"""A team: a session that calls agents, and their sessions, each in a simulated process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from turnwise.actors.dispatch.dispatcher import Dispatcher
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.inference.tools.tool import Tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.state.alarm import NO_ALARM
from turnwise.engines import agent_tool, tool
from turnwise.errors import SessionNotFoundError, TurnwiseError
from turnwise.memory.conversation.blocks import ToolResult, User
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.records import Delivery
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from turnwise.testing.world import World

SLOW_S = 0.3

KEY = SessionKey("lead")

RESEARCHER = agent_tool("researcher", engine="research", description="Finds things out.", memory="read", timeout_s=60.0)


PAY = tool(lambda: "paid", name="pay", description="Pays.", approval=True)


async def find_out(turn: Turn) -> AsyncIterator[str]:
    """Answer after a while, with the task."""
    await asyncio.sleep(SLOW_S)
    (task,) = (block.text for block in turn.asked if isinstance(block, User))
    if task == "fail":
        raise ValueError("no such thing")
    yield f"about {task}"


def asks(*tasks: str) -> ScriptedAnswer:
    return [("researcher", {"task": task}) for task in tasks]


class HandsOver:
    """An `Alarm` that has addressees carry deliveries out at once, whoever else reads them from the store."""

    def __init__(self, receive: Callable[[Delivery], Coroutine[Any, Any, None]]) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._receive = receive

    namespace: str | None = None

    async def expect(self, engine_ids: Collection[str] = ()) -> None:
        """See `Alarm`."""

    def tell(self, due_at: float) -> None:
        """See `Alarm`."""

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.tasks.add(asyncio.create_task(self._try_to_hand_over(delivery)))

    async def _try_to_hand_over(self, delivery: Delivery) -> None:
        with suppress(TurnwiseError):  # it stays in the store
            await self._receive(delivery)


class Team:
    """A session that calls agents, and their sessions, each in a process of its own.

    Args:
        hands_over: whether the process of the sender hands a delivery over, besides who reads it from the store.
    """

    def __init__(
        self,
        script: Sequence[ScriptedAnswer],
        faults: Faults | None = None,
        tools: Sequence[Tool] = (RESEARCHER,),
        engines: dict[str, Any] | None = None,
        hands_over: bool = False,
        **settings: Any,
    ) -> None:
        self.faults = faults or Faults()
        lead = ScriptedEngine(script, tools=tools)
        self.alarm = HandsOver(self.receive)
        self.settings: dict[str, Any] = {
            "alarm": self.alarm if hands_over else NO_ALARM,
            "engine": NamedEngines({"lead": lead, "research": FunctionEngine(find_out), **(engines or {})}),
            "config": SessionConfig(
                **{"cancel_grace_s": 0.1, "idle_s": 1e9, "on_lost": "resume", "max_resumes": 9, **settings}
            ),
        }
        self.lead = World(self.faults, session_id="lead", **self.settings)
        self.store = self.lead.store.inner
        self.worlds = {"lead": self.lead}

    async def begin(self, **options: Any) -> Team:
        await self.lead.create()
        await self.lead.start("go", **options)
        return self

    def of(self, session_id: str) -> World:
        if session_id not in self.worlds:
            self.worlds[session_id] = World(self.faults, session_id=session_id, store=self.store, **self.settings)
        return self.worlds[session_id]

    async def receive(self, delivery: Delivery) -> None:
        addressee = delivery.addressee.session_id
        try:
            await self.of(addressee).ask("inbox.receive", delivery)
        except SessionNotFoundError:
            self.worlds.pop(addressee, None)
            raise

    async def dispatch(self, until: Callable[[], Any]) -> None:
        """Hand over deliveries until a condition holds; processes that died come back, as on a cluster."""
        for _ in range(10_000):
            for delivery in await self.store.deliveries():
                await self.receive(delivery)
            for world in list(self.worlds.values()):
                await world.ask("transactor.activate")
            if await until():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it did not happen in time")

    async def hand_over(self, until: Callable[[], Any]) -> None:
        """As `dispatch`, by a dispatcher, which gives up what can never be handed over."""
        dispatcher = asyncio.create_task(Dispatcher(self.store, self.receive, "team").run())
        try:
            for _ in range(10_000):
                for world in list(self.worlds.values()):
                    with suppress(SessionNotFoundError):
                        await world.ask("transactor.activate")
                if await until():
                    return
                await asyncio.sleep(0.05)
            raise AssertionError("it did not happen in time")
        finally:
            dispatcher.cancel()
            await asyncio.gather(dispatcher, return_exceptions=True)

    async def delete(self, session_id: str) -> None:
        with suppress(SessionNotFoundError):  # an earlier attempt has deleted it
            await self.of(session_id).ask("forgetting.delete", memory=False)
        del self.worlds[session_id]

    async def has_ended(self) -> bool:
        return not any(run.is_open for run in await self.runs()) and not await self.store.deliveries()

    async def runs(self) -> list[RunRecord]:
        keys = [session.key for session in await self.store.query()]
        return [run for key in keys for run in await self.store.runs(key)]

    async def agent_runs(self) -> list[RunRecord]:
        return [run for run in await self.runs() if run.session_id != "lead"]

    async def results(self) -> list[tuple[str, bool]]:
        """Return the results of the lead's calls: their texts, and whether they are errors."""
        latest = await self.lead.ask("reads.latest")
        return [(block.text, block.is_error) for block in latest.output if isinstance(block, ToolResult)]


async def is_waiting(team: Team) -> bool:
    return bool((await team.store.run("go")).state == "awaiting_approval")
