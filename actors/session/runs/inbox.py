"""`Inbox`: carries out what other sessions of the user have addressed to this one."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from turnwise.actors.session.runs.admission import RunAdmission, StartOptions
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import DeliveryChangedError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange


class Inbox:
    """Carries out deliveries of other sessions, each once.

    A delivery is stored with its sender, and what it begins with this session, so no commit has both. The effect comes
    first, and is idempotent by the delivery's id. The removal follows, and is compared by revision. After a kill in
    between, the delivery is carried out again: that only removes it.

    While it awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, for the delivery | everything; its sender may cancel it | the delivery |
    | the commit of the effect | reads, streaming; a cancel, which comes too late | the delivery, perhaps the effect |
    | the removal | everything | the effect, perhaps the delivery |
    """

    def __init__(self, state: SessionState, admission: RunAdmission) -> None:
        self._state = state
        self._store = state.journal.store
        self._admission = admission

    async def receive(self, sender: str, key: str, delivery_id: str, revision: int) -> str | None:
        """Carry out a delivery of another session; durable on return. Return the id of its run, if it begins one.

        Nothing happens if it was carried out, cancelled or changed since it was found to be due.

        Args:
            sender: the session that has the delivery.

        Raises:
            SessionNotFoundError, SessionEndedError: this session takes no runs; nothing was stored.
            QueueFullError, SessionBusyError: it takes none now; nothing was stored. Try again later.
            InvalidInputError: the delivery can never be carried out; nothing was stored.
        """
        try:
            delivery = await self._store.delivery(SessionKey(sender, self._state.key.user_id), key)
        except SessionNotFoundError as error:
            if error.session_id != sender:
                raise
            return None
        if delivery is None or (delivery.delivery_id, delivery.revision) != (delivery_id, revision):
            return None
        run_id = await self._begin_run(delivery)
        with suppress(DeliveryChangedError):
            await self._store.change_delivery(DeliveryChange(delivery, None))
        return run_id

    async def _begin_run(self, delivery: Delivery) -> str:
        """Start the run of a prompt or a message; a run that was started for it before is returned."""
        prompts, options = read_run_payload(delivery)
        options |= {"run_id": delivery.run_id, "if_busy": delivery.if_busy}
        started = await self._admission.start(prompts, **cast(StartOptions, options))
        return started.run_id
