"""The laws that a store, a memory or a strategy of your own keeps; each check runs all of its laws."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
