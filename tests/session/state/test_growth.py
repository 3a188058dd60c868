"""The memory that a process uses for sessions stays within its bounds, turn after turn."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from scale import share
from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.shared import sessions_client as realm_module
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.cluster import actor_lookup as homes_module
from turnwise.actors.cluster.actor_lookup import _LookupOfOne
from turnwise.actors.cluster.calls.request_batching import _BATCHERS, RequestBatcher
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.wire import Message, PackedOutcome, PackedTurn, SessionRef, StartAnswer
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state import cached_blocks
from turnwise.actors.wire_version import packed
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Block, Text, User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, join, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.trim import Trim
from turnwise.testing.schedules import inline

MANY = share(20_000, 20)
"""All of them with `make races`."""
TRACED = 800
"""Of how many steps the memory is traced, which makes them slow. Those of the first stretch fill the caches."""
STRETCH = TRACED // 4


class Lookup(_LookupOfOne):
    """Actor homes that have names and no actors."""

    looked_up = 0

    def warm(self, key: SessionKey, request: bytes) -> None:
        """There is no process."""

    def _look_up(self, key: SessionKey) -> Any:
        self.looked_up += 1
        return f"the actor of {key.session_id}"


class Cluster:
    """Answers what a client asks: each session is a conversation whose requests show its last `window` turns.

    Its texts are longer than those that the JSON decoder keeps for the process, which are of 64 bytes at most.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, window: int = 10, prompt: str = "What is the weather like? " * 4
    ) -> None:
        monkeypatch.setattr(steps, "call", self.call)
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while an answer is on its way."""
        self.client: Any = SessionsClient("namespace", "realm", InProcess())
        self.lookup = Lookup("namespace", "realm")
        self.client.runtime = SimpleNamespace(live_processes=lambda _: self.lookup)
        self.window = window
        self.prompt = prompt
        self.turns: dict[str, int] = {}
        self.blocks: dict[int, str] = {}

    def talk(self, session_id: str) -> Turn:
        """Run a prompt and wait for its turn, as a client does."""
        chat = Session(self.client, SessionRef(SessionKey(session_id)), None)
        turn = chat.run(self.prompt).wait()
        assert len(turn.blocks) == 2 * min(self.window, turn.index + 1)
        return turn

    def call(self, actor: Any, request: bytes, reach: Any, **how: Any) -> bytes:
        answer = packed(self.answer(pickle.loads(request)))
        self.meanwhile()
        return answer

    def answer(self, message: Message) -> Any:
        session_id = message.session.session_id
        if message.verb == "delete_with_memories":
            return Forgotten(sessions=1)
        if message.verb == "agents":
            return []
        assert message.verb == "start"
        turn_index = self.turns.get(session_id, 0)
        self.turns[session_id] = turn_index + 1
        first, last = 2 * max(0, turn_index + 1 - self.window), 2 * turn_index
        record = TurnRecord(
            index=turn_index,
            run_id=f"run-{turn_index}",
            status="completed",
            prompt=(Span(session_id, last, last + 1),),
            input=(Span(session_id, first, last + 1),),
            output=(Span(session_id, last + 1, last + 2),),
        )
        cache = BlockCache()
        self.blocks = {place: self.blocks.get(place) or self.block(place) for place in range(first, last + 2)}
        shown: list[Block | str] = list(self.blocks.values())
        cache.add_spans(join(record.input, record.output), shown)
        spans = union(record.prompt, record.spans)
        turn = PackedTurn(session_id, cache.source, record, spans, cache.read_encoded(spans))
        return StartAnswer(record.run_id or "", turn_index, PackedOutcome("completed", None, None, turn))

    def block(self, place: int) -> str:
        text = f"{place}: {self.prompt}"
        return encode(Text(text=text) if place % 2 else User(text=text))

    @property
    def held_bytes(self) -> int:
        return sum(self.client.cached_bytes.values())


def growth(step: Callable[[int], None]) -> int:
    """Return by how many bytes a stretch of the last steps has made the process larger, measured at its lowest points.

    Of several stretches the least counts: a leak grows in each, and what other threads allocate meanwhile does not.
    """
    for number in range(MANY - TRACED):
        step(number)
    lowest = []
    tracemalloc.start()
    try:
        for start in range(MANY - TRACED, MANY, STRETCH):
            gc.collect()
            lowest.append(min(traced_after(step, number) for number in range(start, start + STRETCH)))
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(lowest))


def traced_after(step: Callable[[int], None], number: int) -> int:
    step(number)
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.by_turns
def test_a_client_of_many_sessions_holds_no_more_than_of_the_last_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(realm_module, "CACHED_SESSIONS", 50)
    monkeypatch.setattr(homes_module, "NOTED", 200)
    cluster = Cluster(monkeypatch, prompt="What is the weather like? " * 40)
    growth_bytes = growth(lambda number: _talk_and_leave(cluster, f"chat-{number}"))
    assert len(cluster.client.cached_bytes) == 50
    newest = max(int(key.session_id.split("-")[1]) for key in cluster.client.cached_bytes)
    looked_up = cluster.lookup.looked_up
    for number in range(newest - 199, newest + 1):
        cluster.lookup.of(SessionKey(f"chat-{number}"))
    assert cluster.lookup.looked_up == looked_up, "the last 200 are noted"
    cluster.lookup.of(SessionKey(f"chat-{newest - 200}"))
    assert cluster.lookup.looked_up == looked_up + 1
    assert growth_bytes < 50 * STRETCH, "at most 50 bytes for each session"


def _talk_and_leave(cluster: Cluster, session_id: str) -> None:
    cluster.talk(session_id)
    del cluster.turns[session_id]


@pytest.mark.by_turns
def test_a_client_of_many_turns_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realm_module, "CACHED_BYTES", 1 << 15)
    cluster = Cluster(monkeypatch)
    most_bytes = 0

    def step(number: int) -> None:
        nonlocal most_bytes
        cluster.talk("chat")
        most_bytes = max(most_bytes, cluster.held_bytes)

    assert growth(step) < 50 * STRETCH, "at most 50 bytes for each turn"
    assert 12_000 < most_bytes <= 1 << 15


def test_the_caches_of_all_sessions_have_one_bound_and_the_last_one_that_was_used_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(realm_module, "CACHED_BYTES", 1 << 20)
    cluster = Cluster(monkeypatch, prompt="x" * 10_000)
    for number in range(200):
        cluster.talk(f"chat-{number % 100}")
        assert cluster.held_bytes <= 1 << 20
    cached = cluster.client.cached_bytes
    assert list(cached)[-1].session_id == "chat-99" and 10 < len(cached) < 100


def test_a_turn_that_is_larger_than_the_bound_can_be_read_and_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realm_module, "CACHED_BYTES", 1 << 20)
    cluster = Cluster(monkeypatch, prompt="x" * 100_000)
    turns = [cluster.talk("chat") for _ in range(20)]
    assert not cluster.client.cached_bytes
    assert [len(turn.blocks) for turn in turns] == [2 * min(10, number + 1) for number in range(20)]


def test_a_turn_keeps_its_blocks_though_the_client_evicts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session left out the blocks that the client reported as cached."""
    monkeypatch.setattr(realm_module, "CACHED_SESSIONS", 2)
    cluster = Cluster(monkeypatch)
    cluster.talk("chat")

    def others() -> None:
        cluster.meanwhile = lambda: None
        for number in range(5):
            cluster.talk(f"other-{number}")

    cluster.meanwhile = others
    turn = cluster.talk("chat")
    assert SessionKey("chat") not in cluster.client.cached_bytes
    assert len(turn.blocks) == 4


def test_a_client_holds_nothing_of_a_session_that_it_has_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.talk("chat")
    Session(cluster.client, SessionRef(SessionKey("chat")), None).delete()
    assert not cluster.client.cached_bytes


def test_an_actor_that_is_noted_no_more_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes_module, "NOTED", 3)
    lookup = Lookup("namespace", "realm")
    for name in "abcad":
        lookup.of(SessionKey(name))
    for name in "cad":
        lookup.of(SessionKey(name))
    assert lookup.looked_up == 4, "these are noted"
    assert lookup.of(SessionKey("b")).actor == "the actor of b" and lookup.looked_up == 5


async def test_an_event_loop_keeps_no_bundler_of_hosts_that_have_left() -> None:
    for number in range(MANY):
        RequestBatcher.of(f"host {number}")
    assert len(_BATCHERS[asyncio.get_running_loop()]) == 1


async def test_a_process_caches_little_more_than_the_window_of_a_session_of_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trim_bytes, turns = 1 << 18, MANY // 2
    monkeypatch.setattr(cached_blocks, "TRIM_BYTES", trim_bytes)
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    config = SessionConfig(max_context_tokens=4_000, reserve_output_tokens=0, token_counter=ByteCounter())
    core = SessionCore(SessionKey("s"), store, EchoEngine(), config, overflow=Trim(), off_loop=inline)
    most_bytes = most_counted = 0
    for number in range(turns):
        await core.admission.start([f"{number}: " + "x" * 400], run_id=f"run-{number}")
        outcome = await core.reads.wait(f"run-{number}")
        assert outcome.turn and outcome.turn.text.endswith("x")
        most_bytes = max(most_bytes, core.state.journal.blocks.cache.size_bytes)
        index = core.engines.current.compactor and core.engines.current.compactor._index  # noqa: SLF001 - counts of tokens
        stretches = [stretch for log in index._logs.values() for stretch in log] if index else []  # noqa: SLF001 - which stand nowhere else
        counted = sum(len(stretch.totals) for stretch in stretches)
        most_counted = max(most_counted, counted)
    assert trim_bytes // 2 < most_bytes < trim_bytes + 10_000
    assert most_counted < 3 * trim_bytes // 600
    assert (await core.reads.turn(0)).text.endswith("x"), "what has left memory is in the store"
    early = await core.reads.wait(f"run-{turns - 100}")
    assert early.turn and len(early.turn.blocks) > 2
    assert (await core.reads.latest()) == (await core.reads.turn(turns - 1))


async def test_a_turn_of_a_long_conversation_takes_as_many_calls_as_one_of_a_short_one() -> None:
    """Nothing that turnwise does at each turn walks the whole history, but for copies that Python makes at once."""
    store, run_ids = InMemoryStore(), iter(range(MANY))
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, EchoEngine(), SessionConfig(), off_loop=inline)

    async def turn() -> None:
        run_id = f"run-{next(run_ids)}"
        await core.admission.start(["What is the weather like?"], run_id=run_id)
        await core.reads.wait(run_id)

    async def calls_of_a_turn() -> int:
        counts = []
        for _ in range(5):  # the least of some: a turn may end a stretch of something
            calls = Counter[str]()
            sys.setprofile(lambda _, event, __, calls=calls: calls.update([event]))  # type: ignore[misc]
            try:
                await turn()
            finally:
                sys.setprofile(None)
            counts.append(calls["call"] + calls["c_call"])
        return min(counts)

    for _ in range(10):
        await turn()
    short = await calls_of_a_turn()
    for _ in range(300):
        await turn()
    assert await calls_of_a_turn() < 1.1 * short
