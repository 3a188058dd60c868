from turnwise.adapters.agents_sdk.engine import AgentsSDKEngine as AgentsSDKEngine
from turnwise.adapters.agents_sdk.session import TurnwiseSession as TurnwiseSession
from turnwise.adapters.anthropic.engine import AnthropicEngine as AnthropicEngine
from turnwise.adapters.front_ends.ag_ui import AgUiEncoder as AgUiEncoder
from turnwise.adapters.front_ends.encoding import Frame as Frame, FrontEndEncoder as FrontEndEncoder
from turnwise.adapters.front_ends.stream import front_end_stream as front_end_stream
from turnwise.adapters.front_ends.vercel import VercelEncoder as VercelEncoder
from turnwise.adapters.langgraph.engine import LangGraphEngine as LangGraphEngine
from turnwise.adapters.langgraph.messages import from_langchain as from_langchain, to_langchain as to_langchain
from turnwise.adapters.langgraph.saver import TurnwiseSaver as TurnwiseSaver
from turnwise.adapters.langgraph.store import TurnwiseStore as TurnwiseStore
from turnwise.adapters.mcp.server import mcp_server as mcp_server
from turnwise.adapters.mcp.servers import McpHttp as McpHttp, McpStdio as McpStdio
from turnwise.adapters.mcp.tools import mcp_documents as mcp_documents, mcp_tools as mcp_tools
from turnwise.adapters.pydantic_ai.engine import PydanticAIEngine as PydanticAIEngine
from turnwise.adapters.pydantic_ai.history import (
    AsyncMessageHistory as AsyncMessageHistory,
    MessageHistory as MessageHistory,
)
from turnwise.adapters.pydantic_ai.messages import (
    from_pydantic_ai as from_pydantic_ai,
    to_pydantic_ai as to_pydantic_ai,
)
from turnwise.errors import FrameworkError as FrameworkError
