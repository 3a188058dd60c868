# Made from actors/client/forgetting.py by `make blocking`: change that file.
"""`forget`: deletes a user's sessions and webhooks, and what memories keep for the user."""

from __future__ import annotations

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.blocking.store_reads import StoreReads
from turnwise.actors.client.blocking.webhooks import Webhook
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.memory.attached import Eraser
from turnwise.errors import CorruptRecordError, KeyMissingError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.longterm.base import Scope, is_read_only
from turnwise.memory.longterm.retention.deletion import Erasure
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.working.memory import forget_apart

_PAGE = 100


def forget(client: SessionsClient, store: StoreReads, user_id: str, *, verify: bool) -> Forgotten:
    """Delete a user's sessions and webhooks, then what the client's memories keep; see `SessionManager.forget`."""
    report = Forgotten()
    attempted: set[SessionKey] = set()
    while True:
        page = store.ask("query", user_id=user_id, limit=_PAGE)
        keys = [*(session.key for session in page), *page.unreadable]
        if not keys:
            break
        if attempted.issuperset(keys):  # deleting them had no effect: their stored ids are corrupt
            names = [key.session_id for key in keys]
            raise CorruptRecordError(f"sessions {names}", "they cannot be deleted by their ids")
        attempted.update(keys)
        for key in keys:
            report += _delete(client, store, SessionRef(key))
    webhooks = [webhook for webhook in store.ask("webhooks") if webhook.user_id == user_id]
    for webhook in webhooks:
        Webhook(client, store, webhook).delete()
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
    return report + Forgotten(items=items, erased=erased, notes=notes, webhooks=len(webhooks), was_checked=verify)


def _delete(client: SessionsClient, store: StoreReads, ref: SessionRef) -> Forgotten:
    """Delete a session: by its process if it is live, else from the store, in which a later process finds none."""
    host = SessionHost(client, ref)
    try:
        if client.is_live(ref):
            try:
                host.end()  # an active run would make `delete` refuse
                return host.delete(memory=False, verify=False)  # `forget` erases the user's memories, and verifies
            except (KeyMissingError, CorruptRecordError):
                pass  # its process cannot read it; deleting it from the store needs no reading
        if history := client.history_store:
            steps.run(client.portal, history.delete, ref.key)
        turns: int = store.ask("delete", ref.key)
    except SessionNotFoundError:
        return Forgotten()
    finally:
        client.drop(ref)
    return Forgotten(sessions=1, turns=turns)
