"""turnwise: LLM conversations and agents as concurrent, durable sessions on Ray."""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from turnwise.actors.client.execution import AsyncExecutionHandle, ExecutionHandle
    from turnwise.actors.client.manager import AsyncSessionManager, SessionManager
    from turnwise.actors.client.session import AsyncSession, Session
    from turnwise.actors.client.session_memory import AsyncSessionMemory, SessionMemory
    from turnwise.actors.cluster.placement import Dedicated, Packed
    from turnwise.actors.inference.echo import EchoEngine
    from turnwise.actors.inference.engine import (
        EngineBuilder,
        InferenceRunner,
        RunContext,
        SessionView,
        Steerable,
        StepContext,
        Structured,
        Suspend,
    )
    from turnwise.actors.inference.middleware import LogCalls, Middleware, ReorderResults, SystemPrompt
    from turnwise.actors.inference.openai.engine import AzureOpenAI, OpenAIEngine
    from turnwise.actors.inference.tools.context import ToolContext
    from turnwise.actors.inference.tools.loop import ToolLoop
    from turnwise.actors.inference.tools.memory_tools import memory_tools, notes_tools
    from turnwise.actors.inference.tools.registry import ToolRegistry
    from turnwise.actors.inference.tools.tool import Tool, external_tool, tool
    from turnwise.actors.memory.config import MemoryConfig
    from turnwise.actors.session.budget import Budget, Price
    from turnwise.actors.session.config import SessionConfig
    from turnwise.errors import (
        ArchiveError,
        CallDecidedError,
        CallNotFoundError,
        CompactionError,
        ConfigError,
        ContextOverflowError,
        CorruptRecordError,
        DuplicateKeyError,
        EmptyTurnError,
        EncryptionError,
        EngineError,
        EngineLimitError,
        ExtractionError,
        HistoryConflictError,
        IdempotencyConflictError,
        InvalidIdError,
        InvalidInputError,
        InvalidMemoryError,
        InvalidPromptError,
        InvalidRequestError,
        KeyMissingError,
        LimitError,
        LongTermMemoryError,
        NoActiveRunError,
        NoMemoryError,
        NotEncryptedError,
        NotFoundError,
        OutputCutError,
        OutputError,
        OutputInvalidError,
        OutputRefusedError,
        OverloadedError,
        QueueFullError,
        ReadOnlyMemoryError,
        ReadOnlyStoreError,
        RequestRefusedError,
        RunCancelledError,
        RunEndedError,
        RunFailedError,
        RunInterruptedError,
        RunLimitError,
        RunNotFoundError,
        SchemaVersionError,
        SessionBusyError,
        SessionChangedError,
        SessionEndedError,
        SessionExistsError,
        SessionFencedError,
        SessionLostError,
        SessionNotFoundError,
        SessionOwnerError,
        SessionRevertedError,
        StillEncryptedError,
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
        WorkingMemoryError,
        WrongKeyError,
    )
    from turnwise.memory.archive.expiry import Swept
    from turnwise.memory.archive.export import export_session, import_session
    from turnwise.memory.conversation import blocks, events
    from turnwise.memory.conversation.model_params import ModelParams
    from turnwise.memory.conversation.runs import RunRecord
    from turnwise.memory.conversation.sessions import SessionRecord
    from turnwise.memory.conversation.steps import Step
    from turnwise.memory.conversation.tool_calls import PendingCall
    from turnwise.memory.conversation.transcript import Ledger
    from turnwise.memory.conversation.turns import Turn
    from turnwise.memory.conversation.usage import Usage
    from turnwise.memory.event_store.base import HistoryStore
    from turnwise.memory.event_store.encrypted import EncryptedHistory
    from turnwise.memory.longterm.base import DegradedRecall, LongTermMemory, MemoryItem, Scope, Source
    from turnwise.memory.longterm.deletion import Erasure
    from turnwise.memory.longterm.deletion_report import Forgotten
    from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
    from turnwise.memory.longterm.items.base import FactStore
    from turnwise.memory.longterm.items.in_memory import InMemoryFacts
    from turnwise.memory.longterm.items.redis import RedisFacts
    from turnwise.memory.longterm.items.sql import SQLFacts
    from turnwise.memory.longterm.items.urls import open_facts
    from turnwise.memory.longterm.keyword import LexicalMemory
    from turnwise.memory.longterm.retention import Retention
    from turnwise.memory.longterm.session_memory import MemoryDesk
    from turnwise.memory.longterm.static import StaticMemory
    from turnwise.memory.longterm.types import MemoryCategory, MemoryType
    from turnwise.memory.longterm.vector.chroma import ChromaFolder, ChromaServer, VectorIndex
    from turnwise.memory.longterm.vector.memory import VectorMemory
    from turnwise.memory.longterm.vector.sqlite_items import FullText
    from turnwise.memory.stores.base import SessionStore
    from turnwise.memory.stores.encrypted.settings import Encryption
    from turnwise.memory.stores.encrypted.store import EncryptedStore
    from turnwise.memory.stores.in_memory import InMemoryStore
    from turnwise.memory.stores.redis.store import RedisStore
    from turnwise.memory.stores.sql.store import SQLStore
    from turnwise.memory.tokens.counter import ByteCounter, TiktokenCounter, TokenCounter, counter_for
    from turnwise.memory.working.formats import FreeText, JsonForm, Markdown
    from turnwise.memory.working.memory import WorkingMemory
    from turnwise.memory.working.redis import RedisNotes
    from turnwise.memory.working.sql import SQLNotes
    from turnwise.memory.working.urls import open_notes
    from turnwise.strategies.compaction import Compaction
    from turnwise.strategies.delete_oldest import DeleteOldest
    from turnwise.strategies.flush import FlushToMemory
    from turnwise.strategies.plan import Plan
    from turnwise.strategies.strategy import OverflowStrategy
    from turnwise.strategies.summarize import Summarize
    from turnwise.strategies.trim import Trim
    from turnwise.strategies.window import TokenBudget, Window

__all__ = [
    "ArchiveError",
    "AsyncExecutionHandle",
    "AsyncSession",
    "AsyncSessionManager",
    "AsyncSessionMemory",
    "AzureOpenAI",
    "Budget",
    "ByteCounter",
    "CallDecidedError",
    "CallNotFoundError",
    "ChromaFolder",
    "ChromaServer",
    "Compaction",
    "CompactionError",
    "ConfigError",
    "ContextOverflowError",
    "CorruptRecordError",
    "Dedicated",
    "DegradedRecall",
    "DeleteOldest",
    "DuplicateKeyError",
    "EchoEngine",
    "EmptyTurnError",
    "EncryptedHistory",
    "EncryptedStore",
    "Encryption",
    "EncryptionError",
    "EngineBuilder",
    "EngineError",
    "EngineLimitError",
    "Erasure",
    "ExecutionHandle",
    "ExtractionError",
    "ExtractiveMemory",
    "FactStore",
    "FlushToMemory",
    "Forgotten",
    "FreeText",
    "FullText",
    "HistoryConflictError",
    "HistoryStore",
    "IdempotencyConflictError",
    "InMemoryFacts",
    "InMemoryStore",
    "InferenceRunner",
    "InvalidIdError",
    "InvalidInputError",
    "InvalidMemoryError",
    "InvalidPromptError",
    "InvalidRequestError",
    "JsonForm",
    "KeyMissingError",
    "Ledger",
    "LexicalMemory",
    "LimitError",
    "LogCalls",
    "LongTermMemory",
    "LongTermMemoryError",
    "Markdown",
    "MemoryCategory",
    "MemoryConfig",
    "MemoryDesk",
    "MemoryItem",
    "MemoryType",
    "Middleware",
    "ModelParams",
    "NoActiveRunError",
    "NoMemoryError",
    "NotEncryptedError",
    "NotFoundError",
    "OpenAIEngine",
    "OutputCutError",
    "OutputError",
    "OutputInvalidError",
    "OutputRefusedError",
    "OverflowStrategy",
    "OverloadedError",
    "Packed",
    "PendingCall",
    "Plan",
    "Price",
    "QueueFullError",
    "ReadOnlyMemoryError",
    "ReadOnlyStoreError",
    "RedisFacts",
    "RedisNotes",
    "RedisStore",
    "ReorderResults",
    "RequestRefusedError",
    "Retention",
    "RunCancelledError",
    "RunContext",
    "RunEndedError",
    "RunFailedError",
    "RunInterruptedError",
    "RunLimitError",
    "RunNotFoundError",
    "RunRecord",
    "SQLFacts",
    "SQLNotes",
    "SQLStore",
    "SchemaVersionError",
    "Scope",
    "Session",
    "SessionBusyError",
    "SessionChangedError",
    "SessionConfig",
    "SessionEndedError",
    "SessionExistsError",
    "SessionFencedError",
    "SessionLostError",
    "SessionManager",
    "SessionMemory",
    "SessionNotFoundError",
    "SessionOwnerError",
    "SessionRecord",
    "SessionRevertedError",
    "SessionStore",
    "SessionView",
    "Source",
    "StaticMemory",
    "Steerable",
    "Step",
    "StepContext",
    "StillEncryptedError",
    "StoreClosedError",
    "StoreError",
    "StoreURLError",
    "StrategyError",
    "Structured",
    "Summarize",
    "SummaryRefusedError",
    "Suspend",
    "Swept",
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
    "VectorIndex",
    "VectorMemory",
    "WaitTimeoutError",
    "Window",
    "WindowOverflowError",
    "WorkingMemory",
    "WorkingMemoryError",
    "WrongKeyError",
    "blocks",
    "counter_for",
    "events",
    "export_session",
    "external_tool",
    "import_session",
    "memory_tools",
    "notes_tools",
    "open_facts",
    "open_notes",
    "tool",
]

_HOMES = {
    name: home
    for home, names in {
        "turnwise.memory.conversation.transcript": ["Ledger"],
        "turnwise.memory.longterm.types": ["MemoryCategory", "MemoryType"],
        "turnwise.memory.longterm.items.base": ["FactStore"],
        "turnwise.memory.longterm.extraction.memory": ["ExtractiveMemory"],
        "turnwise.memory.longterm.items.in_memory": ["InMemoryFacts"],
        "turnwise.memory.longterm.items.redis": ["RedisFacts"],
        "turnwise.memory.longterm.items.sql": ["SQLFacts"],
        "turnwise.memory.longterm.vector.sqlite_items": ["FullText"],
        "turnwise.memory.longterm.keyword": ["LexicalMemory"],
        "turnwise.memory.longterm.static": ["StaticMemory"],
        "turnwise.memory.longterm.vector.chroma": ["ChromaFolder", "ChromaServer", "VectorIndex"],
        "turnwise.memory.longterm.vector.memory": ["VectorMemory"],
        "turnwise.memory.longterm.base": ["DegradedRecall", "LongTermMemory", "MemoryItem", "Scope", "Source"],
        "turnwise.memory.tokens.counter": ["ByteCounter", "TiktokenCounter", "TokenCounter", "counter_for"],
        "turnwise.strategies.compaction": ["Compaction"],
        "turnwise.strategies.delete_oldest": ["DeleteOldest"],
        "turnwise.strategies.flush": ["FlushToMemory"],
        "turnwise.strategies.plan": ["Plan"],
        "turnwise.strategies.strategy": ["OverflowStrategy"],
        "turnwise.strategies.summarize": ["Summarize"],
        "turnwise.strategies.trim": ["Trim"],
        "turnwise.strategies.window": ["TokenBudget", "Window"],
        "turnwise.memory.conversation.steps": ["Step"],
        "turnwise.memory.conversation.sessions": ["SessionRecord"],
        "turnwise.memory.conversation.model_params": ["ModelParams"],
        "turnwise.memory.conversation.runs": ["RunRecord"],
        "turnwise.memory.event_store.base": ["HistoryStore"],
        "turnwise.memory.conversation.tool_calls": ["PendingCall"],
        "turnwise.actors.inference.tools.loop": ["ToolLoop"],
        "turnwise.actors.inference.middleware": ["LogCalls", "Middleware", "ReorderResults", "SystemPrompt"],
        "turnwise.actors.session.budget": ["Budget", "Price"],
        "turnwise.actors.session.config": ["SessionConfig"],
        "turnwise.actors.client.execution": ["AsyncExecutionHandle", "ExecutionHandle"],
        "turnwise.actors.inference.echo": ["EchoEngine"],
        "turnwise.actors.inference.engine": [
            "EngineBuilder",
            "InferenceRunner",
            "RunContext",
            "SessionView",
            "Steerable",
            "StepContext",
            "Structured",
            "Suspend",
        ],
        "turnwise.actors.inference.openai.engine": ["AzureOpenAI", "OpenAIEngine"],
        "turnwise.actors.inference.tools.memory_tools": ["memory_tools", "notes_tools"],
        "turnwise.actors.inference.tools.registry": ["ToolRegistry"],
        "turnwise.actors.inference.tools.context": ["ToolContext"],
        "turnwise.actors.inference.tools.tool": ["Tool", "external_tool", "tool"],
        "turnwise.actors.client.manager": ["AsyncSessionManager", "SessionManager"],
        "turnwise.actors.cluster.placement": ["Dedicated", "Packed"],
        "turnwise.actors.client.session": ["AsyncSession", "Session"],
        "turnwise.errors": [
            "ArchiveError",
            "CallDecidedError",
            "CallNotFoundError",
            "ConfigError",
            "ContextOverflowError",
            "CorruptRecordError",
            "DuplicateKeyError",
            "EmptyTurnError",
            "EngineError",
            "EngineLimitError",
            "CompactionError",
            "HistoryConflictError",
            "IdempotencyConflictError",
            "InvalidIdError",
            "InvalidInputError",
            "InvalidMemoryError",
            "InvalidPromptError",
            "InvalidRequestError",
            "LimitError",
            "LongTermMemoryError",
            "NoActiveRunError",
            "NotFoundError",
            "OutputCutError",
            "OutputError",
            "OutputInvalidError",
            "OutputRefusedError",
            "OverloadedError",
            "QueueFullError",
            "ReadOnlyMemoryError",
            "ReadOnlyStoreError",
            "RequestRefusedError",
            "RunCancelledError",
            "RunEndedError",
            "RunFailedError",
            "RunInterruptedError",
            "RunLimitError",
            "RunNotFoundError",
            "SchemaVersionError",
            "SessionBusyError",
            "SessionChangedError",
            "SessionEndedError",
            "SessionExistsError",
            "SessionFencedError",
            "SessionLostError",
            "SessionNotFoundError",
            "SessionOwnerError",
            "SessionRevertedError",
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
            "ExtractionError",
            "NoMemoryError",
            "WorkingMemoryError",
            "WindowOverflowError",
            "EncryptionError",
            "KeyMissingError",
            "NotEncryptedError",
            "StillEncryptedError",
            "WrongKeyError",
        ],
        "turnwise.memory.conversation": ["blocks", "events"],
        "turnwise.memory.archive.export": ["export_session", "import_session"],
        "turnwise.memory.archive.expiry": ["Swept"],
        "turnwise.memory.stores.in_memory": ["InMemoryStore"],
        "turnwise.memory.stores.sql.store": ["SQLStore"],
        "turnwise.memory.stores.base": ["SessionStore"],
        "turnwise.memory.stores.redis.store": ["RedisStore"],
        "turnwise.memory.conversation.turns": ["Turn"],
        "turnwise.memory.conversation.usage": ["Usage"],
        "turnwise.actors.memory.config": ["MemoryConfig"],
        "turnwise.actors.client.session_memory": ["AsyncSessionMemory", "SessionMemory"],
        "turnwise.memory.longterm.session_memory": ["MemoryDesk"],
        "turnwise.memory.event_store.encrypted": ["EncryptedHistory"],
        "turnwise.memory.stores.encrypted.store": ["EncryptedStore"],
        "turnwise.memory.stores.encrypted.settings": ["Encryption"],
        "turnwise.memory.longterm.deletion": ["Erasure"],
        "turnwise.memory.longterm.deletion_report": ["Forgotten"],
        "turnwise.memory.working.formats": ["FreeText", "JsonForm", "Markdown"],
        "turnwise.memory.working.redis": ["RedisNotes"],
        "turnwise.memory.working.sql": ["SQLNotes"],
        "turnwise.memory.longterm.retention": ["Retention"],
        "turnwise.memory.longterm.items.urls": ["open_facts"],
        "turnwise.memory.working.urls": ["open_notes"],
        "turnwise.memory.working.memory": ["WorkingMemory"],
    }.items()
    for name in names
}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: a session's process need not wait for what it does not use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home == "turnwise.memory.conversation":
        return _importlib.import_module(f"{home}.{name}")
    return getattr(_importlib.import_module(home), name)
