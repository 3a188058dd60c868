"""Engines, middleware and tools, and the protocols for writing your own."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
