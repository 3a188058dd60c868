"""What happened in a session, in order: the classes of events."""

import sys

from turnwise.memory.conversation import events

sys.modules[__name__] = events  # one module with two names, so each way of importing it leads to the same one
