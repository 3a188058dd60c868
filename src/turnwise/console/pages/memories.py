"""The page of memories: what long-term memory keeps of a user, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nicegui import ui

from turnwise.actors.client.session import AsyncSession
from turnwise.console.elements.dialogs import confirmed, show_report
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, long_text, tag
from turnwise.console.elements.text import moment, number
from turnwise.console.pages.calls import MAX_CHARS
from turnwise.errors import InvalidInputError, NoMemoryError, ReadOnlyStoreError
from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.retention.about import About, Mention
from turnwise.memory.values.plain_text import plain

PAGE = 50
"""How many items are shown at once."""

_FOUND = 30
"""How many items a search shows."""


async def memories_page(user: str = "", agent: str = "", q: str = "") -> None:
    """Show what is kept of a user, for an agent."""
    with Frame.of_page("memories", "Memories") as frame:
        page = _Memories(frame, {"user": user, "agent": agent, "q": q})
        page.build()
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _Memories:
    """A user's items. Memories are reached by the user's newest session, since a memory's scope is a session's."""

    def __init__(self, frame: Frame, filters: dict[str, str]) -> None:
        self._frame = frame
        self._filters = filters
        self._cursor: str | None = None
        self._session: AsyncSession | None = None

    def build(self) -> None:
        viewer = self._frame.viewer
        with tag("div", "row"):
            tag("h1", "grow", "Memories")
            if not viewer.is_read_only:
                button("Forget a subject", self._forget_subject)
            if viewer.sees_all and not viewer.is_read_only:
                button("Forget this user", self._forget, "bad")
        with tag("div", "filters two", role="search"):
            if viewer.sees_all:
                self._field("user", "User")
            self._field("agent", "Agent, for its own items")
            self._field("q", "Search, as a prompt would")
        self._report = tag("div", "", aria_live="polite")
        self._list = tag("div", "", aria_live="polite")
        self._more = button("Show more", self._next, "hidden")

    def _field(self, name: str, label: str) -> None:
        field = ui.input(label, value=self._filters[name], on_change=lambda e: self._set_filter(name, e.value or ""))
        field.props("outlined dense clearable debounce=300")

    def _set_filter(self, name: str, value: str) -> None:
        self._filters[name] = value
        ui.navigate.history.replace(self._frame.viewer.url("memories", **self._filters))
        self._frame.wake.set()

    async def refresh(self) -> float | None:
        """Read and show the items; again only when something else is wanted."""
        filters = dict(self._filters)
        items, cursor, reason = await self._read(filters)
        if filters == self._filters:
            self._list.clear()
            with self._list:
                self._show(items)
                if reason and not items:
                    tag("div", "card empty", reason)
            self._set_cursor(cursor)
        return 3600.0

    async def _read(self, filters: dict[str, str]) -> tuple[Sequence[MemoryItem], str | None, str]:
        """Return the items, where the next page begins, and why there are none."""
        viewer, query = self._frame.viewer, filters["q"].strip()
        user = filters["user"].strip() if viewer.sees_all else viewer.user_id
        if not user:
            return (), None, "Name a user."
        agent = filters["agent"].strip() or None
        sessions = list(await viewer.manager.list(user_id=user, agent=agent, order_by="updated_at", limit=1))
        if not sessions:
            return (), None, "This user has no session, by which memories would be reached."
        self._session = await viewer.session(sessions[0].session_id, user)
        try:
            if query:
                return await self._session.memory.recall(query, limit=_FOUND), None, "Nothing is recalled for this."
            page = await self._session.memory.list(limit=PAGE)
        except NoMemoryError:
            return (), None, "The service has no long-term memory that lists its items."
        except ReadOnlyStoreError:
            return (), None, "Memories are reached by a process of the session, and what only reads starts none."
        return list(page), page.cursor, "Nothing is kept of this user."

    def _set_cursor(self, cursor: str | None) -> None:
        self._cursor = cursor
        self._more.classes(remove="hidden") if cursor else self._more.classes(add="hidden")

    async def _next(self) -> None:
        session, cursor = self._session, self._cursor
        if session and cursor:
            page = await session.memory.list(limit=PAGE, cursor=cursor)
            if session is self._session and cursor == self._cursor:  # else the page shows something else by now
                with self._list:
                    self._show(list(page))
                self._set_cursor(page.cursor)

    def _show(self, items: Sequence[MemoryItem]) -> None:
        for item in items:
            with tag("article", "card", aria_label=f"Memory {item.id}"):
                self._show_item(item)

    def _show_item(self, item: MemoryItem) -> None:
        with tag("div", "row small"):
            badge(item.type.value)
            if item.pinned:
                badge("pinned", "good")
            if item.status != "active":
                badge(item.status)
            if item.score is not None:
                tag("span", "soft", f"relevance {item.score:.2f}: {', '.join(item.words)}")
        long_text(item.text)
        facts = [item.memory, item.topic and f"about {item.topic}", item.name, *item.aliases]
        facts += [moment(item.created_at) if item.created_at else None]
        facts += [f"until {moment(item.expires_at)}" if item.expires_at else None]
        facts += [f"used {number(item.uses)} times" if item.uses else None]
        facts += [f"from {item.source.session_id}" if item.source.session_id else None]
        with tag("div", "foot"):
            tag("span", "grow", " · ".join(filter(None, facts)))
            if not self._frame.viewer.is_read_only and self._session:
                button("Edit", partial(self._edit, self._session, item), "quiet")
                button("Unpin" if item.pinned else "Pin", partial(self._pin, self._session, item), "quiet")
                button("Delete", partial(self._delete, self._session, item), "quiet bad")

    async def _edit(self, session: AsyncSession, item: MemoryItem) -> None:
        with ui.dialog() as dialog, tag("div", "card box"):
            tag("h2", "", "Edit the memory")
            text = ui.textarea("Text", value=item.text).props(f"outlined autogrow maxlength={MAX_CHARS}")
            topic = ui.input("Topic", value=item.topic or "").props("outlined dense maxlength=1000")
            with tag("div", "row"):
                button("Save", lambda: dialog.submit(True), "main")
                button("Back", lambda: dialog.submit(False))
        if await dialog:
            await session.memory.update(item.id, text.value or "", topic=topic.value or None)
            self._frame.wake.set()
        dialog.delete()

    async def _pin(self, session: AsyncSession, item: MemoryItem) -> None:
        await (session.memory.unpin(item.id) if item.pinned else session.memory.pin(item.id))
        self._frame.wake.set()

    async def _delete(self, session: AsyncSession, item: MemoryItem) -> None:
        if await confirmed("Delete this memory?", "It does not come back when the same is said again.", "Delete it"):
            deleted = await session.memory.delete(item.id)
            self._frame.wake.set()
            if deleted.left.mentions:
                await self._forget_found(session, deleted.left, "Delete the turn that it comes from, too?")

    async def _forget_subject(self) -> None:
        session = self._session
        if not session:
            return
        with ui.dialog() as dialog, tag("div", "card box"):
            tag("h2", "", "Forget a subject")
            text = ui.input("What to forget, in the user's words").props("outlined dense maxlength=1000")
            with tag("div", "row"):
                button("Find it", lambda: dialog.submit(True), "main")
                button("Back", lambda: dialog.submit(False))
        subject = (text.value or "").strip() if await dialog else ""
        dialog.delete()
        if not subject:
            return
        try:
            about = await session.memory.find_about(subject)
        except InvalidInputError as error:
            ui.notify(plain(error.why), type="warning")
            return
        await self._forget_found(session, about, f"Forget {subject}?")

    async def _forget_found(self, session: AsyncSession, about: About, question: str) -> None:
        """Show what is about a subject; delete what is chosen of it."""
        chosen: list[tuple[ui.checkbox, Mention | str]] = []
        with ui.dialog() as dialog, tag("div", "card box", role="alertdialog", aria_label=question):
            tag("h2", "", question)
            for name, reason in about.failed.items():
                tag("p", "bad", f"{name} could not be searched: {reason}")
            if not (about.mentions or about.notes or about.similar):
                tag("p", "text", "Nothing says this.")
            for mention in (*about.mentions, *about.similar):
                is_certain = mention.why != "similar"
                chosen.append((_checkbox(mention.text, is_certain), mention))
                facts = [mention.memory, "all of the turn" if mention.is_turn else None]
                facts += ["in the profile" if mention.in_profile else None, None if is_certain else "only similar"]
                facts += [moment(mention.created_at) if mention.created_at else None]
                tag("p", "soft small", " · ".join(filter(None, facts)))
            for note in about.notes:
                chosen.append((_checkbox(note, True), note))
                tag("p", "soft small", "in the notes")
            with tag("div", "row"):
                button("Forget what is ticked", lambda: dialog.submit(True), "bad")
                button("Back", lambda: dialog.submit(False), autofocus=True)
        is_confirmed = bool(await dialog)
        ticked = [part for box, part in chosen if box.value]
        dialog.delete()
        if is_confirmed:
            mentions = tuple(part for part in ticked if isinstance(part, Mention))
            notes = tuple(part for part in ticked if isinstance(part, str))
            gone = await session.memory.forget_about(About(mentions=mentions, notes=notes))
            self._report.clear()
            with self._report:
                tag("p", "card", f"Forgotten: {number(len(gone.mentions) + len(gone.notes))}", role="status")
            self._frame.wake.set()

    async def _forget(self) -> None:
        user = self._filters["user"].strip()
        if not user:
            return
        reason = (
            f"All sessions of {user} and all that memories keep of this user are deleted, and looked for afterwards."
        )
        if await confirmed(f"Forget {user}?", reason, "Forget the user"):
            report = await self._frame.viewer.manager.forget(user)
            self._report.clear()
            with self._report:
                show_report(report, self._close_report)
            self._frame.wake.set()

    def _close_report(self) -> None:
        self._report.clear()


def _checkbox(text: str, is_ticked: bool) -> ui.checkbox:
    return ui.checkbox(plain(text[:MAX_CHARS]), value=is_ticked)
