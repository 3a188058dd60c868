"""The ledger of the siege: what callers requested, what was acknowledged, and when."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Entry:
    """One prompt: sent at `asked_s`, acknowledged at `told_s` (0: never), as part of `run_id` unless it was appended.

    Times are of the monotonic clock. `chat` is the session's id as its user knows it.
    """

    token: str
    user: str
    chat: str
    asked_s: float
    told_s: float = 0.0
    run_id: str | None = None
    state: str | None = None
    ended_s: float = 0.0
    """When its run's final `state` was acknowledged."""
    delivery_id: str | None = None
    """The id of the schedule that brings it, if one does."""
    cancelled_s: float = 0.0
    """When it was acknowledged that the schedule was cancelled, 0: never."""
    cancel_asked_s: float = 0.0
    """When its cancel was requested, 0: never. Without an acknowledgement nobody knows whether it was cancelled."""
    is_team: bool = False
    """Whether its run calls agents."""


@dataclass(slots=True)
class Restore:
    """A restore: the copy was made between the first two times, and restored between the last two."""

    copied: tuple[float, float]
    put_back: tuple[float, float]

    def may_have_taken(self, asked_s: float, told_s: float) -> bool:
        """Return whether this restore may have removed what was requested and acknowledged at these times."""
        return told_s > self.copied[0] and asked_s < self.put_back[1]


@dataclass(slots=True)
class Ledger:
    """The prompts and acknowledgements, the attacks, and the violations."""

    entries: dict[str, Entry] = field(default_factory=dict)
    restores: list[Restore] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)
    """The numbers of attacks and calls by name."""
    refusals: Counter[str] = field(default_factory=Counter)
    """The numbers of errors that callers got, by class."""
    violations: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _began_s: float = field(default_factory=time.monotonic)

    def ask(self, user: str, chat: str) -> Entry:
        """Return a new entry, for a prompt that is about to be sent."""
        entry = Entry(f"tok.{user}.{next(self._numbers)}", user, chat, time.monotonic())
        self.entries[entry.token] = entry
        return entry

    def tell(self, entry: Entry, run_id: str | None = None) -> None:
        """Record that the prompt was acknowledged."""
        entry.told_s, entry.run_id = time.monotonic(), run_id

    def violate(self, violation: str) -> None:
        """Record a violation."""
        self.violations.append(violation)

    @contextmanager
    def putting_back(self, copied: tuple[float, float]) -> Iterator[None]:
        """Record a restore of the copy that was made between these times."""
        restore = Restore(copied, (time.monotonic(), float("inf")))
        self.restores.append(restore)
        yield
        restore.put_back = restore.put_back[0], time.monotonic()
        self.deeds["restore of an older copy"] += 1

    def end(self, entry: Entry, state: str) -> None:
        """Record that the end of its run was acknowledged."""
        entry.state, entry.ended_s = state, time.monotonic()

    def may_be_gone(self, entry: Entry) -> bool:
        """Return whether a restore may have removed it."""
        return any(restore.may_have_taken(entry.asked_s, entry.told_s) for restore in self.restores)

    def was_restored_since(self, began_s: float) -> bool:
        """Return whether a copy was put back after this time, or while it passed."""
        return any(restore.put_back[1] >= began_s for restore in self.restores)

    def when(self, entry: Entry) -> str:
        """Return when it was requested, acknowledged and cancelled, and when copies were made and restored."""
        times = {"asked": entry.asked_s, "told": entry.told_s, "ended": entry.ended_s}
        times |= {"cancel asked": entry.cancel_asked_s, "cancelled": entry.cancelled_s}
        told = [f"{name} at {at - self._began_s:.2f}" for name, at in times.items() if at]
        restores = [
            f"copied {restore.copied[0] - self._began_s:.2f} to {restore.copied[1] - self._began_s:.2f}, put back "
            f"{restore.put_back[0] - self._began_s:.2f} to {restore.put_back[1] - self._began_s:.2f}"
            for restore in self.restores
        ]
        return f"{', '.join(told)}; restores: {'; '.join(restores) or 'none'}"

    def may_have_come_back(self, entry: Entry) -> bool:
        """Return whether a restore may have removed the cancel of its schedule, so that its run began."""
        return any(restore.may_have_taken(entry.asked_s, entry.cancelled_s) for restore in self.restores)

    def may_have_ended_otherwise(self, entry: Entry) -> bool:
        """Return whether a restore may have removed the end of its run, so that it ended again."""
        return any(restore.may_have_taken(entry.asked_s, entry.ended_s) for restore in self.restores)
