"""`CheckpointStore`: what a store of LangGraph's checkpoints can do; and the one in memory.

A *space* is one namespace of one thread. Each write to a space is one commit, which names the revision of the
space that it follows; the store refuses it if another commit came in between.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from turnwise.adapters.langgraph.encoding import Ranges
from turnwise.errors import StoreClosedError
from turnwise.memory.values.ids import new_key

Place = tuple[str, str]
"""A thread's id and a namespace."""


@dataclass(frozen=True)
class Space:
    """The state of one namespace of a thread."""

    key: int
    """Unique; never used again, even after a deletion."""
    revision: int = 0
    """Rises with each change, by a random step."""
    written: int = 0
    """The revision of the last put; deletions leave it."""
    pruned: int = 0
    """The revision of the last deletion."""
    head: str | None = None
    """The id of the checkpoint that was stored last."""
    writer: str | None = None
    """The run that wrote last; None for a caller whose config does not come from this saver."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """By channel: the position of its next new element."""

    def to_json(self) -> str:
        """Return all but key, revision and head, which stores keep apart."""
        return json.dumps([self.written, self.pruned, self.writer, dict(self.ends)], separators=(",", ":"))

    @classmethod
    def of(cls, key: int, revision: int, head: str | None, state: str) -> Space:
        """Return the space of what a store kept."""
        written, pruned, writer, ends = json.loads(state)
        return cls(key, revision, written, pruned, head, writer, ends)


@dataclass(frozen=True)
class Row:
    """A stored checkpoint."""

    id: str
    parent: str | None
    run_id: str | None
    record: bytes


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Changes of a space that are stored together or not at all."""

    before: Space | None
    """The state that it follows; None for a new space."""
    after: Space
    rows: Sequence[Row] = ()
    values: Sequence[tuple[str, int, bytes]] = ()
    """New elements: channel, position, packed bytes."""
    writes: Sequence[tuple[str, int, bytes]] = ()
    """Pending writes: the id of their checkpoint, which may come later, a number that rises, and they, packed."""
    removed: Sequence[str] = ()
    """Ids of checkpoints that go, with their pending writes."""
    removed_values: Ranges = field(default_factory=dict)


class CheckpointStore(Protocol):
    """Durable storage of checkpoints. Its methods block, and may be called from any threads.

    They raise `StoreError` if the store cannot be reached, read or written.
    """

    def read(self, place: Place, id: str | None) -> tuple[Space, Row | None, list[bytes]] | None:
        """Return a space, its checkpoint with this id (None: the head), and the pending writes under that id.

        The oldest writes come first. Returns None if there is no such space.
        """

    def values(self, key: int, ranges: Ranges) -> dict[tuple[str, int], bytes]:
        """Return the elements in these ranges, by channel and position."""

    def page(
        self, thread_id: str | None, ns: str | None, *, before: str | None, limit: int
    ) -> list[tuple[Place, Space, Row]]:
        """Return checkpoints by id, largest first; of all threads, or of all namespaces, where None.

        Those of one id in several spaces come together, so that a page may be longer than its limit.
        """

    def writes(self, key: int, ids: Sequence[str]) -> dict[str, list[bytes]]:
        """Return the pending writes of checkpoints, oldest first."""

    def early_writes(self, key: int) -> dict[str, list[bytes]]:
        """Return the pending writes, oldest first, whose checkpoints are not stored, but may come later."""

    def spaces(self, thread_id: str) -> list[tuple[Place, Space]]:
        """Return all namespaces of a thread."""

    def with_runs(self, run_ids: Sequence[str]) -> list[Place]:
        """Return the spaces that have checkpoints of these runs."""

    def commit(self, place: Place, commit: Commit) -> bool:
        """Store a commit; return False, without a change, if the space is in another state than `before`."""

    def delete(self, thread_id: str) -> None:
        """Delete all spaces of a thread."""

    def copy(self, source: str, target: str) -> bool:
        """Copy all spaces of a thread, at one moment; return False, without a change, if the target has a space."""

    async def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""


@dataclass(slots=True)
class _Contents:
    space: Space
    rows: dict[str, Row] = field(default_factory=dict)
    values: dict[tuple[str, int], bytes] = field(default_factory=dict)
    writes: dict[str, list[bytes]] = field(default_factory=dict)


class InMemoryCheckpoints:
    """Keeps checkpoints in memory while the process lives."""

    def __init__(self) -> None:
        self._contents: dict[Place, _Contents] = {}
        self._closed = False
        self._lock = threading.Lock()

    def read(self, place: Place, id: str | None) -> tuple[Space, Row | None, list[bytes]] | None:
        with self._opened():
            if not (contents := self._contents.get(place)):
                return None
            row_id = id or contents.space.head or ""
            return contents.space, contents.rows.get(row_id), list(contents.writes.get(row_id, ()))

    def values(self, key: int, ranges: Ranges) -> dict[tuple[str, int], bytes]:
        with self._opened():
            values = next((content.values for content in self._contents.values() if content.space.key == key), {})
            named = ((channel, index) for channel, spans in ranges.items() for span in spans for index in range(*span))
            return {position: values[position] for position in named if position in values}

    def page(
        self, thread_id: str | None, ns: str | None, *, before: str | None, limit: int
    ) -> list[tuple[Place, Space, Row]]:
        with self._opened():
            rows = [
                ((its_thread, its_ns), contents.space, row)
                for (its_thread, its_ns), contents in self._contents.items()
                if thread_id in (None, its_thread) and ns in (None, its_ns)
                for row in contents.rows.values()
                if before is None or row.id < before
            ]
            rows.sort(key=lambda entry: _id_of(*entry), reverse=True)
            last = _id_of(*rows[limit - 1]) if len(rows) >= limit else ""
            return [entry for entry in rows if _id_of(*entry) >= last]

    def writes(self, key: int, ids: Sequence[str]) -> dict[str, list[bytes]]:
        with self._opened():
            writes = next((content.writes for content in self._contents.values() if content.space.key == key), {})
            return {name: list(writes[name]) for name in ids if name in writes}

    def early_writes(self, key: int) -> dict[str, list[bytes]]:
        with self._opened():
            contents = next((content for content in self._contents.values() if content.space.key == key), None)
            if contents is None:
                return {}
            return {name: list(writes) for name, writes in contents.writes.items() if name not in contents.rows}

    def spaces(self, thread_id: str) -> list[tuple[Place, Space]]:
        with self._opened():
            return [(place, contents.space) for place, contents in self._contents.items() if place[0] == thread_id]

    def with_runs(self, run_ids: Sequence[str]) -> list[Place]:
        with self._opened():
            return [
                place
                for place, contents in self._contents.items()
                if any(row.run_id in run_ids for row in contents.rows.values())
            ]

    def commit(self, place: Place, commit: Commit) -> bool:
        with self._opened():
            contents = self._contents.get(place)
            if (contents.space if contents else None) != commit.before:
                return False
            values = {(channel, index): data for channel, index, data in commit.values}
            removed, ranges = list(commit.removed), commit.removed_values.items()
            removed_values = [(channel, index) for channel, spans in ranges for span in spans for index in range(*span)]
            if contents is None:
                contents = self._contents[place] = _Contents(commit.after)
            contents.space = commit.after
            contents.values |= values
            contents.rows |= {row.id: row for row in commit.rows}
            for checkpoint_id, _, data in commit.writes:
                contents.writes.setdefault(checkpoint_id, []).append(data)
            for name in removed:
                contents.rows.pop(name, None)
                contents.writes.pop(name, None)
            for element in removed_values:
                contents.values.pop(element, None)
            return True

    def delete(self, thread_id: str) -> None:
        with self._opened():
            for place in [place for place in self._contents if place[0] == thread_id]:
                del self._contents[place]

    def copy(self, source: str, target: str) -> bool:
        with self._opened():
            if any(thread_id == target for thread_id, _ in self._contents):
                return False
            for (_, ns), contents in [item for item in self._contents.items() if item[0][0] == source]:
                space = replace(contents.space, key=new_key(), writer=None)
                writes = {name: list(writes) for name, writes in contents.writes.items()}
                self._contents[target, ns] = _Contents(space, dict(contents.rows), dict(contents.values), writes)
            return True

    async def close(self) -> None:
        self._closed = True

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Keep other calls away."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("memory://")
            yield


def open_checkpoints(url: str) -> CheckpointStore:
    """Return a store of checkpoints for the URL. Imports and connects as `open_store` does.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: the URL names a Redis, which keeps sessions and memory items only.
    """
    from turnwise.memory.stores.urls import resolve_non_redis_url

    url = resolve_non_redis_url(url, "checkpoints")
    if url.startswith("memory:"):
        return InMemoryCheckpoints()
    from turnwise.adapters.langgraph.checkpoints_sql import SQLCheckpoints

    return SQLCheckpoints(url)


def _id_of(_place: Place, _space: Space, row: Row) -> str:
    return row.id
