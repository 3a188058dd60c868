"""`accounted`: a store whose runs another store's quotas limit, and whose use that store counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from turnwise.errors import DeliveryChangedError, DuplicateKeyError, SessionFencedError, StoreError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.quotas.records import Quota, QuotaCount
from turnwise.memory.stores.base import Activation, Commit, LocalClock, SessionStore, verbs_of
from turnwise.memory.values.records import replace

_OF_ACCOUNTS = ("quota_counters", "use_quotas", "tenants_of")


def accounted(store: SessionStore, accounts: SessionStore) -> SessionStore:
    """Return a store of sessions that are not kept, as those of `run_once`, with the quotas of a store that is kept.

    A commit first counts in `accounts`, then is stored. If it is refused there, what it counts is taken back. If an
    answer is lost, or the process is killed in between, it may be counted and not stored. Quotas refuse runs whatever
    their `then` says, as these sessions are too short-lived to wait. The ledger of `accounts` is not written.

    Args:
        accounts: has the quotas, their counters and the tenants of users. `close` closes it, too.
    """
    kind = _LocalAccounted if isinstance(store, LocalClock) else _Accounted
    return cast(SessionStore, kind(store, accounts))


class _Accounted:
    def __init__(self, store: Any, accounts: Any) -> None:
        self._within, self._accounts = store, accounts
        own = [name for name in verbs_of(store) if not hasattr(_Accounted, name)]
        for verb in own:
            setattr(self, verb, getattr(accounts if verb in _OF_ACCOUNTS else store, verb))

    async def activate(self, key: SessionKey, *, revision: int | None = None, jump: int | None = None) -> Activation:
        activation: Activation = await self._within.activate(key, revision=revision, jump=jump)
        return replace(activation, tenant="")  # only `accounts` knows it

    async def state(self, key: SessionKey) -> Activation:
        state: Activation = await self._within.state(key)
        return replace(state, tenant="")

    async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
        if commit.counts:
            await self._accounts.use_quotas(commit.counts)
        try:
            await self._within.commit(key, epoch, replace(commit, counts=()))
        except (SessionFencedError, DuplicateKeyError, DeliveryChangedError):
            with suppress(StoreError):
                await self._take_back(commit.counts)
            raise

    async def _take_back(self, counts: Sequence[QuotaCount]) -> None:
        if counts:
            taken = [replace(count, amount=-count.amount, is_checked=False) for count in counts]
            await self._accounts.use_quotas(taken)

    async def quotas(self) -> Sequence[Quota]:
        return [replace(quota, then="refuse") for quota in await self._accounts.quotas()]

    async def close(self) -> None:
        await self._within.close()
        await self._accounts.close()


class _LocalAccounted(_Accounted, LocalClock):
    def clock(self) -> float:
        """See `LocalClock.clock`."""
        now: float = self._within.clock()
        return now
