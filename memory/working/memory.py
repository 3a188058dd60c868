"""`WorkingMemory`: a note of a session or a user, which is part of every request."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from turnwise.errors import ConfigError, InvalidIdError, WorkingMemoryError
from turnwise.memory.conversation.codec import decode_text, decoded, to_json
from turnwise.memory.longterm.base import MemoryItem, Scope, Source, is_local
from turnwise.memory.longterm.items.base import ItemStore, delete_sessions
from turnwise.memory.longterm.items.urls import items_at
from turnwise.memory.longterm.recall.quoting import quote
from turnwise.memory.longterm.retention.subject import Subject
from turnwise.memory.values.ids import check_id
from turnwise.memory.values.ranges import check_whole_number
from turnwise.memory.values.required_arguments import needs
from turnwise.memory.working.formats import Form, FreeText

SPACE = "notes"
"""The space of the notes of a memory that is opened by a path or a URL; see `ItemStore`."""

_NOTHING = ("", "{}")

_SHOWN = 500
"""The most characters of a format's error message."""


@needs(notes="pass where the notes are kept, such as SQLItems('sqlite:///notes.db', space='notes') or a path")
class WorkingMemory:
    """A note with a format. Each change is one transaction, and the whole new text is checked before it is stored.

    Of two concurrent changes, the second gets the text that the first one stored. A note is stored as an item, in a
    space that no long-term memory may share: it has no history, and can be written again after a deletion. Sessions use
    the store in their own processes, so one in memory serves a single process only, and does not pickle.

    Args:
        notes: the item store of the notes, which is closed with the memory; or its URL, or the path of a SQLite file,
            whose space `SPACE` has them.
        form: the format: `FreeText()`, `Markdown(template)` or `JsonForm(model or schema)`.
        per: `session`: each session has a note. `user`: all sessions of a user share one.
        max_bytes: the most bytes of the text in UTF-8.

    Raises:
        ConfigError: a setting is out of its range, or the format's initial text is too long.
        StoreURLError: the URL names no store that can be used here.
    """

    def __init__(
        self,
        notes: ItemStore | str | Path,
        *,
        form: Form | None = None,
        per: Literal["session", "user"] = "session",
        max_bytes: int = 8192,
    ) -> None:
        if per not in ("session", "user"):
            raise ConfigError("WorkingMemory.per", per, "must be 'session' or 'user'")
        check_whole_number("WorkingMemory.max_bytes", max_bytes, 1)
        self._store = items_at(notes, space=SPACE)
        self._form = FreeText() if form is None else form
        self._per = per
        self._max_bytes = max_bytes
        if len(self._form.initial().encode()) > max_bytes:
            raise ConfigError("WorkingMemory.max_bytes", max_bytes, "is less than the format's initial text takes")

    def __reduce__(self) -> tuple[Any, ...]:
        from turnwise.memory.longterm.items.in_memory import InMemoryItems  # here, since few programs have notes

        if isinstance(self._store, InMemoryItems):
            raise TypeError("notes in the memory of a process cannot be sent to another one: use SQLItems")
        return partial(type(self), form=self._form, per=self._per, max_bytes=self._max_bytes), (self._store,)

    @property
    def items(self) -> ItemStore:
        """The item store of the notes."""
        return self._store

    @property
    def is_local(self) -> bool:
        """Whether the notes are in a file on one machine."""
        return is_local(self._store)

    async def read(self, scope: Scope) -> str:
        """Return the text; the format's initial text if it was never changed."""
        owner = self._owner(scope)
        items = await self._store.get(Scope(user_id=owner.user_id), [_id(owner)])
        return _text(owner, next(iter(items.values()))) if items else self._form.initial()

    async def replace(self, scope: Scope, content: Any) -> str:
        """Replace the text by the content; return the new text.

        Args:
            content: text, or for a `JsonForm` also an object.

        Raises:
            WorkingMemoryError: the content does not fit the format, or is too long; nothing was changed.
        """
        return await self._change(scope, lambda _: self._form.replace(content))

    async def merge(self, scope: Scope, content: Any) -> str:
        """Merge the content as the format defines; return the new text. Raises as `replace` does."""
        return await self._change(scope, lambda before: self._form.merge(before, content))

    async def clear(self, scope: Scope) -> bool:
        """Reset the text to the format's initial text; return whether a text was stored."""
        owner = self._owner(scope)
        return bool(await self._store.delete(Scope(user_id=owner.user_id), [_id(owner)]))

    async def about(self, scope: Scope, subject: Subject) -> tuple[str, ...]:
        """Return the parts of the text that say a subject; see `Form.about`."""
        return tuple(self._form.about(await self.read(scope), subject))

    async def remove(self, scope: Scope, parts: Collection[str]) -> None:
        """Remove parts of the text, as `about` returned them; those that are not there any more are left alone.

        Raises:
            WorkingMemoryError: the text would not fit the format without them; nothing was changed.
        """
        before = await self.read(scope)
        if before != self._form.initial():  # else it would store a text where there is none
            await self._change(scope, lambda text: self._form.without(text, parts))

    async def section(self, scope: Scope) -> str:
        """Return the text as a section of a prompt, quoted as other memories are; empty if there is no text."""
        text = await self.read(scope)
        return "" if text in _NOTHING else f"<working_memory>\n{quote(text)}\n</working_memory>"

    async def forget(self, scope: Scope) -> int:
        """Delete the note of the scope's session or, without a session, all of the user's; return how many existed."""
        return len(await self._store.delete(Scope(user_id=scope.user_id, session_id=scope.session_id)))

    async def forget_sessions(self, sessions: Mapping[str, Collection[str]]) -> None:
        """Delete the notes of sessions, by user."""
        await delete_sessions(self._store, sessions)

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine."""
        await self._store.close()

    def copied(self) -> WorkingMemory | None:
        """Return a copy with connections of its own, which the caller closes; None if it has none, as in memory."""
        try:
            return copy.deepcopy(self)
        except TypeError:
            return None

    async def _change(self, scope: Scope, change: Callable[[str], str]) -> str:
        owner = self._owner(scope)
        name = _name(owner)

        def checked(before: str | None) -> str:
            try:
                text = change(self._form.initial() if before is None else before)
                size = len(text.encode())
            except ValueError as error:
                raise WorkingMemoryError(name, str(error)[:_SHOWN]) from error
            if size > self._max_bytes:
                reason = f"it would take {size} bytes of max_bytes={self._max_bytes}; shorten it"
                raise WorkingMemoryError(name, reason)
            return text

        def changed(item: MemoryItem | None) -> MemoryItem:
            text = str(to_json(checked(None if item is None else _text(owner, item))))
            if item is not None:
                return replace(item, text=text)
            return MemoryItem(id=_id(owner), text=text, source=Source(session_id=owner.session_id))

        item = await self._store.change(Scope(user_id=owner.user_id), _id(owner), changed)
        return "" if item is None else _text(owner, item)

    def _owner(self, scope: Scope) -> Scope:
        if self._per == "session" and scope.session_id is None:
            raise WorkingMemoryError(_name(scope), "it belongs to a session, and the scope has no session")
        owner = replace(scope, agent=None, session_id=scope.session_id if self._per == "session" else None)
        try:
            check_id("user", owner.user_id)
            if owner.session_id is not None:
                check_id("session", owner.session_id)
        except InvalidIdError as error:
            raise WorkingMemoryError(_name(scope), str(error)) from error
        return owner


def _name(scope: Scope) -> str:
    of = "" if scope.session_id is None else f"session {scope.session_id!r} of "
    return f"{of}user {scope.user_id!r}"


def _id(owner: Scope) -> str:
    return "user" if owner.session_id is None else f"session {owner.session_id}"


def _text(owner: Scope, item: MemoryItem) -> str:
    """Return the text of a note; it is stored as JSON, since it may be empty."""
    return decoded(f"note of {_name(owner)}", lambda: decode_text(item.text))


async def forget_apart(working: WorkingMemory, scope: Scope) -> int:
    """Do what `WorkingMemory.forget` does, on any event loop. Connections are its own, and closed when it returns."""
    own = working.copied()
    if own is None:
        return await working.forget(scope)
    try:
        return await own.forget(scope)
    finally:
        await own.close()
