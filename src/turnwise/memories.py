"""Long-term and working memory: the protocol, built-in memories, and the types that they return."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
