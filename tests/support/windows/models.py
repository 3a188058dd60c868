"""Models that can be delayed and memories in SQLite files, for compactions in other processes.

A test steers them by files, so that an order of events is an order and not a matter of time: a model or memory that is
`held` waits until the test releases it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from turnwise.actors.inference.engine import InferenceRunner, StepContext
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.tool import tool
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.strategies.plan import Plan, plan_for
from turnwise.strategies.window import TokenBudget, Window


class Switch:
    """Something that is on while a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def on(self) -> None:
        Path(self.path).touch()

    def off(self) -> None:
        Path(self.path).unlink()

    @property
    def is_on(self) -> bool:
        return Path(self.path).exists()

    async def wait(self) -> None:
        """Wait until it is off."""
        while self.is_on:
            await asyncio.sleep(0.01)


class Gate:
    """A middleware that holds a model up, before it is asked or when it has answered; and notes how often it was."""

    def __init__(self, folder: Path) -> None:
        self.before = Switch(folder / "hold-before")
        self.after = Switch(folder / "hold-after")
        self.path = str(folder / "gate")

    async def run(self, turn: Turn, context: StepContext, runner: InferenceRunner) -> Sequence[AnyBlock]:
        self._note("came")
        await self.before.wait()
        answer = await runner.run(turn, context)
        self._note("answered")
        await self.after.wait()
        return answer

    def notes(self) -> list[str]:
        path = Path(self.path)
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def _note(self, note: str) -> None:
        with Path(self.path).open("a", encoding="utf-8") as notes:
            notes.write(f"{note}\n")


class Notebook:
    """A long-term memory in an SQLite file: the items that it received, and those that it has stored.

    `broken`, it refuses all; `held`, it has kept what it was given and does not say so.

    Args:
        most: how many items it takes at once; None for all.
    """

    def __init__(self, path: Path, *, most: int | None = None, read_only: bool = False) -> None:
        self.path = str(path)
        self.most = most
        self.read_only = read_only
        self.broken = Switch(path.with_suffix(".broken"))
        self.held = Switch(path.with_suffix(".held"))

    async def remember(self, scope: Scope, items: Sequence[MemoryItem]) -> Collection[str]:
        accepted = self._write(scope, items)
        await self.held.wait()
        return accepted

    async def recall(self, scope: Scope, query: str, *, limit: int = 10, **filters: Any) -> Sequence[MemoryItem]:
        return []

    async def update(self, scope: Scope, id: str, text: str | None = None, **changes: Any) -> bool:
        return False

    async def forget(self, scope: Scope, ids: Collection[str] | None = None, **which: Any) -> int:
        return 0

    async def close(self) -> None:
        pass

    def _write(self, scope: Scope, items: Sequence[MemoryItem]) -> list[str]:
        with closing(self._open()) as database:
            with database:
                database.executemany("INSERT INTO given VALUES (?)", [(item.id,) for item in items])
            if self.read_only:
                raise AssertionError("a memory that is read-only was written")
            if self.broken.is_on:
                raise OSError("the disk is full")
            accepted = items[: self.most]
            with database:
                database.executemany(
                    "INSERT OR IGNORE INTO kept VALUES (?, ?, ?, ?, ?, ?)", [_row(scope, item) for item in accepted]
                )
            return [item.id for item in accepted]

    def received_ids(self) -> list[str]:
        """Return the id of each item, once for each time that it was given."""
        with closing(self._open()) as database:
            return [name for (name,) in database.execute("SELECT id FROM given ORDER BY rowid")]

    def stored_items(self) -> list[dict[str, Any]]:
        """Return the items that it has, in the order in which it got them."""
        with closing(self._open()) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("SELECT * FROM kept ORDER BY rowid").fetchall()
        return [{**row, "spans": json.loads(row["spans"])} for row in map(dict, rows)]

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=30.0)
        database.execute("CREATE TABLE IF NOT EXISTS given (id TEXT)")
        database.execute(
            "CREATE TABLE IF NOT EXISTS kept "
            "(id TEXT UNIQUE, text TEXT, user TEXT, session TEXT, turn INTEGER, spans TEXT)"
        )
        return database


def _row(scope: Scope, item: MemoryItem) -> tuple[object, ...]:
    source = item.source
    assert source.session_id == scope.session_id
    return item.id, item.text, scope.user_id, source.session_id, source.turn_index, json.dumps(source.spans)


class OnlyTheNewest:
    """A strategy of one's own: when the window is full, nothing but the newest exchange stays."""

    def decide(self, window: Window, budget: TokenBudget) -> Plan | None:
        if window.taken(budget) <= budget.max_tokens:
            return None
        cut = window.newest.start
        if window.tokens_from(cut, budget) > budget.max_tokens:
            raise window.overflow(budget)
        return plan_for(window, budget, strategy="OnlyTheNewest", keep=window.kept_from(cut), reason="it is old")

    def due(self, window: Window, budget: TokenBudget) -> bool:
        return False


@tool
def dig(size: int, context: ToolContext) -> str:
    """Dig something out, which is long."""
    return f"{context.call_id}: " + "z" * size
