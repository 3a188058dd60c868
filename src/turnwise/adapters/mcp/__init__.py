"""Tools and resources of MCP servers for agents: settings of servers, connections, and what servers answer."""
