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
        Steerable,
        StepContext,
        Structured,
        Suspend,
    )
    from turnwise.actors.inference.memory_tools import memory_tools, notes_tools
    from turnwise.actors.inference.middleware import LogCalls, Middleware, ReorderResults, SystemPrompt
    from turnwise.actors.inference.openai import AzureOpenAI, OpenAIEngine
    from turnwise.actors.inference.registry import ToolRegistry
    from turnwise.actors.inference.tool_context import ToolContext
    from turnwise.actors.inference.tool_loop import ToolLoop
    from turnwise.actors.inference.tools import Tool, external_tool, tool
    from turnwise.actors.manager import AsyncSessionManager, SessionManager
    from turnwise.actors.memory_config import MemoryConfig
    from turnwise.actors.placement import Dedicated, Packed
    from turnwise.actors.session import AsyncSession, Session
    from turnwise.actors.session_memory import AsyncSessionMemory, SessionMemory
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
    from turnwise.memory import blocks, events
    from turnwise.memory.archive import export_session, import_session
    from turnwise.memory.calls import PendingCall
    from turnwise.memory.categories import MemoryCategory, MemoryType
    from turnwise.memory.desk import MemoryDesk
    from turnwise.memory.encrypted_history import EncryptedHistory
    from turnwise.memory.encrypted_store import EncryptedStore
    from turnwise.memory.encryption import Encryption
    from turnwise.memory.erasing import Erasure
    from turnwise.memory.extractive import ExtractiveMemory
    from turnwise.memory.facts import FactStore
    from turnwise.memory.facts_memory import InMemoryFacts
    from turnwise.memory.facts_redis import RedisFacts
    from turnwise.memory.facts_sql import SQLFacts
    from turnwise.memory.forgotten import Forgotten
    from turnwise.memory.forms import FreeText, JsonForm, Markdown
    from turnwise.memory.full_text import FullText
    from turnwise.memory.history import HistoryStore
    from turnwise.memory.in_memory import InMemoryStore
    from turnwise.memory.lexical_memory import LexicalMemory
    from turnwise.memory.long_term import DegradedRecall, LongTermMemory, MemoryItem, Scope, Source
    from turnwise.memory.notes_redis import RedisNotes
    from turnwise.memory.notes_sql import SQLNotes
    from turnwise.memory.params import ModelParams
    from turnwise.memory.retention import Retention
    from turnwise.memory.runs import RunRecord
    from turnwise.memory.sessions import SessionRecord
    from turnwise.memory.sql import SQLStore
    from turnwise.memory.static import StaticMemory
    from turnwise.memory.steps import Step
    from turnwise.memory.store import SessionStore
    from turnwise.memory.store_redis import RedisStore
    from turnwise.memory.sweeping import Swept
    from turnwise.memory.tokens import ByteCounter, TiktokenCounter, TokenCounter, counter_for
    from turnwise.memory.transcript import Ledger
    from turnwise.memory.turns import Turn
    from turnwise.memory.urls import open_facts, open_notes
    from turnwise.memory.usage import Usage
    from turnwise.memory.vector_index import ChromaFolder, ChromaServer, VectorIndex
    from turnwise.memory.vector_memory import VectorMemory
    from turnwise.memory.working import WorkingMemory
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
        "turnwise.memory.transcript": ["Ledger"],
        "turnwise.memory.categories": ["MemoryCategory", "MemoryType"],
        "turnwise.memory.facts": ["FactStore"],
        "turnwise.memory.extractive": ["ExtractiveMemory"],
        "turnwise.memory.facts_memory": ["InMemoryFacts"],
        "turnwise.memory.facts_redis": ["RedisFacts"],
        "turnwise.memory.facts_sql": ["SQLFacts"],
        "turnwise.memory.full_text": ["FullText"],
        "turnwise.memory.lexical_memory": ["LexicalMemory"],
        "turnwise.memory.static": ["StaticMemory"],
        "turnwise.memory.vector_index": ["ChromaFolder", "ChromaServer", "VectorIndex"],
        "turnwise.memory.vector_memory": ["VectorMemory"],
        "turnwise.memory.long_term": ["DegradedRecall", "LongTermMemory", "MemoryItem", "Scope", "Source"],
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
        "turnwise.memory.params": ["ModelParams"],
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
            "Steerable",
            "StepContext",
            "Structured",
            "Suspend",
        ],
        "turnwise.actors.inference.openai": ["AzureOpenAI", "OpenAIEngine"],
        "turnwise.actors.inference.memory_tools": ["memory_tools", "notes_tools"],
        "turnwise.actors.inference.registry": ["ToolRegistry"],
        "turnwise.actors.inference.tool_context": ["ToolContext"],
        "turnwise.actors.inference.tools": ["Tool", "external_tool", "tool"],
        "turnwise.actors.manager": ["AsyncSessionManager", "SessionManager"],
        "turnwise.actors.placement": ["Dedicated", "Packed"],
        "turnwise.actors.session": ["AsyncSession", "Session"],
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
        "turnwise.memory": ["blocks", "events"],
        "turnwise.memory.archive": ["export_session", "import_session"],
        "turnwise.memory.sweeping": ["Swept"],
        "turnwise.memory.in_memory": ["InMemoryStore"],
        "turnwise.memory.sql": ["SQLStore"],
        "turnwise.memory.store": ["SessionStore"],
        "turnwise.memory.store_redis": ["RedisStore"],
        "turnwise.memory.turns": ["Turn"],
        "turnwise.memory.usage": ["Usage"],
        "turnwise.actors.memory_config": ["MemoryConfig"],
        "turnwise.actors.session_memory": ["AsyncSessionMemory", "SessionMemory"],
        "turnwise.memory.desk": ["MemoryDesk"],
        "turnwise.memory.encrypted_history": ["EncryptedHistory"],
        "turnwise.memory.encrypted_store": ["EncryptedStore"],
        "turnwise.memory.encryption": ["Encryption"],
        "turnwise.memory.erasing": ["Erasure"],
        "turnwise.memory.forgotten": ["Forgotten"],
        "turnwise.memory.forms": ["FreeText", "JsonForm", "Markdown"],
        "turnwise.memory.notes_redis": ["RedisNotes"],
        "turnwise.memory.notes_sql": ["SQLNotes"],
        "turnwise.memory.retention": ["Retention"],
        "turnwise.memory.urls": ["open_facts", "open_notes"],
        "turnwise.memory.working": ["WorkingMemory"],
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
