"""`MessageHistory`: the message history of Pydantic AI in a session, for agents that the program runs itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.session import AsyncSession
from turnwise.adapters.pydantic_ai.messages import to_pydantic_ai
from turnwise.adapters.version_checks import framework
from turnwise.errors import InvalidInputError, TurnsChangedError
from turnwise.memory.conversation.turns import Turn

with framework("pydantic-ai-slim", extra="pydantic-ai", tested="2.68"):
    from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart
    from pydantic_ai.run import AgentRunResult

Saved = AgentRunResult[Any] | Sequence[ModelMessage]
"""The result of a run, of which the new messages are saved; or messages."""


class MessageHistory:
    """Keeps Pydantic AI's message history in a session: load it, run the agent, save what is new.

        history = MessageHistory(session)
        result = agent.run_sync(prompt, message_history=history.load())
        history.save(result)

    Messages come back as they were: times, ids, usage and providers' details too. A save is durable on return, and one
    commit: all of the run's messages or none. More than 1,000 blocks are several commits; if that is cut off, a
    repeated save stores the rest. Two writers do not interleave: if anything was added or cleared since `load`, or a
    run of the session is active, `save` stores nothing and raises. The saved messages are turns of the session, so
    `session.turns()`, `fork`, archives and other engines see them; long-term memories do not get them.

    Not for several threads at once: make one for each task, of the same session.

    Args:
        session: a session of a `SessionManager`; `engine=NoAnswer()` is enough for it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        """The session."""
        self._newest: int | None = None
        self._saved: list[ModelMessage] = []
        """The conversation as of that turn."""

    def load(self) -> list[ModelMessage]:
        """Return the conversation as of the newest turn, for `message_history=`."""
        latest = self.session.latest()
        self._newest, self._saved = _index(latest), to_pydantic_ai(latest) if latest else []
        return list(self._saved)

    def save(self, new: Saved) -> None:
        """Store the messages of a run that the session does not have, behind those that `load` returned.

        Messages that are there already are not stored again, so `result`, `result.new_messages()` and
        `result.all_messages()` may be saved, also twice. With a run that went on with deferred results, the run whose
        calls they answer is saved too, if it was not.

        It may be repeated after a StoreError: the same messages are stored once.

        Raises:
            TurnsChangedError: turns were saved, run or cleared since `load`; nothing was stored.
            SessionInUseError: a run of the session is active; nothing was stored.
            InvalidInputError: `load` was not called; or the messages are none of Pydantic AI's, or end in calls
                without results, so that no provider would take a next prompt; nothing was stored.
        """
        after = _checked(self._newest)
        if messages := unsaved(self._saved, new):
            turn = self.session.import_messages(messages, "pydantic_ai", idempotency_key=_key(after), after=after)
            self._newest, self._saved = turn.index, [*self._saved, *messages]
        else:
            _check_unchanged(self.session.session_id, after, self.session.latest())


class AsyncMessageHistory:
    """`MessageHistory` with its verbs as coroutines, for `await agent.run(...)`.

    Args:
        session: a session of an `AsyncSessionManager`; `engine=NoAnswer()` is enough for it.
    """

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        """The session."""
        self._newest: int | None = None
        self._saved: list[ModelMessage] = []
        """The conversation as of that turn."""

    async def load(self) -> list[ModelMessage]:
        """Return the conversation as of the newest turn, for `message_history=`."""
        latest = await self.session.latest()
        self._newest, self._saved = _index(latest), to_pydantic_ai(latest) if latest else []
        return list(self._saved)

    async def save(self, new: Saved) -> None:
        """Store the messages of a run that the session does not have, behind those that `load` returned.

        Messages that are there already are not stored again, so `result`, `result.new_messages()` and
        `result.all_messages()` may be saved, also twice. With a run that went on with deferred results, the run whose
        calls they answer is saved too, if it was not.

        It may be repeated after a StoreError: the same messages are stored once.

        Raises:
            TurnsChangedError: turns were saved, run or cleared since `load`; nothing was stored.
            SessionInUseError: a run of the session is active; nothing was stored.
            InvalidInputError: `load` was not called; or the messages are none of Pydantic AI's, or end in calls
                without results, so that no provider would take a next prompt; nothing was stored.
        """
        after = _checked(self._newest)
        if messages := unsaved(self._saved, new):
            turn = await self.session.import_messages(messages, "pydantic_ai", idempotency_key=_key(after), after=after)
            self._newest, self._saved = turn.index, [*self._saved, *messages]
        else:
            _check_unchanged(self.session.session_id, after, await self.session.latest())


def _index(latest: Turn | None) -> int:
    """Return the index of the newest turn; of the one before it if it has not ended, so that its end is a change."""
    return -1 if latest is None else latest.index - latest.record.is_open


def _check_unchanged(session_id: str, after: int, latest: Turn | None) -> None:
    if (newest := _index(latest)) != after:
        raise TurnsChangedError(session_id, after, newest)


def unsaved(saved: Sequence[ModelMessage], source: Saved) -> list[ModelMessage]:
    """Return the messages of a run, or of a list, that follow those which are saved; all of them if none is there."""
    if not isinstance(source, AgentRunResult):
        return _behind(saved, list(source))
    everything, new = source.all_messages(), source.new_messages()
    if everything[: len(saved)] == list(saved) and (saved or not _is_whole(new)):
        return everything[len(saved) :]
    return _behind(saved, new if _is_whole([*saved, *new]) else everything)


def _behind(saved: Sequence[ModelMessage], messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the messages behind those that are saved: they may begin anywhere in these."""
    for start in range(len(saved)):
        both = min(len(saved) - start, len(messages))
        if list(saved[start : start + both]) == messages[:both]:
            return messages[both:]
    return messages


def _is_whole(messages: Sequence[ModelMessage]) -> bool:
    """Return whether each result of a call comes with the call."""
    parts = [part for message in messages for part in message.parts]
    calls = {part.tool_call_id for part in parts if isinstance(part, ToolCallPart)}
    return all(part.tool_call_id in calls for part in parts if isinstance(part, ToolReturnPart))


def _checked(newest: int | None) -> int:
    if newest is None:
        raise InvalidInputError("new", "messages", "call load() first, since they follow what it returns")
    return newest


def _key(after: int) -> str:
    """Return the key of what follows a turn, so that a repeated save stores it once."""
    return f"pydantic-ai after {after}"
