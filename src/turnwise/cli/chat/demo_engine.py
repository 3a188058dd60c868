"""`demo_engine`: what answers in a demo, without a client and a server, whose imports take longer than all the rest."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.memory.conversation.blocks import Text, User
from turnwise.memory.conversation.turns import Turn

MODEL = "stand-in"
"""What a demo calls its model, unless it is told another name."""

TOKEN_S = 0.02
"""The pause before each word, in seconds."""


def demo_engine() -> FunctionEngine:
    """Return an engine that repeats each prompt, word by word, and says how many messages there are."""
    return FunctionEngine(_simulate)


async def _simulate(turn: Turn) -> AsyncIterator[str]:
    messages = [block for block in turn.blocks if isinstance(block, User | Text)]
    prompt = "\n\n".join(block.text for block in turn.asked if isinstance(block, User))
    for word in re.findall(r"\S+\s*", f"You said: {prompt} (message {len(messages)} of our conversation)"):
        await asyncio.sleep(TOKEN_S)
        yield word
