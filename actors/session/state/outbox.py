"""`Outbox`: which webhooks a commit of a session has to tell, as its process knows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from turnwise.errors import CorruptRecordError, TurnwiseError
from turnwise.memory.deliveries.webhooks import WebhookRecord, is_told

if TYPE_CHECKING:
    from turnwise.actors.session.state.alarm import Alarm
    from turnwise.memory.stores.base import SessionStore

MOST_AGE_S = 60.0
"""How old a process's knowledge of the store's webhooks may be, in seconds, when a commit is made by it."""

READ_AHEAD_S = 30.0
"""After how many seconds it is read anew, beside the run that begins, so that the run's last commit need not wait."""

_log = logging.getLogger(__name__)


class Outbox(Protocol):
    """Says which webhooks commits have to tell."""

    async def webhooks_for(self, kinds: Collection[str]) -> Sequence[WebhookRecord]:
        """Return the webhooks to which a commit with events of these kinds may matter.

        Raises:
            StoreError: the store cannot be read; nothing was changed.
        """

    def tell(self, due_at: float) -> None:
        """Say that calls were stored that are due at this time. Does not wait."""


class NoOutbox:
    """The `Outbox` where nobody has to be told."""

    async def webhooks_for(self, kinds: Collection[str]) -> Sequence[WebhookRecord]:
        """See `Outbox.webhooks_for`."""
        return ()

    def tell(self, due_at: float) -> None:
        """See `Outbox.tell`."""


NO_OUTBOX = NoOutbox()


class WebhookOutbox:
    """The webhooks of a store, for all sessions of a process.

    They are read when a run begins, if the last time was `READ_AHEAD_S` ago, and before a commit that may tell them, if
    it was `MOST_AGE_S` ago. So most turns take no statement more, and a commit tells each webhook that was added more
    than `MOST_AGE_S` before. The dispatcher runs before calls are stored, so a crash leaves none that nobody looks for.

    While it awaits the following, other work may run, and its process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store | reads, streaming; changes of other sessions | nothing |
    | the alarm | the same | a dispatcher, perhaps without calls |
    """

    def __init__(self, store: SessionStore, alarm: Alarm) -> None:
        self._store = store
        self._alarm = alarm
        self._webhooks: Sequence[WebhookRecord] = ()
        self._read_at: float | None = None
        """When it last began to read them, by the loop's clock; None: they are unknown."""
        self._reading: asyncio.Task[None] | None = None

    async def webhooks_for(self, kinds: Collection[str]) -> Sequence[WebhookRecord]:
        """See `Outbox.webhooks_for`. Makes sure that the dispatcher runs, if there are webhooks."""
        if not any(map(is_told, kinds)):
            if "run_started" in kinds and self._is_older_than(READ_AHEAD_S):
                self._read_again()
            return ()
        while self._is_older_than(MOST_AGE_S):
            await asyncio.shield(self._read_again())
        webhooks = self._webhooks
        if webhooks:
            try:
                await self._alarm.expect()
            except TurnwiseError as error:
                _log.warning("calls of webhooks are stored, and wait for a dispatcher that can be started: %s", error)
        return webhooks

    def tell(self, due_at: float) -> None:
        """See `Outbox.tell`."""
        self._alarm.tell(due_at)

    def forget(self) -> None:
        """Read the webhooks anew for the next commit, as they were changed."""
        self._read_at = self._reading = None

    def _is_older_than(self, age_s: float) -> bool:
        return self._read_at is None or asyncio.get_running_loop().time() - self._read_at > age_s

    def _read_again(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_ignore_failure)
        return self._reading

    async def _read(self) -> None:
        own, begun_at = asyncio.current_task(), asyncio.get_running_loop().time()
        try:
            webhooks = await self._store.webhooks()
        except CorruptRecordError as error:
            _log.error("the store's webhooks cannot be read, so nobody is told of what happens: %s", error)
            webhooks = []
        if self._reading is own:  # else they were changed meanwhile
            self._webhooks, self._read_at = [webhook for webhook in webhooks if webhook.is_enabled], begun_at


def _ignore_failure(reading: asyncio.Task[None]) -> None:
    """Leave the error of a read that was begun ahead to the commit that needs it."""
    if not reading.cancelled():
        reading.exception()
