"""Pydantic AI: its agents as engines, its message types, and its message histories in sessions.

`engine.py` makes an engine of an agent, `history.py` keeps its histories. Programs import the names from
`turnwise.adapters`; nothing else imports from the modules here.
"""
