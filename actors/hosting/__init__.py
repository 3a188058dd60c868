"""Hosts of sessions and memories, on Ray or in the caller's process, and the resources that a process shares.

`verbs.py` declares what callers may ask of a session; `session_service.py` carries it out in the session's process.
`stored_source.py` also reads in a caller's process, for sessions without one. `in_process`, `cluster` and `client`
import from the modules here; programs import placements from `turnwise`.
"""
