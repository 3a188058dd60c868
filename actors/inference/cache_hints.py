"""`CacheHints`: what a session tells the server of its model about when it needs its prefix again."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class CacheHints(Protocol):
    """Hints to a server that caches prefixes. It is pickled to the sessions' processes, so it holds settings.

    A session calls these beside its runs, one after the other; each has `HINT_S`. No run waits for a hint or fails with
    one: errors are logged. A hint may be lost, so a server must not rely on another one to come.

    `key` names a prefix: see `RunContext.prefix_key`. Forks have their parent's key while they share its prefix, as
    agents have that of a caller with the same engine. Then they neither drop it nor lower its priority. What a parent
    says holds for them too.
    """

    async def hold(self, key: str, seconds: float) -> None:
        """The prefix is needed again, probably within so many seconds: a tool runs."""

    async def drop(self, key: str) -> None:
        """It is not needed for long: a person has to decide; or never again: the window was compacted."""

    async def prefetch(self, key: str) -> None:
        """It is needed at once: a person has decided."""

    async def prioritize(self, key: str, priority: int) -> None:
        """It is worth more than others (1), since a fork shares it, or less (-1), since it is about to be compacted.

        After the compaction, also a failed one, it is worth as much as others again (0).
        """


HINT_S = 2.0
"""The time limit of one hint, in seconds."""


class NoHints:
    """Does nothing: for servers that take no hints."""

    async def hold(self, key: str, seconds: float) -> None:
        pass

    async def drop(self, key: str) -> None:
        pass

    async def prefetch(self, key: str) -> None:
        pass

    async def prioritize(self, key: str, priority: int) -> None:
        pass
