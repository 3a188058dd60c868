"""`open_for_run`: opens a session for a run, and creates it only if the run could start in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from turnwise.actors.client.files import check_files
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions, settings_of
from turnwise.actors.hosting import verbs
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import as_engine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.prompts import Prompt, plain_prompts
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.quotas import check_quotas
from turnwise.memory.values.ids import check_id, new_id


async def open_for_run(
    manager: AsyncSessionManager,
    session_id: str | None,
    prompts: Sequence[Prompt],
    options: RunOptions | None = None,
    *,
    user_id: str | None = None,
    as_user: str | None = None,
    agent: str | None = None,
    engine: str | None = None,
) -> AsyncSession:
    """Return the session with this id, or a new one. A new one is created only if the run is not refused.

    The run is checked in this process, as the session's process will check it, and only if the session is new.

    Args:
        session_id: if omitted, the session is new and gets a new id.
        prompts: the run's prompts; without any, nothing is created.
        options: the run's options.
        as_user: the member for whom it is, of a session that `user_id` shares. Then none is created.

    Raises:
        TurnwiseError: the run or the session was refused; nothing was created.
    """
    if session_id is None:
        session_id = new_id()
    else:
        try:
            return await manager.get(session_id, user_id=user_id, as_user=as_user)
        except SessionNotFoundError:
            if as_user is not None:
                raise
    fresh = SessionRecord(
        session_id=check_id("session id", session_id), user_id=user_id or DEFAULT_USER, agent=agent, engine=engine
    )
    await check_first_run(manager, fresh, prompts, options or RunOptions())
    return await manager.open(session_id, user_id=user_id, agent=agent, engine=engine, if_exists="keep")


async def check_first_run(
    manager: AsyncSessionManager, fresh: SessionRecord, prompts: Sequence[Prompt], options: RunOptions
) -> None:
    """Raise what the first run of a new session would raise. Stores nothing, and asks only the store."""
    builder = _engine_of(manager, fresh.engine, fresh.key)
    store = InMemoryStore()
    await store.create(fresh)
    core = SessionCore(fresh.key, store, builder, manager.config)
    settings = await asyncio.to_thread(settings_of, options)  # which may have large schemas
    plain = plain_prompts(fresh.session_id, tuple(prompts))
    plain = await check_files(manager._client, fresh.key, plain)  # noqa: SLF001 - of the same package
    await core.admission.check_start(plain, **settings)
    await manager._store.run(lambda store: check_quotas(store, fresh.user_id, fresh.agent))  # noqa: SLF001 - likewise


async def check_start(session: AsyncSession, prompts: Sequence[Prompt], options: RunOptions) -> str | None:
    """Raise what `run` would raise with these prompts and options if no run were active or queued. Stores nothing.

    Returns the id of the run that was started with the same idempotency key; None if there is none.
    """
    settings = await asyncio.to_thread(settings_of, options)
    call = verbs.check_start(plain_prompts(session.session_id, tuple(prompts)), settings)
    return await session._host.ask(call)  # noqa: SLF001 - of the same package


def _engine_of(manager: AsyncSessionManager, name: str | None, session: SessionKey) -> EngineBuilder:
    """Return the engine, or the engines, of a manager's sessions.

    Raises:
        ConfigError: there is none of this name; the error names the session.
    """
    manager._check_engine(name, session)  # noqa: SLF001 - of the same package
    return as_engine(manager._engine)  # noqa: SLF001
