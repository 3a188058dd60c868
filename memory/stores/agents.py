"""Sessions of agents in a store: which of them a session has called, and what a deleted one leaves to its caller."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.agent_calls import handed_back
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import deliveries_of, pages_by_cursor


async def agents_below(store: SessionStore, key: SessionKey) -> list[SessionKey]:
    """Return the sessions of agents that a session has called, and of those that these have called, leaves first."""
    agents: dict[SessionKey, None] = {}
    unread = [key]
    while unread:
        caller = unread.pop()
        read = partial(store.query, user_id=caller.user_id, called_by=caller.session_id)
        async for page in pages_by_cursor(read):
            called = [*(session.key for session in page), *page.unreadable]
            unread += [agent for agent in called if agent not in agents and agent != key]
            agents |= dict.fromkeys(called)
    return [agent for agent in reversed(agents) if agent != key]


async def hand_back_results(store: SessionStore, key: SessionKey) -> float | None:
    """Give the results that an agent's session has yet to hand over to its caller, before the session is deleted.

    They are deliveries of the caller then. May be repeated: a call gets one result.

    Returns when one of them is due, in seconds since the epoch by the store's clock; None if there was none.
    """
    due_at = None
    async for delivery in deliveries_of(store, key):
        if delivery.kind == "result" and delivery.addressee != key:
            result = handed_back(delivery)
            with suppress(SessionNotFoundError):  # the caller was deleted
                await store.add_delivery(result)
                due_at = result.occurs_at
    return due_at
