"""Runs go on with the engines that they were started with, also when the host that had them is drained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from test_draining import WHY, Asks, Pair

from processes.packed_hosts import Hosting, answer_of
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import SessionFencedError, StoreError
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore

pytestmark = pytest.mark.virtual_time

KEY = SessionKey("a")
APPROVED = ApprovalDecision(verdict="approved")


class Waits:
    """Answers with its name when it is let."""

    def __init__(self, name: str, *, is_open: bool = False) -> None:
        self.name = name
        self.open = asyncio.Event()
        if is_open:
            self.open.set()

    def build(self, session: SessionView) -> Waits:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        await self.open.wait()
        return [Text(text=self.name)]


async def answers(store: Any) -> dict[str, str]:
    """Return the answers of the session's runs, by run id."""
    return {
        turn.run_id: Text.model_validate_json((await store.blocks(turn.output))[0]).text
        for turn in await store.turns(KEY)
    }


@pytest.mark.parametrize("active", ["", "other"])
async def test_a_queued_run_begins_on_the_next_host_with_its_own_engine(active: str) -> None:
    own, other = Waits("own"), Waits("other")
    pair = Pair(InMemoryStore(), own, other_engines={"other": other})
    await pair.old.create("a")
    await pair.old.start("a", "hello", "run-0", active)
    await pair.old.start("a", "hello", "run-1", "other", if_busy="enqueue")
    draining = asyncio.create_task(pair.old.host.drain(60.0, WHY))
    await asyncio.sleep(1)
    own.open.set()
    other.open.set()
    await draining
    assert (await pair.outcome("a", "run-1")).state == "completed"
    assert await answers(pair.old.store) == {"run-0": active or "own", "run-1": "other"}


async def test_a_run_that_is_taken_over_is_resumed_with_its_own_engine() -> None:
    other = Waits("other")
    config = SessionConfig(idle_s=1e9, cancel_grace_s=0.5, on_lost="resume")
    pair = Pair(InMemoryStore(), Waits("own", is_open=True), other_engines={"other": other}, config=config)
    await pair.old.create("a")
    await pair.old.start("a", "hello", "run-0", "other")
    await pair.old.start("a", "hello", "run-1", "other", if_busy="enqueue")
    await pair.old.host.drain(5.0, WHY)
    other.open.set()
    for run_id in ("run-0", "run-1"):
        assert (await pair.outcome("a", run_id)).state == "completed"
    assert await answers(pair.old.store) == {"run-0": "other", "run-1": "other"}


@pytest.mark.parametrize("is_drained", [False, True])
async def test_a_read_forgets_no_engine_of_a_run_that_waits_for_approval(is_drained: bool) -> None:
    """A read loads the session and activates nothing; then the session leaves again."""
    store = InMemoryStore()
    engines = {"other": Asks("other")}
    before = Hosting(store, Asks("own"), other_engines=engines)
    await before.create("a")
    await before.start("a", "hello", "run-0", "other")
    await asyncio.sleep(1)
    config = SessionConfig(idle_s=10.0, cancel_grace_s=0.5)
    pair = Pair(store, Asks("own"), other_engines=engines, overrides=before.overrides, config=config)
    await pair.old.ask("a", verbs.info())
    assert pair.old.residents == ["a"]
    if is_drained:
        await pair.old.host.drain(60.0, WHY)
    else:
        await asyncio.sleep(60)
    assert not pair.old.residents
    hosting = pair.new if is_drained else pair.old
    await hosting.ask("a", verbs.decide("run-0", "call", APPROVED))
    await hosting.ask("a", verbs.wait(None, "run-0", ()))
    assert await answers(store) == {"run-0": "other"}


class Newest:
    """The newest host of a chain, which callers know as of a moment ago; it may be unreachable for a while."""

    def __init__(self, hosts: list[Hosting]) -> None:
        self.hosts = hosts
        self.failures = 0
        self._known: Hosting | None = None

    def look_up(self) -> Hosting:
        self._known = self._known or self.hosts[-1]
        return self._known

    async def adopt(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        hosting = self.look_up()
        await asyncio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise StoreError("it cannot be reached")
        try:
            await hosting.host.adopt(key, override, engines)
        except SessionFencedError:
            self._known = None
            raise

    async def warm(self, key: SessionKey) -> None:
        answer_of(await self.hosts[-1].host.call(verbs.warm().to(SessionRef(key)).pickled()))


async def waiting_session(store: InMemoryStore, hosting: Hosting) -> None:
    """Have a run that waits for approval on another engine, in a session that is not loaded."""
    before = Hosting(store, Asks("own"), other_engines={"other": Asks("other")})
    await before.create("a")
    await before.start("a", "hello", "run-0", "other")
    await asyncio.sleep(1)
    await hosting.host.adopt(KEY, before.overrides[KEY], {})


@pytest.mark.parametrize("failures", [0, 3])
async def test_of_two_hosts_that_are_drained_at_once_the_engines_reach_the_third(failures: int) -> None:
    store, hosts = InMemoryStore(), list[Hosting]()
    newest = Newest(hosts)
    newest.failures = failures

    def add() -> Hosting:
        hosts.append(Hosting(store, Asks("own"), other_engines={"other": Asks("other")}, next_hosts=newest))
        return hosts[-1]

    first, second = add(), add()
    await waiting_session(store, first)
    assert newest.look_up() is second
    third = add()
    await asyncio.gather(first.host.drain(60.0, WHY), second.host.drain(60.0, WHY))
    await third.ask("a", verbs.decide("run-0", "call", APPROVED))
    await third.ask("a", verbs.wait(None, "run-0", ()))
    assert await answers(store) == {"run-0": "other"}


async def test_a_host_that_is_drained_ends_in_time_although_nobody_takes_its_engines() -> None:
    store, hosts = InMemoryStore(), list[Hosting]()
    newest = Newest(hosts)
    newest.failures = 1_000
    hosts.append(Hosting(store, Asks("own"), other_engines={"other": Asks("other")}, next_hosts=newest))
    await waiting_session(store, hosts[0])
    began = asyncio.get_running_loop().time()
    await hosts[0].host.drain(5.0, WHY)
    assert hosts[0].has_left.is_set() and asyncio.get_running_loop().time() - began < 40
