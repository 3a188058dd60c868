"""An agent with a tool of an MCP server, which is in the same file; a call waits for a person's approval.

    pip install 'turnwise[mcp]'
    python examples/adapters/mcp_tools.py

A simulated model answers. The program starts itself again as the server.
"""

import sys

from mcp.server import MCPServer

server = MCPServer("shop", log_level="ERROR")


@server.tool()
def order(product: str) -> str:
    """Order a product."""
    return f"one {product} is on its way"


def main() -> None:
    from turnwise import OpenAIEngine, SessionManager  # the server needs nothing of this
    from turnwise.adapters import McpStdio, mcp_tools
    from turnwise.testing import LocalProvider, tool_script

    tools = mcp_tools(McpStdio(sys.executable, [__file__, "serve"]), approve=["order"])
    script = tool_script([[("order", {"product": "tent"})], "It comes tomorrow."])
    with LocalProvider(reply=script) as provider:  # a real model: OpenAIEngine("gpt-5-mini", tools=tools)
        engine = OpenAIEngine("local", base_url=provider.base_url, tools=tools)
        with SessionManager("memory://shop", engine=engine) as manager:
            run = manager.open().run("Buy me a tent.")
            next(event for event in run.events() if event.kind == "approval_requested")
            run.approve(run.pending()[0].call_id)
            print(run.wait().text, *(step.name or step.kind for step in run.steps()), sep="\n")


main() if sys.argv[1:] != ["serve"] else server.run()
