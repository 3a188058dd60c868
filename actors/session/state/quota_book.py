"""`QuotaBook`: which quotas a store has, as a process of sessions knows them, and what is used of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnwise.actors.session.state.known_records import KnownRecords
from turnwise.memory.quotas.records import Quota

if TYPE_CHECKING:
    from turnwise.memory.quotas.records import QuotaCounters
    from turnwise.memory.stores.base import SessionStore

MOST_AGE_S = 10.0
"""How old a process's knowledge of the store's quotas may be, in seconds, when a run begins or is counted by it."""

READ_AHEAD_S = 5.0
"""After how many seconds it is read anew, beside a commit that uses it, so that the next commit need not wait."""


class QuotaBook:
    """The quotas of a store, for all sessions of a process.

    A process that works reads them once in `READ_AHEAD_S`, beside its commits, and a commit waits for that if the last
    read was `MOST_AGE_S` ago. So turns take no statement more, and a quota holds everywhere `MOST_AGE_S` after it was
    set.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        name = "the store's quotas cannot be read, so nobody is limited"
        self._quotas = KnownRecords(store.quotas, name, ahead_s=READ_AHEAD_S, most_age_s=MOST_AGE_S)

    async def quotas(self) -> Sequence[Quota]:
        """Return the quotas.

        Raises:
            StoreError: the store cannot be read; nothing was changed.
        """
        quotas = await self._quotas.get()
        self._quotas.read_ahead()
        return quotas

    async def counters(self, user_id: str, agent: str | None) -> QuotaCounters:
        """Return what is used of them now by a user with an agent; reads the store."""
        return await self._store.quota_counters(user_id, agent or "")

    def forget(self) -> None:
        """Read the quotas anew for the next commit, as they were changed."""
        self._quotas.forget()
