"""Conformance checks for your own stores, memories and strategies; each check runs all laws of its protocol."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
