"""`NoAnswer`: an engine that adds nothing to a turn."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.actors.inference.engine import NoOutput, RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.turns import Turn


class NoAnswer:
    """Ends a turn without an answer: for programs that call their models themselves, and append what those say.

    A run ends the turn, so that memories get it and an overflow strategy may make room.
    """

    def build(self, session: SessionView) -> NoAnswer:
        """Return itself: it keeps nothing."""
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        """Return nothing, on purpose."""
        return NoOutput()
