"""`Scheduling`: adds, changes and cancels deliveries, by which the session begins runs later by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from turnwise.actors.session.acting import acting_member
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.runs.admission import RunAdmission, StartOptions
from turnwise.actors.session.state.alarm import Alarm
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import (
    DeliveryChangedError,
    DeliveryNotFoundError,
    DuplicateKeyError,
    NotAllowedError,
    RunNotFoundError,
    SessionEndedError,
)
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.runs import FROM_SESSION, IfBusy
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange, DeliveryKind, Missed, check_delivery
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.records import replace

Result = TypeVar("Result")


class Scheduling:
    """Changes the deliveries of a session, each in one commit; durable on return.

    The store's dispatcher runs before a delivery is stored, so a crash leaves none that nobody looks for.

    While a change awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the alarm | everything | a dispatcher, perhaps without deliveries |
    | the store, for the delivery | reads, streaming; a change past this process, which the commit notices | nothing |
    | the commit | reads, streaming | all of it or nothing |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        *,
        admission: RunAdmission,
        alarm: Alarm,
    ) -> None:
        self._state = state
        self._engines = engines
        self._journal = state.journal
        self._transactor = transactor
        self._admission = admission
        self._alarm = alarm

    async def add(
        self,
        prompts: Sequence[Prompt],
        when: When,
        *,
        delivery_id: str,
        key: str | None = None,
        kind: DeliveryKind = "prompt",
        missed: Missed = "run_once",
        if_busy: IfBusy = "enqueue",
        options: Mapping[str, Any] | None = None,
        author: str | None = None,
    ) -> Delivery:
        """Add a delivery that begins a run with these prompts; return it. Under a key that it has, return that one.

        May be repeated with the same id: a delivery that was carried out since is returned, and not added again.

        Args:
            delivery_id: a new id; it is also the key, if none is given.
            options: options of the run: see `RunAdmission.start` and `RUN_OPTIONS`.
            author: the member for whom it begins runs, if it is not the one who asks.

        Raises:
            InvalidInputError: the prompts or options could begin no run, or there is no such time; nothing was stored.
            SessionEndedError: the session takes no runs any more; nothing was stored.
        """
        payload = await self._payload(prompts, if_busy, options or {}, acting_member() or author)
        await self._alarm.expect()
        await self._journal.set_clock()

        async def change() -> Delivery:
            self._check_not_ended()
            now = self._journal.clock()
            first = when.first(now)
            delivery = Delivery(
                **self._state.key._asdict(),
                delivery_id=delivery_id,
                key=delivery_id if key is None else key,
                namespace=self._alarm.namespace,
                kind=kind,
                payload=payload,
                occurs_at=first,
                due_at=first,
                schedule=when.schedule,
                missed=missed,
                if_busy=if_busy,
                created_at=now,
            )
            check_delivery(delivery)
            if not await self._admission.started(delivery.run_id):
                await self._commit(None, delivery)
            return delivery

        return await self._added(change, delivery_id if key is None else key)

    async def send(self, to_session: str, text: str, *, delivery_id: str) -> Delivery:
        """Add a delivery that brings a message to another session of the user, which is due now; return it.

        May be repeated with the same id: a message that was delivered since is returned, and not added again.

        Args:
            delivery_id: a new id; it is also the key, and the id of the run that the message begins or joins.

        Raises:
            NotAllowedError: a member asks for it, to whom the other session is not open; nothing was stored.
            SessionNotFoundError: there is no such session; nothing was stored.
            SessionEndedError: this session or the other one has ended; nothing was stored.
            InvalidInputError, EmptyTurnError, InvalidPromptError: the text could begin no run; nothing was stored.
        """
        if member := acting_member():
            role = str(self._journal.session.role_of(member))
            raise NotAllowedError(self._state.session_id, member, role, "its user", "send to other sessions")
        other = await self._journal.store.get(SessionKey(to_session, self._state.key.user_id))
        if other.status == "ended":
            raise SessionEndedError(to_session)
        payload = await self._payload([text], "inject", {"labels": {FROM_SESSION: self._state.session_id}})
        await self._journal.set_clock()

        async def change() -> Delivery:
            self._check_not_ended()
            now = self._journal.clock()
            message = Delivery(
                **self._state.key._asdict(),
                delivery_id=delivery_id,
                key=delivery_id,
                to_session=to_session,
                namespace=self._alarm.namespace,
                engine_id=self._engines.whole.engine_id or None,
                kind="message",
                payload=payload,
                occurs_at=now,
                due_at=now,
                if_busy="inject",
                created_at=now,
            )
            if not await self._was_delivered(message):
                await self._commit(None, check_delivery(message))
            return message

        return await self._added(change, delivery_id)

    async def _was_delivered(self, message: Delivery) -> bool:
        """Return whether a session of the user has the run of a message."""
        try:
            await self._journal.store.run(message.run_id, message.user_id)
        except RunNotFoundError:
            return False
        return True

    async def change(
        self,
        key: str,
        *,
        when: When | None = None,
        prompts: Sequence[Prompt] | None = None,
        options: Mapping[str, Any] | None = None,
        missed: Missed | None = None,
        if_busy: IfBusy | None = None,
    ) -> Delivery:
        """Change what a delivery brings, or when; what is left out stays. Return the delivery as it is then.

        One that was given up is due again. The occurrence that is being carried out meanwhile is not changed.

        Args:
            when: replaces the time and the schedule.
            prompts: replace the prompts, and `options` the options.

        Raises:
            DeliveryNotFoundError: the session has no such delivery.
            InvalidInputError: see `add`; nothing was changed.
        """
        await self._transactor.loaded()
        await self._alarm.expect()
        await self._journal.set_clock()

        async def change() -> Delivery:
            before = await self._find(key)
            after = before
            if prompts is not None:
                settings = (if_busy or before.if_busy, options or {}, before.payload.get("author"))
                after = replace(after, payload=await self._payload(prompts, *settings))
            if when:
                first = when.first(self._journal.clock())
                after = replace(after, occurs_at=first, schedule=when.schedule)
            after = replace(
                after,
                due_at=after.occurs_at,
                namespace=self._alarm.namespace,
                missed=missed or before.missed,
                if_busy=if_busy or before.if_busy,
                attempts=0,
                why=None,
                revision=before.revision + 1,
            )
            await self._commit(before, after)
            return after

        changed = await self._compared(change)
        self._tell(changed)
        return changed

    async def cancel(self, key: str) -> bool:
        """Remove a delivery; return whether there was one. A run that it has begun goes on.

        A message that is being delivered meanwhile arrives, or is removed.
        """
        await self._transactor.loaded()

        async def change() -> bool:
            if before := await self._journal.store.delivery(self._state.key, key):
                await self._commit(before, None)
            return before is not None

        return await self._compared(change)

    def _check_not_ended(self) -> None:
        if self._journal.session.status == "ended":
            raise SessionEndedError(self._state.session_id)

    async def _added(self, change: Callable[[], Awaitable[Delivery]], key: str) -> Delivery:
        """Run a change that adds a delivery, and tell the alarm; return the delivery that the key has then."""
        try:
            added = await self._transactor.run(change)
        except DuplicateKeyError:
            existing = await self._journal.store.delivery(self._state.key, key)
            if existing is None:
                raise
            added = existing
        self._tell(added)
        return added

    async def _compared(self, change: Callable[[], Awaitable[Result]]) -> Result:
        """Run a change of a delivery, anew if the delivery was changed after it was read."""
        while True:
            try:
                return await self._transactor.run(change)
            except DeliveryChangedError:
                continue

    def _tell(self, delivery: Delivery) -> None:
        if delivery.due_at is not None:
            self._alarm.tell(delivery.due_at)

    async def _find(self, key: str) -> Delivery:
        delivery = await self._journal.store.delivery(self._state.key, key)
        if delivery is None or delivery.to_session is not None:
            raise DeliveryNotFoundError(self._state.session_id, key)
        return delivery

    async def _commit(self, before: Delivery | None, after: Delivery | None) -> None:
        await self._transactor.commit(self._journal.session, deliveries=[DeliveryChange(before, after)])

    async def _payload(
        self, prompts: Sequence[Prompt], if_busy: IfBusy, options: Mapping[str, Any], author: str | None = None
    ) -> FrozenDict:
        """Return the payload of a run that could begin now, if the session were free."""
        options = {**options, "author": author}
        start_options = {**options, "run_id": "", "if_busy": if_busy}
        await self._admission.check_start(prompts, **cast(StartOptions, start_options))
        blocks = [User(text=prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        return run_payload([encode(block) for block in blocks], options)
