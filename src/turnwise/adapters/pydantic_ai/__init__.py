"""Pydantic AI: its agents as engines, its message types, and its message histories in sessions."""
