"""The audit: finds each law that a test violates in a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from scale import share
from turnwise.errors import InvalidRequestError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    encode,
)
from turnwise.memory.conversation.events import RunCompleted, RunStarted
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span, Spans, cut, join, size as span_size, union
from turnwise.memory.conversation.turns import Turn, TurnRecord, TurnStatus
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.acknowledged import digest
from turnwise.testing.audit import (
    _begins_with,
    _continues_newest,
    _digests,
    _places,
    _steps,
    _turns_hold,
    audit,
    check_request,
)
from turnwise.testing.faults import FaultPlan, Faults
from turnwise.testing.schedules import explore, play
from turnwise.testing.world import World


async def lived() -> World:
    """Return a world with two turns, an appended prompt and a follower."""
    world = World(Faults())
    await world.create()
    await world.append("appended")
    for prompt in ("one", "two"):
        await world.wait(await world.start(prompt))
    events, *_ = await world.ask("reads.events", 0, 1000)
    world.acknowledged.followed("session", "two", [event.seq for event in events if event.run_id == "two"])
    return world


def row(world: World) -> Any:
    return world.store.inner._rows[SessionKey("session")]  # noqa: SLF001 - to damage it


def log(world: World) -> dict[int, str]:
    blocks: dict[int, str] = world.store.inner._logs[row(world).session.log]  # noqa: SLF001 - to damage them
    return blocks


def test_a_scenario_without_faults_passes_and_is_counted() -> None:
    async def life() -> None:
        world = await lived()
        report = await world.audit()
        report.check()
        assert report.counts["sessions"] == 1 and report.counts["turns"] == report.counts["runs"] == 2
        assert report.counts["acknowledged prompt"] == 3 and report.counts["acknowledged end"] == 2
        assert report.counts["acknowledged followed"] == 1 and report.counts["requests"] == 2

    play(life(), "a life", 0)


def _lose_a_prompt(world: World) -> None:
    log(world)[0] = encode(User(text="another"))


def _double_a_prompt(world: World) -> None:
    log(world)[3] = encode(User(text="one"))


def _change_an_answer(world: World) -> None:
    position = next(place for place, block in log(world).items() if "answer" in block)
    log(world)[position] = encode(Text(text="something else"))


def _leave_a_call_open(world: World) -> None:
    position = next(place for place, block in log(world).items() if "answer" in block)
    log(world)[position] = encode(ToolUse(call_id="1", name="look", input={}))


def _swap_prompts(world: World) -> None:
    places = {block: position for position, block in log(world).items()}
    first, two = (places[encode(User(text=text))] for text in ("one", "two"))
    log(world)[first], log(world)[two] = log(world)[two], log(world)[first]


def _drop_a_run(world: World) -> None:
    del row(world).runs["one"]


def _drop_a_turn(world: World) -> None:
    del row(world).turns[0]


def _break_the_chain(world: World) -> None:
    row(world).turns[1] = replace(row(world).turns[1], input=row(world).turns[1].prompt)


def _reopen_a_run(world: World) -> None:
    row(world).runs["two"] = replace(row(world).runs["two"], state="running")


def _end_twice(world: World) -> None:
    events = row(world).events
    end = next(event for event in events.values() if isinstance(event, RunCompleted))
    events[max(events) + 1] = end.model_copy(update={"seq": max(events) + 1})


def _start_two_at_once(world: World) -> None:
    events = row(world).events
    start = next(event for event in events.values() if isinstance(event, RunStarted))
    events[start.seq + 1] = start.model_copy(update={"seq": start.seq + 1, "run_id": "other"})


def _miss_an_event(world: World) -> None:
    world.acknowledged.followed("session", "two", [max(row(world).events)])


def _see_an_event_twice(world: World) -> None:
    world.acknowledged.followed("session", "two", [1, 2, 2, *row(world).events])


def _lose_an_end(world: World) -> None:
    events = row(world).events
    del events[max(events)]


def _tell_another_input(world: World) -> None:
    events = row(world).events
    first, two = (event for event in events.values() if isinstance(event, RunStarted))
    places = [("", index, index + 1) for _, start, stop in (*first.prompt, ("", 2, 3)) for index in range(start, stop)]
    events[two.seq] = two.model_copy(update={"input": (*reversed(places), *two.prompt)})


def _tell_another_first_answer(world: World) -> None:
    events = row(world).events
    first, two = (event for event in events.values() if isinstance(event, RunCompleted))
    events[first.seq] = first.model_copy(update={"span": two.span})


def _tell_another_answer(world: World) -> None:
    events = row(world).events
    first, two = (event for event in events.values() if isinstance(event, RunCompleted))
    events[two.seq] = two.model_copy(update={"span": first.span})


def _tell_another_prompt(world: World) -> None:
    events = row(world).events
    first, two = (event for event in events.values() if isinstance(event, RunStarted))
    events[two.seq] = two.model_copy(update={"prompt": first.prompt})


def _store_a_dropped_prompt(world: World) -> None:
    world.acknowledged.dropped("session", "one", 0.0, "two")


def _keep_a_replaced_prompt(world: World) -> None:
    row(world).runs["two"] = replace(row(world).runs["two"], state="cancelled", code="replaced", successor="one")


def _keep_a_delivery_that_was_carried_out(world: World) -> None:
    late = Delivery(session_id="session", delivery_id="two", key="k", occurs_at=1.0, due_at=1.0)
    row(world).runs["two-1"] = replace(row(world).runs.pop("two"), run_id="two-1")
    row(world).deliveries["k"] = late


def _forget_the_session(world: World) -> None:
    world.acknowledged.forked("a fork that there is not")


BREAKS: list[tuple[Callable[[World], None], str]] = [
    (_lose_a_prompt, "acknowledged prompt once"),
    (_keep_a_delivery_that_was_carried_out, "carried out once"),
    (_double_a_prompt, "acknowledged prompt once"),
    (_change_an_answer, "acknowledged turn"),
    (_leave_a_call_open, "next request valid"),
    (_swap_prompts, "order of acknowledgement"),
    (_drop_a_run, "acknowledged run"),
    (_drop_a_turn, "acknowledged turn"),
    (_break_the_chain, "continues the turn before"),
    (_reopen_a_run, "no run without outcome"),
    (_reopen_a_run, "acknowledged end"),
    (_end_twice, "one terminal event, the last"),
    (_start_two_at_once, "one run at a time"),
    (_miss_an_event, "followers miss nothing"),
    (_see_an_event_twice, "followers see each event once"),
    (_lose_an_end, "one terminal event, the last"),
    (_tell_another_answer, "the events tell each turn"),
    (_tell_another_first_answer, "the events tell each turn"),
    (_tell_another_input, "the events tell each turn"),
    (_tell_another_prompt, "the events tell each turn"),
    (_store_a_dropped_prompt, "dropped prompts are not stored"),
    (_keep_a_replaced_prompt, "replaced prompts are dropped"),
    (_forget_the_session, "acknowledged session"),
]


@pytest.mark.parametrize(("spoil", "law"), BREAKS)
def test_each_violated_law_is_named(spoil: Callable[[World], None], law: str) -> None:
    async def life() -> None:
        world = await lived()
        spoil(world)
        report = await world.audit()
        assert law in {violation.law for violation in report.violations}
        with pytest.raises(AssertionError, match=law):
            report.check()

    play(life(), "a life", 0)


def test_prompts_of_cancelled_runs_may_be_missing_only_with_discards() -> None:
    async def life() -> None:
        world = World(Faults())
        await world.create()
        await world.start("kept", run_id="first")
        await world.start("rolled back", run_id="second", if_busy="enqueue")
        await world.start("instead", run_id="third", if_busy="rollback")
        for run_id in ("first", "second", "third"):
            await world.wait(run_id)
        (await world.audit(discards=True)).check()
        assert {violation.law for violation in (await world.audit()).violations} == {"acknowledged prompt once"}

    play(life(), "a life", 0)


def test_prompts_of_replaced_runs_and_dropped_ones_are_missing_without_discards() -> None:
    async def life() -> None:
        world = World(Faults())
        await world.create()
        await world.start("active", run_id="first")
        await world.start("replaced", run_id="second", if_busy="enqueue")
        await world.start("instead", run_id="third", if_busy="latest")
        assert await world.start("dropped", run_id="fourth", if_busy="drop") == "first"
        for run_id in ("first", "second", "third"):
            await world.wait(run_id)
        report = await world.audit()
        report.check()
        assert report.counts["acknowledged dropped"] == 1

    play(life(), "a life", 0)


@pytest.mark.parametrize("early_s", [0.0, 0.5])
def test_a_debounced_run_that_does_not_wait_for_silence_is_found(early_s: float) -> None:
    """The second prompt joins the run of the first one, and restarts the time."""

    async def life() -> None:
        world = World(Faults())
        await world.create()
        for prompt in ("one", "two"):
            await world.start(prompt, if_busy="debounce", debounce_s=2.0)
            await asyncio.sleep(1.0)
        assert await world.wait("two") == "completed"
        events = row(world).events
        for seq, event in events.items():
            if isinstance(event, RunStarted):
                events[seq] = event.model_copy(update={"at": event.at - early_s})
        laws = {violation.law for violation in (await world.audit()).violations}
        assert laws == ({"silence before a debounced run"} if early_s else set())

    play(life(), "a life", 0)


SAID: tuple[Block, ...] = (
    *(User(text=text) for text in ("one", "two", " ")),
    *(Text(text=text) for text in ("yes", "")),
    *(ToolUse(call_id=call_id, name="look") for call_id in "12"),
    *(ToolResult(call_id=call_id, text="seen") for call_id in "12"),
    Thinking(text="hm", signature="s"),
    System(text="be brief"),
    Summary(text="long ago"),
    Image(url="https://example.org/a.png"),
    CacheCheckpoint(),
)
ANSWERS = st.sampled_from([(Text(text="yes"),), (ToolUse(call_id="1", name="look"), ToolResult(call_id="1", text="8"))])
PLAIN = st.builds(lambda prompt, answer: [User(text=prompt), *answer], st.sampled_from(["one", "two"]), ANSWERS)
ADDED = st.one_of(PLAIN, PLAIN, st.lists(st.sampled_from(SAID), max_size=4))
"""What a turn adds: mostly valid, so that what follows is not refused for what came before."""

STATUSES: list[TurnStatus] = ["completed", "completed", "completed", "completed", "completed", "queued"]


@st.composite
def turns_of(draw: st.DrawFn) -> list[Turn]:
    """Return turns of which each mostly begins with the places of the one before it."""
    cache, turns, older = BlockCache(), list[Turn](), Spans()
    size = 0
    for index in range(draw(st.integers(1, 6))):
        blocks = draw(ADDED)
        cache.add("log", size, [another := User(text="another"), *blocks, another])
        how = draw(st.sampled_from(["the same places"] * 5 + ["copies", "another first", "one more", "none"]))
        if how == "another first":
            older = join([Span("log", size, size + 1)], cut(older, 1)[1])
        elif how == "copies":
            cache.add(f"copy {index}", 0, cache.read(older))
            older = (Span(f"copy {index}", 0, span_size(older)),)
        elif how != "the same places":
            older = (*older, Span("log", size, size + 1)) if how == "one more" else ()
        own = Span("log", size + 1, size + 1 + len(blocks))
        size = own.stop + 1
        middle = draw(st.integers(own.start, own.stop))
        prompt, output = join([Span("log", own.start, middle)]), join([Span("log", middle, own.stop)])
        status = draw(st.sampled_from(STATUSES))
        shown = join(older, prompt) if status == "completed" else ()
        record = TurnRecord(index=index, run_id=str(index), status=status, prompt=prompt, input=shown, output=output)
        turns.append(Turn("s", record, cache))
        older = record.spans if status == "completed" else older
    return turns


def is_valid(turn: Turn) -> bool:
    try:
        check_request([*turn.blocks, User(text="next")])
    except InvalidRequestError:
        return False
    return True


def prompts_of(turns: list[Turn]) -> Counter[str]:
    """Return how many places each prompt has."""
    spans = [span for turn in turns for span in (*turn.record.spans, *turn.record.prompt)]
    blocks = turns[0].cache.read(union(spans))
    return Counter(block.text for block in blocks if isinstance(block, User))


@settings(max_examples=share(800, 10))
@given(turns_of(), st.booleans())
def test_each_turn_is_judged_as_if_it_were_read_whole(turns: list[Turn], compacts: bool) -> None:
    ended = [turn for turn in turns if turn.status == "completed"]
    wrong = {f"after turn {turn.index}" for turn in ended if not is_valid(turn)}
    if compacts and ended and ended[0].blocks != ended[0].new_blocks:
        wrong.add(f"turn {ended[0].index} does not")
    for before, turn in pairwise(ended):
        continues = _continues_newest(turn, before.blocks) if compacts else _begins_with(turn.blocks, before.blocks)
        wrong |= set() if continues else {f"turn {turn.index} does not"}
    steps = list(_steps(turns))
    assert {problem.partition(":")[0] for _, problem in _turns_hold(steps, compacts=compacts)} == wrong
    assert _digests(steps) == {turn.run_id: digest(turn.blocks) for turn in turns}
    assert {text: len(places) for text, places in _places(steps).items()} == prompts_of(turns)


def test_a_compacted_session_begins_with_its_prompt_but_a_fork_may_not() -> None:
    cache = BlockCache()
    cache.add("log", 0, [User(text="earlier"), User(text="one"), Text(text="yes")])
    shown, prompt, output = (Span("log", 0, 2),), (Span("log", 1, 2),), (Span("log", 2, 3),)
    record = TurnRecord(index=0, status="completed", input=shown, prompt=prompt, output=output)
    steps = [*_steps([Turn("s", record, cache)])]
    assert [law for law, _ in _turns_hold(steps, compacts=True)] == ["continues the turn before"]
    assert not [*_turns_hold(steps, compacts=False)]
    assert not [*_turns_hold(_steps([Turn("s", replace(record, parent="other#7"), cache)]), compacts=True)]


def test_two_events_with_one_number_are_found() -> None:
    async def life() -> None:
        world = await lived()
        history = InMemoryHistory()
        started = next(event for event in row(world).events.values() if isinstance(event, RunStarted))
        await history.append(SessionKey("session"), [started.model_copy(update={"run_id": "another"})])
        report = await audit(world.store.inner, ["session"], history=history)
        assert "numbers only grow" in {violation.law for violation in report.violations}

    play(life(), "a life", 0)


def test_a_long_conversation_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the laws read of it grows with its turns, not with their square."""
    reads = Counter[str]()
    read = BlockCache.read

    def counted(cache: BlockCache, spans: Spans) -> tuple[Block, ...]:
        blocks = read(cache, spans)
        reads["blocks"] += len(blocks)
        return blocks

    async def life() -> None:
        world = World(Faults())
        await world.create()
        for number in range(60):
            await world.wait(await world.start(f"prompt {number}"))
        with monkeypatch.context() as patch:
            patch.setattr(BlockCache, "read", counted)
            (await world.audit()).check()
        assert reads["blocks"] < 60 * 2 * 12, "of 60 turns of two blocks; 7,000 if each was read whole"

    play(life(), "a life", 0)


class ForgetfulStore(InMemoryStore):
    """Acknowledges each tenth commit without storing it."""

    commits = 0

    async def commit(self, *args: Any) -> None:
        self.commits += 1
        if self.commits % 10:
            await super().commit(*args)


def test_a_store_that_loses_acknowledged_prompts_is_detected() -> None:
    async def life(seed: int) -> None:
        world = World(Faults(FaultPlan(rates={"crash": 0.05}), seed=seed), store=ForgetfulStore())
        await world.create()
        for number in range(12):
            await world.append(f"appended {number}")
        (await world.audit()).check()

    with pytest.raises(AssertionError, match=r"(?s)is stored 0 times.*TURNWISE_SEED"):
        explore(20, life)
