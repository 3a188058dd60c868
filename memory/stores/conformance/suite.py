"""The laws of `SessionStore`: what every store holds to, shown on one that is empty at first. Needs no test framework.

`await check_session_store(make_store)` runs them all; `LAWS`, with `check_law` of `laws.py`, is for those who would
run each as a test of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance import (
    commits as contract_commits,
    forks as contract_forks,
    listing as contract_listing,
    records as contract_records,
    sessions as contract_sessions,
)
from turnwise.memory.stores.conformance.laws import Law, check_law

LAWS: tuple[Law, ...] = (
    *contract_sessions.LAWS,
    *contract_listing.LAWS,
    *contract_commits.LAWS,
    *contract_records.LAWS,
    *contract_forks.LAWS,
)
"""All laws, in order."""


async def check_session_store(make_store: Callable[[str], SessionStore]) -> None:
    """Check all laws, in order.

    Args:
        make_store: opens a store on the data of this name: nothing at first, the same for the same name. A store that
            cannot be opened twice may be returned again.

    Raises:
        AssertionError: the store breaks a law; names it.
    """
    for law in LAWS:
        await check_law(law, functools.partial(make_store, law.__name__))


_laws: list[Law] = []
