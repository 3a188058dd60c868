"""Answers to a conversation that is shortened meanwhile: `answer_shortened`, and `BeginAgain`, which asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwise.actors.inference.engine import StepContext
from turnwise.errors import ContextOverflowError
from turnwise.memory.conversation.turns import Turn

MOST_SHRINKS = 8
"""How often a conversation that the provider refuses as too long is shortened; eight times leave a tenth of it."""

Answer = TypeVar("Answer")


class BeginAgain(Exception):  # noqa: N818 - not an error but a way to begin anew
    """The conversation has changed: the answer begins anew on this turn, with what was recorded."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


async def answer_shortened(turn: Turn, context: StepContext, answer: Callable[[Turn], Awaitable[Answer]]) -> Answer:
    """Return the answer to a turn, or to a shorter one, as often as the provider refuses it as too long.

    Args:
        answer: answers a turn; may raise `BeginAgain`.

    Raises:
        ContextOverflowError: the provider has refused it `MOST_SHRINKS` + 1 times, or it cannot be shortened.
    """
    shrinks = 0
    while True:
        try:
            return await answer(turn)
        except BeginAgain as again:
            turn = again.turn
        except ContextOverflowError as error:
            shrinks += 1
            if shrinks > MOST_SHRINKS:
                raise
            try:
                turn = await context.make_room(too_long=True)
            except ContextOverflowError:  # without a strategy, the provider's message is the better one
                raise error from None
