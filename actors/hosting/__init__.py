"""The processes of sessions: dedicated actors, packed hosts, and what the sessions of a process share.

Only `client` imports from the modules here; callers reach them by Ray. `session_service.py` answers the verbs.
"""
