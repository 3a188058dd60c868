"""`events_so_far`: reads a run's events up to now, without waiting for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.memory.conversation.events import AnyEvent

_PAGE = 1000


async def events_so_far(execution: AsyncExecutionHandle) -> AsyncGenerator[AnyEvent, None]:
    """Yield the run's events up to now; of a run that has ended, all of them."""
    after: int | None = 0
    while after is not None:
        page = await execution.event_page(after, _PAGE)
        for event in page:
            yield event
        after = None if page.next == after else page.next
