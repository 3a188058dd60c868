"""`SideBill`: charges a session for model calls that no run makes: those of its memories, and for its title."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from functools import partial

from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import EngineError
from turnwise.memory.conversation.ledger import Spent, SpentOn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.model_usage import billed_to


class SideBill:
    """Charges the session: its next commit stores what was spent, and `store` at once.

    A model call of a memory whose answer is lost, or that a kill interrupts before the commit, is not counted.
    """

    def __init__(self, spending: Spending, transactor: Transactor) -> None:
        self._spending = spending
        self._transactor = transactor

    def charge(self, kind: SpentOn, usage: Usage, model: str | None, *, engine: str = "") -> Usage:
        """Add the usage of a model call, which belongs to a run with this engine if it has a name.

        Returns:
            The usage with its cost.
        """
        with suppress(EngineError):  # without a price, it has no cost
            usage = self._spending.price(usage, model)
        self._transactor.add_unbilled(Spent.on(usage, kind=kind, model=model or "", engine=engine))
        return usage

    def of(self, kind: SpentOn) -> AbstractContextManager[None]:
        """Return a context in which the model calls of memories are charged, under this kind."""
        return billed_to(partial(self.charge, kind))

    async def store(self) -> None:
        """Store what was charged and no commit has stored yet."""
        if self._transactor.has_unbilled:
            await self._transactor.run_until_stored(self._transactor.store_unbilled)
