from turnwise.actors.client.blocking.execution import ExecutionHandle as ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager as SessionManager
from turnwise.actors.client.blocking.session import Session as Session
from turnwise.actors.client.execution import AsyncExecutionHandle as AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager as AsyncSessionManager
from turnwise.actors.client.session import AsyncSession as AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions as RunOptions
from turnwise.actors.hosting.placement import Dedicated as Dedicated, InProcess as InProcess, Packed as Packed
from turnwise.actors.inference.echo import EchoEngine as EchoEngine
from turnwise.actors.inference.openai.engine import AzureOpenAI as AzureOpenAI, OpenAIEngine as OpenAIEngine
from turnwise.actors.inference.tools.context import ToolContext as ToolContext
from turnwise.actors.inference.tools.memory_tools import memory_tools as memory_tools, notes_tools as notes_tools
from turnwise.actors.inference.tools.tool import Tool as Tool, external_tool as external_tool, tool as tool
from turnwise.actors.memory.config import MemoryConfig as MemoryConfig
from turnwise.actors.session.config import SessionConfig as SessionConfig
from turnwise.actors.session.engines.budget import Budget as Budget, Price as Price
from turnwise.errors import (
    ConfigError as ConfigError,
    EngineError as EngineError,
    NotFoundError as NotFoundError,
    RunCancelledError as RunCancelledError,
    RunFailedError as RunFailedError,
    RunInterruptedError as RunInterruptedError,
    SessionBusyError as SessionBusyError,
    SessionNotFoundError as SessionNotFoundError,
    StoreError as StoreError,
    ToolError as ToolError,
    TurnwiseError as TurnwiseError,
    WaitTimeoutError as WaitTimeoutError,
)
from turnwise.memory.conversation import blocks as blocks, events as events
from turnwise.memory.conversation.blocks import AnyBlock as AnyBlock
from turnwise.memory.conversation.calls.tool_calls import PendingCall as PendingCall
from turnwise.memory.conversation.events import AnyEvent as AnyEvent
from turnwise.memory.conversation.model_params import ModelParams as ModelParams
from turnwise.memory.conversation.prompts import Prompt as Prompt
from turnwise.memory.conversation.runs import IfBusy as IfBusy, RunState as RunState
from turnwise.memory.conversation.turns import Turn as Turn
from turnwise.memory.conversation.usage import Usage as Usage
from turnwise.memory.longterm.base import MemoryItem as MemoryItem
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory as ExtractiveMemory
from turnwise.memory.longterm.lexical import LexicalMemory as LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryCategory as MemoryCategory
from turnwise.memory.longterm.static import StaticMemory as StaticMemory
from turnwise.memory.longterm.vector import VectorMemory as VectorMemory
from turnwise.memory.providers.requests import validate as validate
from turnwise.memory.stores.base import Page as Page
from turnwise.memory.stores.encrypted.settings import Encryption as Encryption
from turnwise.memory.working.memory import WorkingMemory as WorkingMemory
from turnwise.strategies.delete_oldest import DeleteOldest as DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory as FlushToMemory
from turnwise.strategies.summarize import Summarize as Summarize
from turnwise.strategies.trim import Trim as Trim

__version__: str
