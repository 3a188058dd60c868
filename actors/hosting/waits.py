"""`Waits`: limits how many callers wait in a session's process; other calls are not limited by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwise.actors.hosting.wire import Waited
from turnwise.errors import OverloadedError

SLICE_S = 10.0
"""How long one call waits at most, in seconds. A caller that waits longer repeats the call, so the place of a caller
that has gone is free after this time."""

ENDING_S = 1.0
"""How long a cancel call waits for the run's end, in seconds, before the caller repeats it; it is not counted."""

Answer = TypeVar("Answer")


class Waits:
    """Counts the waiting callers of a session, or of a host with many sessions.

    Args:
        setting: the name of the limit in the placement.
        most: how many callers may wait at once.
        host: the waits of the host, which count the same callers and have a limit of their own.
    """

    __slots__ = ("_host", "count", "most", "setting")

    def __init__(self, setting: str, most: int, host: Waits | None = None) -> None:
        self.setting = setting
        self.most = most
        self.count = 0
        """How many callers are waiting."""
        self._host = host

    @property
    def limits(self) -> tuple[Waits, ...]:
        """All limits that apply to a waiting caller, this one first."""
        return (self, *(self._host.limits if self._host else ()))

    async def wait(
        self,
        session_id: str,
        timeout_s: float | None,
        ask: Callable[[float], Awaitable[Waited[Answer]]],
    ) -> Waited[Answer]:
        """Return the answer of `ask`, which may wait for `timeout_s` seconds, at most `SLICE_S`.

        Without a free place, `ask` may not wait at all.

        Raises:
            OverloadedError: there is no free place, and the answer that the caller waits for is not there yet.
        """
        slice_s = SLICE_S if timeout_s is None else min(timeout_s, SLICE_S)
        if slice_s <= 0:
            return await ask(0.0)
        limits = self.limits
        if full := next((limit for limit in limits if limit.count >= limit.most), None):
            if (answer := await ask(0.0)).is_over:
                return answer
            raise OverloadedError(session_id, full.setting, full.most)
        for limit in limits:
            limit.count += 1
        try:
            return await ask(slice_s)
        finally:
            for limit in limits:
                limit.count -= 1
