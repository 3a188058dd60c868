"""The native API, under `/v1`: its routes for sessions, runs and memories, and the models of their bodies.

The other dialects and `turnwise.http.app` import from here; programs import nothing.
"""
