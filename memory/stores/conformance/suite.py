"""The laws of `SessionStore`, which hold for every store. Needs no test framework.

`await check_session_store(make_store)` checks all laws. To check each law in a test of its own, call `check_law` with
each of `LAWS`.
"""

from __future__ import annotations

from collections.abc import Callable

from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance import (
    commits,
    deliveries,
    failures,
    files,
    forks,
    ledger,
    listing,
    quotas,
    records,
    search,
    sessions,
    tenants,
    webhooks,
)
from turnwise.memory.stores.conformance.laws import Law, check_laws

LAWS: tuple[Law, ...] = (
    *(*sessions.LAWS, *listing.LAWS, *commits.LAWS, *records.LAWS, *forks.LAWS, *failures.LAWS),
    *deliveries.LAWS,
    *webhooks.LAWS,
    *search.LAWS,
    *ledger.LAWS,
    *quotas.LAWS,
    *tenants.LAWS,
    *files.LAWS,
)
"""All laws, in order."""


async def check_session_store(make_store: Callable[[str], SessionStore]) -> None:
    """Check all laws, in order.

    Args:
        make_store: returns a store for a name. Stores of one name share their data, which is empty at first. If a store
            cannot be opened twice, it may return the same store again. The law closes the stores.

    Raises:
        AssertionError: the store breaks a law; names the law.
    """
    await check_laws(LAWS, make_store)
