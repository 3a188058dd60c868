"""Stories that are played on virtual time: pauses order what happens and cost nothing."""

from collections.abc import Coroutine
from typing import Any

from turnwise.testing.schedules import explore


def play(story: Coroutine[Any, Any, None]) -> None:
    """Play a story on virtual time."""

    async def whole(_: int) -> None:
        await story

    assert explore(1, whole)
