"""Checks the records of an archive as if they came from a caller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from turnwise.errors import InvalidIdError, InvalidInputError, TurnwiseError
from turnwise.memory.archive.format import Line
from turnwise.memory.conversation.blocks import Block, Recalled, Summary, decode, encode
from turnwise.memory.conversation.branches import are_valid
from turnwise.memory.conversation.calls.run_tools import are_tools
from turnwise.memory.conversation.calls.tool_calls import Verdict, decode_calls
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.marks import check_marks
from turnwise.memory.conversation.model_params import check_params
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import MAX_MEMBERS, MAX_TITLE_CHARS, ROLES, SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, size, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, check_delivery
from turnwise.memory.values.ids import check_id
from turnwise.memory.values.limits import MAX_BRANCHES

MAX_NUMBER = 2**52
"""The largest index, sequence number or count. Sessions count on from these, and every store keeps them exactly."""

MAX_SPANS = 4096
"""The most spans in one list of a turn or a summary."""


def check_session_line(line: Line, session: SessionRecord) -> None:
    """Raise ArchiveError if the session has an impossible value."""
    _check_ids(
        line,
        {
            "agent": session.agent,
            "engine": session.engine,
            "parent": _session_of(line, session.parent),
            "caller": session.called_by,
        },
    )
    _check_asked(line, session)
    _check_numbers(line, session, "log_size", "next_index", "seq", "created_at", "updated_at", "ttl_s", "depth")
    if not -1 <= session.saved < session.next_index:
        line.refuse(f"saved={session.saved} is not between -1 and the last turn")
    if not are_valid(session.branches, session.next_index):
        line.refuse(f"its branches are more than {MAX_BRANCHES}, or not in order, or begin behind the last turn")
    if session.title is not None and not 0 < len(session.title) <= MAX_TITLE_CHARS:
        line.refuse(f"its title is empty or has more than {MAX_TITLE_CHARS} characters")
    _check_usage(line, session.usage)
    _check_usage(line, session.agents_usage)
    for user_id in session.members:
        _check_ids(line, {"member": user_id})
    are_roles = all(isinstance(role, str) and role in ROLES for role in session.members.values())
    if len(session.members) > MAX_MEMBERS or not are_roles:
        line.refuse(f"it has more than {MAX_MEMBERS} members, or one without a role")
    if not all(_is_number(limit) and limit >= 0 for limit in session.budget.values()):
        line.refuse("its budget has a limit that is no number from 0")


def checked_block(line: Line) -> Block:
    """Return the block of a line.

    Raises:
        ArchiveError: the line has no block, or one that is never stored.
    """
    try:
        block = decode(line.text())
        encode(block)
    except (ValueError, RecursionError) as error:
        line.refuse(f"no block: {_error_text(error)}")
    if isinstance(block, Recalled):
        line.refuse("a recalled block is part of requests, never of a history")
    if isinstance(block, Summary) and max(len(block.of), len(block.folded)) > MAX_SPANS:
        line.refuse(f"a summary replaces more than {MAX_SPANS} spans")
    return block


def checked_delivery(line: Line, session: SessionKey) -> Delivery:
    """Return the delivery of a line.

    Raises:
        ArchiveError: the line has no delivery, or one that could never be carried out.
    """
    delivery = line.delivery(session)
    _check_ids(line, {"delivery id": delivery.delivery_id})
    _check_numbers(line, delivery, "revision", "created_at", "attempts")
    try:
        check_delivery(delivery)
        if delivery.to_session is not None:
            line.refuse("an archive has no messages to other sessions")
        if delivery.kind in ("prompt", "message"):
            read_run_payload(delivery)
    except InvalidInputError as error:
        line.refuse(str(error))
    return delivery


def check_turn(line: Line, turn: TurnRecord) -> None:
    """Raise ArchiveError if the turn has an impossible value."""
    _check_ids(line, {"run id": turn.run_id, "turn id": turn.turn_id, "parent": _session_of(line, turn.parent)})
    _check_numbers(line, turn, "index", "created_at")
    _check_usage(line, turn.usage)
    for spans in (turn.prompt, turn.appended, turn.input, turn.output, turn.carried, turn.removed):
        _check_spans(line, spans)
    for spans in (turn.spans, turn.base):
        _check_once(line, spans)
    if subtract(turn.appended, turn.prompt):
        line.refuse("a block in `appended` is not in `prompt`")
    try:
        check_marks(turn)
    except InvalidInputError as error:
        line.refuse(str(error))
    if turn.marks and turn.is_open:
        line.refuse("a turn that has not ended has no marks")
    if turn.status == "pending" and (
        turn.run_id or turn.input or turn.output or turn.carried or turn.removed or not turn.prompt
    ):
        line.refuse("a pending turn must have prompts, and neither a run nor an answer")


def check_run(line: Line, run: RunRecord, turn: tuple[str, str | None] | None, last_seq: int) -> None:
    """Raise ArchiveError if the run has an impossible value.

    Args:
        turn: the status and the run id of the turn with its index; None if the turn was discarded.
        last_seq: the session's last sequence number.
    """
    _check_ids(
        line,
        {
            "run id": run.run_id,
            "parent run": run.parent,
            "successor": run.successor,
            "engine": run.engine,
            "idempotency key": run.idempotency_key,
            "fingerprint": run.origin.fingerprint if run.origin.key is not None else None,
            "author": run.author,
        },
    )
    _check_asked(line, run)
    is_said = run.output is not None and [*run.output] == ["says"] and isinstance(run.says, str)
    if run.output is not None and not (is_said or OutputType.is_record(run.output)):
        line.refuse("the type of an answer must be a schema and a number of retries")
    if not are_tools(run.tools):
        line.refuse("a tool must have a name, a description and a JSON schema of an object")
    if not all(isinstance(value, str) for value in run.trace.values()):
        line.refuse("a trace context must be text")
    _check_numbers(line, run, "turn_index", "first_seq", "created_at", "started_at", "ended_at", "timeout_s", "resumes")
    _check_usage(line, run.usage)
    if run.first_seq > last_seq:
        line.refuse(f"its first event is {run.first_seq}, and the session's last event is {last_seq}")
    if turn and turn != (run.state, run.run_id):
        line.refuse(f"run {run.run_id!r} is {run.state}, and its turn is {turn[0]}, of run {turn[1]!r}")
    if not all(isinstance(label, str | int | float) for label in run.labels.values()):
        line.refuse("a label must be text or a number")
    try:
        for state in decode_calls(run.calls).values():
            if not isinstance(state.name, str) or not isinstance(state.digest, str | None):
                line.refuse("the state of a call has a wrong value")
            if state.agent and not _is_agent(state.agent):
                line.refuse("the state of a call of an agent has a wrong value")
    except TypeError as error:
        line.refuse(f"the state of a call is wrong: {error}")


def _is_agent(agent: Mapping[str, Any]) -> bool:
    """Return whether a call of an agent has what is read of it when its run has ended."""
    usage, asks = agent.get("usage", {}), agent.get("asks") or {}
    has_usage = isinstance(usage, Mapping) and usage.keys() <= Usage.__dataclass_fields__.keys()
    has_asks = isinstance(asks, Mapping) and {*asks.values()} <= {None, *get_args(Verdict)}
    return (
        isinstance(agent.get("session"), str)
        and isinstance(agent.get("batch"), int)
        and (has_usage and all(_is_number(number) and number >= 0 for number in usage.values()))
        and has_asks
    )


def check_event(line: Line, event: Event) -> None:
    """Raise ArchiveError if the event has an impossible value."""
    _check_ids(line, {"run id": event.run_id, "event key": event.key})
    _check_numbers(line, event, "seq", "at", "turn_index")
    usage = getattr(event, "usage", None)
    if isinstance(usage, Usage):
        _check_usage(line, usage)
    if event.live:
        line.refuse(f"an event of kind {event.kind} is never stored")


def check_new(line: Line, kind: str, value: str | None, values: set[str]) -> None:
    """Add the value to the known ones. Raise ArchiveError if it is known already."""
    if value in values:
        line.refuse(f"{kind} {value!r} is in the archive twice")
    if value is not None:
        values.add(value)


def _check_ids(line: Line, ids: dict[str, str | None]) -> None:
    for kind, value in ids.items():
        try:
            if value is not None:
                check_id(kind, value)
        except InvalidIdError as error:
            line.refuse(str(error))


def _session_of(line: Line, turn_id: str | None) -> str | None:
    """Return the session of a turn's id."""
    if turn_id is None:
        return None
    session_id, _, index = turn_id.rpartition("#")
    if not (session_id and index.isascii() and index.isdigit() and len(index) <= len(str(MAX_NUMBER))):
        line.refuse(f"{turn_id[:99]!r} names no turn")
    return session_id


def _check_asked(line: Line, record: SessionRecord | RunRecord) -> None:
    _check_ids(line, {"model": record.model})
    try:
        params = check_params("params", record.params)
    except InvalidInputError as error:
        line.refuse(str(error))
    if params != record.params or None in params.values():
        line.refuse("its parameters are not in the form in which they are stored")


def _check_numbers(line: Line, record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not (_is_number(value) and 0 <= value <= MAX_NUMBER):
            line.refuse(f"{name}={value!r} is not between 0 and {MAX_NUMBER}")


def _check_usage(line: Line, usage: Usage | None) -> None:
    if usage is not None:
        _check_numbers(line, usage, *Usage.__dataclass_fields__)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_spans(line: Line, spans: Spans) -> None:
    if len(spans) > MAX_SPANS:
        line.refuse(f"{len(spans)} spans are more than {MAX_SPANS}")
    _check_once(line, spans)


def _check_once(line: Line, spans: Iterable[Span]) -> None:
    spans = tuple(spans)
    if size(union(spans)) != size(spans):
        line.refuse("a turn has a block twice")


def _error_text(error: Exception) -> str:
    """Return why a line has no block. Does not quote the line."""
    if isinstance(error, TurnwiseError) or not hasattr(error, "errors"):
        return str(error)[:200]
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}" for detail in errors[:3])
