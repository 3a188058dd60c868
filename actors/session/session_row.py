"""`SessionRow`: changes a session's row: title, metadata, engine, use of memories, time of change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.actors.inference.named_engines import MissingEngine, engine_named
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import TitleChanged
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.encrypted.records import is_sealed
from turnwise.memory.values.frozen_json import freeze, plain_json


class SessionRow:
    """Changes the session's row, in a commit of its own. Each change may be repeated.

    While a change awaits its commit, reads and streaming go on; a crash leaves the change stored or not.
    """

    def __init__(self, state: SessionState, transactor: Transactor, engines: SessionEngines) -> None:
        self._journal = state.journal
        self._session_id = state.session_id
        self._transactor = transactor
        self._engines = engines

    async def refresh(self) -> None:
        """Make an empty commit, which restarts the session's time to live (`ttl_s`); durable on return."""
        await self._store()

    async def update(self, title: str | None, metadata: Mapping[str, Any] | None, merge: bool = True) -> SessionRecord:
        """Change the session's title and metadata; return its row.

        Args:
            title: None to keep the title; an empty one removes it.
            metadata: None to keep the metadata.
            merge: add these names and replace their values, and remove the names whose value is None; otherwise
                replace the metadata as a whole.

        Raises:
            InvalidInputError: the metadata would become too large, or look encrypted; nothing was changed.
        """

        async def change() -> SessionRecord:
            session = self._journal.session
            changed = replace(session, title=session.title if title is None else title or None)
            if metadata is not None:
                remaining = {name: value for name, value in session.metadata.items() if merge and name not in metadata}
                added = {name: value for name, value in metadata.items() if value is not None or not merge}
                plain = plain_json("metadata", remaining | added, self._engines.config.max_metadata_bytes)
                changed = replace(changed, metadata=freeze(plain))
                if is_sealed(changed.metadata):  # such a session could not be listed
                    reason = "it looks like encrypted metadata: choose other names"
                    raise InvalidInputError("metadata", shown(plain), reason)
            if changed != session:
                events = [(TitleChanged, {"title": changed.title})] if changed.title != session.title else []
                await self._transactor.commit(changed, events)
            return self._journal.session

        return await self._transactor.run(change)

    async def use_engine(self, name: str | None) -> None:
        """Set the engine of later runs by its name, None for the manager's first; durable on return.

        Open runs keep theirs.

        Raises:
            ConfigError: the manager has no engine of this name; nothing was changed.
        """
        builder = engine_named(self._engines.whole.builder, name)
        if isinstance(builder, MissingEngine):
            raise builder.error(self._session_id)
        await self._store(engine=name)

    async def use_memory(self, use: MemoryUse) -> None:
        """Set the default for later runs' use of long-term memory; durable on return."""
        await self._store(memory=use)

    async def _store(self, **changes: Any) -> None:
        async def change() -> None:
            await self._transactor.commit(replace(self._journal.session, **changes))

        await self._transactor.run(change)
