"""A session's memory, as its callers hold it: `session.memory`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Unpack

from turnwise.actors.client.arguments import (
    MAX_JSON_BYTES,
    ItemId,
    Limit,
    Look,
    Names,
    Number,
    Patience,
    State,
    Text,
    Time,
    Type,
    Types,
    Use,
    checked,
)
from turnwise.actors.client.cluster_client import ClusterClient
from turnwise.actors.client.requests import Portal, Request, carry_out, carry_out_async
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.frozen_json import plain_json
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.longterm.base import ItemChanges, MemoryItem
from turnwise.memory.longterm.deletion import Verify
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.memory.longterm.types import MemoryType


class _SessionMemory:
    """What both are: the requests to the session, which says whose memory it is."""

    def __init__(self, client: ClusterClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    def _desk(self, verb: str, *args: Any, **options: Any) -> Request[Any]:
        return self._client.use_desk(self._session_id, verb, *args, **options)

    @checked
    def _save(
        self,
        text: Text,
        type: Type,
        *,
        topic: Text | None,
        id: ItemId | None,
        name: Text | None,
        aliases: Names,
        expires_at: Time | None,
    ) -> Request[Any]:
        # An id of its own, so that a call that is delivered twice saves once.
        more = {"topic": topic, "name": name, "aliases": aliases, "expires_at": expires_at}
        return self._desk("save", text, type=type, id=new_id() if id is None else id, **more)

    @checked
    def _recall(self, query: Text, limit: Limit, types: Types | None, as_of: Time | None) -> Request[Any]:
        return self._desk("recall", query, limit=limit, types=types, as_of=as_of)

    def _update(self, id: str, text: str | None, type: MemoryType | None, changes: ItemChanges) -> Request[Any]:
        return self._desk("update", **_checked_changes(id=id, text=text, type=type, **changes))

    @checked
    def _pin(self, id: ItemId, pinned: bool) -> Request[Any]:
        return self._desk("pin", id, pinned)

    @checked
    def _delete(self, ids: tuple[ItemId, ...]) -> Request[Any]:
        return self._desk("delete", ids)

    @checked
    def _forget(self, turn_index: Number, verify: Look) -> Request[Forgotten]:
        return self._client.forget_turn(self._session_id, turn_index, verify=verify)

    @checked
    def _use(self, use: Use) -> Request[Any]:
        return self._client.ask(self._session_id, "use_memory", use)

    @checked
    def _wait(self, timeout_s: Patience | None) -> Request[bool]:
        return self._client.wait_for_memory(self._session_id, timeout_s)

    def _note(self, verb: str, content: Any) -> Request[Any]:
        return self._desk(verb, plain_json("content", content, MAX_JSON_BYTES))


def _checked_changes(**given: Any) -> dict[str, Any]:
    """Return the arguments of an update, without those that were left out.

    Raises:
        InvalidInputError: an argument has the wrong type, or nothing is to be changed.
        TypeError: there is no such argument.
    """
    if unknown := given.keys() - {"id", "text", "type", *ItemChanges.__annotations__}:
        raise TypeError(f"update() got an unexpected keyword argument {min(unknown)!r}")

    @checked
    def check(
        *,
        id: ItemId,
        text: Text | None,
        type: Type | None,
        topic: Text | None = None,
        name: Text | None = None,
        aliases: Names = (),
        status: State = "active",
        expires_at: Time | None = None,
    ) -> dict[str, Any]:
        found = {"id": id, "text": text, "type": type, "topic": topic, "name": name, "aliases": aliases}
        return {**found, "status": status, "expires_at": expires_at}

    found = check(**given)
    if len(given) == len(("id", "text", "type")) and found["text"] is None and found["type"] is None:
        raise InvalidInputError("text", None, "say what is to be changed: a text, a type, a topic, a name and so on")
    return {name: found[name] for name in given}


class SessionMemory(_SessionMemory):
    """What long-term memories have for the session's user, and its working memory.

    User, session and agent are the session's and no arguments. Each verb is one Ray call to the session, and one from
    there to each memory.

    Raises, beside what the verbs say:
        InvalidInputError: an argument has the wrong type, or is out of its range; nothing was done.
        NoMemoryError: the manager has no such memory.
        LongTermMemoryError: a memory failed.
    """

    def __init__(self, client: ClusterClient, session_id: str, portal: Portal) -> None:
        super().__init__(client, session_id)
        self._portal = portal

    def save(
        self,
        text: str,
        *,
        type: MemoryType = MemoryType.GENERAL,
        topic: str | None = None,
        id: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        expires_at: float | None = None,
    ) -> str:
        """Keep a text in the first memory that may be written; return its id.

        Args:
            topic: what it is about, in a word or two.
            id: what to keep it under; what is there under it, or was deleted, stays as it is. A new one if left out.
            name: its own name, and `aliases` other names of the same, by which it is found first.
            expires_at: from when on it is not recalled, in seconds since the epoch; never if left out.

        Raises:
            InvalidMemoryError: it cannot be kept.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return str(
            carry_out(
                self._save(text, type, topic=topic, id=id, name=name, aliases=aliases, expires_at=expires_at),
                self._portal,
            )
        )

    def recall(
        self, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None, as_of: float | None = None
    ) -> list[MemoryItem]:
        """Return up to `limit` items that bear on the query, the best first; of several memories by turns.

        Each says by `memory`, `score`, `words` and `passage` which memory it is of, how well it bears on the query, and
        by which words and passage. A memory that fails is left out.

        Args:
            types: only those; all if left out.
            as_of: what held at this time, in seconds since the epoch.
        """
        return list(carry_out(self._recall(query, limit, types, as_of), self._portal))

    def update(
        self, id: str, text: str | None = None, *, type: MemoryType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change what is given of an item; return whether it was there. The rest stays, `created_at` too.

        Args:
            type: its type, and with it the category and whose it is.
            changes: `topic`, `name`, `expires_at` in seconds since the epoch: None takes away what was there.
                `aliases`: all that it is to have. `status`: "resolved", and it is not recalled any more, or "active".
                A topic or name that only the old text has is taken away with that text, unless it is given.

        Raises:
            InvalidInputError: an argument has the wrong type, or nothing is to be changed.
            InvalidMemoryError: it could not be kept.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return bool(carry_out(self._update(id, text, type, changes), self._portal))

    def pin(self, id: str) -> bool:
        """Take an item into the user's profile, which is in every request of theirs; return whether it was there.

        It stays there until it is unpinned, forgotten, or expired. A fact that takes its place is pinned too.

        Raises:
            NoMemoryError: no memory of the manager has profiles.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return bool(carry_out(self._pin(id, True), self._portal))

    def unpin(self, id: str) -> bool:
        """Undo `pin`; return whether it was there. It stays in the profile if its type belongs there."""
        return bool(carry_out(self._pin(id, False), self._portal))

    def delete(self, *ids: str) -> int:
        """Delete items; return how many were there.

        They do not come back, also if they are saved again within 90 days.

        Raises:
            ReadOnlyMemoryError: all memories are for reading.
        """
        return int(carry_out(self._delete(ids), self._portal))

    def forget(self, turn_index: int, *, verify: Verify = False) -> Forgotten:
        """Forget what a turn added; return what was removed.

        Nothing that memories have made of it stays, no summary that stands for it, and no later request holds it. The
        history shows it as it was until the session is deleted. May be repeated.

        Args:
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionBusyError: a run is active.
            LongTermMemoryError: memories failed; names them. Repeat it.
        """
        return carry_out(self._forget(turn_index, verify), self._portal)

    def use(self, use: MemoryUse | bool) -> None:
        """Say what later runs do with long-term memory if they do not say: `on`, `read` or `off`. Durable."""
        carry_out(self._use(use), self._portal)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have all turns that have ended; return whether they have."""
        return carry_out(self._wait(timeout_s), self._portal)

    def read_notes(self) -> str:
        """Return what the working memory says."""
        return str(carry_out(self._desk("read_notes"), self._portal))

    def replace_notes(self, content: Any) -> str:
        """Put the content in the place of what the working memory says; return that.

        Raises:
            WorkingMemoryError: it would not be of its form, or too long; it stays as it was.
        """
        return str(carry_out(self._note("replace_notes", content), self._portal))

    def merge_notes(self, content: Any) -> str:
        """Add the content to the working memory, as its form says; return what it says then.

        Raises:
            WorkingMemoryError: it would not be of its form, or too long; it stays as it was.
        """
        return str(carry_out(self._note("merge_notes", content), self._portal))


class AsyncSessionMemory(_SessionMemory):
    """`SessionMemory` with its verbs as coroutines.

    User, session and agent are the session's and no arguments. Each verb is one Ray call to the session, and one from
    there to each memory.

    Raises, beside what the verbs say:
        InvalidInputError: an argument has the wrong type, or is out of its range; nothing was done.
        NoMemoryError: the manager has no such memory.
        LongTermMemoryError: a memory failed.
    """

    async def save(
        self,
        text: str,
        *,
        type: MemoryType = MemoryType.GENERAL,
        topic: str | None = None,
        id: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        expires_at: float | None = None,
    ) -> str:
        """Keep a text in the first memory that may be written; return its id.

        Args:
            topic: what it is about, in a word or two.
            id: what to keep it under; what is there under it, or was deleted, stays as it is. A new one if left out.
            name: its own name, and `aliases` other names of the same, by which it is found first.
            expires_at: from when on it is not recalled, in seconds since the epoch; never if left out.

        Raises:
            InvalidMemoryError: it cannot be kept.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return str(
            await carry_out_async(
                self._save(text, type, topic=topic, id=id, name=name, aliases=aliases, expires_at=expires_at)
            )
        )

    async def recall(
        self, query: str, *, limit: int = 10, types: Collection[MemoryType] | None = None, as_of: float | None = None
    ) -> list[MemoryItem]:
        """Return up to `limit` items that bear on the query, the best first; of several memories by turns.

        Each says by `memory`, `score`, `words` and `passage` which memory it is of, how well it bears on the query, and
        by which words and passage. A memory that fails is left out.

        Args:
            types: only those; all if left out.
            as_of: what held at this time, in seconds since the epoch.
        """
        return list(await carry_out_async(self._recall(query, limit, types, as_of)))

    async def update(
        self, id: str, text: str | None = None, *, type: MemoryType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change what is given of an item; return whether it was there. The rest stays, `created_at` too.

        Args:
            type: its type, and with it the category and whose it is.
            changes: `topic`, `name`, `expires_at` in seconds since the epoch: None takes away what was there.
                `aliases`: all that it is to have. `status`: "resolved", and it is not recalled any more, or "active".
                A topic or name that only the old text has is taken away with that text, unless it is given.

        Raises:
            InvalidInputError: an argument has the wrong type, or nothing is to be changed.
            InvalidMemoryError: it could not be kept.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return bool(await carry_out_async(self._update(id, text, type, changes)))

    async def pin(self, id: str) -> bool:
        """Take an item into the user's profile, which is in every request of theirs; return whether it was there.

        It stays there until it is unpinned, forgotten, or expired. A fact that takes its place is pinned too.

        Raises:
            NoMemoryError: no memory of the manager has profiles.
            ReadOnlyMemoryError: all memories are for reading.
        """
        return bool(await carry_out_async(self._pin(id, True)))

    async def unpin(self, id: str) -> bool:
        """Undo `pin`; return whether it was there. It stays in the profile if its type belongs there."""
        return bool(await carry_out_async(self._pin(id, False)))

    async def delete(self, *ids: str) -> int:
        """Delete items; return how many were there.

        They do not come back, also if they are saved again within 90 days.

        Raises:
            ReadOnlyMemoryError: all memories are for reading.
        """
        return int(await carry_out_async(self._delete(ids)))

    async def forget(self, turn_index: int, *, verify: Verify = False) -> Forgotten:
        """Forget what a turn added; return what was removed.

        Nothing that memories have made of it stays, no summary that stands for it, and no later request holds it. The
        history shows it as it was until the session is deleted. May be repeated.

        Args:
            verify: how it is looked for in memories afterwards: `False` not at all, `True` in what was touched, at the
                cost of what is forgotten, `"files"` in all their files, behind everything else. See `Verify`.

        Raises:
            TurnNotFoundError: there is no such turn, or it has not ended.
            SessionBusyError: a run is active.
            LongTermMemoryError: memories failed; names them. Repeat it.
        """
        return await carry_out_async(self._forget(turn_index, verify))

    async def use(self, use: MemoryUse | bool) -> None:
        """Say what later runs do with long-term memory if they do not say: `on`, `read` or `off`. Durable."""
        await carry_out_async(self._use(use))

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have all turns that have ended; return whether they have."""
        return await carry_out_async(self._wait(timeout_s))

    async def read_notes(self) -> str:
        """Return what the working memory says."""
        return str(await carry_out_async(self._desk("read_notes")))

    async def replace_notes(self, content: Any) -> str:
        """Put the content in the place of what the working memory says; return that.

        Raises:
            WorkingMemoryError: it would not be of its form, or too long; it stays as it was.
        """
        return str(await carry_out_async(self._note("replace_notes", content)))

    async def merge_notes(self, content: Any) -> str:
        """Add the content to the working memory, as its form says; return what it says then.

        Raises:
            WorkingMemoryError: it would not be of its form, or too long; it stays as it was.
        """
        return str(await carry_out_async(self._note("merge_notes", content)))
