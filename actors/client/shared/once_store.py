"""Where the runs of `run_once` are, and `once_client`, which reaches them."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.hosting.placement import InProcess, Packed
from turnwise.actors.hosting.store_spec import NO_FILES
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig

ONCE = "of run_once"
"""What errors call a session of `run_once`."""

ONCE_STORE = "memory://turnwise-once"
"""Where the runs of `run_once` are, as long as they are there."""

ONCE_TTL_S, ONCE_SWEEP_S = 60.0, 10.0
"""How long such a run can be read after its last change, and how often those that are older are looked for."""


def once_client(
    namespace: str, engine: EngineBuilder | Mapping[str, EngineBuilder], config: SessionConfig, client: SessionsClient
) -> SessionsClient:
    """Return a client of sessions that are kept in memory only, without memories. Starts their process."""
    once = SessionsClient.of(
        namespace,
        ONCE_STORE,
        history_store=None,
        encryption=None,
        engine=engine,
        memory=(),
        working_memory=None,
        overflow=None,
        placement=client.placement if isinstance(client.placement, InProcess) else Packed(hosts=1),
        config=config,
        read_only=False,
        files=NO_FILES,
    )
    once.portal = client.portal
    once.warm_up()
    return once
