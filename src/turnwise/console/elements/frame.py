"""`Frame`: what all pages have around them: header, navigation, the switch for light and dark, and what went wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from nicegui import Client, ui

from turnwise.console.access.viewer import Viewer
from turnwise.console.elements.tags import button, link, replace_text, tag
from turnwise.errors import TurnwiseError
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.values.plain_text import plain

PAGES = {
    "sessions": "Sessions",
    "search": "Search",
    "schedules": "Schedules",
    "webhooks": "Webhooks",
    "memories": "Memories",
    "usage": "Usage",
    "hosts": "Hosts",
}
"""The pages in the navigation, by their path."""

_THEMES = {"auto": None, "light": False, "dark": True}
_THEME = "turnwise_theme"
"""The cookie with the chosen theme."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
"""After how long what failed is tried again; twice as long each further time, up to the longest."""

_log = logging.getLogger(__name__)


class Frame:
    """A page's surroundings. `with Frame.of_page("sessions", "Sessions") as frame:` makes them around its content."""

    def __init__(self, client: Client, viewer: Viewer) -> None:
        self.client = client
        self.viewer = viewer
        self.wake = asyncio.Event()
        """Set to have what `keep` repeats done at once."""
        self._banner = tag("div", "banner hidden", "", role="alert")

    @classmethod
    @contextmanager
    def of_page(cls, page: str, title: str) -> Iterator[Self]:
        """Make the surroundings of a page, and put what is made within into its middle."""
        client = ui.context.client
        viewer = Viewer.of(client.request.scope)
        client.title = f"{title} · turnwise"
        tag("a", "skip", "Skip to the content", href="#content")
        with tag("header", "bar"):
            link("turnwise", viewer.url("sessions"), "brand")
            with tag("nav", aria_label="Pages"):
                for path, name in PAGES.items():
                    current = {"aria_current": "page"} if path == page else {}
                    link(name, viewer.url(path), **current)
            if viewer.is_read_only:
                tag("span", "badge", "read only")
            _theme(client, viewer)
            if viewer.identity:
                tag("span", "who small", viewer.identity.user_id)
                with tag("form", action=viewer.url("logout"), method="post"):
                    tag("button", "button quiet", "Log out", type="submit")
        with tag("div", "content", id="content", tabindex="-1"):  # which is in a `main` of NiceGUI's
            frame = cls(client, viewer)
            client.on_exception(frame.show_error)
            yield frame

    def show_error(self, error: Exception) -> None:
        """Show what went wrong with something that the viewer asked for."""
        with self.client.content:
            ui.notify(
                _message_of(error), type="negative", position="top", multi_line=True, close_button="Close", timeout=8000
            )

    def show(self, trouble: str | None) -> None:
        """Show above the page what is wrong, until it is none."""
        replace_text(self._banner, trouble or "")
        self._banner.classes(remove="hidden") if trouble else self._banner.classes(add="hidden")

    async def arrived(self) -> bool:
        """Wait for the browser to connect; the task that called this is cancelled when the browser has gone."""
        task = asyncio.current_task()
        self.client.on_delete(lambda: task.cancel() if task else None)
        await self.client.connected()
        return not self.client.is_deleted

    async def repeat(self, work: Callable[[], Awaitable[float | None]]) -> None:
        """Repeat something after the seconds that it returns, or when `wake` is set; end when it returns None.

        When it fails, as when the store is away, the page says so and tries again.
        """
        pauses = GrowingPauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                self.wake.clear()
                again_s = await work()
                self.show(None)
                pauses.reset()
            except NotThereError:
                raise
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                log_unexpected(error)
                again_s = pauses.next_s()
                self.show(f"{_message_of(error)} Trying again.")
            if again_s is None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), again_s)


class NotThereError(Exception):
    """The session or run of the page does not exist, or was deleted."""


def log_unexpected(error: Exception) -> None:
    """Log an error with its traceback, unless it is one of turnwise's, which the page shows in full."""
    if not isinstance(error, TurnwiseError):
        _log.error("a page of the console failed, and tries again", exc_info=error)


def _message_of(error: Exception) -> str:
    message = plain(str(error)).strip() if isinstance(error, TurnwiseError) else ""
    return (
        f"{message[:1].upper()}{message[1:600]}{'' if message.endswith('.') else '.'}"
        if message
        else "This did not work: the service's log has the cause."
    )


def _theme(client: Client, viewer: Viewer) -> None:
    chosen = client.request.cookies.get(_THEME, "auto")
    chosen = chosen if chosen in _THEMES else "auto"
    ui.dark_mode(_THEMES[chosen])
    names = list(_THEMES)

    def switch() -> None:
        nonlocal chosen
        chosen = names[(names.index(chosen) + 1) % len(names)]
        replace_text(switcher, f"Theme: {chosen}")
        cookie = f"{_THEME}={chosen};path={viewer.root or '/'};max-age=31536000;samesite=lax"
        dark = "auto" if chosen == "auto" else _THEMES[chosen]
        client.run_javascript(f"document.cookie = {json.dumps(cookie)}; Quasar.Dark.set({json.dumps(dark)})")

    switcher = button(f"Theme: {chosen}", switch, "quiet")
