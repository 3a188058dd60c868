"""`MessageHistory`: the message history of Pydantic AI in a session, for agents that the program runs itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.actors.client.session import AsyncSession, Session
from turnwise.adapters.pydantic_ai.messages import to_pydantic_ai
from turnwise.adapters.version_checks import framework
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.turns import Turn

with framework("pydantic-ai-slim", extra="pydantic-ai", tested="2.68"):
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.run import AgentRunResult

Saved = AgentRunResult[Any] | Sequence[ModelMessage]
"""The result of a run, of which the new messages are saved; or messages."""


class MessageHistory:
    """Keeps Pydantic AI's message history in a session: load it, run the agent, save what is new.

        history = MessageHistory(session)
        result = agent.run_sync(prompt, message_history=history.load())
        history.save(result)

    Messages come back as they were: times, ids, usage and providers' details too. A save is one commit, durable on
    return: all of the run's messages or none. Two writers do not interleave: if anything was added or cleared since
    `load`, or a run of the session is active, `save` stores nothing and raises. The saved messages are turns of the
    session, so `session.turns()`, `fork`, archives and other engines see them; long-term memories do not get them.

    Not for several threads at once: make one for each task, of the same session.

    Args:
        session: a session of a `SessionManager`; `engine=NoAnswer()` is enough for it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        """The session."""
        self._newest: int | None = None

    def load(self) -> list[ModelMessage]:
        """Return the conversation as of the newest turn, for `message_history=`."""
        latest = self.session.latest()
        self._newest = _index(latest)
        return to_pydantic_ai(latest) if latest else []

    def save(self, new: Saved) -> None:
        """Store the new messages of a run behind those that `load` returned; nothing if there are none.

        It may be repeated after a StoreError: the same messages are stored once.

        Raises:
            TurnsChangedError: turns were saved, run or cleared since `load`; nothing was stored.
            SessionBusyError: a run of the session is active; nothing was stored.
            InvalidInputError: `load` was not called; or the messages are none of Pydantic AI's, or end in calls
                without results, so that no provider would take a next prompt; nothing was stored.
        """
        if messages := _new(new):
            after = _checked(self._newest)
            turn = self.session.import_messages(messages, "pydantic_ai", idempotency_key=_key(after), after=after)
            self._newest = turn.index


class AsyncMessageHistory:
    """`MessageHistory` with its verbs as coroutines, for `await agent.run(...)`.

    Args:
        session: a session of an `AsyncSessionManager`; `engine=NoAnswer()` is enough for it.
    """

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        """The session."""
        self._newest: int | None = None

    async def load(self) -> list[ModelMessage]:
        """Return the conversation as of the newest turn, for `message_history=`."""
        latest = await self.session.latest()
        self._newest = _index(latest)
        return to_pydantic_ai(latest) if latest else []

    async def save(self, new: Saved) -> None:
        """Store the new messages of a run behind those that `load` returned; nothing if there are none.

        It may be repeated after a StoreError: the same messages are stored once.

        Raises:
            TurnsChangedError: turns were saved, run or cleared since `load`; nothing was stored.
            SessionBusyError: a run of the session is active; nothing was stored.
            InvalidInputError: `load` was not called; or the messages are none of Pydantic AI's, or end in calls
                without results, so that no provider would take a next prompt; nothing was stored.
        """
        if messages := _new(new):
            after = _checked(self._newest)
            turn = await self.session.import_messages(messages, "pydantic_ai", idempotency_key=_key(after), after=after)
            self._newest = turn.index


def _index(latest: Turn | None) -> int:
    """Return the index of the newest turn; of the one before it if it has not ended, so that its end is a change."""
    return -1 if latest is None else latest.index - latest.record.is_open


def _new(given: Saved) -> list[ModelMessage]:
    return given.new_messages() if isinstance(given, AgentRunResult) else list(given)


def _checked(newest: int | None) -> int:
    if newest is None:
        raise InvalidInputError("new", "messages", "call load() first, since they follow what it returns")
    return newest


def _key(after: int) -> str:
    """Return the key of what follows a turn, so that a repeated save stores it once."""
    return f"pydantic-ai after {after}"
