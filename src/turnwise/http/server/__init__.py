"""The server: its socket, its connections, its processes on uvicorn, and its log.

The commands that serve import from here; programs import nothing.
"""
