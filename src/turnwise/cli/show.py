"""`turnwise show`: a session as a transcript, one of its turns, what the model was sent, or a run's agents."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import AsJson, History, Server, SessionId, Store, User, find_session, missing, reading, run
from turnwise.cli.output import console, harmless, is_terminal, one_line, print_json, write
from turnwise.console.elements.text import ago, number, tokens_spent
from turnwise.errors import ConfigError, NotFoundError, RunNotFoundError, TurnNotFoundError
from turnwise.memory.values.ranges import MAX_COUNT

if TYPE_CHECKING:
    from turnwise.actors.client.agent_tree import AgentTree
    from turnwise.actors.client.execution import AsyncExecutionHandle
    from turnwise.actors.client.session import AsyncSession
    from turnwise.actors.hosting.wire import SessionInfo
    from turnwise.memory.conversation.blocks import AnyBlock
    from turnwise.memory.conversation.calls.tool_calls import PendingCall
    from turnwise.memory.conversation.runs import RunRecord
    from turnwise.memory.conversation.turns import Turn
    from turnwise.memory.conversation.views.chat_messages import ChatMessage

Line = tuple[str, str]
"""A text of one or more lines, and its style on a terminal."""

_PAGE = 200

_NOT_SHOWN = "(if memory added a profile, notes or recalled items to this, they are not shown: that text is not stored)"

_HEAD, _QUIET = "bold", "dim"


@dataclass(frozen=True)
class Shown:
    """The state, messages and runs that were read of a session."""

    info: SessionInfo
    messages: Sequence[ChatMessage]
    runs: dict[str, RunRecord]
    pending: Sequence[PendingCall]


def show(
    store: Store,
    session: SessionId,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[TURN]", help="One turn of it: its index, its id, or the id of its run."),
    ] = None,
    *,
    server: Server = None,
    as_sent: Annotated[
        bool,
        typer.Option(
            "--as-sent",
            help="What the model was sent for this turn, by default for the last one; not what memory recalled.",
        ),
    ] = False,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree", help="The run of this turn, by default the last one, with the agents that it has called."
        ),
    ] = False,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=1, max=MAX_COUNT, help="Only so many of the newest turns.")
    ] = None,
    user: User = None,
    history: History = None,
    as_json: AsJson = False,
) -> None:
    """Show a session: prompts, answers, thoughts, tool calls, and how each turn ended."""
    if last and (which or as_sent or tree):
        raise typer.BadParameter("--last is for a whole session: leave out the turn, --as-sent and --tree")
    if as_sent and tree:
        raise typer.BadParameter("give either --as-sent or --tree")
    view = _sent if as_sent else _tree if tree else None
    run(_show(store, session, which, user, history, last=last, view=view, as_json=as_json))


async def _show(
    store: str,
    session_id: str,
    which: str | None,
    user: str | None,
    history: str | None,
    *,
    last: int | None,
    view: Callable[[AsyncSession, str | None], Awaitable[Sent | Tree]] | None,
    as_json: bool,
) -> None:
    content: Any
    async with reading(store, history) as manager:
        session = await find_session(manager, session_id, user)
        if view:
            content = await view(session, which)
        elif which is not None:
            content = await _turn_of(session, which)
        else:
            content = await _whole(session, last)
    if as_json:
        print_json(_as_json(content, session_id))
    else:
        print_lines(_lines(content))


async def _whole(session: AsyncSession, last: int | None) -> Shown:
    """Read the newest turns of a session, all by default."""
    from turnwise.memory.stores.reading import TURN_INDEX, pages

    info = await session.info()
    first = 0 if last is None else await _first_of(session, info.session.next_index, last)
    messages: list[ChatMessage] = []
    cursor: str | None = None
    while True:
        page = await session.messages(_PAGE, before=cursor)
        messages[:0] = [message for message in page if message.turn_index >= first]
        cursor = page.cursor
        if cursor is None or (page.items and page.items[0].turn_index < first):
            break
    runs: dict[str, RunRecord] = {}
    async for page_of_runs in pages(partial(session.runs, limit=_PAGE), first - 1, TURN_INDEX):
        runs |= {run.run_id: run for run in page_of_runs}
    pending = await (await session.execution(info.active_run_id)).pending() if info.active_run_id else ()
    return Shown(info, messages, runs, pending)


async def _first_of(session: AsyncSession, end: int, count: int) -> int:
    """Return the index of the turn from which on there are `count` turns. Discarded ones leave gaps."""
    from turnwise.memory.stores.reading import read_turns

    start = end
    while start > 0:
        start = max(0, start - max(count, _PAGE))
        turns = await read_turns(session.turns, start, end)
        if len(turns) >= count:
            return turns[-count].index
    return 0


async def _turn_of(session: AsyncSession, which: str) -> Turn:
    """Return a turn by its index, its id, or the id of its run."""
    from turnwise.memory.stores.reading import read_runs

    if which.isdecimal():
        return await session.turn(int(which))
    try:
        return await session.turn((await session.execution(which)).turn_index)
    except RunNotFoundError:
        pass
    try:
        return await session.turn(which)
    except TurnNotFoundError:
        end = (await session.info()).session.next_index
        there = [run.run_id for run in await read_runs(session.runs, max(0, end - _PAGE), end)]
        raise missing(f"turn or run of session {session.session_id!r} called", which, there) from None


@dataclass(frozen=True)
class Sent:
    """The blocks that a run's model was sent."""

    run: RunRecord
    blocks: Sequence[AnyBlock]


@dataclass(frozen=True)
class Tree:
    """A run, and the agents below it."""

    run: RunRecord
    agents: AgentTree


async def _sent(session: AsyncSession, which: str | None) -> Sent:
    execution = await _run_of(session, which)
    return Sent(await execution.info(), (await execution.input()).blocks)


async def _tree(session: AsyncSession, which: str | None) -> Tree:
    from turnwise.actors.client.agent_tree import agents_of

    execution = await _run_of(session, which)
    return Tree(await execution.info(), await agents_of(execution))


async def _run_of(session: AsyncSession, which: str | None) -> AsyncExecutionHandle:
    """Return the run of a turn; by default the last one that was started."""
    from turnwise.memory.stores.reading import read_runs

    if which is None:
        end = (await session.info()).session.next_index
        newest = await read_runs(session.runs, max(0, end - _PAGE), end)
        started = [run for run in newest if run.state != "queued"]
        if not started:
            raise NotFoundError(f"session {session.session_id!r} has no run")
        return await session.execution(started[-1].run_id)
    turn = await _turn_of(session, which)
    if turn.run_id is None:
        raise ConfigError("TURN", which, f"no run of session {session.session_id!r} has this turn yet")
    return await session.execution(turn.run_id)


# As lines


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, with their styles on a terminal."""
    if not is_terminal():
        for text, _ in lines:
            write(harmless(text))
        return
    from rich.text import Text

    screen = console()
    for text, style in lines:
        screen.print(Text(harmless(text), style))


def _lines(content: Shown | Turn | Sent | Tree) -> Iterator[Line]:
    if isinstance(content, Shown):
        yield from _transcript(content)
    elif isinstance(content, Tree):
        yield from _agents(content)
    elif isinstance(content, Sent):
        yield from _window(content)
    else:
        versions = _versions(content.index, [version.turn_index for version in content.versions])
        yield f"turn {content.index}{versions}  {content.status}", _HEAD
        for block in content.new_blocks:
            yield from block_lines(block)


def _transcript(shown: Shown) -> Iterator[Line]:
    info, now = shown.info, time.time()
    record = info.session
    state = "ended" if record.status == "ended" else "idle" if info.active_run_id is None else "active"
    facts = [record.title, f"user {record.user_id}", record.agent and f"agent {record.agent}", state]
    facts += [f"{number(record.next_index)} turns", tokens_spent(record.usage, record.agents_usage)]
    facts += [f"shared with {', '.join(record.members)}" if record.members else None]
    facts += [record.parent and f"forked from {record.parent}", f"changed {ago(record.updated_at, now)}"]
    yield "  ".join(filter(None, [f"session {record.session_id}", *facts])), _HEAD
    turn: int | None = None
    for index, message in enumerate(shown.messages):
        if message.turn_index != turn:
            turn = message.turn_index
            yield "", ""
            yield f"turn {turn}{_versions(turn, message.versions)}  {ago(message.at, now)}", _QUIET
        for block in message.blocks:
            yield from block_lines(block)
        following = shown.messages[index + 1 :][:1]
        if not following or following[0].turn_index != turn:
            yield from _end(message, shown.runs.get(message.run_id or ""))
    for call in shown.pending:
        yield "", ""
        yield from _waiting(call, str(info.active_run_id))


def _versions(index: int, versions: Sequence[int]) -> str:
    """Say which version of its turn this is, and which turns the others are; nothing of a turn that has one."""
    others = ", ".join(str(version) for version in versions if version != index)
    return f"  version {versions.index(index) + 1} of {len(versions)}, besides turn {others}" if others else ""


def _end(message: ChatMessage, record: RunRecord | None) -> Iterator[Line]:
    """Say how a turn ended."""
    if record is None:
        yield f"[{message.turn_status}]", _QUIET
        return
    parts = [record.state.replace("_", " "), f"run {record.run_id}", record.model]
    if spent := record.usage:
        counted = f" ({number(spent.counted_tokens)} counted here)" if spent.counted_tokens else ""
        parts += [f"{tokens_spent(spent, record.agents_usage)}{counted}", f"{spent.seconds:.1f} s"]
    style = "red" if record.state in ("failed", "interrupted") else _QUIET
    yield f"[{', '.join(filter(None, parts))}]" + (f" {record.why}" if record.why else ""), style


def _waiting(call: PendingCall, run_id: str) -> Iterator[Line]:
    requests = {"approval": "asks for approval", "result": "waits for its result", "budget": "is over its budget"}
    yield f"{call.name} {requests[call.wants]}{f': {call.why}' if call.why else ''}", "magenta"
    yield f"  run {run_id}, call {call.call_id}, arguments {_json(call.input)}", "magenta"


def _agents(tree: Tree) -> Iterator[Line]:
    run = tree.run
    yield f"run {run.run_id}  {run.state.replace('_', ' ')}", _HEAD
    for agent in tree.agents.agents:
        record = agent.record
        state = record.state.replace("_", " ") if record else "not begun, or deleted"
        facts = [agent.name, state, f"session {agent.execution.session_id}", (record and record.why) or ""]
        failed = record is not None and record.state in ("failed", "interrupted")
        yield f"{'  ' * agent.depth}{'  '.join(filter(None, map(one_line, facts)))}", "red" if failed else ""
    if not tree.agents.agents:
        yield "  it has called no agents", _QUIET
    if tree.agents.is_cut:
        yield "  there are more agents", _QUIET


def _window(sent: Sent) -> Iterator[Line]:
    record = sent.run
    facts = [f"run {record.run_id}", f"turn {record.turn_index}", f"model {record.model or 'of the engine'}"]
    facts += [f"parameters {_json(record.params)}"] if record.params else []
    facts += [f"{number(record.usage.input_tokens)} tokens sent by all its steps"] if record.usage else []
    yield f"what the model was sent: {', '.join(facts)}", _HEAD
    if record.instructions:
        yield from _labelled("instructions of this run", record.instructions, "blue")
    for tool in record.tools:
        yield f"tool of this run: {tool}", "blue"
    for block in sent.blocks:
        yield from block_lines(block)
    if record.memory != "off":
        yield _NOT_SHOWN, _QUIET


def block_lines(block: AnyBlock) -> Iterator[Line]:  # noqa: PLR0912 - one case for each kind
    """Yield the lines that show a block."""
    from turnwise.memory.conversation import blocks

    match block:
        case blocks.User():
            yield from _labelled(block.author or "user", block.text, "cyan")
        case blocks.System():
            yield from _labelled("instructions", block.text, "blue")
        case blocks.Text():
            yield from _labelled("assistant", block.text, "green")
            if block.interrupted:
                yield "  (the answer was cut off here)", "red"
        case blocks.Thinking():
            yield from _labelled("thoughts", block.text or "(not readable)", _QUIET, _QUIET)
        case blocks.ToolUse():
            yield f"calls {block.name} {_json(block.input)}  ({block.call_id})", "yellow"
        case blocks.ToolResult():
            yield from _labelled(
                "error" if block.is_error else "result", block.text, "red" if block.is_error else "yellow"
            )
            for inner in block.blocks:
                yield from block_lines(inner)
        case blocks.Summary():
            yield from _labelled("summary of earlier turns", block.text, "blue")
        case blocks.Recalled():
            yield from _labelled("recalled from memory", block.text, "blue")
        case blocks.Image() | blocks.Document():
            text = isinstance(block, blocks.Document) and block.plain
            yield from _labelled(blocks.described(block), text or block.url or "", "cyan")
        case blocks.Citations():
            yield f"sources {_json(block.items)}", _QUIET
        case _:
            yield f"({getattr(block, 'stored_kind', None) or block.kind})", _QUIET


def _labelled(name: str, text: str, style: str, text_style: str = "") -> Iterator[Line]:
    yield name, style
    for line in text.split("\n") if text else ():
        yield f"  {line}", text_style


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# As JSON


def _as_json(content: Shown | Turn | Sent | Tree, session_id: str) -> dict[str, Any]:
    """Return what was read in the form of the HTTP API."""
    from turnwise.http.native import models

    if isinstance(content, Sent):
        shown = models.RunShown.of(content.run)
        return {"run": shown, "blocks": [block.model_dump(mode="json") for block in content.blocks]}
    if isinstance(content, Tree):
        return {"run": models.RunShown.of(content.run), "children": models.AgentsShown.of(content.agents)}
    if isinstance(content, Shown):
        return {
            "session": models.SessionState.of_info(content.info),
            "messages": [models.MessageShown.model_validate(message) for message in content.messages],
            "runs": [models.RunShown.of(run) for run in content.runs.values()],
            "pending": [models.PendingCallShown.model_validate(call) for call in content.pending],
        }
    return models.TurnShown.of(content).model_dump(mode="json")
