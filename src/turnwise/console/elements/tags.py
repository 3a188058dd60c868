"""Elements of pages. All text in them comes from `plain`, and none of it is read as HTML, Markdown or a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from turnwise.console.elements.text import number
from turnwise.memory.values.plain_text import plain

SHOWN = 20_000
"""How many characters of a text are shown at first; more on request."""

Handler = Callable[[], Awaitable[None] | None]


def tag(name: str, classes: str = "", text: str | None = None, **attributes: str | int | bool) -> Element:
    """Return a new HTML element: with a text, or the parent of those that are made in its `with` block.

    Args:
        attributes: of the element; `aria_label` is `aria-label`. Their values are texts too, never code.
    """
    element: Element = Element(name) if text is None else TextElement(tag=name, text=plain(text))
    if classes:
        element.classes(classes)
    for key, value in attributes.items():
        element.props[key.rstrip("_").replace("_", "-")] = plain(value) if isinstance(value, str) else value
    return element


def button(label: str, handler: Handler, classes: str = "", **attributes: str | int | bool) -> Element:
    """Make a button that calls a function; it takes no second click while that runs."""
    element = tag("button", f"button {classes}", label, type="button", **attributes)
    is_busy = False

    async def clicked() -> None:
        nonlocal is_busy
        if is_busy:  # it is not disabled meanwhile, so that it keeps the keyboard's focus
            return
        is_busy = True
        try:
            if (work := handler()) is not None:
                await work
        finally:
            is_busy = False

    return element.on("click", clicked, args=[])


def link(text: str, href: str, classes: str = "", **attributes: str | int | bool) -> Element:
    """Make a link within the console; `href` comes from `Viewer.url`, never from what is stored."""
    return tag("a", classes, text, href=href, **attributes)


def badge(text: str, kind: str = "") -> Element:
    """Make a small label; `kind` chooses its colour: good, bad, busy or none."""
    return tag("span", f"badge {kind}", text)


def long_text(text: str, classes: str = "", name: str = "pre") -> Element:
    """Make a text with its line breaks. Of a long one, the beginning is shown, and a button shows more."""
    with tag("div", "long") as element:
        tag(name, f"text {classes}", text[:SHOWN], dir="auto")
        if len(text) > SHOWN:
            _more(text, SHOWN, classes, name)
    return element


def _more(text: str, start: int, classes: str, name: str) -> None:
    def show() -> None:
        with holder:
            holder.clear()
            tag(name, f"text {classes}", text[start : start + 10 * SHOWN], dir="auto")
            if len(text) > start + 10 * SHOWN:
                _more(text, start + 10 * SHOWN, classes, name)

    with tag("div") as holder:
        button(f"Show more of the {number(len(text) - start)} characters left", show, "quiet")


def fact(name: str, value: str, classes: str = "") -> None:
    """Make a name with its value, within a `dl`."""
    tag("dt", "", name)
    tag("dd", classes, value)


def replace_text(element: Any, text: str) -> None:
    """Change the text of an element that `tag` made, if it differs."""
    if element.text != (shown := plain(text)):
        element.set_text(shown)
