"""Stores of sessions: opened and closed, watched at each commit, of other formats, and audited.

The stores' servers are in `servers`.
"""
