"""Where the runs of `run_once` are, and `once_client`, which reaches them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from turnwise.actors.client.shared.sessions_client import HistoryArgument, SessionsClient
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.hosting.store_spec import NO_FILES
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.stores.encrypted.settings import Encryption

ONCE = "of run_once"
"""What errors call a session of `run_once`."""

ONCE_STORE = "memory://turnwise-once"
"""What the URL begins with where the runs of `run_once` are, as long as they are there."""

ONCE_TTL_S, ONCE_SWEEP_S = 60.0, 10.0
"""How long such a run can be read after its last change, and how often those that are older are looked for."""


def once_url(client: SessionsClient) -> str:
    """Return where a manager's runs of `run_once` are.

    They are apart for each store, whose quotas they use, and for each history store, since a process has one of each.
    """
    names = f"{client.name}\n{client.history_name or ''}"
    return f"{ONCE_STORE}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"


def once_client(
    namespace: str,
    engine: EngineBuilder | Mapping[str, EngineBuilder],
    config: SessionConfig,
    client: SessionsClient,
    *,
    history_store: HistoryArgument,
    encryption: Encryption | None,
) -> SessionsClient:
    """Return a client of sessions that are kept in memory only, without memories. Starts their process.

    Their events are also in the manager's history store, if it has one. The quotas of the manager's store limit them.
    """
    once = SessionsClient.of(
        namespace,
        once_url(client),
        history_store=history_store,
        encryption=None if history_store is None else encryption,
        engine=engine,
        memory=(),
        working_memory=None,
        overflow=None,
        placement=client.placement if isinstance(client.placement, InProcess) else Packed(hosts=1),
        config=config,
        read_only=False,
        files=NO_FILES,
        accounts=client.place,
    )
    once.portal = client.portal
    once.warm_up()
    return once
