"""Overflow strategies: what to do when a conversation outgrows the window. Imports only `turnwise.memory`.

Programs import the strategies from `turnwise.strategies`; `actors` imports from the modules, such as
`turnwise.strategies.strategy`, so that a process loads only those that it uses.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
