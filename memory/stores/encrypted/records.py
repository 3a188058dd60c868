"""Encrypts and decrypts records. The encrypted text is in one field, which is marked as encrypted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.errors import CorruptRecordError, EncryptionError, NotEncryptedError, StillEncryptedError
from turnwise.memory.conversation.codec import decoded_events, encode_json
from turnwise.memory.conversation.events import AnyEvent, Event, EventRow, UnknownEvent, encode_body
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord
from turnwise.memory.files.records import FileRecord
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.encrypted.keys import PREFIX, Place, Unsealing, UserKey
from turnwise.memory.values.frozen_json import FrozenDict, freeze

SEALED = "turnwise.sealed"
"""The kind of an encrypted event, and the only key of an encrypted mapping."""


def is_sealed(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping is encrypted."""
    return len(mapping) == 1 and str(mapping.get(SEALED)).startswith(PREFIX)


def check_session(session: SessionRecord) -> SessionRecord:
    """Return the session.

    Raises:
        StillEncryptedError: it is encrypted: the store was opened without its keys.
    """
    if is_sealed(session.metadata):
        raise StillEncryptedError(f"session {session.session_id}")
    return session


def check_events(events: list[AnyEvent]) -> list[AnyEvent]:
    """Return the events.

    Raises:
        StillEncryptedError: an event is encrypted: the store was opened without its keys.
    """
    for event in events:
        if isinstance(event, UnknownEvent) and event.stored_kind == SEALED:
            raise StillEncryptedError(f"event {event.session_id}:{event.seq}")
    return events


def check_event_rows(session: SessionKey, rows: Sequence[EventRow]) -> Sequence[EventRow]:
    """Do what `check_events` does, for events that are not decoded."""
    for row in rows:
        if row.kind == SEALED:
            raise StillEncryptedError(f"event {session.session_id}:{row.seq}")
    return rows


def block_place(log: str, position: int) -> Place:
    return Place("block", f"{log}:{position}", (log, position))


def _session_place(session: SessionRecord) -> Place:
    return Place("session", session.session_id, tuple(session.key))


def _params_place(session: SessionRecord) -> Place:
    return Place("params of session", session.session_id, tuple(session.key))


def _turn_place(session: SessionKey, turn: TurnRecord) -> Place:
    """Return the place of a turn's texts. Only commits change what it binds, and they seal the texts anew."""
    return Place("turn", f"{session.session_id}#{turn.index}", (*session, turn.index, turn.status))


def _labels_place(run: RunRecord) -> Place:
    return Place("labels of run", run.run_id, (*run.session_key, run.run_id, run.turn_index))


def _run_place(run: RunRecord) -> Place:
    """Return the place of what commits change in a run. They seal it anew whenever the state changes."""
    return Place("run", run.run_id, (*run.session_key, run.run_id, run.turn_index, run.state))


def _delivery_place(delivery: Delivery) -> Place:
    bound = (*delivery.session_key, delivery.to_session, delivery.delivery_id, delivery.revision)
    return Place("delivery", delivery.delivery_id, bound)


def _event_place(session: SessionKey, event: Event) -> Place:
    bound = (*session, event.seq, event.turn_index, event.run_id, event.key)
    return Place("event", f"{session.session_id}:{event.seq}", bound)


def seal_session(key: UserKey, session: SessionRecord) -> SessionRecord:
    sealed = replace(
        session, metadata=_seal(key, _session_place(session), [session.metadata, session.title]), title=None
    )
    # Most sessions have no parameters.
    return replace(sealed, params=_seal(key, _params_place(session), session.params)) if session.params else sealed


async def open_session(texts: Unsealing, session: SessionRecord) -> SessionRecord:
    metadata, title = await _open(texts, _session_place(session), session.metadata)
    opened = replace(session, metadata=freeze(metadata), title=title)
    if not session.params:
        return opened
    return replace(opened, params=freeze(await _open(texts, _params_place(session), session.params)))


def seal_turn(key: UserKey, session: SessionKey, turn: TurnRecord) -> TurnRecord:
    sealed = _seal(key, _turn_place(session, turn), [turn.stop_reason, turn.metadata, turn.marks])
    return replace(turn, stop_reason=None, metadata=sealed, marks=FrozenDict())


async def open_turn(texts: Unsealing, session: SessionKey, turn: TurnRecord) -> TurnRecord:
    stop_reason, metadata, marks = await _open(texts, _turn_place(session, turn), turn.metadata)
    return replace(turn, stop_reason=stop_reason, metadata=freeze(metadata), marks=freeze(marks))


def seal_run(key: UserKey, run: RunRecord) -> RunRecord:
    """Return the encrypted run. It has two encrypted parts, because commits change only one of them."""
    request = [run.labels, run.origin.fingerprint, run.params, run.output, run.instructions, run.tools, run.overflow]
    return replace(
        run,
        labels=_seal(key, _labels_place(run), request),
        origin=replace(run.origin, fingerprint=""),
        params=FrozenDict(),
        output=None,
        instructions=None,
        tools=FrozenDict(),
        overflow=None,
        calls=_seal(key, _run_place(run), [run.calls, run.why, run.stop_reason]),
        why=None,
        stop_reason=None,
    )


async def open_run(texts: Unsealing, run: RunRecord) -> RunRecord:
    request = await _open(texts, _labels_place(run), run.labels)
    labels, fingerprint, params, output, instructions, tools, overflow = request
    calls, reason, stop_reason = await _open(texts, _run_place(run), run.calls)
    return replace(
        run,
        labels=freeze(labels),
        origin=replace(run.origin, fingerprint=fingerprint),
        params=freeze(params),
        output=freeze(output),
        instructions=instructions,
        tools=freeze(tools),
        overflow=freeze(overflow),
        calls=freeze(calls),
        why=reason,
        stop_reason=stop_reason,
    )


def seal_delivery(key: UserKey, delivery: Delivery) -> Delivery:
    return replace(delivery, payload=_seal(key, _delivery_place(delivery), [delivery.payload, delivery.why]), why=None)


async def open_delivery(texts: Unsealing, delivery: Delivery) -> Delivery:
    payload, why = await _open(texts, _delivery_place(delivery), delivery.payload)
    return replace(delivery, payload=freeze(payload), why=why)


def seal_change(key: UserKey, change: DeliveryChange) -> DeliveryChange:
    return DeliveryChange(change.before, change.after and seal_delivery(key, change.after))


def _secret_place(webhook: WebhookRecord, name: str) -> Place:
    return Place(f"{name} of webhook", webhook.webhook_id, (webhook.webhook_id, webhook.url, name))


def seal_webhook(key: UserKey, webhook: WebhookRecord) -> WebhookRecord:
    """Return the webhook with encrypted secrets. An empty one stays: it could not be decrypted."""
    previous = webhook.previous_secret
    return replace(
        webhook,
        secret=key.seal(_secret_place(webhook, "secret"), webhook.secret),
        previous_secret=previous and key.seal(_secret_place(webhook, "previous_secret"), previous),
    )


async def open_webhook(texts: Unsealing, webhook: WebhookRecord) -> WebhookRecord:
    """Return the webhook; a secret that cannot be decrypted becomes empty, so that the webhook can be removed."""
    return replace(
        webhook,
        secret=await _open_secret(texts, webhook, "secret") or "",
        previous_secret=await _open_secret(texts, webhook, "previous_secret"),
    )


async def _open_secret(texts: Unsealing, webhook: WebhookRecord, name: str) -> str | None:
    sealed: str | None = getattr(webhook, name)
    try:
        return sealed and await texts.open(_secret_place(webhook, name), sealed)
    except (CorruptRecordError, EncryptionError):
        return None


def seal_event(key: UserKey, session: SessionKey, event: Event, *, blocks: bool = False) -> AnyEvent:
    """Return the encrypted event. Its kind is encrypted too. Equal events give equal results, so stores see repeats.

    Args:
        blocks: whether to include the event's blocks.
    """
    return UnknownEvent(
        stored_kind=SEALED,
        session_id=event.session_id,
        user_id=event.user_id,
        seq=event.seq,
        at=event.at,
        turn_index=event.turn_index,
        run_id=event.run_id,
        key=event.key,
        payload=_seal(key, _event_place(session, event), encode_body(event, blocks=blocks), repeatable=True),
    )


async def open_event(texts: Unsealing, session: SessionKey, event: Event) -> AnyEvent:
    (opened,) = await open_events(texts, session, [event])
    return opened


async def open_events(texts: Unsealing, session: SessionKey, events: Iterable[Event]) -> list[AnyEvent]:
    return decoded_events(session, [await open_event_row(texts, session, event) for event in events])


async def open_event_row(texts: Unsealing, session: SessionKey, event: Event) -> EventRow:
    """Return the decrypted row of an event, which is not decoded yet."""
    place = _event_place(session, event)
    if not isinstance(event, UnknownEvent) or event.stored_kind != SEALED:
        raise NotEncryptedError(place.record)
    kind, body = await _open(texts, place, event.payload)
    return EventRow(event.seq, event.at, event.turn_index, event.run_id, event.key, kind, body)


def seal_commit(key: UserKey, of: SessionKey, commit: Commit) -> Commit:
    session = commit.session
    first = session.log_size - len(commit.blocks)
    places = (block_place(session.log, position) for position in range(first, session.log_size))
    return replace(
        commit,
        session=seal_session(key, session),
        blocks=[key.seal(place, block) for place, block in zip(places, commit.blocks, strict=True)],
        cleared_blocks=[
            (position, key.seal(block_place(session.log, position), block)) for position, block in commit.cleared_blocks
        ],
        turns=[seal_turn(key, of, turn) for turn in commit.turns],
        new_run=commit.new_run and seal_run(key, commit.new_run),
        runs=[seal_run(key, run) for run in commit.runs],
        events=[seal_event(key, of, event) for event in commit.events],
        deliveries=[seal_change(key, change) for change in commit.deliveries],
    )


def _seal(key: UserKey, place: Place, value: Any, *, repeatable: bool = False) -> FrozenDict:
    return FrozenDict({SEALED: key.seal(place, encode_json(value), repeatable=repeatable)})


async def _open(texts: Unsealing, place: Place, mapping: Mapping[str, Any]) -> Any:
    if not is_sealed(mapping):
        raise NotEncryptedError(place.record)
    return json.loads(await texts.open(place, mapping[SEALED]))


def seal_file(secret: UserKey, file: FileRecord) -> FileRecord:
    """Return the record with its name and digest encrypted, in the place of the name.

    In the place of the digest is one by which nobody without the key can tell the content.
    """
    text = secret.seal(_file_place(file), json.dumps([file.name, file.digest]))
    return replace(file, name=text, digest=secret.digest_of(file.digest))


async def open_file(texts: Unsealing, file: FileRecord) -> FileRecord:
    name, digest = json.loads(await texts.open(_file_place(file), file.name))
    return replace(file, name=name, digest=digest)


def _file_place(file: FileRecord) -> Place:
    """Return the place of a file's name: its id, since forks share files."""
    return Place("file", file.file_id, (file.file_id,))
