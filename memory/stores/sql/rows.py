"""Converts records to rows of `SQLStore`'s tables, and rows to records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pydantic_core

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.codec import decoded, encode_json, to_json
from turnwise.memory.conversation.events import Event, RunCompleted, RunStarted, encode_body
from turnwise.memory.conversation.ledger import NUMBERS, LedgerKey
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.runs import RUN_CHANGES, RunRecord
from turnwise.memory.conversation.sessions import SESSION_CHANGES, Inherited, SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord, turn_id
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.stores.base import NO_CALLER, Commit
from turnwise.memory.stores.sql.schema import USAGE
from turnwise.memory.values.corrupt_records import UNDECODABLE, UnfitError
from turnwise.memory.values.records import record_of, record_text


def log_key(log: str) -> int:
    """Return the session key that a log's name stands for; 0, which is no session's key, if the name is invalid."""
    key = int(log) if log.isascii() and log.isdigit() and len(log) <= _KEY_DIGITS else 0
    return key if key.bit_length() <= _KEY_BITS else 0


_KEY_BITS = 63
_KEY_DIGITS = 19
"""Digits of the largest number of that many bits."""


_SPANS = ("prompt", "appended", "input", "output", "carried", "removed")
_TURN_TEXTS = {*_SPANS, "usage", "stop_reason", "metadata", "marks"}
_RUN_TEXTS = {
    *("labels", "why", "usage", "stop_reason", "calls", "params", "output"),
    *("instructions", "tools", "overflow", "trace"),
}
_SESSION_TEXTS = {"metadata", "title", "params", "budget", "branches", "agents_usage", "members"}
_DELIVERY_TEXTS = {"payload", "schedule", "why"}
"""The fields whose columns are JSON text."""


def _values(row: Any, names: Iterable[str], texts: set[str]) -> dict[str, Any]:
    """Return the columns with these names as JSON values, without those that are NULL."""
    values: dict[str, Any] = {}
    for name in names:
        value = getattr(row, name)
        if value is UNDECODABLE:
            raise UnfitError("it is not UTF-8 text")
        if value is not None:
            values[name] = pydantic_core.from_json(value) if name in texts else whole_id(value)
    for field_name in _USAGES & values.keys():
        values[field_name] = _long_names(values[field_name])
    return values


def _long_names(usage: Any) -> dict[str, Any]:
    names: dict[str, Any] = dict(usage)
    return {_LONG.get(name, name): number for name, number in names.items()}


def packed_id(run_id: str) -> bytes | str:
    """Return the id of a run as a SQLite file has it: in half of the space, if `new_id` has made it."""
    return bytes.fromhex(run_id) if _NEW_ID.fullmatch(run_id) else run_id


def whole_id(value: Any) -> Any:
    """Return the id that `packed_id` packed; any other value as it is."""
    return value.hex() if isinstance(value, bytes) else value


_NEW_ID = re.compile("[0-9a-f]{24}")


_USAGES = {"usage", "agents_usage"}
"""The fields that are usages in JSON text, with short names."""

_SHORT = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cached_tokens": "cached",
    "reasoning_tokens": "thought",
    "calls": "calls",
    "tool_calls": "tools",
    "seconds": "s",
    "cost": "cost",
    "counted_tokens": "counted",
}
"""Short names of usage fields, since every turn and run stores them as text."""

_LONG = {short: name for name, short in _SHORT.items()}


def _usage_text(usage: Usage | None) -> str | None:
    if usage is None:
        return None
    seconds, cost = _rounded(usage)
    values = vars(usage) | {"seconds": seconds, "cost": cost}
    return to_json({short: values[name] for name, short in _SHORT.items() if values[name]})


def _rounded(usage: Usage) -> tuple[float, float]:
    return round(usage.seconds, 6), round(usage.cost, 12)  # more digits are noise


_OWN_LOG = 0
"""Stored in spans instead of the key of the turn's own log, to save space: a key has up to 19 digits. No session has
the key 0."""


def spans_text(spans: Spans, own: int) -> str:
    """Return spans as JSON; those of a session's own log are short."""
    name = str(own)
    texts = [f"[{_OWN_LOG if log == name else int(log)},{start},{stop}]" for log, start, stop in spans]
    return f"[{','.join(texts)}]"


def read_spans(spans: Iterable[tuple[int, int, int]], own: int) -> Spans:
    """Return the spans that `spans_text` wrote, from their JSON."""
    return tuple(Span(str(own if log == _OWN_LOG else log), start, stop) for log, start, stop in spans)


def short_body(block: str) -> str:
    """Return an encoded block as its row has it: `u"..."` for a prompt's text, `t"..."` for that of an answer."""
    short = _TEXT_BLOCK.fullmatch(block)
    return f"{short['kind'][0]}{short['text']}" if short else block


def whole_body(body: str) -> str:
    """Return the encoded block that `short_body` shortened."""
    kind = _KINDS_OF_TEXT.get(body[:2])
    return f'{{"kind":"{kind}","text":{body[1:]}}}' if kind else body


_TEXT_BLOCK = re.compile(r"""\{"kind":"(?P<kind>user|text)","text":(?P<text>"(?>[^"\\]+|\\.)*")\}""")

_KINDS_OF_TEXT = {'u"': "user", 't"': "text"}


_SESSION_FIELDS = [field.name for field in fields(SessionRecord) if field.name not in ("log", "usage", "inherited")]

_INHERITED = tuple(field.name for field in fields(Inherited))

_SESSION_COLUMNS = (*_SESSION_FIELDS, *_INHERITED, *USAGE)

CHANGED_COLUMNS = (*(name for name in SESSION_CHANGES if name != "usage"), *USAGE)
"""The columns of a session that commits change."""

_BOUND = {f"b_{name}": name for name in CHANGED_COLUMNS}


def session_row(key: int, session: SessionRecord) -> dict[str, Any]:
    columns = _session_columns(session)
    return {"key": key, **{name: columns[name] for name in _SESSION_COLUMNS}}


def _session_columns(session: SessionRecord) -> dict[str, Any]:
    """Return the values of the session's columns, among others."""
    return {
        **vars(session),
        **vars(session.usage),
        "metadata": to_json(session.metadata or None),
        "title": to_json(session.title),
        "called_by": session.called_by or NO_CALLER,
        "memory": _unless_on(session.memory),
        "params": to_json(session.params or None),
        "depth": session.depth,
        "budget": to_json(session.budget or None),
        "prefix_key": session.inherited.prefix_key or None,
        "branches": to_json(session.branches or None),
        "members": to_json(session.members or None),
        "agents_usage": _usage_text(session.agents_usage) if session.agents_usage != _UNUSED else None,
    }


_UNUSED = Usage()


def _unless_on(use: MemoryUse) -> str | None:
    return None if use == "on" else use


def changed_session_row(key: SessionKey, epoch: int, commit: Commit) -> dict[str, Any]:
    """Return the session fields that a commit changes and those that it must match, for the `put_session` statement."""
    session = commit.session
    columns = _session_columns(session)
    return {
        "b_key": log_key(session.log),
        "b_session_id": key.session_id,
        "b_user_id": key.user_id,
        "b_epoch": epoch,
        "b_revision_before": session.revision - 1,
        "b_log_size_before": commit.log_size_before,
        **{bound: columns[name] for bound, name in _BOUND.items()},
    }


def member_row(key: int, user_id: str) -> dict[str, Any]:
    return {"user_id": user_id, "session": key}


def left_member_row(key: int, user_id: str) -> dict[str, Any]:
    return {"b_user_id": user_id, "b_session": key}


def ledger_values(key: LedgerKey, numbers: Sequence[int]) -> dict[str, Any]:
    return {**key._asdict(), **dict(zip(NUMBERS, numbers, strict=True))}


def read_usage(row: Any) -> Usage:
    """Return a session's usage, which has a column per field."""
    values: dict[str, Any] = {name: number(getattr(row, name)) for name, number in USAGE.items()}
    return Usage(**values)


def read_session(row: Any) -> SessionRecord:
    return decoded(
        f"session {row.session_id if isinstance(row.session_id, str) else f'of key {row.key}'}",
        lambda: record_of(
            SessionRecord,
            _values(row, _SESSION_FIELDS, _SESSION_TEXTS)
            | {"inherited": _values(row, _INHERITED, _SESSION_TEXTS)}
            | {"log": str(row.key), "usage": read_usage(row), "called_by": row.called_by or None},
        ),
    )


def read_title(title: Any) -> str | None:
    """Return the title of a session from its column; None if it cannot be read."""
    with suppress(ValueError, TypeError):
        return str(pydantic_core.from_json(title)) if title else None
    return None


OF_RUN = ""
"""Stored in place of a text of a turn that the row of its run has. That of the end is there once the run has ended."""

NO_PARENT = ""
"""Stored in place of the parent of a turn that is not the first and continues none; NULL is the turn before it."""


def turn_row(key: int, turn: TurnRecord, session_id: str, run: RunRecord | None = None) -> dict[str, Any]:
    """Return the row of a turn: without what the row of its run has.

    Args:
        run: the run that is stored with it, if any. A run that has ended does not change any more.
    """
    row = {
        "session": key,
        "idx": turn.index,
        "parent": None if turn.parent == _usual_parent(session_id, turn.index) else turn.parent or NO_PARENT,
        "turn_id": turn.turn_id,
        "run_id": turn.run_id,
        "status": turn.status,
        "prompt": spans_text(turn.prompt, key),
        "appended": spans_text(turn.appended, key) if turn.appended else None,
        "input": USUAL if turn.input and turn.input == _usual_input(turn.prompt, key) else spans_text(turn.input, key),
        "output": spans_text(turn.output, key),
        "carried": spans_text(turn.carried, key) if turn.carried else None,
        "usage": _usage_text(turn.usage),
        "stop_reason": to_json(turn.stop_reason),
        "created_at": turn.created_at,
        "metadata": to_json(turn.metadata or None),
        "forgotten": turn.forgotten or None,
        "removed": spans_text(turn.removed, key) if turn.removed else None,
        "marks": to_json(turn.marks or None),
    }
    if run and run.run_id == turn.run_id:
        row["run_id"] = OF_RUN
        if run.created_at == turn.created_at:
            row["created_at"] = None
        if run.state == turn.status and not run.is_open:
            row["status"] = OF_RUN
            if turn.usage is not None and turn.usage == run.usage:
                row["usage"] = OF_RUN
            if turn.stop_reason is not None and turn.stop_reason == run.stop_reason:
                row["stop_reason"] = OF_RUN
    return row


USUAL = ""
"""Stored in place of a turn's input that is all of the session's own log up to the end of the prompt."""


def _usual_input(prompt: Spans, own: int) -> Spans:
    name = str(own)
    return (Span(name, 0, prompt[-1].stop),) if prompt and prompt[-1].log == name else ()


def _usual_parent(session_id: str, index: int) -> str | None:
    """Return the turn that most turns with this index continue: the one before; None for the first."""
    return turn_id(session_id, index - 1) if index else None


_TURN_FIELDS = [field.name for field in fields(TurnRecord) if field.name not in ("index", "forgotten")]


def read_turn(row: Any, key: SessionKey) -> TurnRecord:
    """Return the turn of a row, which has what the row of its run has: see `Statements`."""

    def decode() -> TurnRecord:
        names = [name for name in _TURN_FIELDS if name != "input" or row.input != USUAL]
        values = _values(row, names, _TURN_TEXTS)
        parent = values.pop("parent", _usual_parent(key.session_id, row.idx)) or None
        for name in _SPANS:
            if name in values:
                values[name] = read_spans(values[name], row.session)
        if "input" not in values:
            values["input"] = _usual_input(values["prompt"], row.session)
        return record_of(TurnRecord, values | {"parent": parent, "index": row.idx, "forgotten": bool(row.forgotten)})

    return decoded(f"turn {key.session_id}#{row.idx}", decode)


_RUN_FIELDS = [field.name for field in fields(RunRecord) if field.name not in ("session_id", "user_id", "origin")]


def run_row(key: int, run: RunRecord, *, packs_id: bool) -> dict[str, Any]:
    values = vars(run)
    return {
        "session": key,
        **{name: values[name] for name in _RUN_FIELDS},
        "run_id": packed_id(run.run_id) if packs_id else run.run_id,
        "labels": to_json(run.labels or None),
        "memory": _unless_on(run.memory),
        "params": to_json(run.params or None),
        "output": to_json(run.output),
        "instructions": to_json(run.instructions),
        "tools": to_json(run.tools or None),
        "overflow": to_json(run.overflow),
        "trace": to_json(run.trace or None),
        "joins": run.joins or None,
        "idempotency_key": run.idempotency_key,
        "fingerprint": run.origin.fingerprint or None,
        "author": run.author,
        **_run_texts(run),
    }


CHANGED_RUN_COLUMNS = RUN_CHANGES
"""The columns of a run that commits change."""

_BOUND_OF_RUN = {f"b_{name}": name for name in CHANGED_RUN_COLUMNS}


def _run_texts(run: RunRecord) -> dict[str, str | None]:
    return {
        "why": to_json(run.why),
        "usage": _usage_text(run.usage),
        "stop_reason": to_json(run.stop_reason),
        "calls": to_json(run.calls or None),
    }


def changed_run_row(key: int, run: RunRecord) -> dict[str, Any]:
    """Return the fields of a run that may change after it was stored, for the `put_run` statement."""
    values = {**vars(run), **_run_texts(run)}
    changed = {bound: values[name] for bound, name in _BOUND_OF_RUN.items()}
    return {"b_session": key, "b_turn_index": run.turn_index, **changed}


def read_run(row: Any, key: SessionKey) -> RunRecord:
    def decode() -> RunRecord:
        values = _values(row, _RUN_FIELDS, _RUN_TEXTS)
        if origin := _values(row, ("idempotency_key", "fingerprint", "author"), set()):
            values["origin"] = {"key": origin.pop("idempotency_key", None), **origin}
        if row.joins:
            values["origin"] = {**values.get("origin", {}), "joins": True}
        return record_of(RunRecord, {**values, **key._asdict()})

    return decoded(f"run {whole_id(row.run_id)}", decode)


_DELIVERY_FIELDS = [field.name for field in fields(Delivery) if field.name not in ("session_id", "user_id")]


def delivery_row(key: int, delivery: Delivery) -> dict[str, Any]:
    values = vars(delivery)
    return {
        "session": key,
        "user_id": delivery.user_id,
        **{name: values[name] for name in _DELIVERY_FIELDS},
        "payload": to_json(delivery.payload or None),
        "schedule": delivery.schedule and record_text(delivery.schedule, _SCHEDULE_FIELDS),
        "why": to_json(delivery.why),
    }


_SCHEDULE_FIELDS = {field.name for field in fields(Schedule)}

CHANGED_DELIVERY_COLUMNS = tuple(name for name in _DELIVERY_FIELDS if name not in ("delivery_id", "key", "created_at"))
"""The columns of a delivery that changes change."""


def compared_delivery_row(key: int, before: Delivery) -> dict[str, Any]:
    """Return what finds a stored delivery, if it is still this one."""
    found_by = {"b_session": key, "b_key": before.key, "b_delivery_id": before.delivery_id}
    return {**found_by, "b_revision_before": before.revision}


def received_delivery_row(user_id: str, delivery: Delivery) -> dict[str, Any]:
    """Return what finds a stored delivery of another session of this user, if it is still this one."""
    compared = compared_delivery_row(0, delivery)
    del compared["b_session"]
    return {"user_id": user_id, "session_id": delivery.session_id, **compared}


def changed_delivery_row(key: int, before: Delivery, after: Delivery) -> dict[str, Any]:
    """Return the fields of a delivery that may change, and those that it must match, for `put_delivery`."""
    columns = delivery_row(key, after)
    changed = {f"b_{name}": columns[name] for name in CHANGED_DELIVERY_COLUMNS}
    return compared_delivery_row(key, before) | changed


def read_delivery(row: Any) -> Delivery:
    """Return the delivery of a row that also has the id of its session."""
    return decoded(
        f"delivery {row.delivery_id}",
        lambda: record_of(
            Delivery,
            _values(row, _DELIVERY_FIELDS, _DELIVERY_TEXTS)
            | {"session_id": row.session_id, "user_id": row.user_id, "due_at": row.due_at},
        ),
    )


def read_deliveries(rows: Iterable[Any]) -> tuple[list[Delivery], tuple[SessionKey, ...]]:
    """Return the deliveries of rows, in order, and the sessions of those that cannot be read."""
    deliveries: list[Delivery] = []
    unreadable: dict[SessionKey, None] = {}
    for row in rows:
        try:
            deliveries.append(read_delivery(row))
        except CorruptRecordError:
            unreadable[SessionKey(str(row.session_id), str(row.user_id))] = None
    return deliveries, tuple(unreadable)


def event_row(key: int, event: Event, *, blocks: bool = False) -> dict[str, Any]:
    kind, body = encode_body(event, blocks=blocks)
    return {
        "session": key,
        "seq": event.seq,
        "at": event.at,
        "turn_index": event.turn_index,
        "run_id": event.run_id,
        "event_key": event.key,
        "kind": kind,
        "body": body,
    }


OF_TURN = ""
"""Stored in place of an event's run id, if it is the run of the event's turn; each has its id in the runs' table."""

_STARTED, _COMPLETED = "s", "c"
"""Stored in place of the kinds of the two events that most runs have, if the run's row says the rest of them."""


def run_event_row(key: int, event: Event, runs: Mapping[int | None, RunRecord]) -> dict[str, Any]:
    """Return the row of an event in a session store: without what the row of its run has.

    Args:
        runs: the runs that are stored with the event, by their turns. A run that has ended does not change any more.
    """
    run = runs.get(event.turn_index)
    if run is None or event.run_id != run.run_id:
        return event_row(key, event)
    columns: dict[str, Any] = {"session": key, "seq": event.seq, "at": event.at, "turn_index": event.turn_index}
    columns |= {"run_id": OF_TURN, "event_key": event.key}
    if event.turn_id is None and not event.labels:
        if isinstance(event, RunStarted) and event.input is None and len(event.prompt) == 1:
            log, *places = event.prompt[0]
            if not log:
                return columns | {"kind": _STARTED, "body": encode_json(places)}
        elif isinstance(event, RunCompleted) and _is_in_row(run) and _end_of(run) == (event.usage, event.stop_reason):
            return columns | {"kind": _COMPLETED, "body": encode_json(event.span or ())}
    kind, body = encode_body(event)
    return columns | {"kind": kind, "body": body}


def _end_of(run: RunRecord) -> tuple[Usage | None, str | None]:
    return run.usage, run.stop_reason


def _is_in_row(run: RunRecord) -> bool:
    """Return whether the run has completed, and its row has its usage as it is."""
    usage = run.usage or _UNUSED
    return run.state == "completed" and _rounded(usage) == (usage.seconds, usage.cost)


def whole_event_row(row: Sequence[Any], runs: Mapping[int, Sequence[Any]], session: SessionKey) -> Sequence[Any]:
    """Return the columns of an event of `SHORT_KINDS`, with what the row of its run has.

    Args:
        runs: by their turns, the id, the usage and the stop reason of the runs as they are stored.
    """
    seq, at, turn_index, _, event_key, kind, body = row

    def whole() -> Sequence[Any]:
        run_id, usage, stop_reason = runs[turn_index]
        places = pydantic_core.from_json(body)
        fields: dict[str, Any] = {"prompt": [[_OWN, *places]]} if kind == _STARTED else {}
        if kind == _COMPLETED:
            end = {"span": places or None, "stop_reason": stop_reason and pydantic_core.from_json(stop_reason)}
            end["usage"] = usage and _long_names(pydantic_core.from_json(usage))
            fields = {name: value for name, value in end.items() if value is not None}
        return seq, at, turn_index, whole_id(run_id), event_key, SHORT_KINDS[kind], encode_json(fields)

    return decoded(f"event {session.session_id}:{seq}", whole)


_OWN = ""
"""The name of the session's own log in events."""

SHORT_KINDS = {_STARTED: "run_started", _COMPLETED: "run_completed"}
"""The kinds of the events whose rows say so little, by what is stored in place of them."""


def read_sessions(rows: Iterable[Any]) -> tuple[tuple[SessionRecord, ...], tuple[SessionKey, ...]]:
    """Return the sessions of rows, in order, and the keys of those that cannot be read."""
    sessions: list[SessionRecord] = []
    unreadable: list[SessionKey] = []
    for row in rows:
        try:
            sessions.append(read_session(row))
        except CorruptRecordError:
            unreadable.append(SessionKey(str(row.session_id), str(row.user_id)))
    return tuple(sessions), tuple(unreadable)
