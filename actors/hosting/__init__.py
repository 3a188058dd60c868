"""Code of the processes that host sessions: dedicated actors, packed hosts, and the resources that a process shares.

Only `client` imports from the modules here. `session_service.py` answers the verbs. `reader.py` and `stored_session.py`
also run in a caller's process, for sessions without a live process.
"""
