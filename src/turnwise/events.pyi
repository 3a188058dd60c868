from turnwise.memory.conversation.events import *  # noqa: F403 - all that the module has
