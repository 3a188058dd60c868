"""`SessionReminders`: the deliveries that a session's model adds, by the tools of its runs."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.actors.session.runs.scheduling import Scheduling
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import DeliveryNotFoundError
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedule_access import REMINDER
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.stores.reading import deliveries_of

PAGE = 100
"""How many deliveries of a user are read at once."""


class SessionReminders:
    """The `ScheduleAccess` of a session. In the run of a member, it has the member's reminders only."""

    def __init__(self, state: SessionState, scheduling: Scheduling) -> None:
        self._state = state
        self._journal = state.journal
        self._scheduling = scheduling

    def now(self) -> float:
        """See `ScheduleAccess.now`."""
        return self._journal.clock()

    async def reminders(self) -> list[Delivery]:
        """See `ScheduleAccess.reminders`."""
        own = deliveries_of(self._journal.store, self._state.key)
        author = self._author
        reminders = [delivery async for delivery in own if delivery.key.startswith(REMINDER)]
        return [reminder for reminder in reminders if author in (None, reminder.payload.get("author"))]

    async def count(self, most: int) -> int:
        """See `ScheduleAccess.count`."""
        count, after, user_id = 0, "", self._state.key.user_id
        while count < most:
            page = await self._journal.store.deliveries(user_id=user_id, after=after, limit=PAGE)
            if not page:
                break
            count += sum(delivery.key.startswith(REMINDER) for delivery in page)
            after = page[-1].delivery_id
        return min(count, most)

    async def add(self, key: str, prompts: Sequence[str], when: When) -> Delivery:
        """See `ScheduleAccess.add`."""
        return await self._scheduling.add(prompts, when, delivery_id=key, author=self._author)

    async def change(self, key: str, *, prompts: Sequence[str] | None, when: When | None) -> Delivery:
        """See `ScheduleAccess.change`."""
        if not await self._is_own(key):
            raise DeliveryNotFoundError(self._state.session_id, key)
        return await self._scheduling.change(key, prompts=prompts, when=when)

    async def cancel(self, key: str) -> bool:
        """See `ScheduleAccess.cancel`."""
        return await self._is_own(key) and await self._scheduling.cancel(key)

    @property
    def _author(self) -> str | None:
        """The member whose run is active, of which a tool asks."""
        return self._state.active.record.author if self._state.active else None

    async def _is_own(self, key: str) -> bool:
        """Return whether the active run may change what has this key."""
        if not key.startswith(REMINDER) or self._author is None:
            return key.startswith(REMINDER)
        return any(reminder.key == key for reminder in await self.reminders())
