"""What sessions are to do later: the page of all schedules, and the list beside a conversation."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from nicegui.element import Element

from turnwise.actors.client.session import AsyncSession
from turnwise.console.elements.dialogs import confirmed
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, link, replace_text, tag
from turnwise.console.elements.text import moment, number
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.texts import prompt_text_of, recurrence_of

PAGE = 25
"""How many schedules are shown at once."""

REFRESH_S, _PAUSES = 2.0, 10
"""How often it is looked for changes, in seconds; less often if a look takes long."""

_CHARS = 300
"""How many characters of a prompt, and of a reason, are shown."""


async def schedules_page(user: str = "") -> None:
    """Show the schedules of all conversations that the viewer may see."""
    with Frame.of_page("schedules", "Schedules") as frame:
        page = _Schedules(frame, user)
        page.build()
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _Schedules:
    def __init__(self, frame: Frame, user: str) -> None:
        self._frame = frame
        self._user = user
        self._cursors: list[str | None] = [None]
        """Where this page begins, and those before it."""
        self._next: str | None = None

    def build(self) -> None:
        tag("h1", "heading", "Schedules")
        self._list = ScheduleList(self._frame, "There are no schedules.", has_sessions=True)
        with tag("div", "row"):
            self._earlier = button("Previous page", self._back, "hidden")
            self._later = button("Next page", self._forward, "hidden")

    def _back(self) -> None:
        if len(self._cursors) > 1:
            self._cursors.pop()
            self._frame.wake.set()

    def _forward(self) -> None:
        if self._next:
            self._cursors.append(self._next)
            self._frame.wake.set()

    async def refresh(self) -> float:
        """Show what the store says now."""
        began, viewer, cursor = time.monotonic(), self._frame.viewer, self._cursors[-1]
        user_id = (self._user.strip() or None) if viewer.sees_all else viewer.user_id
        page = await viewer.manager.schedules(user_id=user_id, cursor=cursor, limit=PAGE)
        if cursor == self._cursors[-1]:
            self._next = page.cursor
            self._list.show(page)
            _show_if(self._earlier, len(self._cursors) > 1)
            _show_if(self._later, self._next is not None)
        return max(REFRESH_S, _PAUSES * (time.monotonic() - began))


class ScheduleList:
    """A table of schedules, with a button at each that cancels it, unless the viewer may change nothing."""

    def __init__(self, frame: Frame, empty: str, *, has_sessions: bool) -> None:
        self._frame = frame
        self._has_sessions = has_sessions
        self._shown: tuple[Delivery, ...] | None = None
        columns = ["Next", "Recurs", "Prompt", "State", "Actions"]
        if has_sessions:
            columns = ["Conversation", "User", *columns]
        if frame.viewer.is_read_only:
            columns.remove("Actions")
        with tag("div", "card panel"):
            with tag("table", "list", aria_label="Schedules") as self._table:
                with tag("thead"), tag("tr"):
                    for name in columns:
                        tag("th", "", name, scope="col")
                self._body = tag("tbody")
            self._empty: Any = tag("div", "empty", empty)

    def show(self, schedules: Iterable[Delivery]) -> None:
        """Show these schedules."""
        shown = tuple(schedules)
        if shown == self._shown:
            return
        self._shown = shown
        self._body.clear()
        with self._body:
            for schedule in shown:
                self._show_row(schedule)
        _show_if(self._table, bool(shown))
        _show_if(self._empty, not shown)

    def _show_row(self, schedule: Delivery) -> None:
        viewer = self._frame.viewer
        with tag("tr", "", aria_label=schedule.key):
            if self._has_sessions:
                with tag("td"):
                    link(schedule.session_id, viewer.session_url(schedule.session_id, schedule.user_id), "clip")
                tag("td", "", schedule.user_id)
            tag("td", "", moment(schedule.occurs_at))
            tag("td", "", recurrence_of(schedule) or "once")
            with tag("td"):
                tag("div", "", prompt_text_of(schedule, _CHARS))
                tag("div", "soft small", schedule.key)
            with tag("td"):
                _show_state(schedule)
            if not viewer.is_read_only:
                with tag("td"):
                    button("Cancel", lambda: self._cancel(schedule), "bad", aria_label=f"Cancel {schedule.key}")

    async def _cancel(self, schedule: Delivery) -> None:
        with self._frame.client.content:  # not in the row, which may go while the viewer is asked
            reason = f"{schedule.session_id}: {prompt_text_of(schedule, _CHARS)}"
            is_confirmed = await confirmed(f"Cancel the schedule {schedule.key}?", reason, "Cancel the schedule")
        if is_confirmed:
            session = await self._frame.viewer.session(schedule.session_id, schedule.user_id)
            await session.cancel_schedule(schedule.key)
            self._frame.wake.set()


def _show_state(schedule: Delivery) -> None:
    if schedule.due_at is None:
        badge("given up", "bad")
    elif schedule.attempts:
        badge(f"{number(schedule.attempts)} attempts, next {moment(schedule.due_at)}", "busy")
    else:
        badge("waits", "good")
    if schedule.why:
        tag("div", "soft small", schedule.why[:_CHARS])


class SessionSchedules:
    """The schedules of a conversation; hidden while there are none."""

    def __init__(self, frame: Frame, session: AsyncSession) -> None:
        self._session = session
        with tag("section", "hidden", aria_label="Schedules of this conversation") as self._whole:
            tag("h2", "", "Schedules")
            self._list = ScheduleList(frame, "", has_sessions=False)
            self._more: Any = tag("div", "soft small", "")

    async def refresh(self) -> None:
        """Show what the store says now."""
        page = await self._session.schedules(limit=PAGE)
        self._list.show(page)
        replace_text(self._more, "There are more: the page of schedules has all." if page.cursor else "")
        _show_if(self._whole, bool(page))


def _show_if(element: Element, is_visible: bool) -> None:
    if is_visible == ("hidden" in element.classes):
        element.classes(remove="hidden") if is_visible else element.classes(add="hidden")
        element.update()
