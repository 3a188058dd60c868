"""`Plan`: which turns a replay at scale asks, in chunks of sessions, fixed in a file before any turn is asked.

Sessions that are added later, and turns, are not replayed: a replay that goes on after a kill asks what it began with.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from turnwise.errors import CorruptRecordError, ReplayChangedError, ReplayInUseError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.base import SessionStore
from turnwise.replay.recorded import recorded_turns
from turnwise.replay.selecting import Candidates, Selection, sessions_of

CHUNK_SESSIONS, CHUNK_TURNS = 100, 1000
"""How many sessions a chunk has at most; and turns, unless it has one session only."""

PLAN, LOCK = "plan.jsonl", "replay.lock"

LOCK_WAIT_S = 30.0
"""How long to wait for the processes of a replay into the same folder that was killed, in seconds."""


@dataclass(frozen=True)
class Planned:
    """A session, and which of its turns are replayed if they match the selection."""

    key: SessionKey
    stop: int
    """Turns from this index on came later."""
    indexes: frozenset[int] | None = None
    """Only these turns; None for all."""

    def encode(self) -> list[Any]:
        """Return it as JSON."""
        return [*self.key, self.stop, None if self.indexes is None else sorted(self.indexes)]

    @classmethod
    def decode(cls, row: list[Any]) -> Planned:
        """Return what `encode` was given."""
        session_id, user_id, stop, indexes = row
        return cls(SessionKey(session_id, user_id), stop, None if indexes is None else frozenset(indexes))

    @property
    def turns(self) -> int:
        """How many turns it has at most."""
        return self.stop if self.indexes is None else len(self.indexes)


class Plan:
    """The plan in a folder. It holds where each chunk is, and reads one at a time.

    Raises:
        CorruptRecordError: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / PLAN
        self._starts: list[int] = []
        with self.path.open("rb") as file:
            try:
                header = json.loads(file.readline())
                self.settings: Mapping[str, str] = header["settings"]
                self.turns: int = header["turns"]
            except (ValueError, KeyError) as error:
                raise CorruptRecordError(f"the plan {self.path}", str(error)) from error
            at = file.tell()
            for line in file:
                self._starts.append(at)
                at += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def chunk(self, number: int) -> list[Planned]:
        """Return the sessions of a chunk."""
        with self.path.open("rb") as file:
            file.seek(self._starts[number])
            return [Planned.decode(row) for row in json.loads(file.readline())]

    def check(self, settings: Mapping[str, str]) -> None:
        """Raise ReplayChangedError if it was made with other settings."""
        names = sorted(name for name in {*settings, *self.settings} if settings.get(name) != self.settings.get(name))
        if names:
            raise ReplayChangedError(str(self.path.parent), ", ".join(names))


async def write_plan(folder: Path, sessions: AsyncIterator[Planned], settings: Mapping[str, str]) -> Plan:
    """Write the plan of these sessions, whole or not at all, and return it. It holds one chunk of them at a time."""
    body, turns = folder / f"{PLAN}.body", 0
    with body.open("w", encoding="utf-8") as file:
        async for chunk in _chunks(sessions):
            turns += sum(planned.turns for planned in chunk)
            _write_line(file, [planned.encode() for planned in chunk])
    new = folder / f"{PLAN}.new"
    with new.open("w", encoding="utf-8") as file, body.open(encoding="utf-8") as lines:
        _write_line(file, {"settings": dict(settings), "turns": turns})
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    new.rename(folder / PLAN)
    body.unlink()
    sync_folder(folder)
    return Plan(folder)


def _write_line(file: TextIO, value: Any) -> None:
    file.write(json.dumps(value, separators=(",", ":")) + "\n")


def sync_folder(folder: Path) -> None:
    """Have the names of files in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _chunks(sessions: AsyncIterator[Planned]) -> AsyncIterator[list[Planned]]:
    chunk: list[Planned] = []
    turns = 0
    async for planned in sessions:
        if chunk and (len(chunk) >= CHUNK_SESSIONS or turns + planned.turns > CHUNK_TURNS):
            yield chunk
            chunk, turns = [], 0
        chunk.append(planned)
        turns += planned.turns
    if chunk:
        yield chunk


async def planned_sessions(store: SessionStore, select: Selection) -> AsyncIterator[Planned]:
    """Yield the sessions that a selection may have turns of. Those of a sample are read here, so that it is exact."""
    if select.sample is None:
        async for session in sessions_of(store, select):
            yield Planned(session.key, session.next_index)
        return
    candidates, stops = Candidates(select.seed), {}
    async for session in sessions_of(store, select):
        candidates.add(session)
        stops[session.key] = session.next_index
    chosen: dict[SessionKey, set[int]] = {}
    missing = select.sample
    while missing > 0 and (more := candidates.take(missing)):
        for key, indexes in more:
            matching = [index async for index in _matching(store, key, select, indexes)]
            missing -= len(matching)
            if matching:
                chosen.setdefault(key, set()).update(matching)
    for key, places in chosen.items():
        yield Planned(key, stops[key], frozenset(places))


async def _matching(
    store: SessionStore, key: SessionKey, select: Selection, indexes: frozenset[int] | None
) -> AsyncIterator[int]:
    """Yield the indexes of the turns that match; none of a session that was deleted or that cannot be read."""
    try:
        async for page in recorded_turns(store, key, select, indexes):
            for turn in page:
                if turn.is_selected:
                    yield turn.turn.record.index
    except SessionNotFoundError:
        if key.session_id in select.sessions:
            raise
    except CorruptRecordError:
        return


@contextmanager
def lock_of(folder: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold a folder for one replay: its first process alone, then together with those that `join` it.

    The system releases the lock when all of them have ended, however they end.

    Raises:
        ReplayInUseError: processes of another replay hold it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w", encoding="utf-8") as file:
        began = time.monotonic()
        while not _locked(file, fcntl.LOCK_EX):
            if time.monotonic() - began > wait_s:
                raise ReplayInUseError(str(folder))
            time.sleep(0.05)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def join(folder: Path) -> TextIO:
    """Return an open file that holds the folder for a process of its replay, until it is closed.

    Raises:
        ReplayInUseError: the replay has ended, and another one begins.
    """
    file = (folder / LOCK).open("w", encoding="utf-8")
    if not _locked(file, fcntl.LOCK_SH):
        file.close()
        raise ReplayInUseError(str(folder))
    return file


def _locked(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def pending(count: int, done: Iterable[int]) -> list[int]:
    """Return the numbers of all chunks: first those that are to be asked, then those that are done."""
    finished = set(done)
    return [*(number for number in range(count) if number not in finished), *sorted(finished)]
