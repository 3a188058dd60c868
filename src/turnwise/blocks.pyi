from turnwise.memory.conversation.blocks import *  # noqa: F403 - all that the module has
