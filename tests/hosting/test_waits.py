"""Those who wait in a session's process: how long a call waits, how many may, and what a caller does who may not."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines import Asking
from processes.packed_hosts import Hosting, OpenResources, answer_of, refused
from turnwise.actors.client.blocking import session_host, steps
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.blocking.session_host import ANSWER_S, MOST_PAUSE_S, REFUSED_S
from turnwise.actors.client.session_host import AsyncSessionHost
from turnwise.actors.client.shared import resending as reaching
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.dedicated_host import DedicatedHost
from turnwise.actors.hosting.placement import Dedicated, InProcess, Packed
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.waits import ENDING_S, SLICE_S
from turnwise.actors.hosting.wire import Message, PackedOutcome, Refused, SessionInfo, SessionRef, Waited
from turnwise.actors.hosting.worker_resources import SessionSetup
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.wire_version import packed
from turnwise.errors import ConfigError, OverloadedError, WaitTimeoutError
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.schedules import explore

Ask = Callable[..., Awaitable[Any]]


class Stubborn:
    """Does not stop for a minute when it is cancelled."""

    def build(self, session: SessionView) -> Stubborn:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
        return []


class Alone:
    """A dedicated session's process."""

    def __init__(self, engine: Any, max_waits: int, *, idle_s: float = 1e9, cancel_grace_s: float = 0.5) -> None:
        self.store = InMemoryStore()
        config = SessionConfig(idle_s=idle_s, cancel_grace_s=cancel_grace_s)
        setup: SessionSetup = (engine, config, None, (), None)
        self.has_left = asyncio.Event()
        self.host = DedicatedHost(
            SessionKey("a"),
            OpenResources(self.store, {"first": setup}, "first"),
            max_waits=max_waits,
            node_id="here",
            leave=self.has_left.set,
            save_override=keep_nothing,
        )

    async def ask(self, session_id: str, call: VerbCall[Any]) -> Any:
        return answer_of(await self.host.call(call.to(SessionRef(SessionKey(session_id))).pickled()))


async def keep_nothing(*_: object) -> None:
    """Nobody makes another process here."""


async def hosted(placement: str, engine: Any, **settings: Any) -> Alone | Hosting:
    """Return a host of session `a`, in which five may wait."""
    if placement == "dedicated":
        alone = Alone(engine, 5, **settings)
        await alone.store.create(SessionRecord(session_id="a"))
        return alone
    config = SessionConfig(**{"idle_s": 1e9, "cancel_grace_s": 0.5, **settings})
    hosting = Hosting(InMemoryStore(), engine, Packed(hosts=1, max_session_waits=5), config=config)
    await hosting.create("a")
    return hosting


PLACEMENTS = pytest.mark.parametrize("placement", ["dedicated", "packed"])


@pytest.mark.virtual_time
@PLACEMENTS
async def test_a_call_waits_for_a_slice_and_no_longer(placement: str) -> None:
    ask = (await hosted(placement, Asking())).ask
    await ask("a", verbs.start(("act",), {"run_id": "run"}, ()))
    waits: list[VerbCall[Any]] = [
        verbs.wait(None, "run", ()),
        verbs.wait(1e6, "run", ()),
        verbs.events(1e6, 10**9, 10, run_id="run"),
    ]
    for call in waits:
        began = asyncio.get_running_loop().time()
        await ask("a", call)
        assert asyncio.get_running_loop().time() - began == pytest.approx(SLICE_S)


@PLACEMENTS
def test_a_wait_beyond_the_limit_is_refused_and_other_calls_are_answered(placement: str) -> None:
    async def life(_: int) -> None:
        ask = (await hosted(placement, Asking())).ask
        await ask("a", verbs.start(("act",), {"run_id": "run"}, ()))
        waits = [asyncio.ensure_future(ask("a", verbs.wait(None, "run", ()))) for _ in range(3)]
        waits += [asyncio.ensure_future(ask("a", verbs.events(1e6, 10**9, 10, run_id="run"))) for _ in range(2)]
        await asyncio.sleep(0.1)
        setting = "max_waits=5" if placement == "dedicated" else "max_session_waits=5"
        assert setting in str(await refused(OverloadedError, ask("a", verbs.wait(None, "run", ()))))
        assert setting in str(await refused(OverloadedError, ask("a", verbs.events(1e6, 10**9, 10, run_id="run"))))
        assert (await ask("a", verbs.wait(0.0, "run", ()))).turn is None, "who only looks is not refused"
        assert (await ask("a", verbs.info())).active_run_id == "run"
        assert (await ask("a", verbs.events(1e6, 0, 10, run_id="run")))[0], "what is there is given to everybody"
        await ask("a", verbs.start(("later",), {"run_id": "next", "if_busy": "enqueue"}, ()))
        assert await ask("a", verbs.cancel("enough", "next")) is True
        await ask("a", verbs.decide("run", "call", ApprovalDecision(verdict="approved")))
        assert {outcome.state for outcome in (await asyncio.gather(*waits))[:3]} == {"completed"}
        assert (await ask("a", verbs.wait(None, "run", ()))).state == "completed"
        assert await ask("a", verbs.end()) is True

    assert explore(1, life)


def test_a_host_limits_waits_over_all_its_sessions_and_still_answers_calls() -> None:
    async def life(_: int) -> None:
        hosting = Hosting(InMemoryStore(), Asking(), Packed(hosts=1, max_calls=2, max_session_calls=1, max_waits=4))
        await hosting.create("a", "b", "c")
        for name in "abc":
            await hosting.start(name, "act", f"run-{name}")
        waits = [
            asyncio.ensure_future(hosting.ask(name, verbs.wait(None, f"run-{name}", ())))
            for name in "ab"
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        assert "max_waits=4" in str(await refused(OverloadedError, hosting.ask("c", verbs.wait(None, "run-c", ()))))
        await hosting.ask("a", verbs.decide("run-a", "call", ApprovalDecision(verdict="approved")))
        assert [(await wait).state for wait in waits[:2]] == ["completed", "completed"]
        assert (await hosting.ask("c", verbs.wait(1.0, "run-c", ()))).turn is None, "now there is a place"
        for wait in waits[2:]:
            assert (await wait).state == "awaiting_approval"

    assert explore(1, life)


@PLACEMENTS
def test_a_session_leaves_its_process_when_abandoned_waits_have_ended(placement: str) -> None:
    async def life(_: int) -> None:
        host = await hosted(placement, Asking(), idle_s=0.4)
        await host.ask("a", verbs.start(("act",), {"run_id": "run"}, ()))
        waits = [asyncio.ensure_future(host.ask("a", verbs.wait(None, "run", ()))) for _ in range(5)]
        await asyncio.sleep(SLICE_S / 2)
        assert not any(wait.done() for wait in waits), "their callers have left, and nobody has told the process"
        await asyncio.sleep(SLICE_S / 2 + 1.0)
        if isinstance(host, Alone):
            assert host.has_left.is_set()
        else:
            assert host.host.residents == []

    assert explore(1, life)


@pytest.mark.virtual_time
@PLACEMENTS
async def test_a_call_that_cancels_or_ends_does_not_wait_for_as_long_as_an_engine_may_take(placement: str) -> None:
    ask = (await hosted(placement, Stubborn(), cancel_grace_s=120.0)).ask
    await ask("a", verbs.start(("act",), {"run_id": "run"}, ()))
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await ask("a", verbs.cancel("enough", "run")) is None
    assert await ask("a", verbs.cancel("enough", "run")) is None
    assert await ask("a", verbs.end()) is False
    assert loop.time() - began == pytest.approx(3 * ENDING_S)
    assert (await ask("a", verbs.info())).active_run_id == "run"
    await asyncio.sleep(61)
    assert await ask("a", verbs.cancel("enough", "run")) is True
    assert await ask("a", verbs.end()) is True


# The caller's side


class Repeating(AsyncSessionHost):
    """Asks a host. Before the answer to the first cancel arrives, its run ends and the next begins; it is then lost."""

    __slots__ = ("_hosting",)

    def __init__(self, hosting: Alone | Hosting) -> None:
        super().__init__(SessionsClient("namespace", "realm", InProcess()), SessionRef(SessionKey("a")))
        self._hosting = hosting

    async def ask(self, call: VerbCall[Any], *, timeout_s: float | None = None) -> Any:
        answer = await self._hosting.ask("a", call)
        if call.verb is not verbs.cancel:
            return answer
        while (await self._hosting.ask("a", verbs.info())).active_run_id != "next":
            await asyncio.sleep(0.01)
        return await self._hosting.ask("a", call)


@pytest.mark.virtual_time
@PLACEMENTS
async def test_a_cancel_whose_answer_is_lost_spares_the_next_run(placement: str) -> None:
    hosting = await hosted(placement, Asking())
    await hosting.ask("a", verbs.start(("act",), {"run_id": "run"}, ()))
    await hosting.ask("a", verbs.start(("later",), {"run_id": "next", "if_busy": "enqueue"}, ()))
    assert await Repeating(hosting).cancel("enough") is True
    states = {run_id: (await hosting.ask("a", verbs.run(run_id))).state for run_id in ("run", "next")}
    assert states["run"] == "cancelled" and states["next"] in ("running", "awaiting_approval")


class Lookup:
    """Stands for a process, and for what finds it."""

    def of(self, key: SessionKey) -> Any:
        return self

    def invalidate(self, key: SessionKey) -> None:
        raise AssertionError("nothing is lost")


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (reaching, session_host, steps):
        monkeypatch.setattr(module, "time", clock)
    return clock


REFUSAL = Refused(OverloadedError("s", "max_waits", 5))


class Caller:
    """Calls a session, each call to which takes as long as it may wait, and is answered as the test says."""

    def __init__(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Message], Any] | None = None
    ) -> None:
        self.clock = clock
        self.answer = answer or self.waits
        self.calls: list[Message] = []
        self.pauses: list[float] = []
        self.client = SessionsClient("namespace", "realm", InProcess())
        self.client.runtime = cast(Any, SimpleNamespace(live_processes=lambda _: Lookup()))
        self.run = ExecutionHandle(self.client, SessionRef(SessionKey("s")), "run", 0)
        monkeypatch.setattr(steps, "call", self.call)
        monkeypatch.setattr(steps, "sleep", self.sleep)

    def call(self, actor: Any, request: bytes, reach: Any, **how: Any) -> bytes:
        self.calls.append(pickle.loads(request))
        return packed(self.answer(self.calls[-1]))

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now += seconds

    def waits(self, call: Message) -> Waited[PackedOutcome]:
        """Let a slice of the wait pass."""
        timeout_s = call.arguments["timeout_s"]
        self.clock.now += SLICE_S if timeout_s is None else min(timeout_s, SLICE_S)
        return Waited(PackedOutcome("running", None, None, None), False)


def test_a_wait_is_asked_again_slice_by_slice_until_its_own_timeout(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(clock, monkeypatch)
    began = clock.now
    with pytest.raises(WaitTimeoutError):
        caller.run.wait(2.5 * SLICE_S)
    assert clock.now - began == pytest.approx(2.5 * SLICE_S)
    assert [call.arguments["timeout_s"] for call in caller.calls] == pytest.approx(
        [2.5 * SLICE_S, 1.5 * SLICE_S, 0.5 * SLICE_S]
    )


def test_a_caller_for_whom_there_is_no_place_pauses_and_asks_again_until_there_is(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(call: Message) -> Any:
        return REFUSAL if len(caller.calls) < 6 else Waited(([], 0, True), True)

    caller = Caller(clock, monkeypatch, answer)
    assert [*caller.run.events()] == []
    assert len(caller.pauses) == 5 and sum(caller.pauses) < 2, "the first pauses are short"


def test_a_wait_without_a_free_place_fails_after_its_timeout_or_a_minute(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for timeout_s, limit_s in ((7.0, 7.0), (None, REFUSED_S), (0.0, 0.0)):
        caller, began = Caller(clock, monkeypatch, lambda call: REFUSAL), clock.now
        with pytest.raises(OverloadedError, match="max_waits=5"):
            caller.run.wait(timeout_s)
        assert clock.now - began == pytest.approx(limit_s)
        assert max(caller.pauses, default=0.0) <= MOST_PAUSE_S
    assert ANSWER_S < SLICE_S


def test_a_wait_that_has_lost_its_place_fails_after_its_timeout(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(call: Message) -> Any:
        return REFUSAL if len(caller.calls) > 1 else caller.waits(call)

    caller, began = Caller(clock, monkeypatch, answer), clock.now
    with pytest.raises(OverloadedError):
        caller.run.wait(2 * SLICE_S)
    assert clock.now - began == pytest.approx(2 * SLICE_S)


def test_a_minute_without_a_place_counts_from_the_last_slice(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(call: Message) -> Any:
        return REFUSAL if len(caller.calls) % 4 else caller.waits(call)

    caller = Caller(clock, monkeypatch, answer)
    with pytest.raises((WaitTimeoutError, OverloadedError)):
        caller.run.wait(20 * REFUSED_S)
    assert len(caller.calls) > 100


def test_a_cancel_of_the_active_run_names_it_when_it_asks_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then another run may be the active one."""
    session = SessionRecord(session_id="s")
    info = SessionInfo(session=session, active_run_id="first", queued_run_ids=(), pid=None, node_id=None)
    answers = iter([info, None, True])

    def answer(call: Message) -> Any:
        return next(answers)

    caller = Caller(clock, monkeypatch, answer)
    assert Session(caller.client, SessionRef(SessionKey("s")), None).cancel("enough") is True
    assert [call.verb for call in caller.calls] == ["info", "cancel", "cancel"]
    assert [call.arguments["run_id"] for call in caller.calls[1:]] == ["first", "first"]


def test_a_limit_of_waits_is_one_or_more() -> None:
    with pytest.raises(ConfigError, match="max_waits"):
        Dedicated(max_waits=0)
