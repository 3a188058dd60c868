"""What must hold in a store, whatever happened to its sessions: the product's audit, and what goes over the wire."""

from __future__ import annotations

from typing import Any

from turnwise.memory.conversation.blocks import User
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.providers.openai_chat import encode
from turnwise.memory.providers.validation import CHAT
from turnwise.memory.stores.base import SessionStore
from turnwise.testing.audit import audit, read_events, read_turns
from turnwise.testing.local_provider.message_rules import check_chat

events_of = read_events
turns_of = read_turns


def store_of(manager: Any) -> SessionStore:
    """Open the store of a manager, which the caller closes; of `memory://...` the one that its processes share."""
    store: SessionStore = manager._client.open_store()  # noqa: SLF001 - audits what is stored beside the sessions
    return store


async def check_session(
    store: SessionStore,
    session_id: str,
    *,
    user_id: str = DEFAULT_USER,
    **settings: Any,
) -> list[Turn]:
    """Audit a session and return its turns; each could also be sent to the stand-in provider, by its own rules.

    Args:
        settings: those of `audit`.
    """
    (await audit(store, [session_id], user_id=user_id, **settings)).check()
    turns = await read_turns(store, SessionKey(session_id, user_id))
    for turn in turns:
        if turn.status not in ("pending", "queued"):
            check_chat(encode(CHAT.spare([*turn.blocks, User(text="next")])))
    return turns
