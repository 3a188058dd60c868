"""`manager.memory(user_id=...)`: save, recall, update and delete a user's items of long-term memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar, Unpack, cast

from turnwise.actors.client import steps
from turnwise.actors.client.shared.arguments import (
    AboutArg,
    Category,
    ItemId,
    ItemIds,
    Limit,
    Names,
    PastTime,
    Text,
    Time,
    Type,
    Types,
    checked,
    time_before,
)
from turnwise.actors.client.shared.item_changes import checked_changes
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.errors import ReadOnlyStoreError
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.memory_types import AnyCategory, AnyType, MemoryType, types_of
from turnwise.memory.longterm.recall.recalled_content import RecalledContent, RecalledItems
from turnwise.memory.longterm.retention.about import About, Deleted
from turnwise.memory.stores.base import Page
from turnwise.memory.values.ids import new_id

Answer = TypeVar("Answer")


class AsyncMemoryHost(Protocol):
    """Who carries out the verbs of memories: a session's process, or this one."""

    async def ask(self, call: VerbCall[Answer]) -> Answer:
        """Return the answer of a verb."""


class AsyncOwnMemoryHost:
    """Carries out verbs of memories in this process, for a user and without a session."""

    def __init__(self, client: SessionsClient, scope: Scope) -> None:
        self._client = client
        self._scope = scope

    async def ask(self, call: VerbCall[Answer]) -> Answer:
        """See `AsyncMemoryHost`.

        Raises:
            ReadOnlyStoreError: the manager is read-only.
        """
        if self._client.read_only:
            raise ReadOnlyStoreError("*", call.verb.name)
        access = SessionMemoryAccess(self._scope, self._client.memories, None)
        return await steps.run(self._client.portal, call.on_memories, access)


class AsyncUserMemory:
    """`UserMemory` with its verbs as coroutines.

    The user comes from the manager or the session; no method takes it as an argument. Each method makes one call to
    each memory; `delete`, `find_about` and `forget_about` make some.

    Every method may raise, beside the errors that it documents:
        InvalidInputError: an argument has the wrong type or is out of range; nothing was changed.
        NoMemoryError: the manager has no memory of the kind that the method needs.
        LongTermMemoryError: a memory failed.
    """

    def __init__(self, host: AsyncMemoryHost) -> None:
        self._host = host

    @checked(
        text=Text,
        type=Type,
        topic=Text | None,
        id=ItemId | None,
        name=Text | None,
        aliases=Names,
        expires_at=Time | None,
        memory=Text | None,
    )
    async def save(
        self,
        text: str,
        *,
        type: AnyType = MemoryType.GENERAL,
        topic: str | None = None,
        id: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        expires_at: float | None = None,
        memory: str | None = None,
    ) -> str:
        """Save a text in a memory; return the item's id.

        Args:
            topic: the subject, in a word or two.
            id: the item's id; a new one if omitted. If an item with this id exists, or was deleted, nothing changes.
            name: the name of the thing that the text describes. Searches for a name rank its item first.
            aliases: other names of the same thing.
            expires_at: when the item stops being recalled, in seconds since the epoch; never if omitted.
            memory: the name of the memory, as in `MemoryItem.memory`; the first writable one if omitted.

        Raises:
            InvalidInputError: no memory has this name.
            InvalidMemoryError: the memory cannot keep such an item.
            ReadOnlyMemoryError: this memory, or each memory, is read-only.
        """
        return await self._host.ask(
            verbs.save_item(
                text,
                type=cast(MemoryType, type),
                topic=topic,
                id=new_id() if id is None else id,  # so that a request that is delivered twice saves one item
                name=name,
                aliases=aliases,
                expires_at=expires_at,
                memory=memory,
            )
        )

    @checked(query=Text, limit=Limit, types=Types | None, category=Category | None, as_of=PastTime | None)
    async def recall(
        self,
        query: str,
        *,
        limit: int = 10,
        types: Collection[AnyType] | None = None,
        category: AnyCategory | None = None,
        as_of: float | Turn | None = None,
    ) -> RecalledItems:
        """Return up to `limit` items that are relevant to the query, best first; several memories' items alternate.

        An item's `memory` names its memory, `score` says how relevant it is, `words` and `passage` what matched. Items
        with a score of 0, such as facts of a `StaticMemory` that do not bear on the query, come after all others. A
        memory that fails is left out.

        Args:
            types: return items of these types only; of all types if omitted. Names are accepted: `["facts"]`.
            category: return items of this category only; its name is accepted: `"semantic"`.
            as_of: return what was valid at this time, in seconds since the epoch, or before a turn began. Items that
                were changed later are left out, since what they said then is not kept, and so is what was deleted: then
                the result's `trouble` says that it is a lower bound.
        """
        item_types, time_s = types_of(category, types), as_of if as_of is None else time_before(as_of)
        return RecalledItems(await self._host.ask(verbs.recall(query, limit=limit, types=item_types, as_of=time_s)))

    @checked(query=Text, limit=Limit)
    async def recall_apart(self, query: str, *, limit: int = 10) -> RecalledContent:
        """Return up to `limit` items of each memory that are relevant to the query, by kinds of memories.

        A memory that fails is named in the result's `failed`; without memories the result is empty.
        """
        return await self._host.ask(verbs.recall_apart(query, limit=limit))

    @checked(category=Category | None, type=Type | None, limit=Limit, cursor=Text | None, memory=Text | None)
    async def list(
        self,
        *,
        category: AnyCategory | None = None,
        type: AnyType | None = None,
        limit: int = 100,
        cursor: str | None = None,
        memory: str | None = None,
    ) -> Page[MemoryItem]:
        """Return a page of what memories keep for the user and the agent, without a query.

        Lists one memory after the other, the newest items of each first. Replaced items are not listed; resolved ones
        are, and expired ones until they are deleted. Pass the page's `cursor` to get the next page.

        Args:
            category: list items of this category only; its name is accepted.
            type: list items of this type only; its name is accepted.
            memory: the name of the memory, which may be a read-only one; if omitted, all that are not read-only.

        Raises:
            InvalidInputError: no memory has this name, or the cursor is invalid.
            NoMemoryError: none of the memories can list its items; see `memories.Listing`.
        """
        types = types_of(category, None if type is None else (type,))
        return await self._host.ask(verbs.list_items(types=types, limit=limit, cursor=cursor, memory=memory))

    async def update(
        self, id: str, text: str | None = None, *, type: AnyType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change the given fields of an item; return whether the item exists. Other fields stay, `created_at` too.

        Args:
            type: the new type; it also decides the item's category and owner.
            changes: `topic`, `name` and `expires_at` (seconds since the epoch): None removes the value. `aliases`: the
                complete new list. `status`: "resolved" items are no longer recalled, "active" ones are. If the text
                changes, a topic or name that only the old text contains is removed, unless it is given here.

        Raises:
            InvalidInputError: an argument has the wrong type, or no change was given.
            InvalidMemoryError: the memory cannot keep the changed item.
            ReadOnlyMemoryError: all memories are read-only.
        """
        fields = checked_changes(id=id, text=text, type=type, **changes)
        return await self._host.ask(verbs.update_item(**fields))

    @checked(id=ItemId)
    async def pin(self, id: str) -> bool:
        """Pin an item to the user's profile, which is part of each of the user's requests; return whether it exists.

        It stays pinned until it is unpinned, forgotten or expired. A fact that replaces it is pinned too.

        Raises:
            NoMemoryError: no memory of the manager has profiles.
            ReadOnlyMemoryError: all memories are read-only.
        """
        return await self._host.ask(verbs.pin_item(id, True))

    @checked(id=ItemId)
    async def unpin(self, id: str) -> bool:
        """Undo `pin`; return whether the item exists. An item whose type belongs in the profile stays there."""
        return await self._host.ask(verbs.pin_item(id, False))

    @checked(ids=ItemIds)
    async def delete(self, *ids: str) -> Deleted:
        """Delete items; return how many existed, and what is left of the turns that they come from.

        A fact that one of them had replaced holds again. For 90 days, saving the same turns again does not bring the
        items back; a turn in which the user says it anew does. A fact's sentence may be in another memory:
        `forget_about(deleted.left)` deletes what memories have of the whole turn, with its other facts.

        Raises:
            ReadOnlyMemoryError: all memories are read-only.
        """
        return await self._host.ask(verbs.delete_items(ids))

    @checked(text=Text)
    async def find_about(self, text: str) -> About:
        """Return what `forget_about(text)` would delete, and similar items, which it would not; change nothing.

        Pass the result, or a part of it (`about.only(ids)`), to `forget_about`. A memory that fails is named in
        `failed`.

        Raises:
            InvalidInputError: the text has no content word.
            ReadOnlyMemoryError: all memories are read-only, and there are no notes.
        """
        return await self._host.ask(verbs.find_about(text))

    @checked(what=AboutArg)
    async def forget_about(self, what: str | About) -> About:
        """Delete what memories and notes have about the subject of a text; return what was deleted.

        These belong to the subject:

        - Items of which one sentence has all content words of the text, in any form and order: all words but pronouns,
          articles, prepositions, and forms of "be", "do" and "have". If the text has several sentences, so many
          neighbouring sentences count as one. An item's name, aliases and topic count as words of each sentence. Items
          that were replaced, are resolved or have expired belong to it, too.
        - Facts that were made from such a sentence of a turn, if they have at least half of these words.
        - The whole turn from which such an item comes, as memories keep it, and what else it says.
        - Sentences of the session's notes that have all these words; of notes in JSON, values with their keys.

        What says the same in other words, and other facts of these turns, are not deleted: `find_about` returns them as
        `similar`. Items of other agents that are not semantic stay, and so does the conversation, see `forget`. A fact
        that a deleted one had replaced holds again, unless it says the subject. A turn of another session that waits to
        be saved is not seen: call `wait` there first.

        Deleted items do not come back: for 90 days no memory takes them again, or extracts facts from a deleted turn.
        Each memory deletes on its own. The call may be repeated: if it was cut off, that deletes the rest, and returns
        only that.

        Args:
            what: a text, such as "I drive a Volvo"; or what `find_about` or `delete` returned, of which the `mentions`
                and `notes` are deleted.

        Raises:
            InvalidInputError: the text has no content word; or the session has no writable memory of this name.
            NotForgottenError: a memory or the notes failed; the error says what is left and what is gone. If a memory
                could not be searched for the text, nothing was deleted. If one could not delete, the others have, but
                for that by which what is left is found.
            ReadOnlyMemoryError: all memories are read-only, and there are no notes.
        """
        return await self._host.ask(verbs.forget_about(what))
