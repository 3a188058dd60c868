"""Stores of sessions, events, facts and notes: protocols, built-in stores, and the types that they return."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
