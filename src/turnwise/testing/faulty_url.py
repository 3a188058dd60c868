"""URLs of stores with faults, so that session processes can open them too."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import cast, get_args
from urllib.parse import parse_qs, urlencode

from turnwise.errors import StoreURLError
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.plugins import GROUP
from turnwise.memory.stores.urls import open_store, resolve_url
from turnwise.testing.faults import FaultPlan, Faults, Kind
from turnwise.testing.faulty_store import with_faults

SCHEME = "faulty"


def register(folder: Path | str) -> None:
    """Enable `faulty_url` in this process and in processes that it starts later. Call it before Ray starts.

    Writes the metadata of a package with the entry point, since the installed turnwise does not have it.

    Args:
        folder: the folder for that package, which must exist as long as the processes.
    """
    package = Path(folder).resolve() / "turnwise_faulty-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: turnwise-faulty\nVersion: 0\n", encoding="utf-8")
    entry = f"[{GROUP}]\n{SCHEME} = {__name__}:{open_faulty.__name__}\n"
    (package / "entry_points.txt").write_text(entry, encoding="utf-8")
    sys.path.append(str(package.parent))
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [paths]), str(package.parent)])
    importlib.invalidate_caches()


def faulty_url(store: str, plan: FaultPlan, *, seed: object = 0, journal: Path | str) -> str:
    """Return the URL of a store with faults around the store at another URL, by the rates and points of a plan.

    Pass it to `SessionManager(store=...)` after `register`. Each process that opens it draws its own random numbers, is
    killed by SIGKILL at a crash, and appends its faults to the journal. The manager's process may fail too, so audit
    the inner store.
    """
    values = {"store": resolve_url(store), "seed": seed, "journal": Path(journal).resolve(), "points": plan.points}
    return f"{SCHEME}://?{urlencode(values | dict(plan.rates), doseq=True)}"


def open_faulty(url: str) -> SessionStore:
    """Return the store of a `faulty_url`; the entry point that `register` adds.

    Raises:
        StoreURLError: the URL is not one of `faulty_url`, or its inner store cannot be opened.
        ConfigError: the rates are invalid.
    """
    values = parse_qs(url.partition("?")[2])
    try:
        (inner,), (seed,), (journal,) = values["store"], values["seed"], values["journal"]
        rates = {cast(Kind, kind): float(values[kind][0]) for kind in get_args(Kind) if kind in values}
    except (KeyError, ValueError) as error:
        raise StoreURLError(SCHEME, f"{error} is missing: use a URL of faulty_url()") from error
    plan = FaultPlan(rates=rates, points=tuple(values.get("points", ())))
    return with_faults(open_store(inner), Faults(plan, seed=f"{seed} in {os.getpid()}", journal=journal), for_real=True)
