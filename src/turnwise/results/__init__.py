"""What the verbs of managers, sessions and handles return, where no other module has it.

Import its names to annotate what a verb has returned. Runs and sessions themselves are in `turnwise.stores`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
