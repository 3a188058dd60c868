"""`ScheduleAccess`: the protocol by which the tools of a session's runs schedule later runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedules import When

REMINDER = "reminder-"
"""What the keys of deliveries begin with that a model has added."""


class ScheduleAccess(Protocol):
    """Adds, lists, changes and cancels the reminders of one session: deliveries whose keys begin with `REMINDER`.

    The session is no argument, so no call reaches another one. A change is durable on return, and stays if the run is
    cancelled or fails. Call the methods on the session's event loop.

    Every method may raise StoreError. Those that change something may also raise InvalidInputError, which says what
    cannot be stored, and SessionEndedError; then nothing was changed.
    """

    def now(self) -> float:
        """Return the time by the store's clock, in seconds since the epoch."""

    async def reminders(self) -> list[Delivery]:
        """Return the session's reminders, by their ids."""

    async def count(self, most: int) -> int:
        """Return how many reminders the sessions of the user have together; counts no further than `most`."""

    async def add(self, key: str, prompts: Sequence[str], when: When) -> Delivery:
        """Add a reminder. With the key of an earlier one, nothing is added, also after that was carried out."""

    async def change(self, key: str, *, prompts: Sequence[str] | None, when: When | None) -> Delivery:
        """Change what a reminder says, or when; what is None stays.

        Raises:
            DeliveryNotFoundError: the session has no such reminder.
        """

    async def cancel(self, key: str) -> bool:
        """Remove a reminder; return whether there was one."""
