"""What the routes of all front ends share: asking, asking again, deciding about calls, and streaming the answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any, cast

from starlette.responses import Response

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import check_start
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RerunOptions, RunOptions
from turnwise.adapters.front_ends.encoding import FrontEndEncoder
from turnwise.adapters.front_ends.stream import front_end_stream
from turnwise.errors import (
    CallDecidedError,
    IdempotencyConflictError,
    InvalidInputError,
    SessionBusyError,
    TurnIdTakenError,
    TurnNotFoundError,
    TurnReplacedError,
    shown,
)
from turnwise.http.native.runs import cancel_own
from turnwise.http.same_prompt import is_same_prompt, unsigned
from turnwise.http.service import Caller, check_may_approve
from turnwise.http.sse import EventStream
from turnwise.memory.conversation.blocks import Block, User
from turnwise.memory.conversation.turns import Turn

_INDEX = re.compile(r"turn-([0-9]{1,18})")

_PART = re.compile(r"(.+)\.([0-9]{1,9})")

CUT_OFF = ("failed", "cancelled", "interrupted")
"""The states of runs whose message is asked again when it is repeated."""

STOPS = "the server stops: read on, from this service or from another one"


@dataclass(frozen=True)
class Decision:
    """A decision about a call, or its result, as a request has it. `at` is where it says so."""

    call_id: str
    at: str
    run_id: str | None = None
    """The run whose call it is, if the request says so."""
    approved: bool | None = None
    """Whether the call is approved; None if its result is given."""
    value: Any = None
    """The result, or the arguments of an approved call if they are others than the model's."""
    is_error: bool = False
    reason: str = ""


def message_id_of(turn: Turn) -> str:
    """Return the id by which front ends know the prompt of a turn."""
    return turn.record.turn_id or f"turn-{turn.index}"


async def ask(
    session: AsyncSession,
    message_id: str,
    prompts: Sequence[Block],
    options: RunOptions,
    *,
    again: bool,
    edits: bool,
    resumed: bool = False,
) -> AsyncExecutionHandle:
    """Start the run that answers a message, or return the one that a repeated request has started.

    Args:
        message_id: the message's id, which becomes its turn's. With `again`, `<id>.<place>` is a prompt that joined the
            turn of that id: then the turn is asked with its prompts up to this one.
        prompts: what it says.
        again: whether it is answered anew by `Session.rerun`, in place of the shown turn of this message: that turn and
            all later ones stay as a version. A run of theirs is cancelled first. A turn that did not complete is always
            replaced.
        edits: whether it is then asked with these prompts, and not with those of the turn.
        resumed: whether the client has had a part of the answer. Then nothing is replaced, and the newest run that
            answers the message is returned, however it ended.

    Raises:
        SessionBusyError: a run is queued, or another one has just become active; nothing was started.
        TurnReplacedError: the conversation as it is shown has no turn of this message any more; nothing was started.
        IdempotencyConflictError: the message of this id says something else; nothing was started.
        TurnwiseError: nothing was started or replaced.
    """
    discarded: set[str] = set()
    while True:
        turn, free = await _newest(session, message_id, discarded)
        if turn is None and again and (part := await part_of(session, message_id)):
            message_id, before, own = part
            prompts, edits = [*before, *(prompts if edits else own)], True
            continue
        named, shown_turn = options | RunOptions(turn_id=free), await _shown_version(session, turn) if turn else None
        blocks = prompts if edits or shown_turn is None else shown_turn.asked
        try:
            if turn is None or shown_turn is None:
                return await session.run(*blocks, **named)
            if not await _is_again(session, turn, again=again, resumed=resumed):
                return await _repeated(session, turn, None if again else (message_id, blocks))
            return await _ask_again(session, shown_turn, blocks, named, edits=edits)
        except TurnNotFoundError:  # it was discarded with its run
            continue
        except (SessionBusyError, TurnIdTakenError, TurnReplacedError) as error:
            taken = await _turn_named(session, free)
            if taken and turn is None:  # the same request has just come twice
                return await _repeated(session, taken, (message_id, blocks))
            if started := await _of_key(session, blocks, options):
                return await session.execution(started)
            if taken or not isinstance(error, TurnIdTakenError):
                raise
            discarded.add(free)


async def _of_key(session: AsyncSession, prompts: Sequence[Block], options: RunOptions) -> str | None:
    """Return the run that a request with the same idempotency key has started."""
    return await check_start(session, prompts, options) if options.get("idempotency_key") else None


async def _repeated(
    session: AsyncSession, turn: Turn, message: tuple[str, Sequence[Block]] | None
) -> AsyncExecutionHandle:
    """Return the run of a turn, for a request that repeats its message.

    Args:
        message: the message's id and its prompts, if these must be those of the turn.

    Raises:
        IdempotencyConflictError: the message says something else than the turn's.
    """
    if message is None:
        return await session.execution(turn.run_id or "")
    message_id, prompts = message
    turn_prompts, count = turn.asked, len(prompts)
    if not turn.removed and not any(
        all(map(is_same_prompt, turn_prompts[index:], prompts)) for index in range(len(turn_prompts) - count + 1)
    ):
        raise IdempotencyConflictError(session.session_id, message_id, turn.run_id or "")
    return await session.execution(turn.run_id or "")


async def _shown_version(session: AsyncSession, turn: Turn) -> Turn:
    """Return the version of a turn that is shown; the turn itself if none is."""
    index = next((version.turn_index for version in turn.versions if version.is_shown), turn.index)
    return turn if index == turn.index else await session.turn(index)


async def _is_again(session: AsyncSession, turn: Turn, *, again: bool, resumed: bool) -> bool:
    """Return whether a message that has a turn is to be answered anew: see `ask`."""
    execution = await session.execution(turn.run_id) if turn.run_id else None
    return execution is None or not (resumed or (not again and await execution.status() not in CUT_OFF))


async def _ask_again(
    session: AsyncSession, turn: Turn, prompts: Sequence[Block], named: RunOptions, *, edits: bool
) -> AsyncExecutionHandle:
    """Start a run that answers a turn anew, once the run of that turn, or of a later one, is cancelled: see `ask`."""
    has_authors = any(isinstance(block, User) and block.author for block in prompts)
    prompts = [unsigned(block) for block in prompts]
    info = await session.info()
    if started := await check_start(session, prompts, named):
        return await session.execution(started)
    if info.queued_run_ids:
        raise SessionBusyError(session.session_id, info.queued_run_ids[0])
    if info.active_run_id is not None:
        execution = await session.execution(info.active_run_id)
        if execution.turn_index >= turn.index:
            await execution.cancel("its message is answered again")
    options = {name: value for name, value in named.items() if name not in ("if_busy", "debounce_s")}
    given = () if has_authors and not edits else prompts  # without any, the turn's own are asked, with their authors
    return await session.rerun(*given, at=turn.index, **cast(RerunOptions, options))


async def turn_of(session: AsyncSession, message_id: str) -> Turn | None:
    """Return the newest turn that answers a message; None if there is none."""
    return (await _newest(session, message_id, ()))[0]


async def part_of(session: AsyncSession, message_id: str) -> tuple[str, list[Block], list[Block]] | None:
    """Return the message that a turn was started with, the prompts before this one, and this one: see `ui_messages`."""
    named = _PART.fullmatch(message_id)
    turn = await _turn_named(session, named[1]) if named else None
    if named is None or turn is None:
        return None
    blocks, place = turn.new_blocks, int(named[2])
    prompt_count = len(blocks) - len(turn.output)
    prompts = [index for index, block in enumerate(blocks) if index < prompt_count or isinstance(block, User)]
    if place not in prompts or not isinstance(blocks[place], User):
        return None
    attached = takewhile(
        lambda index: not isinstance(blocks[index], User), (index for index in prompts if index > place)
    )
    before: list[Block] = [unsigned(blocks[index]) for index in prompts if index < place]
    return str(named[1]), before, [unsigned(blocks[place]), *(blocks[index] for index in attached)]


async def _newest(session: AsyncSession, message_id: str, discarded: Collection[str]) -> tuple[Turn | None, str]:
    """Return the newest turn that answers a message, and the id that the next one gets.

    Args:
        discarded: ids whose turns were discarded; they cannot be used again.
    """
    newest = None
    for number in count():
        name = f"{message_id}~{number}" if number else message_id
        turn = await _turn_named(session, name)
        if turn is None and name not in discarded:
            return newest, name
        newest = turn or newest
    raise AssertionError


async def _turn_named(session: AsyncSession, name: str) -> Turn | None:
    """Return the turn of an id, or of an index in the form that `message_id_of` gives it."""
    index = _INDEX.fullmatch(name)
    for which in (name, int(index[1])) if index else (name,):
        with suppress(TurnNotFoundError):
            return await session.turn(which)
    return None


async def fitting(execution: AsyncExecutionHandle, decisions: Sequence[Decision]) -> list[Decision]:
    """Return what a request says about calls that wait, or waited, one decision a call. Changes nothing.

    A client may have a result of its own for a call that it approves: the approval counts. Results of calls that never
    waited are left out, such as those of the service's own tools.

    Raises:
        InvalidInputError: a call waits for something else, or has two answers that differ.
    """
    calls = (await execution.info()).calls
    chosen: dict[str, Decision] = {}
    unfit: list[tuple[Decision, str]] = []
    for decision in decisions:
        state = calls.get(decision.call_id) or {}
        wants = state.get("wants")
        if wants and (decision.approved is None) == (wants == "result"):
            first = chosen.setdefault(decision.call_id, decision)
            if replace(first, at=decision.at, run_id=decision.run_id) != decision:
                reason = f"call {decision.call_id!r} has another answer in the same request"
                raise InvalidInputError(decision.at, shown(decision.value), reason)
        elif wants and not state.get("verdict"):
            unfit.append((decision, "its result" if wants == "result" else "an approval"))
    for unfit_decision, expected in unfit:
        if unfit_decision.call_id not in chosen:
            raise InvalidInputError(
                unfit_decision.at, shown(unfit_decision.value), f"call {unfit_decision.call_id!r} waits for {expected}"
            )
    return list(chosen.values())


def check_decisions(caller: Caller, decisions: Sequence[Decision]) -> None:
    """Raise OperatorsOnlyError if one of the decisions is for operators only: see `check_may_approve`."""
    for decision in decisions:
        if decision.approved:
            check_may_approve(caller.identity, decision.call_id)


async def decide(execution: AsyncExecutionHandle, decisions: Sequence[Decision]) -> None:
    """Decide about calls. The same decisions may be repeated. One that comes after its run's end changes nothing.

    Args:
        decisions: what `fitting` returned.

    Raises:
        CallDecidedError: a call was decided differently before.
    """
    pending = {call.call_id for call in await execution.pending()}
    calls = (await execution.info()).calls
    for decision in decisions:
        verdict = None if decision.call_id in pending else (calls.get(decision.call_id) or {}).get("verdict")
        if verdict is None and decision.call_id not in pending:
            continue
        if decision.approved is None:
            await execution.provide(decision.call_id, decision.value, is_error=decision.is_error)
        elif verdict is None and decision.approved:
            await execution.approve(decision.call_id, input=decision.value)
        elif verdict is None:
            await execution.reject(decision.call_id, decision.reason)
        elif decision.approved != (verdict == "approved"):
            raise CallDecidedError(execution.session_id, execution.run_id, decision.call_id, f"it was {verdict}")


async def behind(execution: AsyncExecutionHandle, call_ids: Sequence[str]) -> frozenset[str]:
    """Return those of the calls that wait for a decision or a result, or did."""
    calls = (await execution.info()).calls
    return frozenset(call_id for call_id in call_ids if call_id in calls and calls[call_id].get("wants"))


async def active(session: AsyncSession) -> AsyncExecutionHandle | None:
    """Return the run that has not ended; None if there is none."""
    run_id = (await session.info()).active_run_id
    return await session.execution(run_id) if run_id else None


def streamed(
    caller: Caller, execution: AsyncExecutionHandle, encoder: FrontEndEncoder, reserved: ExitStack | None = None
) -> Response:
    """Return a run's answers as a stream. If the client leaves, the run goes on or not, as `X-On-Disconnect` says.

    Args:
        reserved: what `caller.reserve_stream()` returned; if omitted, one is reserved here.
    """
    caller.service.handles.cache_run(caller.user_id, execution, owner=caller.owner)
    farewell = b"".join(frame.encode() for frame in encoder.failed(ConnectionError(STOPS)))

    def cancel() -> None:
        caller.service.spawn(cancel_own(execution), "the cancellation of a run whose client disconnected")

    return EventStream(
        caller,
        front_end_stream(execution, encoder),
        on_leave=cancel
        if caller.on_disconnect == "cancel" and not execution.dropped
        else None,  # else it is another's run
        retry_ms=None,
        farewell=farewell,
        reserved=reserved,
        headers={**encoder.headers, "X-Run-Id": execution.run_id},
    )
