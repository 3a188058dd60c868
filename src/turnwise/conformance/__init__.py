"""Conformance: the laws of stores, memories, strategies, engines and placements, for your own ones.

`report(kind, make)` checks all laws of a kind and returns a table of them; `pytest -p turnwise.conformance.plugin`
makes a test of each. Each `check_...` checks all laws of its protocol and raises for the first one that is broken.
Import the names from `turnwise.conformance`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
