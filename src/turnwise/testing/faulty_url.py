"""Stores with faults by their URL, so that the processes of sessions open them too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast, get_args
from urllib.parse import parse_qs, urlencode

from turnwise.errors import StoreURLError
from turnwise.memory.store import SessionStore
from turnwise.memory.urls import open_store, resolve_url
from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.faulty_store import with_faults

SCHEME = "faulty"


def faulty_url(store: str, plan: FaultPlan, *, seed: object = 0, journal: Path | str) -> str:
    """Return the URL of a store with faults around the store of another URL, by the rates and points of a plan.

    For `SessionManager(store=...)`: each process that opens it throws dice of its own, a crash is SIGKILL to it, and
    what it injects is in the journal. The process of the manager is one of them, so audit the inner store.
    """
    values = {"store": resolve_url(store), "seed": seed, "journal": Path(journal).resolve(), "points": plan.points}
    return f"{SCHEME}://?{urlencode(values | dict(plan.rates), doseq=True)}"


def open_faulty(url: str) -> SessionStore:
    """Return the store of a `faulty_url`. It is what turnwise registers for the scheme.

    Raises:
        StoreURLError: it is none, or the store in it cannot be opened.
        ConfigError: the rates make no sense.
    """
    values = parse_qs(url.partition("?")[2])
    try:
        (inner,), (seed,), (journal,) = values["store"], values["seed"], values["journal"]
        rates = {cast(Kind, kind): float(values[kind][0]) for kind in get_args(Kind) if kind in values}
    except (KeyError, ValueError) as error:
        raise StoreURLError(SCHEME, f"it lacks {error}: make it with faulty_url") from error
    plan = FaultPlan(rates=rates, points=tuple(values.get("points", ())))
    return with_faults(open_store(inner), Faults(plan, seed=f"{seed} in {os.getpid()}", journal=journal), for_real=True)
