"""What requests of front ends mean for the runs of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ag_ui.core import RunAgentInput

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import (
    IdempotencyConflictError,
    InvalidInputError,
    QueueFullError,
    RunNotFoundError,
    SessionBusyError,
    TurnNotFoundError,
)
from turnwise.http.front_ends.ag_ui import deciding, decisions_of
from turnwise.http.front_ends.answering import ask, part_of
from turnwise.http.front_ends.reading import in_order
from turnwise.http.front_ends.ui import helpful, ui_messages
from turnwise.http.openai.items import placed_output
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock, Image, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.calls.tool_calls import PendingCall, Wants
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import new_id

SESSION, USER = "chat", "ann"


class Run:
    """A run whose calls wait; it notes what is decided."""

    dropped = False

    def __init__(self, run_id: str, state: str = "awaiting_approval", key: str | None = None, **calls: Wants) -> None:
        self.run_id, self.state, self.key, self.calls = run_id, state, key, calls
        self.decided: list[tuple[Any, ...]] = []

    async def info(self) -> Any:
        own = {"look": {"name": "look", "started": True}}
        return SimpleNamespace(calls={**own, **{name: {"name": name, "wants": w} for name, w in self.calls.items()}})

    async def pending(self) -> list[PendingCall]:
        waits = self.calls.items() if self.state == "awaiting_approval" else ()
        return [PendingCall(call_id=k, name=k, input=FrozenDict(), wants=w, why=None) for k, w in waits]

    async def approve(self, call_id: str, *, input: Any) -> None:
        self.decided.append(("approve", call_id, input))

    async def provide(self, call_id: str, value: Any, *, is_error: bool) -> None:
        self.decided.append(("provide", call_id, value))


class Session:
    """A session with runs, the last of which is active."""

    def __init__(self, *runs: Run) -> None:
        self.runs = {run.run_id: run for run in runs}

    async def execution(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise RunNotFoundError(run_id, "session 's'")
        return self.runs[run_id]


@pytest.fixture
def session() -> Iterator[AsyncSession]:
    """A session in this process, whose engine says each prompt again, slowly."""
    with SessionManager(f"memory://{new_id()}", engine=EchoEngine(0.01), placement=InProcess()) as manager:
        manager.open(SESSION, user_id=USER)
        ref = SessionRef(SessionKey(SESSION, USER))
        yield AsyncSession(manager._client, ref, None)  # noqa: SLF001 - the other family, on the same manager


async def edit(
    session: AsyncSession, text: str, message: str = "m1", *, resumed: bool = False, **values: Any
) -> AsyncExecutionHandle:
    options = cast(RunOptions, values)
    return await ask(session, message, [User(text=text)], options, again=True, edits=True, resumed=resumed)


async def prompts_of(session: AsyncSession, turn_id: str) -> list[str]:
    """Return the texts of the prompts that a turn was started with, and `image` for each image."""
    return [block.text if isinstance(block, User) else "image" for block in (await session.turn(turn_id)).asked]


async def test_a_refused_edit_takes_nothing_back(session: AsyncSession) -> None:
    await (await edit(session, "one")).wait()
    for wrong, error in (({"model": "x"}, InvalidInputError), ({"labels": {"a": "b" * 10_000}}, InvalidInputError)):
        with pytest.raises(error):
            await edit(session, "two", **wrong)
    assert (await session.turn("m1")).is_shown
    active = await session.run("word " * 2000)
    waiting = await session.run("behind it", if_busy="enqueue")
    with pytest.raises(SessionBusyError, match=waiting.run_id):
        await edit(session, "two", if_busy="interrupt")
    assert await active.status() == "running" and (await session.turn("m1")).is_shown
    assert await waiting.cancel() and await active.cancel()


async def test_a_repeated_edit_runs_once(session: AsyncSession) -> None:
    first = await edit(session, "one")
    assert (await edit(session, "two", resumed=True)).run_id == first.run_id, "its client has had a part of the answer"
    assert (await first.wait()).text == "one"
    edited = await edit(session, "two", idempotency_key="k")
    assert (await edit(session, "two", idempotency_key="k")).run_id == edited.run_id
    assert (await edited.wait()).text == "two" and not (await session.turn("m1")).is_shown
    assert (await edit(session, "two", idempotency_key="k")).run_id == edited.run_id
    with pytest.raises(IdempotencyConflictError):
        await edit(session, "three", idempotency_key="k")
    assert (await session.turn("m1~1")).is_shown
    assert (await edit(session, "word " * 2000)).run_id != edited.run_id
    assert await session.cancel()


def test_a_refused_message_is_told_only_the_policies_that_help() -> None:
    busy, full = SessionBusyError("s", "r"), QueueFullError("s", "r", 1)
    assert helpful(busy, is_again=False) == ["enqueue", "interrupt", "rollback", "latest"]
    assert helpful(full, is_again=False) == ["interrupt", "rollback", "latest"]
    assert helpful(busy, is_again=True) == [], "runs wait, or the active one is not of what would be replaced"


async def test_a_message_of_several_texts_stays_one_beside_a_merged_prompt(session: AsyncSession) -> None:
    picture = Image(url="https://x/a.png")
    prompts = in_order([User(text="one"), picture, User(text="two")], "parts")
    active = await session.run("word " * 2000, turn_id="m0")
    await ask(session, "m1", prompts, {"if_busy": "enqueue"}, again=False, edits=True)
    await session.run("three", if_busy="merge")
    messages = shown(ui_messages(await session.turns(), await session.runs()))
    assert messages[-2:] == [("m1", "one\ntwo|file"), ("m1.2", "three")]
    assert await active.cancel()


def shown(messages: Sequence[Any]) -> list[tuple[str, str]]:
    """Return the ids and the texts of messages."""
    return [
        (message["id"], "|".join(part.get("text", part["type"]) for part in message["parts"])) for message in messages
    ]


async def test_the_history_shows_each_merged_prompt_as_a_message(session: AsyncSession) -> None:
    active = await session.run("word " * 2000, turn_id="m0")
    first = await ask(
        session, "m1", [User(text="one"), User(text="two")], {"if_busy": "enqueue"}, again=False, edits=True
    )
    unmerged = ui_messages(await session.turns(), await session.runs())
    assert shown(unmerged)[-1] == ("m1", "one|two")
    merged = await session.run("three", Image(url="https://x/a.png"), if_busy="merge")
    prompts = ui_messages(await session.turns(), await session.runs())
    assert shown(prompts)[-3:] == [("m1", "one"), ("m1.1", "two"), ("m1.2", "three|file")]
    assert await active.cancel() and (await merged.wait()).run_id == first.run_id
    answered = ui_messages(await session.turns(), await session.runs())
    assert answered[-4:-1] == prompts[-3:] and answered[-1]["id"] == first.run_id


@pytest.mark.parametrize(
    ("edits", "message", "prompts"),
    [
        (False, "m1.2", ["one", "two", "three", "image"]),
        (False, "m1.1", ["one", "two"]),
        (True, "m1.2", ["one", "two", "new"]),
        (True, "m1.1", ["one", "new"]),
    ],
)
async def test_a_merged_prompt_is_asked_again_with_those_before_it(
    edits: bool, message: str, prompts: list[str], session: AsyncSession
) -> None:
    active = await session.run("word " * 2000, turn_id="m0")
    await session.run("one", "two", turn_id="m1", if_busy="enqueue")
    merged = await session.run("three", Image(url="https://x/a.png"), if_busy="merge")
    assert await active.cancel() and (await merged.wait()).text
    again = await ask(session, message, [User(text="new")], {}, again=True, edits=edits)
    assert (await again.wait()).text
    assert await prompts_of(session, "m1~1") == prompts and not (await session.turn("m1")).is_shown
    assert (await (await edit(session, "newer", message)).wait()).text
    assert await prompts_of(session, "m1~2") == [*prompts[: int(message[-1])], "newer"]
    assert not (await session.turn("m1~1")).is_shown


async def test_a_joined_prompt_is_asked_again_together_with_the_first() -> None:
    class Joined:
        """A session with a turn that another prompt joined behind the answer to a call."""

        id = SESSION

        async def turn(self, which: int | str) -> Turn:
            if which != 3:
                raise TurnNotFoundError(SESSION, which)
            return joined_turn()

    session = cast(AsyncSession, Joined())
    first, also, then = (User(text=text) for text in ("Look.", "Also this.", "And this."))
    assert await part_of(session, "turn-3.4") == ("turn-3", [first], [also])
    assert await part_of(session, "turn-3.5") == ("turn-3", [first, also], [then])
    for message_id in ("turn-3", "turn-3.1", "turn-3.6", "turn-3.99", "turn-4.4"):
        assert await part_of(session, message_id) is None, message_id


async def test_an_id_like_a_joined_prompts_is_an_ordinary_id_elsewhere(session: AsyncSession) -> None:
    await (await edit(session, "one")).wait()
    for message in ("m1.1", "m1.7", "m2.1", "turn-9.1"):
        await (await edit(session, message, message)).wait()
        assert await prompts_of(session, message) == [message]
    assert (await session.turn("m1")).is_shown


async def test_a_message_whose_turn_was_discarded_is_asked_under_the_next_id(session: AsyncSession) -> None:
    await session.run("word " * 2000, turn_id="m1")
    await (await session.run("more", if_busy="rollback")).wait()
    with pytest.raises(TurnNotFoundError):
        await session.turn("m1")
    again = await ask(session, "m1", [User(text="one")], {}, again=False, edits=True)
    assert (await again.wait()).text == "one" and await prompts_of(session, "m1~1") == ["one"]
    repeated = await ask(session, "m1", [User(text="one")], {}, again=False, edits=True)
    assert repeated.run_id == again.run_id
    await session.run("word " * 2000, turn_id="m1~2")
    await (await session.run("more", if_busy="rollback")).wait()
    edited = await edit(session, "two")
    assert (await edited.wait()).text == "two" and await prompts_of(session, "m1~3") == ["two"]
    assert not (await session.turn("m1~1")).is_shown


def joined_turn() -> Turn:
    """Return a turn whose run two prompts joined, after the answer to a call."""
    use, result = ToolUse(call_id="c", name="look", input=FrozenDict()), ToolResult(call_id="c", text="seen")
    output: list[AnyBlock] = [Text(text="I look."), use, result, User(text="Also this."), User(text="And this.")]
    blocks = [User(text="Look."), *output, Text(text="Done.")]
    cache = BlockCache()
    cache.add("7", 0, blocks)
    record = TurnRecord(index=3, run_id="r", status="completed", prompt=(Span("7", 0, 1),), output=(Span("7", 1, 7),))
    return Turn("s", record, cache)


def test_histories_have_prompts_that_joined_a_run_where_they_did() -> None:
    turn = joined_turn()
    messages = ui_messages([turn], [])
    joined = [("turn-3.4", "Also this."), ("turn-3.5", "And this.")]
    parts = ["step-start|I look.|tool-look", "step-start|Done."]
    assert shown(messages) == [("turn-3", "Look."), ("r.1", parts[0]), *joined, ("r", parts[1])]
    removed = Turn("s", replace(turn.record, removed=(Span("7", 4, 5),)), turn.cache)
    assert shown(ui_messages([removed], []))[2:3] == joined[1:]
    items = list(placed_output("r" * 24, turn.output, {}, removed=(4,), first=1, where=turn.record.output))
    kinds = [(item.item["type"], item.item.get("role"), item.numbers, item.is_removed) for item in items]
    assert kinds == [
        ("message", "assistant", (1,), False),
        ("mcp_call", None, (2,), False),
        ("message", "user", (4,), True),
        ("message", "user", (5,), False),
        ("message", "assistant", (6,), False),
    ]
    assert len({item.item["id"] for item in items}) == len(items)
    assert [content["text"] for placed in items[2:4] for content in placed.item["content"]] == [
        "Also this.",
        "And this.",
    ]


async def decide(session: Session, *messages: Any, **more: Any) -> Any:
    fields = {"threadId": "s", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    body = RunAgentInput.model_validate({**fields, "messages": messages, **more})
    return await deciding(cast(AsyncSession, session), decisions_of(body))


def resume(interrupt_id: str) -> dict[str, Any]:
    return {"interruptId": interrupt_id, "status": "resolved", "payload": {"approved": True}}


def calls(run_id: str, *call_ids: str) -> dict[str, Any]:
    function = {"name": "x", "arguments": "{}"}
    tool_calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"id": f"{run_id}-0-0-text-1", "role": "assistant", "toolCalls": tool_calls}


def result(call_id: str) -> dict[str, Any]:
    return {"id": f"t-{call_id}", "role": "tool", "toolCallId": call_id, "content": "seen"}


async def test_a_late_answer_decides_about_a_call_of_its_own_run_only() -> None:
    calls_of: dict[str, Wants] = {"budget-1": "budget"}
    old, new = Run("a", "completed", **calls_of), Run("b", **calls_of)
    assert await decide(Session(old, new), resume=[resume("a.budget-1")]) is old
    assert not old.decided and not new.decided
    assert await decide(Session(old, new), resume=[resume("b.budget-1")]) is new
    assert new.decided == [("approve", "budget-1", None)]
    for wrong in ("budget-1", "c.budget-1", "b.other", ".budget-1", ""):
        with pytest.raises(InvalidInputError, match=r"resume\.0\.payload"):
            await decide(Session(old, new), resume=[resume(wrong)])
    with pytest.raises(InvalidInputError, match=r"resume\.1\.payload"):
        await decide(Session(old, new), resume=[resume("b.budget-1"), resume("a.budget-1")])


async def test_a_late_result_is_of_a_call_of_its_own_run_only() -> None:
    old, new = Run("a", "completed", call_0="result"), Run("b", call_0="result")
    assert await decide(Session(old, new), calls("a", "call_0"), result("call_0")) is old
    assert not new.decided
    assert await decide(Session(old, new), calls("a", "call_0"), calls("b", "call_0"), result("call_0")) is new
    assert new.decided == [("provide", "call_0", "seen")]
    for messages in ([result("call_0")], [calls("c", "call_0"), result("call_0")]):
        with pytest.raises(InvalidInputError, match=r"messages\.[01]\.toolCallId"):
            await decide(Session(old, new), *messages)


@pytest.mark.parametrize("order", [("look", "map"), ("map", "look")])
async def test_results_of_the_services_own_tools_are_left_out(order: Any) -> None:
    run = Run("a", map="result")
    assert await decide(Session(run), calls("a", *order), *map(result, order)) is run
    assert run.decided == [("provide", "map", "seen")]
    with pytest.raises(InvalidInputError, match="no call of this id waits"):
        await decide(Session(run), calls("a", "look"), result("look"))
