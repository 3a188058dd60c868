from turnwise.actors.client.blocking.chat_memory import ChatMemory as ChatMemory
from turnwise.actors.client.blocking.session_memory import SessionMemory as SessionMemory
from turnwise.actors.client.blocking.user_memory import UserMemory as UserMemory
from turnwise.actors.client.chat_memory import AsyncChatMemory as AsyncChatMemory
from turnwise.actors.client.session_memory import AsyncSessionMemory as AsyncSessionMemory
from turnwise.actors.client.shared.memory_content import MemoryContent as MemoryContent
from turnwise.actors.client.user_memory import AsyncUserMemory as AsyncUserMemory
from turnwise.actors.inference.tools.memory_tools import memory_tools as memory_tools, notes_tools as notes_tools
from turnwise.actors.memory.config import MemoryConfig as MemoryConfig
from turnwise.memory.longterm.base import (
    DegradedRecall as DegradedRecall,
    Label as Label,
    Listing as Listing,
    LongTermMemory as LongTermMemory,
    MemoryItem as MemoryItem,
    Mentioning as Mentioning,
    Scope as Scope,
    Source as Source,
)
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory as ExtractiveMemory
from turnwise.memory.longterm.fact_table import FactTable as FactTable
from turnwise.memory.longterm.index.locations import (
    ChromaFolder as ChromaFolder,
    ChromaServer as ChromaServer,
    PostgresVectors as PostgresVectors,
)
from turnwise.memory.longterm.index.vector_index import VectorIndex as VectorIndex
from turnwise.memory.longterm.index.vectors import Vectors as Vectors, VectorsPlace as VectorsPlace
from turnwise.memory.longterm.lexical import LexicalMemory as LexicalMemory
from turnwise.memory.longterm.memory_access import MemoryAccess as MemoryAccess
from turnwise.memory.longterm.memory_types import MemoryCategory as MemoryCategory, MemoryType as MemoryType
from turnwise.memory.longterm.recall.recalled_content import RecalledContent as RecalledContent
from turnwise.memory.longterm.retention.about import About as About, Deleted as Deleted, Mention as Mention
from turnwise.memory.longterm.retention.deletion import Erasure as Erasure
from turnwise.memory.longterm.retention.deletion_report import Forgotten as Forgotten
from turnwise.memory.longterm.retention.retention import Retention as Retention
from turnwise.memory.longterm.static import StaticMemory as StaticMemory
from turnwise.memory.longterm.vector import VectorMemory as VectorMemory
from turnwise.memory.working.formats import FreeText as FreeText, JsonForm as JsonForm, Markdown as Markdown
from turnwise.memory.working.memory import WorkingMemory as WorkingMemory
