"""Imports of conversations from elsewhere: read apart from the event loop, and sent to their session in parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from turnwise.actors.client.requests import AwaitStep, Request
from turnwise.memory.conversation.exchanges import exchanges, goes_on
from turnwise.memory.conversation.limits import MAX_BLOCKS, MAX_MESSAGES, check_count, count_values
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.prompts import Refuses, takes_all
from turnwise.memory.providers.message_reading import MAX_BYTES, Given, read_messages

PART = 1_000
"""The most blocks of a part, unless one turn has more: a part is one commit, and delays others as long as that."""

AT_ONCE, VALUES = 100, 500
"""The most messages, and values in them, that are read on the caller's event loop: a thread would take longer."""


@dataclass(frozen=True)
class Part:
    """Some turns of a conversation, which are stored in one commit."""

    given: Given
    key: str | None
    """Its idempotency key; None for the session to make one, of a conversation that is one part."""


@dataclass(frozen=True)
class Conversation:
    """A conversation that was read and checked."""

    given: Given
    texts: Sequence[str]
    """Its blocks as stored texts."""
    key: str | None
    """The idempotency key of the whole conversation; None if its content tells what is stored already."""

    def parts(self, had: int = 0) -> list[Part]:
        """Return what follows the first `had` blocks in parts, which end where turns end.

        Raises:
            TooManyError: there are too many blocks in one turn.
        """
        ends, start = [had], had
        for begins, _, stop in exchanges(self.given.blocks[had:]):
            check_count("messages of one turn", stop - begins, "MAX_BLOCKS", MAX_BLOCKS)
            if had + stop - start > PART and had + begins > start:
                start = had + begins
                ends.append(start)
        ends.append(len(self.texts))
        if len(ends) == 2 and not had:  # noqa: PLR2004 - one part
            return [Part(self.given, self.key)]
        keys = self._digests(ends) if self.key is None else _keys_of_parts(self.key, len(ends) - 1)
        return [Part(self.given.part(*places), key) for places, key in zip(pairwise(ends), keys, strict=True)]

    def begins_with(self, had: int, digest: str) -> bool:
        """Return whether its first blocks have this digest, and what follows is turns of their own."""
        return 0 < had <= len(self.texts) and self._digests([0, had]) == [digest] and goes_on(self.given.blocks, had)

    def _digests(self, ends: Sequence[int]) -> list[str]:
        """Return a digest of all texts up to each end but the first one."""
        whole, digests, wanted = hashlib.sha256(), [], set(ends[1:])
        for at, text in enumerate(self.texts[: ends[-1]], 1):
            whole.update(f"{text}\n".encode())
            if at in wanted:
                digests.append(whole.hexdigest())
        return digests


def read_conversation(
    messages: Any,
    format: str | None,
    *,
    system: str | None,
    key: str | None,
    max_bytes: int = MAX_BYTES,
    refuses: Refuses = takes_all,
) -> Request[Conversation]:
    """Read a conversation and check it. A long one is read by a thread.

    Args:
        key: the idempotency key of the whole conversation.
        max_bytes, refuses: see `Given.encoded`.

    Raises:
        TooManyError: there are too many messages, or too many of them are of one turn.
        InvalidInputError: names the first message that cannot be read, stored or continued.
    """

    def read() -> Conversation:
        given = read_messages(messages, format, system=system)
        conversation = Conversation(given, given.encoded(max_bytes, refuses), key)
        conversation.parts()  # which says whether it can be divided
        return conversation

    if not isinstance(messages, Sequence) or (len(messages) <= AT_ONCE and count_values(messages, VALUES) <= VALUES):
        return read()
    check_count("messages", len(messages), "MAX_MESSAGES", MAX_MESSAGES)
    conversation: Conversation = yield AwaitStep(partial(asyncio.to_thread, read))
    return conversation


def send_conversation(
    ask: Callable[..., Request[Any]], conversation: Conversation, after: int | None, memory: MemoryUse | bool
) -> Request[int]:
    """Store a conversation; return the index of its last turn.

    Of one without a key that begins with all that the session has, only what follows is stored. All parts are checked
    before the first one is stored, so a message that cannot be stored leaves nothing. Each part must follow the one
    before, and the first one of several without a key must follow the turn up to which it was compared with the
    session. What was cut off by a kill is continued when the call is repeated.

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
            had, digest, newest = yield from ask("stored_prefix", len(conversation.texts))
            if conversation.begins_with(had, digest):
                if had == len(conversation.texts):
                    return int(newest)
                parts = conversation.parts(had)
            after = newest if after is None else after
        for part in reversed(parts):
            stored = yield from ask("check_import", part.given, part.key, after)
            index = stored if part is parts[-1] else index
            if index is not None and conversation.key is None:
                break  # its key says that all before it is stored, too
        if index is not None:
            return index
    for part in parts:
        index = yield from ask("import_turns", part.given, part.key, after, memory)
        after = index
    assert index is not None  # noqa: S101 - a conversation has at least one part
    return index


def _keys_of_parts(key: str, count: int) -> list[str]:
    return [key, *(f"{hashlib.sha256(key.encode()).hexdigest()}#{number}" for number in range(1, count))]
