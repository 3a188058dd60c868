# Made from actors/client/importing.py by `make blocking`: change that file.
"""Imports of conversations from elsewhere: read and checked, then sent to their session in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnwise.actors.client.blocking import steps
from turnwise.actors.client.shared.import_parts import Conversation
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.prompts import Refuses, takes_all
from turnwise.memory.providers.message_reading import MAX_BYTES, read_messages
from turnwise.memory.values.limits import MAX_MESSAGES, check_count, count_values

AT_ONCE, VALUES = 100, 500
"""The most messages, and values in them, that are read at once: a step for what takes long would take longer."""


def read_conversation(
    messages: Any,
    format: str | None,
    *,
    system: str | None,
    key: str | None,
    max_bytes: int = MAX_BYTES,
    refuses: Refuses = takes_all,
) -> Conversation:
    """Read a conversation and check it. A long one is read by `steps.in_thread`.

    Args:
        key: the idempotency key of the whole conversation.
        max_bytes, refuses: see `Given.encoded`.

    Raises:
        TooManyError: there are too many messages, or too many of them are of one turn.
        InvalidInputError: names the first message that cannot be read, stored or continued.
    """

    def read() -> Conversation:
        content = read_messages(messages, format, system=system)
        conversation = Conversation(content, content.encoded(max_bytes, refuses), key)
        conversation.parts()  # which says whether it can be divided
        return conversation

    if not isinstance(messages, Sequence) or (len(messages) <= AT_ONCE and count_values(messages, VALUES) <= VALUES):
        return read()
    check_count("messages", len(messages), "MAX_MESSAGES", MAX_MESSAGES)
    return steps.in_thread(read)


def send_conversation(
    ask: Callable[[VerbCall[Any]], Any],
    conversation: Conversation,
    after: int | None,
    memory: MemoryUse | bool,
) -> int:
    """Store a conversation; return the index of its last turn.

    If a conversation without a key begins with all that the session has, only the rest is stored. All parts are checked
    before the first one is stored, so a message that cannot be stored leaves nothing. Each part must follow the one
    before, and the first one of several without a key must follow the turn up to which it was compared with the
    session. After a kill, a repeated call stores the rest.

    Args:
        ask: calls a verb of the session.
        after: the index of the newest ended turn, -1 for none; None for any.

    Raises:
        TurnsChangedError: another turn was added meanwhile. The parts before are stored; repeat the call.
        TurnwiseError: see `Importing.import_turns`.
    """
    index: int | None = None
    parts = conversation.parts()
    if len(parts) > 1:
        if conversation.key is None:
            stored_count, digest, newest = ask(verbs.stored_prefix(len(conversation.texts)))
            if conversation.begins_with(stored_count, digest):
                if stored_count == len(conversation.texts):
                    return int(newest)
                parts = conversation.parts(stored_count)
            after = newest if after is None else after
        for part in reversed(parts):
            assert part.key is not None  # noqa: S101 - each of several parts has one
            stored = ask(verbs.check_import(part.content, part.key, after))
            index = stored if part is parts[-1] else index
            if index is not None and conversation.key is None:
                break  # its key says that all before it is stored, too
        if index is not None:
            return index
    for part in parts:
        index = ask(verbs.import_turns(part.content, part.key, after, memory_use(memory)))
        after = index
    assert index is not None  # noqa: S101 - a conversation has at least one part
    return index
