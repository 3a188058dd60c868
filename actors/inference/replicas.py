"""`Replicas`: several servers of one model, of which each session keeps to the one that has its prefix."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import PlainValidator

from turnwise.errors import ConfigError
from turnwise.memory.values.checked_settings import PositiveCount, checked_settings
from turnwise.memory.values.ranges import check_seconds


def _urls(urls: Sequence[str]) -> tuple[str, ...]:
    if isinstance(urls, str) or not urls or len(set(urls)) < len(urls):
        raise ValueError("must be different base URLs, at least one")
    return tuple(urls)


@dataclass(frozen=True)
@checked_settings("Replicas.")
class Replicas:
    """Servers with the same model. Requests that begin alike go to the same server, which has their beginning cached.

    The server is chosen by rendezvous hashing of the key of the prefix (Thaler, Ravishankar: *Using name-based mappings
    to increase hit rates*, 1998). So all processes choose alike without talking, and a server that comes or goes moves
    its own sessions only. A fork goes where its parent's prefix is, as does an agent with its caller's engine.

    Loads are bounded (Mirrokni, Thorup, Zadimoghaddam: *Consistent hashing with bounded loads*,
    https://arxiv.org/abs/1608.01350): a server with more than `bound` times its share of this process's requests is
    passed over for the key's next one, which is the same each time. With fewer than `busy_from` requests it is not,
    since servers answer several at once.

    A server that cannot be reached is passed over for `away_s`; then the next request tries it again. One that answers
    429 or 503 is passed over for that request. After another error, a server may have worked on the request: then a
    move counts as one of the engine's `max_retries`; and after a timeout, 408 or 504 no other server is asked.
    """

    urls: Annotated[Sequence[str], PlainValidator(_urls)]
    """The base URLs."""
    bound: float = field(default=1.25, kw_only=True)
    """The most requests of a server, to the mean of all, above 1. The smaller, the more even, and the more sessions
    move."""
    busy_from: PositiveCount = field(default=8, kw_only=True)
    """A server with fewer requests of this process is never passed over as busy; at least 1."""
    away_s: float = field(default=10.0, kw_only=True)
    """For how many seconds a server that could not be reached gets no requests if others can."""

    def __post_init__(self) -> None:
        check_seconds("Replicas.away_s", self.away_s)
        if isinstance(self.bound, bool) or not isinstance(self.bound, int | float) or not 1 < self.bound < math.inf:
            raise ConfigError("Replicas.bound", self.bound, "must be a number above 1")

    def candidates(self, key: str) -> list[str]:
        """Return where a request with this key goes now, then where it goes if that server is gone or busy.

        Without a key, the server with the fewest requests comes first.
        """
        state, now = self._state, time.monotonic()
        away = {url for url, until in state.away_until.items() if until > now}
        return ranked(self.urls, key, loads=state.loads, away=away, bound=self.bound, busy_from=self.busy_from)

    @contextmanager
    def at(self, url: str) -> Iterator[None]:
        """Count a request at a server while the context is open."""
        loads = self._state.loads
        loads[url] += 1
        try:
            yield
        finally:
            loads[url] -= 1

    def gone(self, url: str) -> None:
        """Pass a server over, since it could not be reached."""
        self._state.away_until[url] = time.monotonic() + self.away_s

    @property
    def _state(self) -> _State:
        return _STATES.setdefault(self, _State())


@dataclass
class _State:
    """What this process knows of some servers, by their URLs."""

    loads: Counter[str] = field(default_factory=Counter)
    away_until: dict[str, float] = field(default_factory=dict)


_STATES: dict[Replicas, _State] = {}
"""Of all sessions of this process."""


def ranked(
    urls: Sequence[str], key: str, *, loads: Mapping[str, int], away: Collection[str], bound: float, busy_from: int
) -> list[str]:
    """Return the servers in the order in which a request tries them.

    First those that are there and below the bound, then the busy ones, then those that are away; each group by the
    key's own order, or by load where there is no key. O(servers).
    """
    there = len(urls) - len(away) or len(urls)
    most = max(busy_from, math.ceil(bound * (sum(loads[url] for url in urls) + 1) / there))

    def place(url: str) -> tuple[bool, bool, int, bytes]:
        weight = hashlib.blake2b(f"{key}\0{url}".encode(), digest_size=8).digest()
        return url in away, loads[url] >= most, 0 if key else loads[url], weight

    return sorted(urls, key=place)
