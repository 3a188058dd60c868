"""Long-term and working memory: the protocol, the memories that turnwise has, and what they return."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
