"""Overflow strategies: what to do when a conversation outgrows the window. Imports only `turnwise.memory`."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
