"""Engines, middleware and tools: produce the answer to a turn, in the session's process. Imports no Ray."""
