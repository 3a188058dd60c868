# Made from actors/client/forgetting.py by `make blocking`: change that file.
"""`forget` and `clear`: remove what a user's sessions and memories keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.blocking.store_reads import StoreReads
from turnwise.actors.client.blocking.webhooks import Webhook
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.memory.attached import Eraser
from turnwise.errors import (
    CorruptRecordError,
    KeyMissingError,
    QuotaNotFoundError,
    SessionInUseError,
    SessionNotFoundError,
)
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.index import keeps_files
from turnwise.memory.longterm.base import Scope, is_read_only
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.quotas.records import EACH
from turnwise.memory.stores.base import NO_CALLER
from turnwise.memory.working.memory import forget_apart

_PAGE = 100

SAVE_S = 30.0
"""How long `forget_only_memory` waits for a session's turns to be saved, in seconds."""


def forget(client: SessionsClient, store: StoreReads, user_id: str, *, verify: bool) -> Forgotten:
    """Delete a user's sessions, memberships, webhooks, tenant and quotas, then what memories keep.

    See `SessionManager.forget`.
    """
    report = _delete_sessions(client, store, user_id)
    _leave_all(client, store, user_id)
    if history := client.history_store:
        steps.run(client.portal, history.delete_user, user_id)
    webhooks = [webhook for webhook in store.ask("webhooks") if webhook.user_id == user_id]
    for webhook in webhooks:
        Webhook(client, store, webhook).delete()
    store.ask("set_tenant", user_id, None)
    _remove_quotas(client, store, user_id)
    store.ask("forget_in_ledger", user_id)
    if keeps_files(store.store):
        store.ask("forget_files", user_id)
    report += Forgotten(webhooks=len(webhooks))
    return report + _forget_in_memories(client, user_id, verify=verify)


def forget_only_memory(client: SessionsClient, store: StoreReads, user_id: str, *, verify: bool) -> Forgotten:
    """Delete what memories and notes keep for a user, when they have all turns that have ended.

    See `SessionManager.forget`.
    """
    in_use: list[str] = []
    saves = any(not is_read_only(slot.memory) for slot in client.memories)
    page, cursor = None, None
    while saves and (page is None or cursor):
        page = store.ask("query", user_id=user_id, cursor=cursor, limit=_PAGE)
        cursor = page.cursor
        behind = [session.key for session in page if session.saved < session.next_index - 1]
        in_use += [key.session_id for key in behind if _has_more_to_save(client, key)]
    return _forget_in_memories(client, user_id, verify=verify) + Forgotten(in_use=tuple(in_use))


def _has_more_to_save(client: SessionsClient, key: SessionKey) -> bool:
    """Wait until memories have a session's turns that have ended; return whether a turn is still to be saved."""
    host = SessionHost(client, SessionRef(key))
    try:
        is_saved = host.wait_for_memory(SAVE_S)
        return not is_saved or (host.ask(verbs.info())).active_run_id is not None
    except SessionNotFoundError:
        return False  # it was deleted meanwhile


def _forget_in_memories(client: SessionsClient, user_id: str, *, verify: bool) -> Forgotten:
    """Delete what memories and notes keep for a user, one after the other."""
    scope = Scope(user_id=user_id)
    items: dict[str, int] = {}
    erased: dict[str, Erasure] = {}
    for slot in client.memories:
        if is_read_only(slot.memory):
            continue
        if verify and isinstance(slot.memory, Eraser):
            erased[slot.name] = steps.run(client.portal, slot.memory.erase, scope)
            items[slot.name] = erased[slot.name].items
        else:
            items[slot.name] = steps.run(client.portal, slot.memory.forget, scope)
    notes = 0
    if working := client.working_memory:
        notes = steps.run(client.portal, forget_apart, working, scope)
    return Forgotten(items=items, erased=erased, notes=notes, was_checked=verify)


def _delete_sessions(client: SessionsClient, store: StoreReads, user_id: str) -> Forgotten:
    """Delete a user's sessions, without what memories keep."""
    report = Forgotten()
    attempted: set[SessionKey] = set()
    called_by: str | None = NO_CALLER  # callers go first, so that none gets the result of an agent that is deleted
    while True:
        page = store.ask("query", user_id=user_id, called_by=called_by, limit=_PAGE)
        keys = [*(session.key for session in page), *page.unreadable]
        if not keys and called_by is None:
            return report
        if not keys:
            called_by = None
        elif attempted.issuperset(keys):  # deleting them had no effect: their stored ids are corrupt
            names = [key.session_id for key in keys]
            raise CorruptRecordError(f"sessions {names}", "they cannot be deleted by their ids")
        attempted.update(keys)
        for key in keys:
            report += SessionHost(client, SessionRef(key)).remove(memory=False, verify=False)


def _leave_all(client: SessionsClient, store: StoreReads, user_id: str) -> None:
    """Remove the user from all sessions of others. One that cannot be read by its process keeps the membership."""
    cursor = None
    while True:
        page = store.ask("query", member=user_id, cursor=cursor, limit=_PAGE)
        for session in page:
            with suppress(SessionNotFoundError, KeyMissingError, CorruptRecordError):
                SessionHost(client, SessionRef(session.key)).ask(verbs.set_member(user_id, None))
        if page.cursor is None:
            return
        cursor = page.cursor


def _remove_quotas(client: SessionsClient, store: StoreReads, user_id: str) -> None:
    """Remove the quotas of one user."""
    for quota in store.ask("quotas"):
        if quota.user_id == user_id != EACH:
            with suppress(QuotaNotFoundError):  # it was removed meanwhile
                store.ask("remove_quota", quota.quota_id)
    client.announce_quotas()


def clear(client: SessionsClient, store: StoreReads, user_id: str, agent: str | None, **options: Any) -> Forgotten:
    """Clear a user's sessions, one after the other; see `SessionManager.clear`."""
    report, cursor = Forgotten(), None
    while True:
        page = store.ask("query", user_id=user_id, agent=agent, cursor=cursor, limit=_PAGE)
        for key in [*(session.key for session in page), *page.unreadable]:
            try:
                report += SessionHost(client, SessionRef(key)).clear(**options)
            except SessionInUseError:
                report += Forgotten(in_use=(key.session_id,))
            except SessionNotFoundError:
                continue  # it was deleted meanwhile
        if page.cursor is None:
            return report
        cursor = page.cursor
