"""Valid archives of impossible sessions: each is refused with its line, or can be used as a session."""

import asyncio
import json
import math
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from test_archive import exported, play, sealed

from scale import share
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.window.summary_expansion import find, originals, reach
from turnwise.errors import ArchiveError, InvalidInputError, RequestRefusedError
from turnwise.memory.archive import block_order
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.archive.validation import MAX_SPANS
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Citations,
    Document,
    Image,
    Summary,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    decode,
    encode,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Seen, Span, Spans, overlap, subtract, union
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.deliveries.schedules import Schedule, When
from turnwise.memory.providers.validation import ANTHROPIC, CHAT, RESPONSES, check
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.tokens.counter import ByteCounter
from turnwise.strategies.summarize import Summarize

FUZZED = share(10_000, 100)

PICTURE = Image(data="aGk=", media_type="image/png")


class CheckingEngine:
    """Answers as a model that was asked with a request which every provider takes.

    But that a caller may have a conversation begin with an answer, which one of them does not take.
    """

    def build(self, session: SessionView) -> "CheckingEngine":
        return self

    async def run(self, turn: Turn, context: RunContext) -> list[AnyBlock]:
        for rules in (CHAT, RESPONSES, replace(ANTHROPIC, user_begins=False)):
            await asyncio.sleep(0)
            check(messages_of(rules.spare(turn.blocks)), rules)
        prompt = turn.new_blocks[0].text if isinstance(turn.new_blocks[0], User) else ""
        if PICTURE in turn.new_blocks:
            raise RequestRefusedError("no pictures")
        if prompt != "use tools":
            return [Text(text=f"answer to {prompt}")]
        uses = [ToolUse(call_id=call, name="look", input={"at": call}) for call in ("a", "b")]
        results = [ToolResult(call_id=use.call_id, text="seen") for use in reversed(uses)]
        return [Thinking(text="hm", signature="EqoB"), *uses, *results, Text(text="done"), Citations(items=({"a": 1},))]


async def talk(core: SessionCore, *prompts: Any) -> None:
    run_id = f"{core.session_id} {len(await core.reads.runs(limit=1000))}"
    await core.admission.start(list(prompts), run_id=run_id, idempotency_key=f"key of {run_id}", labels={"a": "b"})
    await core.reads.wait(run_id)


OPEN_S = 1e9


async def write_session() -> list[str]:
    """Return the archive of a fork with tools, pictures, summaries of summaries, a forgotten turn and a pending one."""
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="parent"))
    parent = SessionCore(SessionKey("parent"), store, CheckingEngine())
    await talk(parent, "hello")
    await talk(parent, "use tools", Document(name="a.txt", text="b"))
    await talk(parent, "look", PICTURE)
    await parent.forking.fork(None, "s")
    config = SessionConfig(max_context_tokens=600, reserve_output_tokens=10, token_counter=ByteCounter())
    folding = Summarize(model=Summariser(), trigger_ratio=0.5, keep_turns=1, max_summary_tokens=100)
    core = SessionCore(SessionKey("s"), store, CheckingEngine(), config, overflow=folding)
    for prompt in ("one", "use tools", "three", "use tools", "five"):
        await talk(core, prompt, "x" * 40)
        await core.compaction.compact()
    await core.forgetting.forget_turn((await core.reads.turns(limit=1000))[-2].index)
    await core.admission.append(["later"], "a key")
    await settled(core)
    for key, when in (("once", When(at=OPEN_S)), ("every", When(schedule=Schedule(every_s=60.0), at=1.0))):
        await core.scheduling.add(
            [f"{key}, later"], when, delivery_id=f"id of {key}", key=key, options={"labels": {"a": "b"}}
        )
    lines = await exported(store, SessionKey("s"))
    blocks = [decode(json.loads(line)["block"]) for line in lines if line.startswith('{"block"')]
    assert sum(isinstance(block, Summary) and bool(block.folded) for block in blocks) >= 2
    assert {block.kind for block in blocks} >= {"image", "document", "thinking", "tool_use", "tool_result", "summary"}
    return lines


async def settled(core: SessionCore) -> None:
    """Wait until nothing changes the session beside its runs any more, such as a compaction."""
    while core.ownership.is_in_use:
        await asyncio.sleep(0)


class Summariser(CheckingEngine):
    """Writes a summary."""

    async def run(self, turn: Turn, context: RunContext) -> list[AnyBlock]:
        return [Text(text="they talked")]


@pytest.fixture(scope="module")
def archive() -> list[str]:
    lines: list[str] = play(write_session())
    return lines


# What must hold of a session that came in


async def check_works(store: InMemoryStore, session_id: str) -> None:
    """Open the session, read all of it, expand its summaries, run, forget, fork and export it."""
    core = SessionCore(SessionKey(session_id), store, CheckingEngine())
    turns = await core.reads.turns(limit=10_000)
    assert all(isinstance(block, Block) for turn in turns for block in (*turn.blocks, *turn.new_blocks))
    runs = await core.reads.runs(limit=10_000)
    for run in runs:
        await core.reads.pending(run.run_id)
        await core.reads.wait(run.run_id, 1.0)
        await core.reads.events(run_id=run.run_id)
    await core.reads.events(limit=10_000)
    latest = await core.reads.latest()
    for block in latest.blocks if latest else ():
        if isinstance(block, Summary):
            assert all(isinstance(original, Block) for original in await core.reads.expand(block))
    if (await core.reads.session()).status == "active":
        await check_runs(core)
        await check_deliveries(core, store)
    ended = [turn.index for turn in turns if turn.status not in ("pending", "queued", "running")]
    for number, index in enumerate([None, *ended[:1], *ended[-1:]] if ended else []):
        fork = await core.forking.fork(index, f"a fork {number}")
        await check_runs(SessionCore(fork.key, store, CheckingEngine()))
    if ended:
        await core.forgetting.forget_turn(ended[0])
        await check_runs(SessionCore((await core.forking.fork(None, "forgetting")).key, store, CheckingEngine()))
    await settled(core)
    target = InMemoryStore()
    lines: list[str] = []
    await export_session(store, SessionKey(session_id), lines.append)
    await import_session(target, lines)
    assert (await target.get(SessionKey(session_id))).session_id == session_id


async def check_deliveries(core: SessionCore, store: InMemoryStore) -> None:
    """Carry out each delivery, or have it refused as one that can never be."""
    for delivery in await store.deliveries(**core.state.key._asdict()):
        with suppress(InvalidInputError):
            await core.admission.deliver(delivery.key, delivery.delivery_id, delivery.revision)
            left = await store.delivery(core.state.key, delivery.key)
            assert left is None or left.revision > delivery.revision
        for run in core.state.open_runs:
            await core.reads.wait(run.run_id, OPEN_S)


async def check_runs(core: SessionCore) -> None:
    run_id = f"a run of {core.session_id}"
    await core.admission.start(["and now?"], run_id=run_id)
    outcome = await core.reads.wait(run_id, OPEN_S)
    assert outcome.run.state == "completed", outcome.run.why


async def try_archive(lines: list[str]) -> ArchiveError | None:
    """Import an archive; return why it was refused. Else it must work."""
    store = InMemoryStore()
    (outcome,) = await asyncio.gather(import_session(store, lines), return_exceptions=True)
    if isinstance(outcome, SessionRecord):
        await check_works(store, outcome.session_id)
        return None
    if not isinstance(outcome, ArchiveError):
        raise outcome
    assert 1 <= outcome.line <= len(lines) + 1
    assert await store.count() == 0 and store.size_chars == 0
    return outcome


def test_the_archive_that_attacks_start_from_can_be_imported(archive: list[str]) -> None:
    assert play(try_archive(archive)) is None


# Each attack that was seen


def written(
    blocks: list[Any],
    turns: list[dict[str, Any]] | None = None,
    runs: list[dict[str, Any]] | None = None,
    events: list[Any] | None = None,
    deliveries: list[Any] | None = None,
    **session: Any,
) -> list[str]:
    """Return an archive of these blocks, encoded or not, and of one turn of them all, if no other is given."""
    about = {"log_size": len(blocks), "next_index": 9, "seq": 9, **session}
    texts = [block if isinstance(block, str) else encode(block) for block in blocks]
    turns = turns if turns is not None else [turn([["", 0, len(blocks)]])]
    lines: list[Any] = [
        {"turnwise_archive": 1, "session_id": "s", "user_id": about.pop("user_id", "default"), "session": about},
        *({"block": text} for text in texts),
        *({"turn": turn} for turn in turns),
        *({"run": run} for run in runs or ()),
        *({"event": event} for event in events or ()),
        *({"delivery": delivery} for delivery in deliveries or ()),
    ]
    return sealed([f"{json.dumps(line)}\n" for line in lines])


def turn(spans: Any, **fields: Any) -> dict[str, Any]:
    return {"index": 0, "status": "completed", "prompt": [], "input": spans, **fields}


def a_run(**fields: Any) -> dict[str, Any]:
    return {"run_id": "r", "turn_index": 0, "state": "completed", "first_seq": 1, "created_at": 1.0, **fields}


def an_agent(**values: Any) -> dict[str, Any]:
    return {"call": {"name": "researcher", "agent": values}}


def a_delivery(**fields: Any) -> dict[str, Any]:
    payload = {"prompts": [encode(HI)]}
    return {"delivery_id": "d", "key": "k", "occurs_at": 1.0, "due_at": 1.0, "payload": payload, **fields}


def summary(*of: Any, folded: Any = ()) -> Summary:
    return Summary(
        text="in short", of=tuple(("", *span) for span in of), folded=tuple(("", position) for position in folded)
    )


HI, YES = User(text="hi"), Text(text="yes")
USE, RESULT = ToolUse(call_id="a", name="look"), ToolResult(call_id="a", text="seen")
KEY = {"key": "k", "fingerprint": "f"}
PENDING = {"index": 0, "status": "pending", "prompt": [["", 0, 1]]}

DEEP = "[" * 50_000 + "]" * 50_000

ATTACKS: dict[str, tuple[list[str], int, str]] = {
    "a summary that folds itself": (written([HI, summary((0, 2), folded=[1])]), 3, "replaces itself"),
    "a summary of itself": (written([HI, summary((1, 2))]), 3, "replaces itself"),
    "summaries of one another": (
        written([HI, summary((2, 3), folded=[2]), summary((1, 2), folded=[1])]),
        4,
        "replaces itself",
    ),
    "a number of the last event that leaves no room": (written([HI], seq=2**63 - 1), 1, "seq=9223372036854775807"),
    "a number of more than 64 bits": (written([HI], seq=2**70), 1, "more than 64 bits"),
    "an index that leaves no room": (written([HI], next_index=2**60), 1, "next_index="),
    "a pending turn with a run": (written([HI], [PENDING], [a_run()]), 4, "completed, and its turn is pending"),
    "a pending turn with an answer": (written([HI, YES], [{**PENDING, "output": [["", 1, 2]]}]), 4, "a pending turn"),
    "a pending turn before another": (written([HI], [PENDING, turn([["", 0, 1]], index=1)]), 4, "which is pending"),
    "a run of another state than its turn": (
        written([HI], [turn([["", 0, 1]], run_id="r")], [a_run(state="failed")]),
        4,
        "run 'r' is failed, and its turn is completed",
    ),
    "a block that is no JSON": (written(["no JSON"]), 2, "no block"),
    "a block with half a character": (written(['{"kind":"user","text":"\\ud800"}']), 2, "no block"),
    "a line with half a character": (written(['{"kind":"user","text":"\ud800"}']), 2, "half a character"),
    "a block that is nested 50,000 deep": (
        written(['{"kind":"x","a":' + "[" * 50_000 + "]" * 50_000 + "}"]),
        2,
        "no block",
    ),
    "a block with NaN": (written(['{"kind":"x","a":NaN}']), 2, "no block"),
    "a recalled block": (written(['{"kind":"recalled","text":"they like tea"}']), 2, "never of a history"),
    "a list instead of a text": (written(['{"kind":"user","text":["a"]}']), 2, "text: Input should be"),
    "a call without its result": (written([HI, USE, YES]), 5, "call 'a' has no result"),
    "a result without its call": (written([HI, RESULT, YES]), 5, "the result of call 'a' follows no such call"),
    "a result before its call": (written([HI, RESULT, USE, YES]), 6, "the result of call 'a' follows no such call"),
    "a second result": (written([HI, USE, RESULT, RESULT]), 6, "the result of call 'a' follows no such call"),
    "a call without a name": (written([HI, ToolUse(call_id="a", name=""), RESULT]), 5, "has no name, no id"),
    "thoughts that lead to nothing": (written([HI, Thinking(text="hm")]), 4, "thoughts lead to no text"),
    "a prompt that is a summary": (
        written([HI, summary((0, 1))], [turn([["", 1, 2]], prompt=[["", 1, 2]])]),
        4,
        "only a run adds",
    ),
    "a prompt that is a result without its call": (
        written([HI, USE, RESULT], [turn([["", 2, 3]], prompt=[["", 2, 3]])]),
        5,
        "the result of call 'a' follows no such call",
    ),
    "a summary of a call without its result": (
        written([HI, USE, RESULT, YES, summary((0, 2))]),
        6,
        "the blocks that a summary replaces cannot be sent to a model: call 'a' has no result",
    ),
    "a call that has two results": (
        written([HI, USE, RESULT, RESULT, summary((0, 2), (3, 4))], [turn([["", 0, 1]], output=[["", 1, 3]])]),
        7,
        "it has one part of a pair",
    ),
    "a turn with the call and another with the result": (
        written(
            [HI, USE, RESULT],
            [
                turn([["", 0, 1]], output=[["", 1, 3]]),
                turn([["", 0, 1]], index=1, prompt=[["", 0, 1]]),
                turn([], index=2, prompt=[["", 0, 1]]),
            ],
        ),
        7,
        "added a block that another turn added",
    ),
    "a turn that carries a call without its result": (
        written([HI, USE, RESULT, YES], [turn([["", 0, 1]], carried=[["", 0, 2]], output=[["", 3, 4]])]),
        6,
        "call 'a' has no result",
    ),
    "a list of 100,000 spans": (
        written([HI] * 5, [turn([["", index % 5, index % 5] for index in range(100_000)])]),
        7,
        "100000 spans",
    ),
    "a turn with a block twice": (written([HI], [turn([["", 0, 1], ["", 0, 1]])]), 3, "twice"),
    "a summary of 100,000 spans": (written([HI, summary(*[(0, 1)] * 100_000)]), 3, "more than 4096 spans"),
    "a user id that is blank": (written([HI], user_id=""), 1, "user id '' cannot be used"),
    "an invalid agent": (written([HI], agent="a\n"), 1, r"agent 'a\n' cannot be used"),
    "an invalid parent": (written([HI], parent="#1"), 1, "names no turn"),
    "a run with an invalid id": (
        written([HI], [turn([["", 0, 1]], run_id="a\0")], [a_run(run_id="a\0")]),
        3,
        r"run id 'a\x00' cannot be used",
    ),
    "a blank idempotency key": (
        written([HI], [], [a_run(origin={"key": " ", "fingerprint": "f"})]),
        3,
        "it is blank",
    ),
    "two runs of an id": (written([HI], [], [a_run(), a_run(turn_index=1)]), 4, "run 'r' is in the archive twice"),
    "two runs of a key": (
        written([HI], [], [a_run(origin=KEY), a_run(run_id="q", turn_index=1, origin=KEY)]),
        4,
        "idempotency key 'k' is in the archive twice",
    ),
    "two events of a key": (
        written([HI], [], [], [[1, 1.0, 0, None, "k", "prompt_appended", "{}"], [2, 1.0, 0, None, "k", "x", "{}"]]),
        4,
        "event key 'k' is in the archive twice",
    ),
    "negative usage": (written([HI], usage={"input_tokens": -1}), 1, "input_tokens=-1"),
    "negative usage of a turn": (written([HI], [turn([["", 0, 1]], usage={"cost": -0.1})]), 3, "cost=-0.1"),
    "negative usage of an event": (
        written([HI], [], [], [[1, 1.0, 0, "r", None, "run_completed", '{"usage":{"calls":-1}}']]),
        3,
        "calls=-1",
    ),
    "a time that is NaN": (written([HI], updated_at=math.nan), 1, "no number that stores can keep"),
    "an event with a duration that is NaN": (
        written([HI], [], [], [[1, 1.0, 0, "r", None, "tool_ended", '{"call_id":"a","name":"b","seconds":NaN}']]),
        3,
        "no number that stores can keep",
    ),
    "an event that is never stored": (
        written([HI], [], [], [[1, 1.0, 0, "r", None, "text_delta", '{"text":"a"}']]),
        3,
        "is never stored",
    ),
    "events that name all blocks each": (
        written(
            [HI, YES] * 50, [], [], [[n, 1.0, 0, "r", None, "run_completed", '{"span":[0,100]}'] for n in range(1, 9)]
        ),
        106,
        "four times as many blocks",
    ),
    "metadata that is nested 50,000 deep": (
        written([HI])[:1][0]
        .replace('"seq": 9', '"seq": 9, "metadata": {"a": ' + "[" * 5000 + "]" * 5000 + "}")
        .split("\0"),
        1,
        "nested too deeply",
    ),
    "a saved turn that does not exist": (written([HI], saved=9), 1, "saved=9"),
    "an unknown parameter": (written([HI], params={"heat": 1}), 1, "params['heat']=1"),
    "a parameter out of its range": (written([HI], [], [a_run(params={"top_p": 7})]), 3, "params['top_p']=7"),
    "parameters that are large": (written([HI], params={"stop": ["x" * 70_000]}), 1, "must take at most 65536 bytes"),
    "a parameter that is None": (written([HI], params={"seed": None}), 1, "not in the form in which they are stored"),
    "an invalid model": (written([HI], [], [a_run(model="a\n")]), 3, "cannot be used"),
    "an invalid tool of a run": (written([HI], [], [a_run(tools={"look": {}})]), 3, "a tool must have a name, a"),
    "an invalid type of answer": (written([HI], [], [a_run(output={"name": 1})]), 3, "the type of an answer"),
    "two deliveries of an id": (
        written([HI], deliveries=[a_delivery(), a_delivery(key="other")]),
        5,
        "delivery 'd' is in the archive twice",
    ),
    "two deliveries of a key": (
        written([HI], deliveries=[a_delivery(), a_delivery(delivery_id="other")]),
        5,
        "key of a delivery 'k' is in the archive twice",
    ),
    "a delivery that was carried out": (
        written([HI], [turn([["", 0, 1]], run_id="d-7")], [a_run(run_id="d-7")], deliveries=[a_delivery(revision=7)]),
        5,
        "its run 'd-7' is in the archive",
    ),
    "a delivery of a session that has ended": (
        written([HI], status="ended", deliveries=[a_delivery()]),
        4,
        "has no deliveries",
    ),
    "a delivery without prompts": (
        written([HI], deliveries=[a_delivery(payload={"prompts": 7})]),
        4,
        "prompts: tuple_type",
    ),
    "a delivery with an option that runs do not have": (
        written([HI], deliveries=[a_delivery(payload={"prompts": [], "run_id": "r"})]),
        4,
        "unexpected_keyword_argument",
    ),
    "a delivery with a label that is a number": (
        written([HI], deliveries=[a_delivery(payload={"prompts": [encode(HI)], "labels": {"a": 7}})]),
        4,
        "labels=",
    ),
    "a delivery with an unknown parameter": (
        written([HI], deliveries=[a_delivery(payload={"prompts": [encode(HI)], "params": {"heat": 7}})]),
        4,
        "params['heat']=7",
    ),
    "a delivery that recurs all the time": (
        written([HI], deliveries=[a_delivery(schedule={"every_s": 1e-9})]),
        4,
        "every_s=1e-09",
    ),
    "an agent without a session": (written([HI], [], [a_run(calls=an_agent(batch=0))]), 3, "of an agent"),
    "an agent with an unknown usage": (
        written([HI], [], [a_run(calls=an_agent(session="s", batch=0, usage={"call": 1}))]),
        3,
        "of an agent",
    ),
    "an agent with an unknown verdict": (
        written([HI], [], [a_run(calls=an_agent(session="s", batch=0, asks={"a": "perhaps"}))]),
        3,
        "of an agent",
    ),
    "an invalid state of a call": (written([HI], [], [a_run(calls={"a": {"nam": "b"}})]), 3, "the state of a call"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_of_an_impossible_session_is_refused_by_its_line(attack: str) -> None:
    lines, line, reason = ATTACKS[attack]
    error = play(try_archive(lines))
    assert error is not None, "it was imported, and the session worked"
    assert error.line == line and reason in str(error)


def test_a_line_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    for long in ('{"turn":' + "[" * 17_000_000, '{"block":"a","b":[' + "[]," * 6_000_000 + "[]]}"):
        lines = [*written([HI])[:1], long]
        tracemalloc.start()
        error = play(try_archive(lines))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert error and error.line == 2 and most < 200_000_000


# Walks over references


async def test_expanding_a_summary_that_replaces_itself_ends() -> None:
    """As a store may have one that was imported before archives were checked."""
    logs: dict[str, list[AnyBlock]] = {
        "": [HI, summary((0, 2), folded=[1]), summary((1, 4), folded=[1, 3]), summary((2, 3), folded=[2])]
    }

    async def read(spans: Spans) -> tuple[AnyBlock, ...]:
        return tuple(block for log, start, stop in spans for block in logs[log][start:stop])

    for block in logs[""]:
        if isinstance(block, Summary):
            spans = await originals(block, read)
            assert Span("", 0, 1) in spans or spans == ()
            assert await find(block, (Span("", 0, 4),), read)
            assert not await find(summary(), (Span("", 0, 4),), read)
    assert await reach((Span("", 3, 4),), read) == (Span("", 0, 4),)


@pytest.mark.timeout(60)
async def test_checking_overlapping_summaries_takes_linear_time() -> None:
    """Forty levels of two summaries, each of both below: a walk without a memory takes 2**40 steps."""
    levels, wide = 40, 1500
    blocks: list[Block] = [HI]
    for level in range(levels):
        below = (0, 1) if level == 0 else (2 * level - 1, 2 * level + 1)
        folded = range(*below) if level else ()
        blocks += [summary(below, folded=folded)] * 2
    chain = len(blocks)
    blocks += [
        summary((0, 1)),
        *(summary((chain + index, chain + index + 1), folded=[chain + index]) for index in range(wide)),
    ]
    lines = written(blocks)

    store = InMemoryStore()
    await import_session(store, lines)
    core = SessionCore(SessionKey("s"), store, CheckingEngine())
    idle = asyncio.create_task(most_calls())
    for position in (chain - 1, len(blocks) - 1):
        (encoded,) = await store.blocks([Span((await core.reads.session()).log, position, position + 1)])
        block = decode(encoded)
        assert isinstance(block, Summary)
        assert await core.reads.expand(block) == (HI,)
    await core.forking.fork(None, "f")
    idle.cancel()
    assert (await asyncio.gather(idle))[0] < MOST_CALLS, "somebody else on the event loop waited"
    await check_runs(core)


MOST_CALLS = share(2_000_000, 4)
"""How many calls and returns of functions others on an event loop may wait for: some tenths of a second."""


async def most_calls() -> int:
    """Return, when cancelled, how many functions were called and left, at most, between two rounds of the event loop.

    It says how long others on the loop have to wait, and is the same on any machine.
    """
    count = most = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(counted)
    try:
        while True:
            count = 0
            await asyncio.sleep(0)
            most = max(most, count)
    except asyncio.CancelledError:
        return max(most, count)
    finally:
        sys.setprofile(None)


@pytest.mark.timeout(60)
async def test_turns_with_the_most_spans_run_without_blocking_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a plain run with a quarter of the spans, of which a quarter is checked at once."""
    monkeypatch.setattr(block_order, "AT_ONCE", share(block_order.AT_ONCE, 4))
    count = share(MAX_SPANS, 4)
    blocks: list[Block] = [HI, YES, HI] * count
    spans = [["", 3 * index, 3 * index + 2] for index in range(count)]
    turns = [turn(spans, index=index) for index in range(9)]

    store = InMemoryStore()
    idle = asyncio.create_task(most_calls())
    await import_session(store, written(blocks, turns))
    core = SessionCore(SessionKey("s"), store, CheckingEngine())
    await check_runs(core)
    idle.cancel()
    assert (await asyncio.gather(idle))[0] < MOST_CALLS, "somebody else on the event loop waited"


@settings(max_examples=share(300, 6))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 12)), max_size=6), st.data())
def test_seen_spans_behave_like_sets_of_positions(places: list[tuple[str, int, int]], data: Any) -> None:
    spans = [Span(log, *sorted(ends)) for log, *ends in places]
    held = (
        [Span(log, *sorted(ends)) for log, *ends in data.draw(st.lists(st.sampled_from(places))) if places]
        if places
        else []
    )
    held += [Span("a", 3, 5), Span("a", 5, 6)]

    def positions(some: Any) -> list[tuple[str, int]]:
        return [(span.log, index) for span in some for index in range(span.start, span.stop)]

    spans_seen, taken = Seen(), []
    for span in spans:
        taken += spans_seen.take(span)
    assert sorted(positions(taken)) == sorted(set(positions(spans)))
    assert subtract(spans, held) == union(subtract(spans, held))
    assert set(positions(subtract(spans, held))) == set(positions(spans)) - set(positions(held))
    assert positions(overlap(spans, held)) == [place for place in positions(spans) if place in set(positions(held))]


# Random attacks


HOSTILE: list[Any] = [None, True, -1, 0, 1, 2, 7, 2**31, 2**53, 2**63 - 1, 10**30, -0.5, 1.5, math.nan, math.inf]
HOSTILE += ["", "x", "s#0", "\ud800", "\0", "a" * 300]
HOSTILE += ["completed", "pending", "failed", "active", "ended", "tool_use"]
HOSTILE += [[], {}, [[]], [["", 0, 1]], [["", 1, 0]], [["", 0, 10**9]], [["x", 0, 1]], [["", 3, 9], ["", 1, 2]]]
HOSTILE += [["", 0, 1], {"a": 1}, {"kind": "user", "text": "a"}]

HOSTILE_BLOCKS = [HI, YES, USE, RESULT, Thinking(text="hm"), summary((0, 3)), summary((0, 3), folded=[1]), PICTURE]

BLOCKS: list[str] = [*map(encode, HOSTILE_BLOCKS), '{"kind":"new","a":[1]}', '{"kind":"recalled","text":"a"}']
BLOCKS += ['{"kind":"image","data":"%","media_type":"x"}', "{}", "", "[]"]


@st.composite
def attacks(draw: Any) -> list[Callable[[list[Any]], None]]:
    """Draw changes of the parsed lines of an archive, the first and the last left out of those that move lines."""
    return [draw(st.sampled_from(KINDS_OF_ATTACK))(draw) for _ in range(draw(st.integers(1, 3)))]


def change_field(draw: Any) -> Callable[[list[Any]], None]:
    """Put something hostile, or something of another place, into any place of any line, or take it out."""
    line, way, how = draw(numbers), draw(st.lists(numbers, min_size=1, max_size=5)), draw(st.integers(0, 9))
    value, second_line = draw(st.sampled_from(HOSTILE)), draw(numbers)

    def attack(lines: list[Any]) -> None:
        holder, key = place_in(lines[line % len(lines)], way)
        if key is None:
            return
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder[key], int | float):
            holder[key] += second_line % 7 - 3
        elif how == 2:
            source, at = place_in(lines[second_line % len(lines)], way)
            holder[key] = source[at] if at is not None else value
        else:
            holder[key] = value

    return attack


def change_text(draw: Any) -> Callable[[list[Any]], None]:
    """Change what is JSON within JSON: a block, or the body of an event."""
    line, way, value = draw(numbers), draw(st.lists(numbers, min_size=1, max_size=4)), draw(st.sampled_from(HOSTILE))

    def attack(lines: list[Any]) -> None:
        lines_with_text = [
            line_with_text
            for line_with_text in lines
            if isinstance(line_with_text, dict) and ("block" in line_with_text or "event" in line_with_text)
        ]
        if not lines_with_text:
            return
        chosen = lines_with_text[line % len(lines_with_text)]
        text: Any = (
            chosen["block"] if "block" in chosen else chosen["event"][-1] if isinstance(chosen["event"], list) else None
        )
        try:
            inner = json.loads(text)
        except (TypeError, ValueError):
            return
        holder, key = place_in({"": inner}, [0, *way])
        if key is not None:
            holder[key] = value
        if "block" in chosen:
            chosen["block"] = json.dumps(inner)
        else:
            chosen["event"][-1] = json.dumps(inner)

    return attack


def change_block(draw: Any) -> Callable[[list[Any]], None]:
    line, text = draw(numbers), draw(st.sampled_from(BLOCKS))

    def attack(lines: list[Any]) -> None:
        places = [index for index, entry in enumerate(lines) if isinstance(entry, dict) and "block" in entry]
        if places:
            lines[places[line % len(places)]] = {"block": text}

    return attack


def change_lines(draw: Any) -> Callable[[list[Any]], None]:
    """Take a line out, double it, or change its place with another."""
    line, second_line, how, counts = draw(numbers), draw(numbers), draw(st.integers(0, 2)), draw(st.booleans())

    def attack(lines: list[Any]) -> None:
        index, also = 1 + line % (len(lines) - 1), 1 + second_line % (len(lines) - 1)
        if how == 0:
            del lines[index]
        elif how == 1:
            lines.insert(index, json.loads(json.dumps(lines[index])))
        else:
            lines[index], lines[also] = lines[also], lines[index]
        if counts and isinstance(lines[0].get("session"), dict):
            size = sum(isinstance(entry, dict) and "block" in entry for entry in lines)
            lines[0]["session"]["log_size"] = size

    return attack


def change_spans(draw: Any) -> Callable[[list[Any]], None]:
    """Give a turn other blocks, of those there are."""
    line, name = draw(numbers), draw(st.sampled_from(["prompt", "appended", "input", "output", "carried"]))
    ends = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=4))

    def attack(lines: list[Any]) -> None:
        turns = [entry["turn"] for entry in lines if isinstance(entry, dict) and isinstance(entry.get("turn"), dict)]
        if turns:
            turns[line % len(turns)][name] = [["", start, start + more] for start, more in ends]

    return attack


def change_summary(draw: Any) -> Callable[[list[Any]], None]:
    """Let a summary stand for other blocks."""
    line, places = draw(numbers), draw(st.lists(st.integers(0, 45), max_size=3))
    ends = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=3))

    def attack(lines: list[Any]) -> None:
        summaries = [entry for entry in lines if isinstance(entry, dict) and '"summary"' in str(entry.get("block"))]
        if summaries:
            block = summary(*((start, start + more) for start, more in ends), folded=places)
            summaries[line % len(summaries)]["block"] = encode(block)

    return attack


numbers = st.integers(0, 10**6)
KINDS_OF_ATTACK = [change_field, change_field, change_text, change_block, change_lines, change_spans, change_summary]


def place_in(value: Any, way: list[int]) -> tuple[Any, Any]:
    """Return a container within a value and the key of one of its places; no key if there is none."""
    holder, key = None, None
    for number in way:
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not keys:
            break
        holder, key = value, keys[number % len(keys)]
        value = value[key]
    return holder, key


@pytest.mark.by_turns
@pytest.mark.timeout(3600)
def test_a_manipulated_archive_is_refused_with_its_line_or_works(archive: list[str]) -> None:
    """10,000 of them with `make races`."""
    refused, worked = list[ArchiveError](), list[None]()

    @settings(max_examples=FUZZED, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink])
    @given(attacks())
    def attack(changes: list[Callable[[list[Any]], None]]) -> None:
        lines = [json.loads(line) for line in archive[:-1]]
        for change in changes:
            change(lines)
        try:
            texts = [f"{json.dumps(line)}\n" for line in lines]
        except ValueError:
            return  # a change has put a value into itself, which no file can hold
        error = play(asyncio.wait_for(try_archive(sealed(texts)), 60))
        if error:
            refused.append(error)
        else:
            worked.append(error)

    attack()
    print(f"{len(refused)} refused, {len(worked)} worked")
    assert len(refused) > FUZZED / 4 and len(worked) > FUZZED / 20


async def test_a_broken_pair_is_reported_with_the_line_of_its_own_turn() -> None:
    order = block_order.Order()
    order._log_pairs, order._pairs = [(0, 1), (2, 3)], {0: 5}  # noqa: SLF001 - pairs that no turn has read
    order._codes = ["calls", "answers", "calls", "answers", "calls", "answers"]  # noqa: SLF001 - as it has read
    order._read.add(Span("", 0, 6))  # noqa: SLF001 - all of them
    owners = [(Span("", 0, 2), 11), (Span("", 2, 4), 22), (Span("", 4, 6), 33)]
    line, why = await order.check_pairs(owners) or (0, "")
    assert line == 11 and why.startswith("it has one part of a pair that belongs together")
