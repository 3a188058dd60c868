"""`register`: the pages, by their paths."""

from __future__ import annotations

from functools import cache

from nicegui import ui
from starlette.requests import Request
from starlette.responses import RedirectResponse

from turnwise.console.conversation import conversation_page
from turnwise.console.hosts import hosts_page
from turnwise.console.memories import memories_page
from turnwise.console.sessions import sessions_page
from turnwise.console.style import STYLE
from turnwise.console.usage import usage_page
from turnwise.console.viewer import Viewer

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#2456c7"/>'
    '<path d="M8 11h16M8 16h10M8 21h13" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>'
)


@cache
def register() -> None:
    """Make the pages known to NiceGUI, once in a process."""
    ui.add_head_html(STYLE, shared=True)
    ui.page("/sessions")(sessions_page)
    ui.page("/session")(conversation_page)
    ui.page("/memories")(memories_page)
    ui.page("/usage")(usage_page)
    ui.page("/hosts")(hosts_page)
    ui.page("/")(_start)


def _start(request: Request) -> RedirectResponse:
    return RedirectResponse(Viewer.of(request.scope).url("sessions"))
