"""How sessions, turns, runs and memory items show themselves in notebooks: as small tables of escaped text.

A table has what its object holds: to show it asks no process, no store and no memory. A value that cannot be read is
shown as the error that reading it raised, since an error in a notebook's display would hide the cell's result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, TypeVar

from turnwise.memory.conversation.blocks import Block, Document, Image, ToolResult, ToolUse, described
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.plain_text import plain

Item = TypeVar("Item")

MOST_ROWS, MOST_CHARS = 50, 300
"""How many rows a table has at most, and how many characters a cell."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "SessionRecord": ("session_id", "title", "user_id", "agent", "status", "updated_at", "usage"),
    "SessionInfo": ("session.session_id", "session.title", "session.user_id", "active_run_id", "queued_run_ids", "pid"),
    "RunRecord": ("run_id", "session_id", "turn_index", "state", "why", "labels", "created_at", "usage"),
    "Turn": ("index", "status", "asked", "text", "usage"),
    "ChatMessage": ("turn_index", "role", "text", "at"),
    "PendingCall": ("call_id", "name", "input", "wants", "why"),
    "Step": ("kind", "name", "started_at", "seconds", "tries", "is_error", "usage"),
    "Event": ("seq", "kind", "at", "run_id", "text"),
    "Delivery": ("key", "session_id", "kind", "due_at", "schedule", "attempts", "why"),
    "MemoryItem": ("id", "text", "type", "topic", "created_at", "memory", "score", "words"),
}
"""The attributes that a table shows of each kind of object, by the name of its class."""

# Notebooks typeset what is between dollars, unless a class says that it is no mathematics.
_FRAME = '<table class="tex2jax_ignore mathjax_ignore" style="white-space:pre-wrap"><caption>{}</caption>{}</table>'
_LEFT = 'style="text-align:left"'


class Rows(list[Item]):
    """A list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return items_html(self)


class ListPage(Rows[Item]):
    """A list of which more may follow."""

    def __init__(self, items: Iterable[Item] = (), next: int | None = None) -> None:
        super().__init__(items)
        self.next = next
        """Pass it as `after` to get the next page; None if there is none."""


def items_html(items: Sequence[Any], *notes: Any) -> str:
    """Return a table with a row for each item, and in its caption the notes that are not empty."""
    shown = items[:MOST_ROWS]
    names = _columns_of(shown[0]) if shown else ()
    kinds = {type(item).__name__ for item in shown}
    count = f"the first {len(shown)} of {len(items)}" if len(shown) < len(items) else f"{len(items)}"
    title = f"{kinds.pop() if len(kinds) == 1 else 'items'}: {count}"
    rows = [[_read(item, name) for name in names] for item in shown]
    return _table("; ".join(map(str, filter(None, (title, *notes)))), [name.rpartition(".")[2] for name in names], rows)


def record_html(record: Any) -> str:
    """Return a table with a row for each of the object's attributes that its kind has a column for."""
    rows = [(name.rpartition(".")[2], _read(record, name)) for name in _columns_of(record)]
    return _table(type(record).__name__, (), rows)


def facts_html(title: str, facts: Mapping[str, Any]) -> str:
    """Return a table of names and values, without those that are None."""
    return _table(title, (), [(name, _read(value)) for name, value in facts.items() if value is not None])


def turn_html(turn: Any) -> str:
    """Return a table with what a turn added: a row for each block."""
    title = " ".join(filter(None, ("Turn", turn.id, turn.status, _read(turn.usage))))
    try:
        rows: Sequence[Sequence[str]] = [(block.role, block.kind, _read(block)) for block in turn.new_blocks]
    except Exception as error:  # noqa: BLE001 - see above
        rows = [("", "", _reason(error))]
    return _table(title, ("role", "kind", "content"), rows)


def _columns_of(item: Any) -> tuple[str, ...]:
    return next((_COLUMNS[cls.__name__] for cls in type(item).__mro__ if cls.__name__ in _COLUMNS), ("",))


def _read(item: Any, path: str = "") -> str:
    """Return the text of an attribute, such as `session.title`; of the item itself without a path."""
    try:
        value = item
        for name in filter(None, path.split(".")):
            value = getattr(value, name, None)
        if isinstance(value, float) and (path == "at" or path.endswith("_at")):
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S") if value else ""
        return _text(value)
    except Exception as error:  # noqa: BLE001 - see above
        return _reason(error)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _text(value: Any) -> str:
    match value:
        case str():
            text = value
        case None | False:
            text = ""
        case float():
            text = f"{value:.3g}"
        case Usage():
            cost = f", {value.cost:.4g}" if value.cost else ""
            text = f"{value.input_tokens:,} + {value.output_tokens:,} tokens{cost}"
        case Block():
            text = _block_text(value)
        case Mapping():
            text = json.dumps(value, ensure_ascii=False, default=str) if value else ""
        case tuple() | list():
            text = ("\n" if any(isinstance(item, Block) for item in value) else ", ").join(map(_text, value))
        case _:
            text = str(value)
    return text


def _block_text(block: Block) -> str:
    if isinstance(block, ToolUse):
        return f"{block.name}({_text(block.input)})"
    if isinstance(block, ToolResult):
        return f"error: {block.plain}" if block.is_error else block.plain
    return f"[{described(block)}]" if isinstance(block, Image | Document) else str(getattr(block, "text", ""))


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = _row("th", names) if any(names) else ""
    return _FRAME.format(_escaped(title), head + "".join(_row("td", row) for row in rows))


def _row(tag: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag} {_LEFT}>{_escaped(text)}</{tag}>' for text in texts)}</tr>"


def _escaped(text: str) -> str:
    shortened = text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} … {len(text) - MOST_CHARS:,} more characters"
    return escape(plain(shortened), quote=True)
