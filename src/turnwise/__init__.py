"""turnwise: LLM conversations and agents as concurrent, durable sessions on Ray."""

import typing as _typing

from turnwise.actors.config import SessionConfig
from turnwise.actors.execution import AsyncExecutionHandle, ExecutionHandle
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, RunContext, SessionView
from turnwise.actors.inference.openai import OpenAIEngine
from turnwise.actors.manager import AsyncSessionManager, SessionManager
from turnwise.actors.placement import Dedicated
from turnwise.actors.session import AsyncSession, Session
from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    DuplicateKeyError,
    EmptyTurnError,
    EngineError,
    IdempotencyConflictError,
    InvalidIdError,
    InvalidInputError,
    InvalidPromptError,
    NoActiveRunError,
    NotFoundError,
    QueueFullError,
    RunCancelledError,
    RunEndedError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    SchemaVersionError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    SessionFencedError,
    SessionLostError,
    SessionNotFoundError,
    SessionOwnerError,
    StoreClosedError,
    StoreError,
    StoreURLError,
    TurnNotFoundError,
    TurnwiseError,
    WaitTimeoutError,
)
from turnwise.memory import blocks, events
from turnwise.memory.in_memory import InMemoryStore
from turnwise.memory.store import SessionStore
from turnwise.memory.turns import Turn
from turnwise.memory.usage import Usage

if _typing.TYPE_CHECKING:
    from turnwise.memory.sql import SQLStore

__all__ = [
    "AsyncExecutionHandle",
    "AsyncSession",
    "AsyncSessionManager",
    "ConfigError",
    "CorruptRecordError",
    "Dedicated",
    "DuplicateKeyError",
    "EchoEngine",
    "EmptyTurnError",
    "EngineBuilder",
    "EngineError",
    "ExecutionHandle",
    "IdempotencyConflictError",
    "InMemoryStore",
    "InferenceRunner",
    "InvalidIdError",
    "InvalidInputError",
    "InvalidPromptError",
    "NoActiveRunError",
    "NotFoundError",
    "OpenAIEngine",
    "QueueFullError",
    "RunCancelledError",
    "RunContext",
    "RunEndedError",
    "RunFailedError",
    "RunInterruptedError",
    "RunNotFoundError",
    "SQLStore",
    "SchemaVersionError",
    "Session",
    "SessionBusyError",
    "SessionConfig",
    "SessionEndedError",
    "SessionExistsError",
    "SessionFencedError",
    "SessionLostError",
    "SessionManager",
    "SessionNotFoundError",
    "SessionOwnerError",
    "SessionStore",
    "SessionView",
    "StoreClosedError",
    "StoreError",
    "StoreURLError",
    "Turn",
    "TurnNotFoundError",
    "TurnwiseError",
    "Usage",
    "WaitTimeoutError",
    "blocks",
    "events",
]


def __getattr__(name: str) -> object:
    """Import `SQLStore` when it is asked for: SQLAlchemy takes 0.15 s that a session's process need not wait for."""
    if name == "SQLStore":
        from turnwise.memory.sql import SQLStore

        return SQLStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
