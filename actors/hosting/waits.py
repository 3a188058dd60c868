"""Places for callers who wait in a session's process: counted apart from other calls, which always get through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwise.errors import OverloadedError

SLICE_S = 10.0
"""How long one call waits at most, in seconds. A caller who has more patience asks again, so the place of one who has
left is free by then."""

ENDING_S = 1.0
"""How long a call that cancels waits for the run's end, in seconds, before the caller asks again. It takes no place."""

Answer = TypeVar("Answer")


class Waits:
    """Counts those who wait, of a session or of a host with many sessions.

    Args:
        setting: what the limit is called in the placement.
        most: how many may wait at once.
        host: counts them too, and has a limit of its own.
    """

    __slots__ = ("limits", "most", "setting", "taken")

    def __init__(self, setting: str, most: int, host: Waits | None = None) -> None:
        self.setting = setting
        self.most = most
        self.taken = 0
        """How many wait now."""
        self.limits: tuple[Waits, ...] = (self, *(host.limits if host else ()))
        """Those that apply, this one first."""

    async def patiently(
        self,
        session_id: str,
        timeout_s: float | None,
        ask: Callable[[float], Awaitable[Answer]],
        is_there: Callable[[Answer], object],
    ) -> Answer:
        """Return what `ask` answers when it may wait for `timeout_s`, but for no more than a slice.

        Without a free place it may not wait at all.

        Args:
            is_there: whether an answer is what the caller waits for.

        Raises:
            OverloadedError: there is no free place, and what the caller waits for is not there yet.
        """
        slice_s = SLICE_S if timeout_s is None else min(timeout_s, SLICE_S)
        if slice_s <= 0:
            return await ask(0.0)
        if full := next((limit for limit in self.limits if limit.taken >= limit.most), None):
            if is_there(answer := await ask(0.0)):
                return answer
            raise OverloadedError(session_id, full.setting, full.most)
        for limit in self.limits:
            limit.taken += 1
        try:
            return await ask(slice_s)
        finally:
            for limit in self.limits:
                limit.taken -= 1
