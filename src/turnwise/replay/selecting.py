"""`Selection`: which turns of a store are replayed. Sessions are counted before any of their turns are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import pages_by_cursor

SESSIONS_PAGE = 500
"""How many sessions are listed at once."""

ANSWERED = ("completed", "failed")
"""The statuses of turns that are replayed by default: a cancelled answer says nothing about an engine."""

STATUSES = (*ANSWERED, "cancelled", "interrupted")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which turns are replayed. All conditions have to be met; those that are left out match everything.

    Turns that were forgotten, removed or deleted are never read, and neither are turns without a request to a model.

    Raises:
        InvalidInputError: a condition cannot be met, such as sessions without their user.
    """

    user_id: str | None = None
    """Only sessions of this user."""
    agent: str | None = None
    """Only sessions of this agent."""
    sessions: Collection[str] = ()
    """Only these sessions, which are of `user_id`, or of the default user."""
    engine: str | None = None
    """Only turns whose run had the engine of this name, such as one side of a `Split`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only turns whose run had these labels."""
    since: float | None = None
    """Only turns that were begun at this time or later, in seconds since the epoch."""
    until: float | None = None
    """Only turns that were begun before this time."""
    statuses: Collection[str] = ANSWERED
    """How the recorded turns ended."""
    versions: Literal["shown", "all"] = "shown"
    """Of turns that were answered anew, the version that is shown, or all."""
    sample: int | None = None
    """How many turns, chosen at random among all that match; all of them if omitted."""
    seed: int = 0
    """Chooses the sample: the same seed chooses the same turns of the same store."""

    def __post_init__(self) -> None:
        if isinstance(self.sessions, str):
            raise InvalidInputError("sessions", shown(self.sessions), "pass a list of ids")
        if self.sample is not None and (isinstance(self.sample, bool) or self.sample < 1):
            raise InvalidInputError("sample", shown(self.sample), "must be at least 1, or None for all turns")
        if self.versions not in ("shown", "all"):
            raise InvalidInputError("versions", shown(self.versions), "must be 'shown' or 'all'")
        if isinstance(self.statuses, str) or not self.statuses or not set(self.statuses) <= set(STATUSES):
            raise InvalidInputError("statuses", shown(self.statuses), f"must be some of {', '.join(STATUSES)}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidInputError("since", shown(self.since), f"must be before until={self.until}")

    def matches(self, turn: TurnRecord, run: RunRecord | None) -> bool:
        """Return whether a turn that has ended is selected, as far as its record and that of its run say."""
        if turn.status not in self.statuses or ((self.labels or self.engine) and run is None):
            return False
        if run and self.engine is not None and run.engine != self.engine:
            return False
        if run and any(run.labels.get(name) != value for name, value in self.labels.items()):
            return False
        begun = turn.created_at
        return (self.since is None or begun >= self.since) and (self.until is None or begun < self.until)

    def may_match(self, session: SessionRecord) -> bool:
        """Return whether a session may have a selected turn, as far as its row says."""
        is_late = self.since is not None and session.updated_at < self.since
        is_early = self.until is not None and session.created_at >= self.until
        return session.next_index > 0 and not is_late and not is_early


Chosen = tuple[SessionKey, frozenset[int] | None]
"""A session, and the indexes of the turns that are chosen if they match; None for all turns."""


async def sessions_of(store: SessionStore, selection: Selection) -> AsyncIterator[SessionRecord]:
    """Yield the rows of the sessions that may have selected turns, page by page.

    Raises:
        SessionNotFoundError: a session that the selection names does not exist.
    """
    if selection.sessions:
        for session_id in dict.fromkeys(selection.sessions):
            session = await store.get(SessionKey(session_id, selection.user_id or SessionKey("").user_id))
            if selection.agent in (None, session.agent) and selection.may_match(session):
                yield session
        return
    query: dict[str, Any] = {"user_id": selection.user_id, "agent": selection.agent, "limit": SESSIONS_PAGE}
    async for page in pages_by_cursor(partial(store.query, **query)):
        for session in page:
            if selection.may_match(session):
                yield session


class Candidates:
    """The turns that may be selected, in an order that the seed makes. It holds a key and a count for each session.

    Whether a turn matches is known only once it is read. So a sample is taken in rounds: each takes the next turns in
    this order, as many as are still missing.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._keys: list[SessionKey] = []
        self._ends: list[int] = []
        """By session: how many turns it and all sessions before it have."""
        self._order: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._taken = 0

    def add(self, session: SessionRecord) -> None:
        """Add a session by its row."""
        self._keys.append(session.key)
        self._ends.append((self._ends[-1] if self._ends else 0) + session.next_index)

    def take(self, count: int) -> list[Chosen]:
        """Return the next turns, by session; empty if there are none left."""
        if not self._ends:
            return []
        if self._order is None:
            self._order = np.random.default_rng(self._seed).permutation(self._ends[-1])
        numbers = np.sort(self._order[self._taken : self._taken + count])
        self._taken += count
        ends = np.asarray(self._ends)
        owners = np.searchsorted(ends, numbers, side="right")
        chosen: dict[int, list[int]] = {}
        for number, owner in zip(numbers.tolist(), owners.tolist(), strict=True):
            chosen.setdefault(owner, []).append(number - (self._ends[owner - 1] if owner else 0))
        return [(self._keys[owner], frozenset(indexes)) for owner, indexes in chosen.items()]
