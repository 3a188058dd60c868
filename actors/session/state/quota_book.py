"""`QuotaBook`: which quotas a store has and which tenants users have, as a process of sessions knows them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from turnwise.actors.session.state.known_records import KnownRecords, ignore_failure
from turnwise.memory.quotas.records import Quota

if TYPE_CHECKING:
    from turnwise.memory.quotas.records import QuotaCounters
    from turnwise.memory.stores.base import SessionStore

MOST_AGE_S = 10.0
"""How old a process's knowledge of the store's quotas and tenants may be, in seconds, when a run begins or is counted
by it."""

READ_AHEAD_S = 5.0
"""After how many seconds it is read anew, beside a commit that uses it, so that the next commit need not wait."""

MOST_USERS = 1000
"""Of how many users a process knows the tenant: of those whose sessions it has used last."""


class QuotaBook:
    """The quotas of a store and the tenants of users, for all sessions of a process.

    A process that works reads them once in `READ_AHEAD_S`, beside its commits, and a commit waits for that if the last
    read was `MOST_AGE_S` ago. So turns take no statement more, and a quota, or a user's tenant, holds everywhere
    `MOST_AGE_S` after it was set.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        name = "the store's quotas cannot be read, so nobody is limited"
        self._quotas = KnownRecords(store.quotas, name, ahead_s=READ_AHEAD_S, most_age_s=MOST_AGE_S)
        self.tenants = KnownTenants(store)

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
        tenant = await self.tenants.get(user_id)
        return await self._store.quota_counters(user_id, agent or "", tenant or "")

    def forget(self) -> None:
        """Read the quotas and the tenants anew for the next commit, as they were changed."""
        self._quotas.forget()
        self.tenants.forget()


class Moment(NamedTuple):
    """When something was read: what was read before another moment is older."""

    changes: int
    """How often `KnownTenants.forget` had been called."""
    time_s: float
    """By the loop's clock."""


class _Known(NamedTuple):
    tenant: str | None
    read_at: Moment


class KnownTenants:
    """The tenants of the users whose sessions a process has.

    An activation of a session has the tenant of its user: see `learn`. Later, one statement reads those of all users
    anew. While it awaits the store, other work may run. A crash leaves nothing behind.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._users: OrderedDict[str, _Known | None] = OrderedDict()
        """By user, the last used at the end; None: not read yet."""
        self._changes = 0
        self._reading: asyncio.Task[None] | None = None

    async def get(self, user_id: str) -> str | None:
        """Return a user's tenant as it was in the store at most `MOST_AGE_S` ago; None if the user had none.

        Raises:
            StoreError: the store cannot be read; nothing was changed.
        """
        self._touch(user_id)
        while (known := self._known(user_id, MOST_AGE_S)) is None:
            await asyncio.shield(self._read_again())
            self._touch(user_id)
        if self._known(user_id, READ_AHEAD_S) is None:
            self._read_again()
        return known.tenant

    def now(self) -> Moment:
        """Return the present moment, for `learn`."""
        return Moment(self._changes, asyncio.get_running_loop().time())

    def learn(self, user_id: str, tenant: str | None, read_at: Moment) -> None:
        """Note what was read.

        Args:
            read_at: when the reading began.
        """
        self._touch(user_id)
        self._note(user_id, tenant, read_at)

    def forget(self) -> None:
        """Read them anew for the next use, as one was changed."""
        self._changes += 1
        self._reading = None

    def _known(self, user_id: str, most_age_s: float) -> _Known | None:
        """Return what is known of a user, unless it is older."""
        known, now = self._users.get(user_id), self.now()
        if known is None or known.read_at.changes < now.changes or now.time_s - known.read_at.time_s > most_age_s:
            return None
        return known

    def _touch(self, user_id: str) -> None:
        self._users.setdefault(user_id, None)
        self._users.move_to_end(user_id)
        if len(self._users) > MOST_USERS:
            self._users.popitem(last=False)

    def _note(self, user_id: str, tenant: str | None, read_at: Moment) -> None:
        known = self._users.get(user_id)
        if user_id in self._users and (known is None or known.read_at <= read_at):
            self._users[user_id] = _Known(tenant, read_at)

    def _read_again(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(ignore_failure)
        return self._reading

    async def _read(self) -> None:
        users, begun_at = list(self._users), self.now()
        tenants = await self._store.tenants_of(users)
        for user_id in users:
            self._note(user_id, tenants.get(user_id), begun_at)
