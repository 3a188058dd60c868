"""Conversations that outgrow their window: without a session, in sessions on virtual time, and on Ray.

`conversations.py`, `stage.py` and `bench.py` are for these, and `models.py` for compactions in other processes.
"""
