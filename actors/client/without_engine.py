"""Acting on sessions from a process that has no engine for them, as the command line does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.inference.engine import InferenceRunner, SessionView
from turnwise.errors import EngineError, SessionLostError


@dataclass(frozen=True)
class NoEngine:
    """Stands for the engine of a manager that starts no runs."""

    starts_no_runs: ClassVar[bool] = True
    """Also none of deliveries: see `look_for_deliveries`."""

    def build(self, session: SessionView) -> InferenceRunner:
        """Raise EngineError."""
        reason = f"session {session.session_id!r} was opened without an engine: run it by a manager that has one"
        raise EngineError(reason)


def live(session: AsyncSession) -> AsyncSession | None:
    """Return a session object that uses the engine of the session's running process; None if no process is running.

    Blocks. This process must be connected to the Ray of the session.
    """
    client = session._client  # noqa: SLF001 - of the same package
    elsewhere = SessionsClient(client.namespace, client.name, client.placement)
    attached = AsyncSession(elsewhere, session._ref, session.agent)  # noqa: SLF001
    try:
        elsewhere.process(session._ref)  # noqa: SLF001 - of the same package; raises if there is none
    except SessionLostError:
        return None
    return attached


def has_noted_engine(session: AsyncSession) -> bool:
    """Return whether the Ray of this process has noted the engine of the session's waiting runs. Blocks.

    It has after the session's process left while a run waits: the next process of the session goes on with that engine.
    """
    from turnwise.actors.cluster.actor_names import actor_name
    from turnwise.actors.cluster.actors.switched_engines import find_overrides

    client = session._client  # noqa: SLF001
    _, engines = find_overrides(client.namespace, actor_name(client.name, session._ref.key))  # noqa: SLF001
    return bool(engines)
