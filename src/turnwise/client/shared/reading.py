"""Reads answers: makes of their JSON the values that `SessionManager` returns.

What an answer does not have, since it is of use only to a store, has its default value: the log, the epoch and the
revision of a session, the trace of a run, and where the bytes of a file are.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

from turnwise.actors.client.shared.event_page import EventPage
from turnwise.actors.hosting.wire import DrainReport, HostInfo, HostLoad, SessionInfo
from turnwise.memory.archive.expiry import Swept
from turnwise.memory.conversation.blocks import AnyBlock, decode_json, encode
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.ledger import LedgerRow, UsageReport
from turnwise.memory.conversation.marks import Mark, MarkedMessage
from turnwise.memory.conversation.runs import RunOrigin, RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.chat_messages import ChatMessage, parse_place
from turnwise.memory.conversation.views.message_formats import Messages
from turnwise.memory.conversation.views.steps import Step
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.deliveries.webhooks import WebhookRecord
from turnwise.memory.files.records import OF_USER, FileRecord
from turnwise.memory.longterm.base import MemoryItem, Source
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.recall.recalled_content import RecalledContent, RecalledItems
from turnwise.memory.longterm.retention.about import About, Deleted, Mention
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.quotas.records import Quota, QuotaUse
from turnwise.memory.quotas.tenants import Tenant
from turnwise.memory.stores.base import Page
from turnwise.memory.stores.search.finding import SearchHit
from turnwise.memory.values.frozen_json import FrozenDict, freeze
from turnwise.strategies.compaction import Compaction, Reason
from turnwise.strategies.ranges import Range

Json = Mapping[str, Any]
Item = TypeVar("Item")


def page_of(data: Json, read: Callable[[Any], Item]) -> Page[Item]:
    """Return a page; `read` makes each of its items."""
    unreadable = tuple(SessionKey(**key) for key in data.get("unreadable") or ())
    return Page(tuple(map(read, data["items"])), data.get("cursor"), unreadable)


def _frozen(value: Any) -> FrozenDict:
    frozen: FrozenDict = freeze(dict(value or {}))
    return frozen


def _frozen_or_none(value: Any) -> FrozenDict | None:
    return None if value is None else _frozen(value)


def _usage(value: Json | None) -> Usage | None:
    return None if value is None else Usage(**value)


def _named(data: Json, *names: str) -> dict[str, Any]:
    return {name: data[name] for name in names}


# Sessions and what was said


def session_of(data: Json) -> SessionRecord:
    """Return a session's record."""
    names = ("user_id", "agent", "title", "status", "created_at", "updated_at", "parent", "called_by", "memory")
    return SessionRecord(
        session_id=data["id"],
        metadata=_frozen(data["metadata"]),
        next_index=data["turns"],
        usage=Usage(**data["usage"]),
        agents_usage=Usage(**data["agents_usage"]),
        params=_frozen(data["params"]),
        members=_frozen(data["members"]),
        **_named(data, *names, "ttl_s", "model", "engine", "marks"),
    )


def info_of(data: Json) -> SessionInfo:
    """Return a session's record with its open runs; its process is not shown."""
    queued = tuple(data["queued_run_ids"])
    record = session_of(data)
    return SessionInfo(
        session=record, active_run_id=data["active_run_id"], queued_run_ids=queued, pid=None, node_id=None
    )


def message_of(data: Json) -> ChatMessage:
    """Return a message."""
    names = ("session_id", "turn_index", "number", "role", "text", "at", "turn_status", "run_id", "is_partial")
    place = str(data["place"])
    return ChatMessage(
        blocks=blocks_of(data["blocks"]),
        places=parse_place(place)[1] if not place.endswith("~") else (),
        marks={name: mark_of(mark) for name, mark in data["marks"].items()},
        versions=tuple(data["versions"]),
        author=data["author"],
        **_named(data, *names),
    )


def blocks_of(data: Iterable[Any]) -> tuple[AnyBlock, ...]:
    """Return blocks."""
    return tuple(map(decode_json, data))


def mark_of(data: Json) -> Mark:
    """Return a mark."""
    return Mark(name=data["name"], value=freeze(data["value"]), by=data["by"], at=data["at"])


def marked_of(data: Json) -> MarkedMessage:
    """Return a mark with its message."""
    return MarkedMessage(mark=mark_of(data["mark"]), **_named(data, "session_id", "user_id", "turn_index", "number"))


def hit_of(data: Json) -> SearchHit:
    """Return a message that a search has found."""
    names = ("session_id", "user_id", "title", "agent", "turn_index", "number", "role", "at", "snippet")
    return SearchHit(ranges=tuple((start, stop) for start, stop in data["ranges"]), **_named(data, *names))


def messages_of(data: Json) -> Messages:
    """Return messages in the format of another library."""
    return Messages(data["messages"], format=data["format"], system=data["system"], left_out=data["left_out"])


def compaction_of(data: Json) -> Compaction:
    """Return what a compaction changes."""
    reasons = tuple(
        Reason(Range(part["start"], part["stop"]), part["fate"], part["tokens"], part["why"]) for part in data["parts"]
    )
    names = ("strategy", "tokens_before", "tokens_after", "summary", "done")
    return Compaction(reasons=reasons, **_named(data, *names))


def forgotten_of(data: Json) -> Forgotten:
    """Return the report of a deletion."""
    names = ("sessions", "turns", "summaries", "waiting", "notes", "webhooks", "items", "was_checked")
    erased = {
        name: Erasure(found=tuple(part["found"]), **_named(part, "items", "files", "verified", "why"))
        for name, part in data["erased"].items()
    }
    return Forgotten(in_use=tuple(data["in_use"]), erased=erased, **_named(data, *names))


# Runs


def run_of(data: Json) -> RunRecord:
    """Return a run's record."""
    names = ["session_id", "user_id", "turn_index", "state", "first_seq", "created_at", "started_at", "ended_at", "why"]
    names += ["code", "successor", "timeout_s", "stop_reason", "resumes", "engine", "parent", "memory", "model"]
    output = {"says": data["says"]} if data["says"] is not None else data["output"]
    return RunRecord(
        run_id=data["id"],
        labels=_frozen(data["labels"]),
        origin=RunOrigin(key=data["idempotency_key"], author=data["author"]),
        usage=_usage(data["usage"]),
        calls=_frozen(data["calls"]),
        params=_frozen(data["params"]),
        output=_frozen_or_none(output),
        instructions=data["instructions"],
        tools=_frozen(data["tools"]),
        overflow=_frozen_or_none(data["overflow"]),
        **_named(data, *names),
    )


EVENT_END = b"\n\n"
"""What ends an event of a stream. What follows the last one is half an event, of a stream that was cut."""


def sse_fields(event: bytes) -> dict[bytes, bytes]:
    """Return the fields of an event of a stream by their names; a comment has none."""
    lines = (line.partition(b": ") for line in event.split(b"\n"))
    return {name: value for name, _, value in lines if name}


def read_event(text: str | bytes) -> AnyEvent:
    """Return an event of a stream; one of a kind that this version does not know is an `UnknownEvent`."""
    event: AnyEvent = _events().validate_json(text)
    return event


@functools.cache
def _events() -> TypeAdapter[Any]:
    return TypeAdapter(AnyEvent)


def events_of(data: Iterable[dict[str, Any]]) -> list[AnyEvent]:
    """Return events."""
    return [read_event(json.dumps(event)) for event in data]


def event_page_of(data: Json) -> EventPage:
    """Return a page of events."""
    return EventPage(events_of(data["items"]), data["next"])


def step_of(data: Json) -> Step:
    """Return a step of a run."""
    return Step(**{**data, "usage": _usage(data["usage"])})


def pending_of(data: Json) -> PendingCall:
    """Return a call that waits for a decision."""
    return PendingCall(**{**data, "input": _frozen(data["input"])})


def delivery_of(data: Json) -> Delivery:
    """Return a schedule, or a message to another session."""
    names = ("session_id", "user_id", "key", "to_session", "revision", "kind", "occurs_at", "due_at", "missed")
    recurs = data["every_s"] is not None or data["cron"] is not None
    schedule = Schedule(
        every_s=data["every_s"], cron=data["cron"], timezone=data["timezone"] or "UTC", until=data["until"]
    )
    prompts = [encode(block) for block in blocks_of(data["prompt"])]
    return Delivery(
        delivery_id=data["id"],
        payload=run_payload(prompts, data["options"]),
        schedule=schedule if recurs else None,
        **_named(data, *names, "if_busy", "created_at", "attempts", "why"),
    )


# Files and webhooks


def file_of(data: Json) -> FileRecord:
    """Return a file, without the place of its bytes."""
    names = ("file_id", "user_id", "name", "media_type", "size", "digest", "created_at")
    return FileRecord(session_id=data["session_id"] or OF_USER, object_id="", **_named(data, *names))


def webhook_of(data: Json) -> WebhookRecord:
    """Return a webhook, with its secret if the answer has it."""
    names = ("url", "user_id", "allow_private", "is_enabled", "created_at")
    secret = data.get("secret") or ""
    return WebhookRecord(webhook_id=data["id"], events=tuple(data["events"]), secret=secret, **_named(data, *names))


def failed_call_of(data: Json) -> Delivery:
    """Return a call of a webhook that was given up."""
    names = ("session_id", "user_id", "created_at", "attempts", "why")
    identity = {"delivery_id": data["id"], "key": data["id"], "kind": "call"}
    times = {"occurs_at": data["created_at"], "due_at": None}
    return Delivery(payload=_frozen(data["payload"]), **identity, **times, **_named(data, *names))


# Quotas, spending and tenants


def quota_use_of(data: Json) -> QuotaUse:
    """Return a quota, with what was used of it."""
    limit = data["limit"] if data["limits"] == "cost" else int(data["limit"])
    names: dict[str, Any] = {"user_id": data.get("user"), "agent": data.get("agent"), "tenant": data.get("tenant")}
    quota = Quota(**names | {data["limits"]: limit}, per=data["per"], then=data["then"])
    return QuotaUse(quota=quota, used=data.get("used"), resets_at=data["resets_at"])


def report_of(data: Json) -> UsageReport:
    """Return what was spent."""
    rows = tuple(map(_row, data["rows"]))
    return UsageReport(by=tuple(data["by"]), since=data.get("since"), until=data.get("until"), rows=rows)


def _row(data: Json) -> LedgerRow:
    names = {"day": "day", "user": "user_id", "agent": "agent", "session": "session_id", "kind": "kind"}
    names |= {"model": "model", "tool": "tool", "tenant": "tenant"}
    usage = {name: value for name, value in data.items() if name not in names and name != "runs"}
    keys = {field: data[name] for name, field in names.items() if name in data}
    return LedgerRow(runs=data["runs"], usage=Usage(**usage), **keys)


def tenant_of(data: Json) -> Tenant:
    """Return a tenant."""
    return Tenant(**data)


# Processes, nodes and expired sessions


def host_of(data: Json) -> HostInfo:
    """Return a process that hosts sessions."""
    load = data["load"]
    names = ("name", "is_packed", "is_replaced", "pid", "node_id", "node", "memory_bytes")
    counts = load and _named(load, "sessions", "calls", "waits")
    return HostInfo(load=load and HostLoad(recent=_keys(load["recent"]), **counts), **_named(data, *names))


def drain_report_of(data: Json) -> DrainReport:
    """Return how a node was drained."""
    return DrainReport(**{**data, "late": tuple(data["late"])})


def swept_of(data: Json) -> Swept:
    """Return what became of expired sessions."""
    groups = {name: _keys(data[name]) for name in ("deleted", "busy", "used")}
    failed = {SessionKey(part["session_id"], part["user_id"]): part["why"] for part in data["failed"]}
    return Swept(failed=failed, cursor=data["cursor"], **groups)


def _keys(data: Iterable[Json]) -> tuple[SessionKey, ...]:
    return tuple(SessionKey(part["session_id"], part["user_id"]) for part in data)


# Memories


def item_of(data: Json) -> MemoryItem:
    """Return an item of a memory."""
    names = ("id", "text", "topic", "name", "created_at", "updated_at", "superseded_at", "superseded_by", "expires_at")
    return MemoryItem(
        type=MemoryType(data["type"]),
        aliases=tuple(data["aliases"]),
        words=tuple(data["words"]),
        source=Source(session_id=data["session_id"], turn_index=data["turn_index"]),
        **_named(data, *names, "status", "pinned", "score", "passage", "memory"),
    )


def recalled_of(data: Json) -> RecalledItems:
    """Return what was recalled."""
    items = RecalledItems(list(map(item_of, data["items"])))
    items.trouble = data["trouble"]
    return items


def recalled_content_of(data: Json) -> RecalledContent:
    """Return what was recalled, by kinds of memories."""
    parts = {name: tuple(map(item_of, data[name])) for name in ("static", "extracted", "vector")}
    return RecalledContent(failed=data["failed"], **parts)


def mention_of(data: Json) -> Mention:
    """Return an item that belongs to a subject."""
    return Mention(**{**data, "type": None if data["type"] is None else MemoryType(data["type"])})


def about_of(data: Json) -> About:
    """Return what memories have about a subject."""
    mentions, similar = (tuple(map(mention_of, data[name])) for name in ("mentions", "similar"))
    return About(mentions=mentions, notes=tuple(data["notes"]), similar=similar, failed=data["failed"])


def deleted_of(data: Json) -> Deleted:
    """Return what became of items that were to be deleted."""
    return Deleted(count=data["deleted"], left=About(mentions=tuple(map(mention_of, data["left"]))))
