from turnwise.actors.inference.cache_hints import CacheHints as CacheHints, NoHints as NoHints
from turnwise.actors.inference.echo import EchoEngine as EchoEngine
from turnwise.actors.inference.engine import (
    ASIDE as ASIDE,
    EngineBuilder as EngineBuilder,
    Extensible as Extensible,
    InferenceRunner as InferenceRunner,
    NoOutput as NoOutput,
    RunContext as RunContext,
    SessionView as SessionView,
    Steerable as Steerable,
    StepContext as StepContext,
    Structured as Structured,
    Suspend as Suspend,
)
from turnwise.actors.inference.function_engine import FunctionEngine as FunctionEngine
from turnwise.actors.inference.middleware import (
    LogCalls as LogCalls,
    Middleware as Middleware,
    ReorderResults as ReorderResults,
    SystemPrompt as SystemPrompt,
)
from turnwise.actors.inference.no_answer import NoAnswer as NoAnswer
from turnwise.actors.inference.openai.engine import AzureOpenAI as AzureOpenAI, OpenAIEngine as OpenAIEngine
from turnwise.actors.inference.openai.http_hints import HTTPHints as HTTPHints
from turnwise.actors.inference.replicas import Replicas as Replicas
from turnwise.actors.inference.shadow import Shadow as Shadow
from turnwise.actors.inference.split import Split as Split
from turnwise.actors.inference.tools.agent_tool import agent_tool as agent_tool
from turnwise.actors.inference.tools.context import ToolContext as ToolContext
from turnwise.actors.inference.tools.loop import ToolLoop as ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry as ToolRegistry
from turnwise.actors.inference.tools.schedule_tools import schedule_tools as schedule_tools
from turnwise.actors.inference.tools.tool import Tool as Tool, external_tool as external_tool, tool as tool
from turnwise.errors import ToolError as ToolError
from turnwise.memory.conversation.calls.tool_calls import PendingCall as PendingCall
from turnwise.memory.conversation.model_params import ModelParams as ModelParams
from turnwise.memory.conversation.transcript import Ledger as Ledger
from turnwise.memory.conversation.usage import Usage as Usage
