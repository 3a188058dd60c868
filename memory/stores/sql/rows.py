"""Converts records to table rows and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from typing import Any, TypeVar

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.corrupt_records import UNDECODABLE, why_unreadable
from turnwise.memory.conversation.events import AnyEvent, Event, decode_event, encode_body
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.sql.schema import USAGE

Result = TypeVar("Result")


def log_key(log: str) -> int:
    """Return the key of the session that has this log; 0, which no session has, for a name that is not a log's."""
    key = int(log) if log.isascii() and log.isdigit() and len(log) <= _KEY_DIGITS else 0
    return key if key.bit_length() <= _KEY_BITS else 0


_KEY_BITS = 63
_KEY_DIGITS = 19
"""Digits of the largest number of that many bits."""


def to_json(value: Any) -> str | None:
    """Return a value as JSON text, None as None. Also used for free text, since PostgreSQL text cannot hold NUL."""
    return None if value is None else _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _parse(kind: str, key: object, row: Any, parse: Callable[[], Result]) -> Result:
    try:
        if UNDECODABLE in tuple(row):
            raise TypeError("not UTF-8")
        return parse()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptRecordError(f"{kind} {key}", why_unreadable(error)) from None


def _text(text: str | None) -> str | None:
    return None if text is None else str(json.loads(text))


def _mapping(text: str | None) -> FrozenDict:
    return FrozenDict(freeze(json.loads(text))) if text else FrozenDict()


_SHORT = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cached_tokens": "cached",
    "reasoning_tokens": "thought",
    "calls": "calls",
    "tool_calls": "tools",
    "seconds": "s",
    "cost": "cost",
}
"""Short names of usage fields, since every turn and run stores them as text. Version 1 wrote the long names."""

_LONG = {short: name for name, short in _SHORT.items()}


def _usage_text(usage: Usage | None) -> str | None:
    if usage is None:
        return None
    values = {name: getattr(usage, name) for name in USAGE}
    values |= {"seconds": round(usage.seconds, 6), "cost": round(usage.cost, 12)}  # more digits are noise
    return to_json({_SHORT[name]: value for name, value in values.items() if value})


def _usage(text: str | None) -> Usage | None:
    if not text:
        return None
    values: dict[str, Any] = dict(json.loads(text))
    return Usage(**{_LONG.get(name, name): value for name, value in values.items()})


_OWN_LOG = 0
"""Stands for the turn's own session in stored spans, since keys have 19 digits. No session has the key 0."""


def _spans_text(spans: Spans, own: int) -> str:
    logs = [_OWN_LOG if int(log) == own else int(log) for log, _, _ in spans]
    return f"[{','.join(f'[{log},{span.start},{span.stop}]' for log, span in zip(logs, spans, strict=True))}]"


def _spans(text: str, own: int) -> Spans:
    return tuple(Span(str(own if log == _OWN_LOG else log), start, stop) for log, start, stop in json.loads(text))


_SESSION_OTHERS = ("log", "metadata", "usage", "memory", "params")
_SESSION_FIELDS = tuple(field.name for field in fields(SessionRecord) if field.name not in _SESSION_OTHERS)


def session_row(key: int, session: SessionRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key}
    row |= {field.name: getattr(session, field.name) for field in fields(session) if field.name not in ("log", "usage")}
    return row | _session_texts(session) | asdict(session.usage)


def _session_texts(session: SessionRecord) -> dict[str, str | None]:
    return {
        "metadata": to_json(session.metadata or None),
        "memory": _unless_on(session.memory),
        "params": to_json(session.params or None),
    }


def _unless_on(use: MemoryUse) -> str | None:
    return None if use == "on" else use


def changed_session_row(session_id: str, epoch: int, commit: Commit) -> dict[str, Any]:
    """Return the session fields that a commit changes and those that it must match, for the `put_session` statement."""
    session, usage = commit.session, commit.session.usage
    return {
        "b_key": log_key(session.log),
        "b_session_id": session_id,
        "b_epoch": epoch,
        "b_revision_before": session.revision - 1,
        "b_log_size_before": commit.log_size_before,
        "b_revision": session.revision,
        "b_status": session.status,
        "b_updated_at": session.updated_at,
        "b_log_size": session.log_size,
        "b_next_index": session.next_index,
        "b_seq": session.seq,
        "b_saved": session.saved,
        "b_ttl_s": session.ttl_s,
        "b_model": session.model,
        **{f"b_{name}": text for name, text in _session_texts(session).items()},
        **{f"b_{name}": getattr(usage, name) for name in USAGE},
    }


def read_usage(row: Any) -> Usage:
    """Return the usage of a session, which has its own columns."""
    values: dict[str, Any] = {name: number(getattr(row, name)) for name, number in USAGE.items()}
    return Usage(**values)


def read_session(row: Any) -> SessionRecord:
    return _parse(
        "session",
        row.session_id if isinstance(row.session_id, str) else f"of key {row.key}",
        row,
        lambda: SessionRecord(
            **{name: getattr(row, name) for name in _SESSION_FIELDS},
            log=str(row.key),
            metadata=_mapping(row.metadata),
            usage=read_usage(row),
            memory=row.memory or "on",
            params=_mapping(row.params),
        ),
    )


def turn_row(key: int, turn: TurnRecord) -> dict[str, Any]:
    return {
        "session": key,
        "idx": turn.index,
        "parent": turn.parent,
        "run_id": turn.run_id,
        "status": turn.status,
        "prompt": _spans_text(turn.prompt, key),
        "appended": _spans_text(turn.appended, key) if turn.appended else None,
        "input": _spans_text(turn.input, key),
        "output": _spans_text(turn.output, key),
        "carried": _spans_text(turn.carried, key) if turn.carried else None,
        "usage": _usage_text(turn.usage),
        "stop_reason": to_json(turn.stop_reason),
        "created_at": turn.created_at,
        "metadata": to_json(turn.metadata or None),
        "forgotten": turn.forgotten or None,
    }


def read_turn(row: Any, session_id: str) -> TurnRecord:
    return _parse(
        "turn",
        f"{session_id}#{row.idx}",
        row,
        lambda: TurnRecord(
            index=row.idx,
            parent=row.parent,
            run_id=row.run_id,
            status=row.status,
            prompt=_spans(row.prompt, row.session),
            appended=_spans(row.appended, row.session) if row.appended else (),
            input=_spans(row.input, row.session),
            output=_spans(row.output, row.session),
            carried=_spans(row.carried, row.session) if row.carried else (),
            usage=_usage(row.usage),
            stop_reason=_text(row.stop_reason),
            created_at=row.created_at,
            metadata=_mapping(row.metadata),
            forgotten=bool(row.forgotten),
        ),
    )


_RUN_TEXTS = ("labels", "why", "usage", "stop_reason", "calls")
_RUN_FIELDS = tuple(
    field.name
    for field in fields(RunRecord)
    if field.name not in ("session_id", "memory", "params", "output", *_RUN_TEXTS)
)


def run_row(key: int, run: RunRecord) -> dict[str, Any]:
    row = {name: getattr(run, name) for name in _RUN_FIELDS}
    fixed = {
        "session": key,
        "labels": to_json(run.labels or None),
        "memory": _unless_on(run.memory),
        "params": to_json(run.params or None),
        "output": to_json(run.output),
    }
    return row | fixed | _run_texts(run)


def _run_texts(run: RunRecord) -> dict[str, str | None]:
    return {
        "why": to_json(run.why),
        "usage": _usage_text(run.usage),
        "stop_reason": to_json(run.stop_reason),
        "calls": to_json(run.calls or None),
    }


def changed_run_row(key: int, run: RunRecord) -> dict[str, Any]:
    """Return the fields of a run that may change after it was stored, for the `put_run` statement."""
    return {
        "b_session": key,
        "b_turn_index": run.turn_index,
        "b_state": run.state,
        "b_first_seq": run.first_seq,
        "b_started_at": run.started_at,
        "b_ended_at": run.ended_at,
        "b_code": run.code,
        "b_resumes": run.resumes,
        **{f"b_{name}": text for name, text in _run_texts(run).items()},
    }


def read_run(row: Any, session_id: str) -> RunRecord:
    values = {name: getattr(row, name) for name in _RUN_FIELDS}
    return _parse(
        "run",
        row.run_id,
        row,
        lambda: RunRecord(
            session_id=session_id,
            labels=_mapping(row.labels),
            why=_text(row.why),
            usage=_usage(row.usage),
            stop_reason=_text(row.stop_reason),
            calls=_mapping(row.calls),
            memory=row.memory or "on",
            params=_mapping(row.params),
            output=_mapping(row.output) if row.output else None,
            **values,
        ),
    )


def event_row(key: int, event: Event) -> dict[str, Any]:
    kind, body = encode_body(event)
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


def read_event(row: Iterable[Any], session_id: str) -> AnyEvent:
    """Return the event of a row, which has the columns of an events table in their order."""
    _, seq, at, turn_index, run_id, key, kind, body = row  # access by name would take longer than decoding the body
    try:
        return decode_event(
            kind, body, session_id=session_id, seq=seq, at=at, turn_index=turn_index, run_id=run_id, key=key
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecordError(f"event {session_id}:{seq}", why_unreadable(error)) from None


def read_sessions(rows: Iterable[Any]) -> tuple[tuple[SessionRecord, ...], tuple[str, ...]]:
    """Return the sessions of rows, in order, and the ids of those that cannot be read."""
    sessions: list[SessionRecord] = []
    unreadable: list[str] = []
    for row in rows:
        try:
            sessions.append(read_session(row))
        except CorruptRecordError:
            unreadable.append(str(row.session_id))
    return tuple(sessions), tuple(unreadable)
