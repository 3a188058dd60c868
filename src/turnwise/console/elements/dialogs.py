"""Questions before something is done, and the report of what was forgotten."""

from __future__ import annotations

from nicegui import ui

from turnwise.console.elements.tags import Handler, button, fact, tag
from turnwise.console.elements.text import number
from turnwise.memory.longterm.retention.deletion_report import Forgotten


async def confirmed(question: str, reason: str, yes: str) -> bool:
    """Ask whether something is to be done."""
    with ui.dialog() as dialog, tag("div", "card", role="alertdialog", aria_label=question):
        tag("h2", "", question)
        tag("p", "text", reason)
        with tag("div", "row"):
            button(yes, lambda: dialog.submit(True), "bad")
            button("Back", lambda: dialog.submit(False), autofocus=True)
    is_confirmed = bool(await dialog)
    dialog.delete()
    return is_confirmed


def show_report(report: Forgotten, close: Handler) -> None:
    """Show what was removed, and whether nothing of it was found afterwards."""
    with tag("section", "card", role="status", aria_label="What was forgotten"):
        with tag("div", "row"):
            tag("h2", "grow", "What was forgotten")
            button("Close", close, "quiet")
        with tag("dl", "facts"):
            for name in ("sessions", "turns", "summaries", "waiting", "notes", "webhooks"):
                if count := getattr(report, name):
                    fact(name.capitalize(), number(count))
            for name, count in report.items.items():
                fact(f"Items of {name}", number(count))
            for name, erasure in report.erased.items():
                fact(f"Remains in {name}", "none were found" if erasure.verified else "cannot be ruled out")
