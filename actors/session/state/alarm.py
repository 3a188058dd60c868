"""`Alarm`: the protocol of whoever hands the store's deliveries to their sessions when they are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from turnwise.memory.deliveries.records import Delivery


class Alarm(Protocol):
    """Whoever hands the store's deliveries to their sessions when they are due."""

    @property
    def namespace(self) -> str | None:
        """The namespace on Ray of this process: see `Delivery.namespace`."""

    async def expect(self, engine_ids: Collection[str] = ()) -> None:
        """Make sure that it runs, and goes on long enough to read what the caller is about to store.

        Args:
            engine_ids: the engines of what is stored; other processes find them from then on.

        Raises:
            TurnwiseError: it cannot be started.
        """

    def tell(self, due_at: float) -> None:
        """Say that a delivery was stored that is due at this time, by the store's clock. Does not wait."""

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """Have the addressees carry out deliveries that were stored and are due now. Does not wait.

        What cannot be handed over stays in the store, where the dispatcher finds it.
        """


class NoAlarm:
    """The `Alarm` where nobody has to be started or told."""

    namespace: str | None = None

    async def expect(self, engine_ids: Collection[str] = ()) -> None:
        """See `Alarm.expect`."""

    def tell(self, due_at: float) -> None:
        """See `Alarm.tell`."""

    def hand_over(self, deliveries: Sequence[Delivery]) -> None:
        """See `Alarm.hand_over`."""


NO_ALARM = NoAlarm()
