"""`Outbox`: which webhooks a commit of a session has to tell, as its process knows them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from turnwise.actors.session.state.known_records import KnownRecords
from turnwise.errors import TurnwiseError
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
        name = "the store's webhooks cannot be read, so nobody is told of what happens"
        self._webhooks = KnownRecords(self._read, name, ahead_s=READ_AHEAD_S, most_age_s=MOST_AGE_S)

    async def webhooks_for(self, kinds: Collection[str]) -> Sequence[WebhookRecord]:
        """See `Outbox.webhooks_for`. Makes sure that the dispatcher runs, if there are webhooks."""
        if not any(map(is_told, kinds)):
            if "run_started" in kinds:
                self._webhooks.read_ahead()
            return ()
        webhooks = await self._webhooks.get()
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
        self._webhooks.forget()

    async def _read(self) -> Sequence[WebhookRecord]:
        return [webhook for webhook in await self._store.webhooks() if webhook.is_enabled]
