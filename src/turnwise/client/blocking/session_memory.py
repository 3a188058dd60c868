# Made from src/turnwise/client/session_memory.py by `make blocking`: change that file.
"""`RemoteSessionMemory`: the long-term memories of a session's user, and the session's working memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, Unpack

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
from turnwise.client.blocking.connection import Connection
from turnwise.client.shared.answers import Request, Whose, given, path_of
from turnwise.client.shared.reading import (
    about_of,
    deleted_of,
    forgotten_of,
    item_of,
    page_of,
    recalled_content_of,
    recalled_of,
)
from turnwise.memory.conversation.memory_use import MemoryUse, memory_use
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import ItemChanges, MemoryItem
from turnwise.memory.longterm.memory_types import AnyCategory, AnyType, MemoryType
from turnwise.memory.longterm.recall.recalled_content import RecalledContent, RecalledItems
from turnwise.memory.longterm.retention.about import About, Deleted, Mention
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.base import Page
from turnwise.memory.values.frozen_json import plain_json
from turnwise.memory.values.ids import new_id

WAIT_S = 25.0
"""How long one request waits for memories."""


class RemoteSessionMemory:
    """Long-term memories and working memory. The verbs are those of `SessionMemory`, which says more."""

    def __init__(self, connection: Connection, whose: Whose, session_id: str) -> None:
        self._connection = connection
        self._whose = whose
        self._session_id = session_id

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
        """Save a text in a memory; return the item's id. See `SessionMemory.save`."""
        body = given(topic=topic, name=name, expires_at=expires_at, memory=memory, aliases=list(aliases))
        item_id = new_id() if id is None else id  # so that a request that is repeated saves one item
        data = self._ask("POST", "memory", body={"text": text, "type": str(type), "id": item_id, **body})
        return str(data["id"])

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
        """Return up to `limit` items that are relevant to the query, best first. See `SessionMemory.recall`."""
        body = given(types=None if types is None else list(map(str, types)), category=category and str(category))
        body |= given(as_of=None if as_of is None else time_before(as_of))
        return recalled_of(
            self._ask("POST", "memory", "recall", body={"query": query, "limit": limit, **body}, is_read=True)
        )

    @checked(query=Text, limit=Limit)
    def recall_apart(self, query: str, *, limit: int = 10) -> RecalledContent:
        """Return up to `limit` items of each memory that are relevant to the query, by kinds of memories."""
        body = {"query": query, "limit": limit}
        return recalled_content_of(self._ask("POST", "memory", "recall-apart", body=body, is_read=True))

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
        """Return a page of what memories keep for the user and the agent. See `SessionMemory.list`."""
        query = {"limit": limit, "cursor": cursor, "memory": memory}
        query |= {"category": category and str(category), "type": type and str(type)}
        return page_of(self._ask("GET", "memory", query=query), item_of)

    def update(
        self, id: str, text: str | None = None, *, type: AnyType | None = None, **changes: Unpack[ItemChanges]
    ) -> bool:
        """Change the given fields of an item; return whether the item exists. See `SessionMemory.update`."""
        fields = dict(checked_changes(id=id, text=text, type=type, **changes))
        item_id = fields.pop("id")
        body = {name: value for name, value in fields.items() if value is not None or name in changes}
        body |= {"aliases": [*body["aliases"]]} if "aliases" in body else {}
        body |= {"type": str(body["type"])} if "type" in body else {}
        return bool((self._ask("PATCH", "memory", "items", item_id, body=body))["found"])

    @checked(id=ItemId)
    def pin(self, id: str) -> bool:
        """Pin an item to the user's profile; return whether it exists."""
        return bool((self._ask("POST", "memory", "pin", body={"id": id}))["found"])

    @checked(id=ItemId)
    def unpin(self, id: str) -> bool:
        """Undo `pin`; return whether the item exists."""
        return bool((self._ask("POST", "memory", "unpin", body={"id": id}))["found"])

    @checked(ids=ItemIds)
    def delete(self, *ids: str) -> Deleted:
        """Delete items; return how many existed, and what is left of the turns that they come from."""
        return deleted_of(self._ask("POST", "memory", "delete", body={"ids": [*ids]}))

    @checked(text=Text)
    def find_about(self, text: str) -> About:
        """Return what `forget_about(text)` would delete, and similar items, which it would not; change nothing."""
        return about_of(self._ask("POST", "memory", "forget-about", body={"text": text, "preview": True}, is_read=True))

    @checked(what=AboutArg)
    def forget_about(self, what: str | About) -> About:
        """Delete what memories and notes have about a subject; return that. See `SessionMemory.forget_about`."""
        if isinstance(what, About) and not (what.mentions or what.notes):
            return About()
        body = {"text": what} if isinstance(what, str) else _about_body(what)
        return about_of(self._ask("POST", "memory", "forget-about", body=body))

    @checked(turn_index=Number, verify=bool)
    def forget(self, turn_index: int, *, verify: bool = False) -> Forgotten:
        """Forget what a turn added; return what was removed. See `SessionMemory.forget`."""
        body = {"turn_index": turn_index, "verify": verify}
        return forgotten_of(self._ask("POST", "memory", "forget", body=body))

    @checked(use=MemoryUseArg)
    def use(self, use: MemoryUse | bool) -> None:
        """Set the default for later runs' use of long-term memory: `on`, `read` or `off`. Durable."""
        self._ask("PUT", "memory", "use", body={"use": memory_use(use)})

    @checked(timeout_s=WaitSeconds | None)
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until memories have received all turns that have ended; return False after `timeout_s` seconds."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = WAIT_S if end_s is None else max(0.0, min(WAIT_S, end_s - time.monotonic()))
            data = self._ask("GET", "memory", "wait", query={"timeout_s": wait_s}, wait_s=wait_s)
            if data["done"] or (end_s is not None and time.monotonic() >= end_s):
                return bool(data["done"])

    def read_notes(self) -> str:
        """Return the content of the working memory."""
        return str((self._ask("GET", "notes"))["content"])

    def replace_notes(self, content: Any) -> str:
        """Replace the content of the working memory; return the new content."""
        plain = plain_json("content", content, MAX_JSON_BYTES)
        return str((self._ask("PUT", "notes", body={"content": plain}))["content"])

    def clear_notes(self) -> bool:
        """Reset the working memory to the initial text of its format; return whether a text was stored."""
        return bool((self._ask("DELETE", "notes"))["found"])

    def merge_notes(self, content: Any) -> str:
        """Merge the content into the working memory, as its format defines; return the new content.

        Raises:
            ServiceAwayError: if its `word` is "unknown", the notes may have the content: read them.
        """
        body = {"content": plain_json("content", content, MAX_JSON_BYTES)}
        return str((self._ask("PATCH", "notes", body=body, is_repeatable=False))["content"])

    def _ask(self, method: str, *parts: str, wait_s: float = 0.0, is_repeatable: bool = True, **what: Any) -> Any:
        path = path_of("sessions", self._session_id, *parts)
        request = Request(method=method, path=path, wait_s=wait_s, is_repeatable=is_repeatable, **what)
        return (self._connection.ask(request, self._whose)).data


def _about_body(about: About) -> dict[str, Any]:
    return {"mentions": list(map(_mention_body, about.mentions)), "notes": list(about.notes)}


def _mention_body(mention: Mention) -> dict[str, Any]:
    return {**vars(mention), "type": None if mention.type is None else str(mention.type)}
