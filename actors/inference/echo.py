"""`EchoEngine`: an engine without a model, for examples and tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.ranges import check_seconds


class EchoEngine:
    """Answers with the turn's own prompts, token by token: no key, no network, no model.

    Args:
        token_delay_s: pause before each token (a word and the space after it), in seconds; 0 streams without a pause.
    """

    def __init__(self, token_delay_s: float = 0.0) -> None:
        check_seconds("token_delay_s", token_delay_s)
        self.token_delay_s = token_delay_s

    def build(self, session: SessionView) -> EchoEngine:
        """Return itself: it keeps nothing."""
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """Return one `Text` with the prompts of the turn, joined by line breaks."""
        text = "\n".join(block.text for block in turn.new_blocks if isinstance(block, User))
        tokens = re.findall(r"\S+\s*|\s+", text)
        if self.token_delay_s:
            for token in tokens:
                await asyncio.sleep(self.token_delay_s)
                context.emit(token)
        else:
            context.emit(text)
        context.report(usage=Usage(input_tokens=len(tokens), output_tokens=len(tokens)), stop_reason="stop")
        return [Text(text=text)]
