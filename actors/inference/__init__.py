"""Engines, middleware and tools: produce the answer to a turn, in the session's process. Imports no Ray.

`engine.py` has the protocols of an engine. Programs import names from `turnwise` and `turnwise.engines`; the other
rooms of `actors`, and `adapters`, from the modules here.
"""
