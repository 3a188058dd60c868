"""The page of sessions: live, with search, filters and pages."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, cast

from nicegui import ui
from nicegui.element import Element

from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, link, replace_text, tag
from turnwise.console.elements.text import ago, number
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionRecord, SessionStatus

PAGE = 25
"""How many sessions are shown at once."""

REFRESH_S, _PAUSES = 2.0, 10
"""How often it is looked for changes, in seconds; less often if a look takes long, such as a search."""

_LOOKS = 8
"""How many sessions are asked at once what they do."""

_COLUMNS = ("Conversation", "User", "Agent", "State", "Turns", "Tokens", "Last activity")


@dataclass(frozen=True)
class Row:
    """What the list shows of a session."""

    session: SessionRecord
    state: str
    kind: str


async def sessions_page(q: str = "", user: str = "", agent: str = "", status: str = "", shared: str = "") -> None:
    """Show the sessions that the viewer may see, the ones used last first."""
    with Frame.of_page("sessions", "Sessions") as frame:
        page = _Sessions(frame, {"q": q, "user": user, "agent": agent, "status": status, "shared": shared})
        page.build()
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _Sessions:
    def __init__(self, frame: Frame, filters: dict[str, str]) -> None:
        self._frame = frame
        self._filters = filters
        self._cursors: list[str | None] = [None]
        """Where this page begins, and those before it."""
        self._next: str | None = None
        self._rows: list[tuple[tuple[str, str], list[Any]]] = []
        self._states: dict[tuple[str, str, int], tuple[str, str]] = {}
        """What sessions did, by id, user and revision: it changes with the revision only."""

    def build(self) -> None:
        viewer = self._frame.viewer
        with tag("div", "row"):
            tag("h1", "grow", "Sessions")
            self._count = tag("span", "soft small", "", role="status")
            if not viewer.is_read_only:
                button("New conversation", self._open, "main")
        with tag("div", "filters", role="search"):
            self._field("q", "Search titles and ids")
            if viewer.sees_all:
                self._field("user", "User")
            else:
                self._choice("shared", "Whose", {"": "Your own", "true": "Shared with you"})
            self._field("agent", "Agent")
            self._choice("status", "Status", {"": "Any status", "active": "Active", "ended": "Ended"})
        with tag("div", "card panel"):
            with tag("table", "list"):
                with tag("thead"), tag("tr"):
                    for name in _COLUMNS:
                        tag("th", "number" if name in ("Turns", "Tokens") else "", name, scope="col")
                self._body = tag("tbody")
            self._empty = tag("div", "empty", "Loading…")
        with tag("div", "row"):
            self._earlier = button("Previous page", self._back, disabled=True)
            self._later = button("Next page", self._forward, disabled=True)

    def _field(self, name: str, label: str) -> None:
        field = ui.input(label, value=self._filters[name], on_change=lambda e: self._set_filter(name, e.value or ""))
        field.props("outlined dense clearable debounce=300")

    def _choice(self, name: str, label: str, kinds: dict[str, str]) -> None:
        chosen = self._filters[name] if self._filters[name] in kinds else ""
        select = ui.select(kinds, value=chosen, label=label, on_change=lambda e: self._set_filter(name, e.value))
        select.props("outlined dense options-dense")

    def _set_filter(self, name: str, value: str) -> None:
        self._filters[name] = value
        self._cursors = [None]
        ui.navigate.history.replace(self._frame.viewer.url("sessions", **self._filters))
        self._frame.wake.set()

    def _back(self) -> None:
        if len(self._cursors) > 1:
            self._cursors.pop()
            self._frame.wake.set()

    def _forward(self) -> None:
        if self._next:
            self._cursors.append(self._next)
            self._frame.wake.set()

    async def _open(self) -> None:
        viewer = self._frame.viewer
        session = await viewer.service.manager.open(user_id=viewer.identity.user_id if viewer.identity else None)
        ui.navigate.to(viewer.session_url(session.session_id, session.user_id).removeprefix(viewer.root))

    async def refresh(self) -> float:
        """Show what the store says now."""
        began = time.monotonic()
        filters, cursor = dict(self._filters), self._cursors[-1]
        viewer = self._frame.viewer
        query: dict[str, Any] = {
            "user_id": (filters["user"].strip() or None) if viewer.sees_all else viewer.user_id,
            "agent": filters["agent"].strip() or None,
            "shared": not viewer.sees_all and filters["shared"] == "true",
            "status": cast(SessionStatus, filters["status"]) if filters["status"] in ("active", "ended") else None,
        }
        title = filters["q"].strip()
        page = await viewer.manager.list(order_by="updated_at", cursor=cursor, limit=PAGE, title=title or None, **query)
        sessions = list(page)
        at_once = asyncio.Semaphore(_LOOKS)
        rows = await asyncio.gather(*(self._row(session, at_once) for session in sessions))
        total = await viewer.manager.count(**query)
        if filters == self._filters and cursor == self._cursors[-1]:
            self._next = page.cursor
            self._show(rows, total, len(page.unreadable))
        return max(REFRESH_S, _PAUSES * (time.monotonic() - began))

    async def _row(self, session: SessionRecord, at_once: asyncio.Semaphore) -> Row:
        key = session.session_id, session.user_id, session.revision
        if key not in self._states:
            if session.status == "ended":
                self._states[key] = "ended", ""
            else:
                async with at_once:
                    self._states[key] = await self._state(session)
            while len(self._states) > 10 * PAGE:
                self._states.pop(next(iter(self._states)))
        return Row(session, *self._states[key])

    async def _state(self, session: SessionRecord) -> tuple[str, str]:
        try:
            handle = await self._frame.viewer.session(session.session_id, session.user_id)
            info = await handle.info()
            if info.active_run_id is None:
                return "idle", "good"
            record = await (await handle.execution(info.active_run_id)).info()
        except SessionNotFoundError:
            return "deleted", "bad"
        state = "waits for a person" if record.state == "awaiting_approval" else "running"
        queued = len(info.queued_run_ids)
        return f"{state}, {queued} queued" if queued else state, "busy"

    def _show(self, rows: list[Row], total: int, unreadable: int) -> None:
        count_text = f"{number(total)} session{'' if total == 1 else 's'}"
        replace_text(
            self._count, count_text if not unreadable else f"{count_text}; {unreadable} of this page cannot be read"
        )
        keys = [(row.session.session_id, row.session.user_id) for row in rows]
        if keys != [key for key, _ in self._rows]:
            self._body.clear()
            with self._body:
                self._rows = [(key, self._make(row)) for key, row in zip(keys, rows, strict=True)]
        for (_, cells), row in zip(self._rows, rows, strict=True):
            self._fill(cells, row)
        replace_text(
            self._empty, "No session matches." if any(self._filters.values()) else "There are no sessions yet."
        )
        self._empty.classes(add="hidden") if rows else self._empty.classes(remove="hidden")
        self._able(self._earlier, len(self._cursors) > 1)
        self._able(self._later, self._next is not None)

    def _able(self, control: Element, is_able: bool) -> None:
        if is_able == bool(control.props.get("disabled")):
            control.props.pop("disabled", None) if is_able else control.props.update({"disabled": True})
            control.update()

    def _make(self, row: Row) -> list[Any]:
        session = row.session
        with tag("tr"):
            with tag("td"):
                href = self._frame.viewer.session_url(session.session_id, session.user_id)
                cells = [link("", href, "clip"), tag("span", "soft small", session.session_id if session.title else "")]
            for name in _COLUMNS[1:3]:
                with tag("td", data_name=name):
                    cells.append(tag("span", "", ""))
            with tag("td"):
                cells.append(badge("", ""))
            for name in _COLUMNS[4:6]:
                with tag("td", "number", data_name=name):
                    cells.append(tag("span", "", ""))
            with tag("td"):
                cells.append(tag("span", "soft", ""))
        return cells

    def _fill(self, cells: list[Any], row: Row) -> None:
        session, spent = row.session, row.session.usage
        texts = [
            session.title or session.session_id,
            session.session_id if session.title else "",
            session.user_id,
            session.agent or "-",
            row.state,
            number(session.next_index),
            number(spent.input_tokens + spent.output_tokens),
            ago(session.updated_at, time.time()),
        ]
        for cell, text in zip(cells, texts, strict=True):
            replace_text(cell, text)
        cells[4].classes(replace=f"badge {row.kind}")
