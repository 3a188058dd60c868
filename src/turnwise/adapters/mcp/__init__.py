"""Tools and resources of MCP servers for agents: settings of servers, connections, and what servers answer.

`server.py` is the other direction: sessions and memories of a user as an MCP server. Programs import the names from
`turnwise.adapters`; the command `turnwise mcp` imports from the modules here.
"""
