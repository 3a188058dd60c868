"""Engines, middleware and tools: what turns a turn into its answer, and the protocols for your own."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
