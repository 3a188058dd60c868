"""What services do with managers beyond their methods: open a session for a run, and bound schedules.

Imports the asynchronous family of clients; services such as HTTP and MCP import it.
"""
