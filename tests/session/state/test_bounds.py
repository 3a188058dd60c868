"""What one call may bring to a session: counts come before contents, and long imports are stored in parts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engines import ScriptedEngine
from schedules import SESSION
from turnwise.actors.client.importing import read_conversation, send_conversation
from turnwise.actors.client.shared.import_parts import PART, Conversation
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError, StoreError, TooManyError, TurnsChangedError
from turnwise.memory.conversation.blocks import Block, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.prompts import plain_prompts
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import size
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.values.frozen_json import plain_json
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.limits import (
    MAX_BLOCKS,
    MAX_MESSAGES,
    MAX_PROMPTS_BYTES,
    MAX_VALUES,
    MAX_WAITING_BLOCKS,
)
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.trim import Trim


class Counting(InMemoryStore):
    """Notes how many rows each commit has; fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.fails_after: int | None = None

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        if self.fails_after is not None and len(self.rows) >= self.fails_after:
            raise StoreError("store: no answer")
        await super().commit(key, epoch, commit)
        self.rows.append(max(len(commit.blocks), len(commit.turns) + len(commit.events)))


async def opened() -> tuple[SessionCore, Counting]:
    store = Counting()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, ScriptedEngine()), store


class Untouched(Sequence[Any]):
    """A million prompts, none of which may be looked at."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("it was counted by looking at it")


async def test_too_many_prompts_are_refused_before_any_is_looked_at() -> None:
    core, store = await opened()
    for work in (core.admission.append(Untouched(), new_id()), core.admission.start(Untouched(), run_id=new_id())):
        with pytest.raises(TooManyError, match="1000000 are more than MAX_BLOCKS=2048") as refused:
            await work
        assert (refused.value.limit, refused.value.count, refused.value.most) == ("MAX_BLOCKS", 1_000_000, MAX_BLOCKS)
    assert not store.rows
    await core.admission.append(["x"] * MAX_BLOCKS, new_id())
    assert len((await core.reads.turn(0)).asked) == MAX_BLOCKS


async def test_prompts_that_wait_are_bounded_together_and_a_repeated_append_is_not_refused() -> None:
    core, _ = await opened()
    many = ["x"] * MAX_BLOCKS
    keys = [new_id() for _ in range(MAX_WAITING_BLOCKS // MAX_BLOCKS)]
    for key in keys:
        await core.admission.append(many, key)
    with pytest.raises(TooManyError, match="MAX_WAITING_BLOCKS"):
        await core.admission.append(many, new_id())
    with pytest.raises(TooManyError, match="MAX_WAITING_BLOCKS"):
        await core.admission.start(many, run_id=new_id())
    assert await core.admission.append(many, keys[-1]) == 0
    started = await core.admission.start((), run_id=new_id())  # takes those that wait
    await core.reads.wait(started.run_id)
    await core.admission.append(many, new_id())


CALL = ToolUse(call_id="c", name="n", input={})


@pytest.mark.parametrize(
    ("prompts", "limit"),
    [
        ([ToolUse(call_id="c", name="n", input={"a": [0] * (MAX_VALUES + 1)})], "MAX_VALUES"),
        ([CALL, ToolResult(call_id="c", text="", blocks=(Text(text="x"),) * MAX_VALUES)], "MAX_VALUES"),
        ([User(text="x" * 3_900_000)] * (MAX_PROMPTS_BYTES // 3_900_000 + 1), "MAX_PROMPTS_BYTES"),
    ],
)
async def test_what_prompts_hold_is_bounded_too(prompts: list[Block], limit: str) -> None:
    core, store = await opened()
    with pytest.raises(TooManyError, match=limit):
        await core.admission.append(prompts, new_id())
    assert not store.rows


def test_a_json_value_has_bounded_members() -> None:
    assert plain_json("data", {"a": [0] * (MAX_VALUES - 2)}, 1 << 20)
    with pytest.raises(TooManyError, match="MAX_VALUES"):
        plain_json("data", {"a": [0] * MAX_VALUES}, 1 << 20)
    with pytest.raises(InvalidInputError, match=r"data\['a'\]\[1\]\['b'\]=<object"):
        plain_json("data", {"a": [0, {"b": object()}]}, 1 << 20)
    with pytest.raises(InvalidInputError, match=r"a key of data\['a'\]=1"):
        plain_json("data", {"a": {1: 2}}, 1 << 20)


def dialogue(turns: int) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"{role} {number}"} for number in range(turns) for role in ("user", "assistant")]


async def texts_of(core: SessionCore) -> list[str]:
    """Return the answers of all turns, read page by page, and check their indexes."""
    turns: list[Turn] = []
    while page := await core.reads.turns(turns[-1].index if turns else -1, limit=10_000):
        turns += page
    assert [turn.index for turn in turns] == list(range(len(turns)))
    return [turn.text for turn in turns]


async def conversation_of(messages: Any, key: str | None = None) -> Conversation:
    return await read_conversation(messages, None, system=None, key=key)


async def send(conversation: Conversation, core: SessionCore, after: int | None = -1) -> Any:
    async def ask(call: VerbCall[Any]) -> Any:
        return await call.verb.carry_out(SimpleNamespace(core=core), **call.arguments)

    return await send_conversation(ask, conversation, after, "off")


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_long_import_is_stored_in_commits_of_bounded_size(key: str | None) -> None:
    core, store = await opened()
    conversation = await conversation_of(dialogue(2 * PART), key)
    parts = conversation.parts()
    assert len(parts) == 4 and max(len(part.content.blocks) for part in parts) <= PART
    assert await send(conversation, core) == 2 * PART - 1
    assert len(store.rows) == 4 and max(store.rows) <= PART
    assert await send(conversation, core) == 2 * PART - 1  # repeated, it stores nothing
    assert await texts_of(core) == [f"assistant {number}" for number in range(2 * PART)]
    assert len((await core.reads.turn(2 * PART - 1)).blocks) == 4 * PART and len(store.rows) == 4


@pytest.mark.parametrize("key", [None, "mine"])
async def test_an_import_that_was_cut_off_is_continued_when_it_is_repeated(key: str | None) -> None:
    core, store = await opened()
    conversation, store.fails_after = await conversation_of(dialogue(2 * PART), key), 2
    with pytest.raises(StoreError):
        await send(conversation, core)
    store.fails_after = None
    again = SessionCore(SessionKey(SESSION), store, ScriptedEngine())  # after a kill
    assert await send(conversation, again, None) == 2 * PART - 1
    assert len(await texts_of(again)) == 2 * PART


@pytest.mark.by_turns
async def test_of_a_long_conversation_that_goes_on_only_the_new_turns_are_stored() -> None:
    core, _ = await opened()
    for turns in (2 * PART, 2 * PART, 2 * PART + 3, 4 * PART):
        assert await send(await conversation_of(dialogue(turns)), core, None) == turns - 1
        assert await texts_of(core) == [f"assistant {number}" for number in range(turns)]


@pytest.mark.by_turns
async def test_a_key_of_another_long_conversation_is_refused() -> None:
    core, store = await opened()
    await send(await conversation_of(dialogue(2 * PART), "mine"), core)
    stored = len(store.rows)
    first, last = dialogue(2 * PART), dialogue(2 * PART)
    first[0]["content"] = last[-1]["content"] = "something else"
    for messages in (first, last, [*dialogue(PART), *last[-2:]]):
        with pytest.raises(InvalidInputError, match="it was used for another conversation"):
            await send(await conversation_of(messages, "mine"), core, None)
        with pytest.raises(TurnsChangedError):  # of two writers that have read the same, the second one
            await send(await conversation_of(messages, "mine"), core, -1)
    assert len(store.rows) == stored


@pytest.mark.parametrize("had", [0, PART])
async def test_a_long_import_follows_only_what_it_was_compared_with(had: int) -> None:
    core, _ = await opened()
    if had:
        await send(await conversation_of(dialogue(had)), core)
    racing: dict[Any, Any] = {verbs.check_import: send(await conversation_of(dialogue(had + 2)), core, None)}

    async def ask(call: VerbCall[Any]) -> Any:
        if racing_call := racing.pop(call.verb, None):
            await racing_call
        return await call.verb.carry_out(SimpleNamespace(core=core), **call.arguments)

    with pytest.raises(TurnsChangedError):
        await send_conversation(ask, await conversation_of(dialogue(2 * PART)), None, "off")
    assert await send(await conversation_of(dialogue(2 * PART)), core, None) == 2 * PART - 1
    assert await texts_of(core) == [f"assistant {number}" for number in range(2 * PART)]


async def test_a_message_that_cannot_be_stored_leaves_nothing_of_a_long_import() -> None:
    core, store = await opened()
    messages = dialogue(2 * PART)
    messages[-1]["content"] = "x" * 4_000_001
    with pytest.raises(InvalidInputError, match=rf"messages\[{len(messages) - 1}\]"):
        await send(await conversation_of(messages), core)
    assert not store.rows


async def test_too_many_messages_and_too_long_turns_are_refused_by_name() -> None:
    with pytest.raises(TooManyError, match="MAX_MESSAGES"):
        await conversation_of([{}] * (MAX_MESSAGES + 1))
    with pytest.raises(TooManyError, match="messages of one turn: 2049 are more than MAX_BLOCKS"):
        await conversation_of([{"role": "user", "content": "x"}] * (MAX_BLOCKS + 1))


@pytest.mark.parametrize("tokens", [400, 1_000_000], ids=["small window", "large window"])
@pytest.mark.parametrize("overflow", [None, DeleteOldest(), Trim()], ids=["none", "delete", "trim"])
async def test_a_window_of_too_many_blocks_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, overflow: OverflowStrategy | None, tokens: int
) -> None:
    monkeypatch.setattr("turnwise.actors.session.window.request_fitting.MAX_WINDOW_BLOCKS", 30)
    store, engine = InMemoryStore(), ScriptedEngine()
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, engine, SessionConfig(max_context_tokens=tokens), overflow=overflow)
    await send(await conversation_of(dialogue(20)), core)
    runs = []
    for _ in range(2):
        await core.admission.start(["more"], run_id=(run_id := new_id()))
        await core.reads.wait(run_id)
        runs.append(await core.reads.run(run_id))
        if runs[0].state == "failed":
            await core.forgetting.clear()
    assert runs[1].state == "completed"
    if overflow is None:
        assert (runs[0].state, runs[0].code) == ("failed", "window")
        assert "41 blocks, and a request takes MAX_WINDOW_BLOCKS (30) at most: pass overflow=" in (runs[0].why or "")
    else:
        assert runs[0].state == "completed"
        turns = await core.reads.turns()
        assert all(size(turn.record.input) <= 30 for turn in turns[-2:])


def test_an_argument_of_many_members_is_refused_before_they_are_looked_at() -> None:
    with pytest.raises(TooManyError, match="MAX_BLOCKS"):
        plain_prompts(SESSION, Untouched())
