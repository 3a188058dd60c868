"""turnwise: LLM conversations and agents as concurrent, durable sessions on Ray."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from turnwise.actors.budget import Budget, Price
    from turnwise.actors.config import SessionConfig
    from turnwise.actors.execution import AsyncExecutionHandle, ExecutionHandle
    from turnwise.actors.inference.echo import EchoEngine
    from turnwise.actors.inference.engine import (
        EngineBuilder,
        InferenceRunner,
        RunContext,
        SessionView,
        StepContext,
        Suspend,
    )
    from turnwise.actors.inference.middleware import LogCalls, Middleware, ReorderResults, SystemPrompt
    from turnwise.actors.inference.openai import OpenAIEngine
    from turnwise.actors.inference.registry import ToolRegistry
    from turnwise.actors.inference.tool_context import ToolContext
    from turnwise.actors.inference.tool_loop import ToolLoop
    from turnwise.actors.inference.tools import Tool, external_tool, tool
    from turnwise.actors.manager import AsyncSessionManager, SessionManager
    from turnwise.actors.placement import Dedicated
    from turnwise.actors.session import AsyncSession, Session
    from turnwise.errors import (
        CallDecidedError,
        CallNotFoundError,
        CompactionError,
        ConfigError,
        CorruptRecordError,
        DuplicateKeyError,
        EmptyTurnError,
        EngineError,
        HistoryConflictError,
        IdempotencyConflictError,
        InvalidIdError,
        InvalidInputError,
        InvalidPromptError,
        InvalidRequestError,
        LimitError,
        LongTermMemoryError,
        NoActiveRunError,
        NotFoundError,
        QueueFullError,
        RunCancelledError,
        RunEndedError,
        RunFailedError,
        RunInterruptedError,
        RunLimitError,
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
        StrategyError,
        SummaryRefusedError,
        ToolAbortError,
        ToolError,
        TranscriptError,
        TurnNotFoundError,
        TurnwiseError,
        UnsupportedBlockError,
        WaitTimeoutError,
        WindowOverflowError,
    )
    from turnwise.memory import blocks, events
    from turnwise.memory.calls import PendingCall
    from turnwise.memory.history import HistoryStore
    from turnwise.memory.in_memory import InMemoryStore
    from turnwise.memory.long_term import LongTermMemory, MemoryItem, Scope, Source
    from turnwise.memory.runs import RunRecord
    from turnwise.memory.sessions import SessionRecord
    from turnwise.memory.sql import SQLStore
    from turnwise.memory.steps import Step
    from turnwise.memory.store import SessionStore
    from turnwise.memory.tokens import ByteCounter, TiktokenCounter, TokenCounter, counter_for
    from turnwise.memory.transcript import Ledger
    from turnwise.memory.turns import Turn
    from turnwise.memory.usage import Usage
    from turnwise.strategies.compaction import Compaction
    from turnwise.strategies.delete_oldest import DeleteOldest
    from turnwise.strategies.flush import FlushToMemory
    from turnwise.strategies.plan import Plan
    from turnwise.strategies.strategy import OverflowStrategy
    from turnwise.strategies.summarize import Summarize
    from turnwise.strategies.trim import Trim
    from turnwise.strategies.window import TokenBudget, Window

__all__ = [
    "AsyncExecutionHandle",
    "AsyncSession",
    "AsyncSessionManager",
    "Budget",
    "ByteCounter",
    "CallDecidedError",
    "CallNotFoundError",
    "Compaction",
    "CompactionError",
    "ConfigError",
    "CorruptRecordError",
    "Dedicated",
    "DeleteOldest",
    "DuplicateKeyError",
    "EchoEngine",
    "EmptyTurnError",
    "EngineBuilder",
    "EngineError",
    "ExecutionHandle",
    "FlushToMemory",
    "HistoryConflictError",
    "HistoryStore",
    "IdempotencyConflictError",
    "InMemoryStore",
    "InferenceRunner",
    "InvalidIdError",
    "InvalidInputError",
    "InvalidPromptError",
    "InvalidRequestError",
    "Ledger",
    "LimitError",
    "LogCalls",
    "LongTermMemory",
    "LongTermMemoryError",
    "MemoryItem",
    "Middleware",
    "NoActiveRunError",
    "NotFoundError",
    "OpenAIEngine",
    "OverflowStrategy",
    "PendingCall",
    "Plan",
    "Price",
    "QueueFullError",
    "ReorderResults",
    "RunCancelledError",
    "RunContext",
    "RunEndedError",
    "RunFailedError",
    "RunInterruptedError",
    "RunLimitError",
    "RunNotFoundError",
    "RunRecord",
    "SQLStore",
    "SchemaVersionError",
    "Scope",
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
    "SessionRecord",
    "SessionStore",
    "SessionView",
    "Source",
    "Step",
    "StepContext",
    "StoreClosedError",
    "StoreError",
    "StoreURLError",
    "StrategyError",
    "Summarize",
    "SummaryRefusedError",
    "Suspend",
    "SystemPrompt",
    "TiktokenCounter",
    "TokenBudget",
    "TokenCounter",
    "Tool",
    "ToolAbortError",
    "ToolContext",
    "ToolError",
    "ToolLoop",
    "ToolRegistry",
    "TranscriptError",
    "Trim",
    "Turn",
    "TurnNotFoundError",
    "TurnwiseError",
    "UnsupportedBlockError",
    "Usage",
    "WaitTimeoutError",
    "Window",
    "WindowOverflowError",
    "blocks",
    "counter_for",
    "events",
    "external_tool",
    "tool",
]

_HOMES = {
    name: home
    for home, names in {
        "turnwise.memory.transcript": ["Ledger"],
        "turnwise.memory.long_term": ["LongTermMemory", "MemoryItem", "Scope", "Source"],
        "turnwise.memory.tokens": ["ByteCounter", "TiktokenCounter", "TokenCounter", "counter_for"],
        "turnwise.strategies.compaction": ["Compaction"],
        "turnwise.strategies.delete_oldest": ["DeleteOldest"],
        "turnwise.strategies.flush": ["FlushToMemory"],
        "turnwise.strategies.plan": ["Plan"],
        "turnwise.strategies.strategy": ["OverflowStrategy"],
        "turnwise.strategies.summarize": ["Summarize"],
        "turnwise.strategies.trim": ["Trim"],
        "turnwise.strategies.window": ["TokenBudget", "Window"],
        "turnwise.memory.steps": ["Step"],
        "turnwise.memory.sessions": ["SessionRecord"],
        "turnwise.memory.runs": ["RunRecord"],
        "turnwise.memory.history": ["HistoryStore"],
        "turnwise.memory.calls": ["PendingCall"],
        "turnwise.actors.inference.tool_loop": ["ToolLoop"],
        "turnwise.actors.inference.middleware": ["LogCalls", "Middleware", "ReorderResults", "SystemPrompt"],
        "turnwise.actors.budget": ["Budget", "Price"],
        "turnwise.actors.config": ["SessionConfig"],
        "turnwise.actors.execution": ["AsyncExecutionHandle", "ExecutionHandle"],
        "turnwise.actors.inference.echo": ["EchoEngine"],
        "turnwise.actors.inference.engine": [
            "EngineBuilder",
            "InferenceRunner",
            "RunContext",
            "SessionView",
            "StepContext",
            "Suspend",
        ],
        "turnwise.actors.inference.openai": ["OpenAIEngine"],
        "turnwise.actors.inference.registry": ["ToolRegistry"],
        "turnwise.actors.inference.tool_context": ["ToolContext"],
        "turnwise.actors.inference.tools": ["Tool", "external_tool", "tool"],
        "turnwise.actors.manager": ["AsyncSessionManager", "SessionManager"],
        "turnwise.actors.placement": ["Dedicated"],
        "turnwise.actors.session": ["AsyncSession", "Session"],
        "turnwise.errors": [
            "CallDecidedError",
            "CallNotFoundError",
            "ConfigError",
            "CorruptRecordError",
            "DuplicateKeyError",
            "EmptyTurnError",
            "EngineError",
            "CompactionError",
            "HistoryConflictError",
            "IdempotencyConflictError",
            "InvalidIdError",
            "InvalidInputError",
            "InvalidPromptError",
            "InvalidRequestError",
            "LimitError",
            "LongTermMemoryError",
            "NoActiveRunError",
            "NotFoundError",
            "QueueFullError",
            "RunCancelledError",
            "RunEndedError",
            "RunFailedError",
            "RunInterruptedError",
            "RunLimitError",
            "RunNotFoundError",
            "SchemaVersionError",
            "SessionBusyError",
            "SessionEndedError",
            "SessionExistsError",
            "SessionFencedError",
            "SessionLostError",
            "SessionNotFoundError",
            "SessionOwnerError",
            "StoreClosedError",
            "StoreError",
            "StoreURLError",
            "StrategyError",
            "SummaryRefusedError",
            "ToolAbortError",
            "ToolError",
            "TranscriptError",
            "TurnNotFoundError",
            "TurnwiseError",
            "UnsupportedBlockError",
            "WaitTimeoutError",
            "WindowOverflowError",
        ],
        "turnwise.memory": ["blocks", "events"],
        "turnwise.memory.in_memory": ["InMemoryStore"],
        "turnwise.memory.sql": ["SQLStore"],
        "turnwise.memory.store": ["SessionStore"],
        "turnwise.memory.turns": ["Turn"],
        "turnwise.memory.usage": ["Usage"],
    }.items()
    for name in names
}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: a session's process need not wait for what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home == "turnwise.memory":
        return _importlib.import_module(f"{home}.{name}")
    return getattr(_importlib.import_module(home), name)
