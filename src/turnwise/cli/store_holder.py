"""Who has the SQLite file of a store open: a Ray or a process of its own, and so whether a command may use it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from turnwise.cli.common import check_plain
from turnwise.errors import ConfigError
from turnwise.memory.stores.store_owner import StoreOwner, naming
from turnwise.memory.stores.urls import open_store, redact, resolve_url


@dataclass(frozen=True)
class Holder:
    """Who has a SQLite file open."""

    owner: StoreOwner
    """Its address is empty if it is not known."""
    pid: int
    """The id of a process that has it open: one of the Ray's, or the owner itself."""


def lock_holder(file: Path) -> Holder | None:
    """Return who has a SQLite file open; None if nobody has, or this process, or if this system does not say.

    The system is asked who holds the lock beside the file, so nothing is locked here.
    """
    lock = file.with_name(f"{file.name}.lock")
    if sys.platform != "linux" or not lock.exists():
        return None
    import fcntl

    first, size = 0x40000002, 510  # SQLite's shared lock
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, size, 0)
    with lock.open("rb") as opened:
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(opened, fcntl.F_GETLK, request))
    if kind == fcntl.F_UNLCK:
        return None
    try:
        with closing(sqlite3.connect(f"{lock.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT address, session FROM owner").fetchone()
    except sqlite3.Error:
        row = None
    return Holder(StoreOwner(*row) if row else StoreOwner("", ""), pid)


def check_shared(store: str, file: Path | None) -> Holder | None:
    """Return who has the file of a store open, after refusing a process without Ray, which shares it with nobody.

    Raises:
        ConfigError: names the process.
    """
    holder = lock_holder(file) if file else None
    if holder and holder.owner.is_process:
        reason = f"{holder.owner.name} has it open, and no other may change it: use that program, or end it first"
        raise ConfigError("store", redact(store), f"{reason}; commands that read work beside it")
    return holder


def check_free(store: str) -> None:
    """Refuse a wrong URL, a file that another Ray or process has open, and an encrypted store, before Ray is started.

    Raises:
        StoreURLError, ConfigError, StillEncryptedError: see above.
    """
    from turnwise.actors.cluster.ray_address import local_ray

    file = sqlite_file(resolve_url(store))
    holder = check_shared(store, file)
    if holder and not os.environ.get("RAY_ADDRESS") and holder.owner.address != local_ray():
        address = holder.owner.address
        reason = f"{f'the Ray at {address}' if address else 'somebody'} has it open, and no other may use it"
        do = f"set {naming(address)}, or end process {holder.pid}" if address else f"end process {holder.pid}"
        raise ConfigError("store", redact(store), f"{reason}: {do}")
    if not store.startswith("memory:") and (file is None or file.exists()):
        asyncio.run(_check_plain(store))


async def _check_plain(url: str) -> None:
    store = open_store(url)
    try:
        await check_plain(store)
    finally:
        await store.close()


def sqlite_file(resolved: str) -> Path | None:
    """Return the file of a store's resolved URL; None for a server."""
    if not resolved.startswith("sqlite"):
        return None
    import sqlalchemy as sa

    from turnwise.memory.stores.sql.sqlite_file import path_of

    return path_of(sa.make_url(resolved))
