"""`KnownRecords`: a few records of the whole store, as a process of sessions knows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from turnwise.errors import CorruptRecordError

Item = TypeVar("Item")

_log = logging.getLogger(__name__)


class KnownRecords(Generic[Item]):
    """Records that all sessions of a process share, and that are read as a whole, again once they are old.

    While it awaits the store, other work may run. A crash leaves nothing behind.

    Args:
        read: reads them.
        name: what they are, for the log, and what follows if they cannot be decoded: then there are none.
        ahead_s: after how many seconds `read_ahead` reads them anew.
        most_age_s: how many seconds old they may be when they are used.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Sequence[Item]]], name: str, *, ahead_s: float, most_age_s: float
    ) -> None:
        self._read_records = read
        self._name = name
        self._ahead_s = ahead_s
        self._most_age_s = most_age_s
        self._records: Sequence[Item] = ()
        self._read_at: float | None = None
        """When it last began to read them, by the loop's clock; None: they are unknown."""
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> Sequence[Item]:
        """Return the records as they were in the store at most `most_age_s` ago.

        Raises:
            StoreError: the store cannot be read; nothing was changed.
        """
        while self._is_older_than(self._most_age_s):
            await asyncio.shield(self._read_again())
        return self._records

    def read_ahead(self) -> None:
        """Read them beside what is done now, if that was `ahead_s` ago. Does not wait."""
        if self._is_older_than(self._ahead_s):
            self._read_again()

    def forget(self) -> None:
        """Read them anew for the next use, as they were changed."""
        self._read_at = self._reading = None

    def _is_older_than(self, age_s: float) -> bool:
        return self._read_at is None or asyncio.get_running_loop().time() - self._read_at > age_s

    def _read_again(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(ignore_failure)
        return self._reading

    async def _read(self) -> None:
        own, begun_at = asyncio.current_task(), asyncio.get_running_loop().time()
        try:
            records = await self._read_records()
        except CorruptRecordError as error:
            _log.error("%s: %s", self._name, error)
            records = []
        if self._reading is own:  # else they were changed meanwhile
            self._records, self._read_at = records, begun_at


def ignore_failure(reading: asyncio.Task[None]) -> None:
    """Leave the error of a read that was begun ahead to the commit that needs it."""
    if not reading.cancelled():
        reading.exception()
