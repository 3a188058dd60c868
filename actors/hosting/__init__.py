"""Code of the processes that host sessions: dedicated actors, packed hosts, and the resources that a process shares.

Only `client` imports from the modules here. `verbs.py` declares what callers may ask of a session; `session_service.py`
carries it out in the session's process. `stored_source.py` also reads in a caller's process, for sessions without one.
"""
