"""What happens when a conversation outgrows the model's window. Imports `turnwise.memory` and nothing above."""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
