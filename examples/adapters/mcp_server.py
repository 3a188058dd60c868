"""One user's sessions and memories as an MCP server: a client lists them, asks in one, and saves a memory.

    pip install 'turnwise[mcp]'; python examples/adapters/mcp_server.py

A simulated model answers. Here the client is in the same program; `turnwise mcp` serves a program of its own.
"""

import asyncio
import tempfile
from pathlib import Path

from mcp import Client

from turnwise import AsyncSessionManager, EchoEngine, LexicalMemory, Packed
from turnwise.adapters import mcp_server


async def main() -> None:
    memory = LexicalMemory(Path(tempfile.mkdtemp(), "memory.db"))
    async with AsyncSessionManager(
        "memory://chats", engine=EchoEngine(), memory=[memory], placement=Packed(hosts=1)
    ) as manager:
        server = mcp_server(manager, user_id="sarah", memory=memory)  # server.run_stdio_async() would serve it
        async with Client(server) as client:
            print([tool.name for tool in (await client.list_tools()).tools])
            for name, arguments in [
                ("send", {"prompt": "Hello!"}),
                ("save", {"text": "Sarah eats no meat."}),
                ("recall", {"query": "Does Sarah eat meat?"}),
                ("list_sessions", {}),
            ]:
                print(name, (await client.call_tool(name, arguments)).structured_content)


if __name__ == "__main__":
    asyncio.run(main())
