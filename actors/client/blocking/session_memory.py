# Made from actors/client/session_memory.py by `make blocking`: change that file.
"""`session.memory`: save, recall, update and delete items of long-term memory, and edit the working memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Unpack, cast

from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.shared.arguments import (
    MAX_JSON_BYTES,
    AboutArg,
    Category,
    ItemId,
    ItemIds,
    Limit,
    MemoryUseArg,
    Names,
    Number,
    PastTime,
    Text,
    Time,
    Type,
    Types,
    WaitSeconds,
    checked,
    time_before,
)
from turnwise.actors.client.shared.item_changes import checked_changes
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.wire import SessionRef
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import ItemChanges, MemoryItem
from turnwise.memory.longterm.memory_types import AnyCategory, AnyType, MemoryType, types_of
from turnwise.memory.longterm.recall.recalled_content import RecalledContent, RecalledItems
from turnwise.memory.longterm.retention.about import About, Deleted
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.memory.values.frozen_json import plain_json
from turnwise.memory.values.ids import new_id


class SessionMemory:
    """The long-term memories of the session's user, and the session's working memory.

    User, session and agent are those of the session; no method takes them as arguments. Each method is one request to
    the session, which makes one call to each memory; `delete`, `find_about` and `forget_about` make some.

    Every method may raise, beside the errors that it documents:
        InvalidInputError: an argument has the wrong type or is out of range; nothing was changed.
        NoMemoryError: the manager has no memory of the kind that the method needs.
        LongTermMemoryError: a memory failed.
    """

    def __init__(self, client: SessionsClient, ref: SessionRef) -> None:
        self._host = SessionHost(client, ref)

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
    def save(
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
        return self._host.ask(
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
    def recall(
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
        return RecalledItems(self._host.ask(verbs.recall(query, limit=limit, types=item_types, as_of=time_s)))

    @checked(query=Text, limit=Limit)
    def recall_apart(self, query: str, *, limit: int = 10) -> RecalledContent:
        """Return up to `limit` items of each memory that are relevant to the query, by kinds of memories.

        A memory that fails is named in the result's `failed`; without memories the result is empty.
        """
        return self._host.ask(verbs.recall_apart(query, limit=limit))

    @checked(category=Category | None, type=Type | None, limit=Limit, cursor=Text | None, memory=Text | None)
    def list(
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
        return self._host.ask(verbs.list_items(types=types, limit=limit, cursor=cursor, memory=memory))

    def update(
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
        return self._host.ask(verbs.update_item(**fields))

    @checked(id=ItemId)
    def pin(self, id: str) -> bool:
        """Pin an item to the user's profile, which is part of each of the user's requests; return whether it exists.

        It stays pinned until it is unpinned, forgotten or expired. A fact that replaces it is pinned too.

        Raises:
            NoMemoryError: no memory of the manager has profiles.
            ReadOnlyMemoryError: all memories are read-only.
        """
        return self._host.ask(verbs.pin_item(id, True))

    @checked(id=ItemId)
    def unpin(self, id: str) -> bool:
        """Undo `pin`; return whether the item exists. An item whose type belongs in the profile stays there."""
        return self._host.ask(verbs.pin_item(id, False))

    @checked(ids=ItemIds)
    def delete(self, *ids: str) -> Deleted:
        """Delete items; return how many existed, and what is left of the turns that they come from.

        For 90 days, saving the same items again does not bring them back. A fact's sentence may be in another memory:
        `forget_about(deleted.left)` deletes what memories have of the whole turn.

        Raises:
            ReadOnlyMemoryError: all memories are read-only.
        """
        return self._host.ask(verbs.delete_items(ids))

    @checked(text=Text)
    def find_about(self, text: str) -> About:
        """Return what `forget_about(text)` would delete, and similar items, which it would not; change nothing.

        Pass the result, or a part of it (`about.only(ids)`), to `forget_about`. A memory that fails is named in
        `failed`.

        Raises:
            InvalidInputError: the text has no content word.
            ReadOnlyMemoryError: all memories are read-only, and there are no notes.
        """
        return self._host.ask(verbs.find_about(text))

    @checked(what=AboutArg)
    def forget_about(self, what: str | About) -> About:
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
        return self._host.ask(verbs.forget_about(what))

    @checked(turn_index=Number, verify=bool)
    def forget(self, turn_index: int, *, verify: bool = False) -> Forgotten:
        """Forget what a turn added; return what was removed.

        Memory items that were derived from the turn and summaries that cover it are removed, and no later request
        contains the turn. The history still shows the turn until the session is deleted. The call may be repeated.

        Args:
            verify: whether memories are checked afterwards for remains, in the parts that were changed, at a cost that
                grows with what is forgotten.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionInUseError: a run is active.
            LongTermMemoryError: memories failed; the error names them. Repeat the call.
        """
        return self._host.ask(verbs.forget_turn(turn_index, verify))

    @checked(use=MemoryUseArg)
    def use(self, use: MemoryUse | bool) -> None:
        """Set the default for later runs' use of long-term memory: `on`, `read` or `off`. Durable."""
        self._host.ask(verbs.use_memory(memory_use(use)))

    @checked(timeout_s=WaitSeconds | None)
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have received all turns that have ended; return False after `timeout_s` seconds."""
        return self._host.wait_for_memory(timeout_s)

    def read_notes(self) -> str:
        """Return the content of the working memory."""
        return self._host.ask(verbs.read_notes())

    def replace_notes(self, content: Any) -> str:
        """Replace the content of the working memory; return the new content.

        Raises:
            WorkingMemoryError: the new content is not in the memory's format, or is too long; nothing was changed.
        """
        return self._host.ask(verbs.replace_notes(plain_json("content", content, MAX_JSON_BYTES)))

    def clear_notes(self) -> bool:
        """Reset the working memory to the initial text of its format; return whether a text was stored."""
        return self._host.ask(verbs.clear_notes())

    def merge_notes(self, content: Any) -> str:
        """Merge the content into the working memory, as its format defines; return the new content.

        Free text is appended, so this call alone is not repeated if the session's process dies before it answers.

        Raises:
            SessionLostError: the session's process has died, or cannot be reached. Read the notes: they may have the
                content.
            WorkingMemoryError: the result is not in the memory's format, or is too long; nothing was changed.
        """
        return self._host.ask(verbs.merge_notes(plain_json("content", content, MAX_JSON_BYTES)))
