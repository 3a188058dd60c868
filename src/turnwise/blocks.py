"""The immutable pieces of conversations: the classes of blocks."""

import sys

from turnwise.memory.conversation import blocks

sys.modules[__name__] = blocks  # one module with two names, so each way of importing it leads to the same one
