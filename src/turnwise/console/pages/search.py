"""The page of search: what was said in all conversations of a user."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, link, replace_text, tag
from turnwise.console.elements.text import moment
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.sessions import DEFAULT_USER
from turnwise.memory.stores.search.finding import SearchHit

PAGE = 25
"""How many messages are shown at once."""

REFRESH_S = 10.0
"""How often it is looked for new messages, in seconds."""

_ROLES = {"": "Anybody", "user": "Prompts", "assistant": "Answers"}


async def search_page(q: str = "", user: str = "", role: str = "", mark: str = "") -> None:
    """Show the messages of a user in which all words of a text occur."""
    with Frame.of_page("search", "Search") as frame:
        page = _Search(frame, {"q": q, "user": user, "role": role if role in _ROLES else "", "mark": mark})
        page.build()
    if await frame.arrived():
        await frame.repeat(page.refresh)


class _Search:
    def __init__(self, frame: Frame, fields: dict[str, str]) -> None:
        self._frame = frame
        self._fields = fields
        self._cursors: list[str | None] = [None]
        """Where this page begins, and those before it."""
        self._next: str | None = None
        self._shown: tuple[SearchHit, ...] | None = None

    def build(self) -> None:
        tag("h1", "heading", "Search")
        with tag("div", "filters", role="search"):
            self._field("q", "Search all conversations")
            if self._frame.viewer.sees_all:
                self._field("user", f"User, or {DEFAULT_USER}")
            self._field("mark", "Mark")
            select = ui.select(
                _ROLES, value=self._fields["role"], label="Said by", on_change=lambda e: self._set("role", e.value)
            )
            select.props("outlined dense options-dense")
        self._list = tag("div", "", aria_label="Messages", aria_live="polite")
        self._note: Any = tag("div", "empty", "Loading…", role="status")
        with tag("div", "row"):
            self._earlier = button("Previous page", self._back, "hidden")
            self._later = button("Next page", self._forward, "hidden")

    def _field(self, name: str, label: str) -> None:
        field = ui.input(label, value=self._fields[name], on_change=lambda e: self._set(name, e.value or ""))
        field.props("outlined dense clearable debounce=300")

    def _set(self, name: str, value: str) -> None:
        self._fields[name] = value
        self._cursors = [None]
        ui.navigate.history.replace(self._frame.viewer.url("search", **self._fields))
        self._frame.wake.set()

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
        fields, cursor, viewer = dict(self._fields), self._cursors[-1], self._frame.viewer
        user_id = (fields["user"].strip() if viewer.sees_all else viewer.user_id) or DEFAULT_USER
        hits: tuple[SearchHit, ...] = ()
        note = 'Words that all occur, or "words in quotes" that follow each other.'
        following: str | None = None
        if fields["q"].strip():
            filters: Any = {"role": fields["role"] or None, "mark": fields["mark"].strip() or None}
            try:
                page = await viewer.manager.search(user_id, fields["q"], cursor=cursor, limit=PAGE, **filters)
            except TurnwiseError as error:  # such as that the store cannot search
                note = str(error)
            else:
                hits, following, note = page.items, page.cursor, "" if page.items else "No message matches."
        if fields == self._fields and cursor == self._cursors[-1]:
            self._next = following
            self._show(hits, note, user_id)
        return REFRESH_S

    def _show(self, hits: tuple[SearchHit, ...], note: str, user_id: str) -> None:
        replace_text(self._note, note)
        self._note.classes(remove="hidden") if note else self._note.classes(add="hidden")
        if hits != self._shown:
            self._shown = hits
            self._list.clear()
            with self._list:
                for hit in hits:
                    self._show_hit(hit, user_id)
        for control, is_visible in ((self._earlier, len(self._cursors) > 1), (self._later, self._next is not None)):
            control.classes(remove="hidden") if is_visible else control.classes(add="hidden")

    def _show_hit(self, hit: SearchHit, user_id: str) -> None:
        with tag("article", "card panel hit"):
            with tag("div", "row small"):
                link(hit.title or hit.session_id, self._frame.viewer.session_url(hit.session_id, hit.user_id), "clip")
                tag("span", "soft", f"turn {hit.turn_index}, {'prompt' if hit.role == 'user' else 'answer'}")
                if hit.user_id != user_id:
                    badge(f"of {hit.user_id}")
                tag("span", "soft", moment(hit.at))
            with tag("p", "", dir="auto"):
                end = 0
                for start, stop in hit.ranges:
                    tag("span", "", hit.snippet[end:start])
                    tag("mark", "", hit.snippet[start:stop])
                    end = stop
                tag("span", "", hit.snippet[end:])
