"""`Delivery`: something to be carried out later, as it is stored.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from dataclasses import dataclass, field
from typing import Literal

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.deliveries.schedules import Schedule, check_schedule, check_time, next_due
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import check_names
from turnwise.memory.values.records import Record, replace

DeliveryKind = Literal["prompt", "message", "call", "result", "cancel", "asks"]
"""`prompt`: begins a run. `message`: goes into the active run; without one, begins a run. `call`: tells a webhook.
`result`: is the result of a call of an agent. `cancel`: cancels the run of an agent. `asks`: tells the caller
of an agent that other calls wait for decisions there."""

Missed = Literal["run_once", "skip", "run_all"]
"""What becomes of occurrences that were due while nobody could carry them out. `run_once`: one is carried out for all
of them. `skip`: those that are more than `MISSED_AFTER_S` late are left out. `run_all`: each is carried out."""

CALL_ID = "~"
"""What the ids of calls begin with, and of no other delivery. All other ids that `new_id` makes sort before it, so the
calls, and those of one webhook, are a range of ids."""

MISSED_AFTER_S = 60.0
"""After how many seconds an occurrence that has not been carried out counts as missed."""


@dataclass(frozen=True, kw_only=True)
class Delivery(Record):
    """Something that a session is to do, when it is due: once, or as often as its schedule says.

    The commit that carries out an occurrence also moves the delivery to its next one, or removes it after the last. So
    each occurrence is carried out once, and an occurrence that was cancelled or changed before is not.
    """

    delivery_id: str
    """Unique among all deliveries of a store, made by `new_id`. Deliveries are listed in the order of their ids."""
    session_id: str
    user_id: str = DEFAULT_USER
    key: str
    """Unique among the deliveries of its session."""
    to_session: str | None = None
    """The session of the same user that carries it out; None: its own. Such a delivery occurs once."""
    namespace: str | None = None
    """The namespace on Ray of the process that stored it, whose processes carry it out; None: those of any."""
    engine_id: str | None = None
    """The engine and settings, by their id, with which it begins a run in a session that has none of its own yet: those
    of the run or session that sent it. None: those of whichever process gets the session."""
    revision: int = 1
    """Each change raises it by 1. A change names the revision that it was made for, and is refused for another one."""
    kind: DeliveryKind = "prompt"
    payload: FrozenDict = field(default_factory=FrozenDict)
    """What is delivered. It may hold a user's text, so stores with keys encrypt it."""
    occurs_at: float
    """The time of the next occurrence, in seconds since the epoch, by the store's clock."""
    due_at: float | None
    """When the next occurrence is to be carried out: `occurs_at`, or later after attempts that failed. None: it was
    given up, and waits for somebody to change or cancel it."""
    schedule: Schedule | None = None
    """When it recurs; None: it occurs once."""
    missed: Missed = "run_once"
    if_busy: IfBusy = "enqueue"
    """What happens if a run of the session is active: see `Session.run`. With `drop` the occurrence is left out. With
    `reject` it is tried again until the session is free."""
    created_at: float = 0.0
    attempts: int = 0
    """How often the next occurrence was attempted in vain."""
    why: str | None = None
    """Why the last attempt failed; None if none has failed since the last occurrence that was carried out."""

    @property
    def session_key(self) -> SessionKey:
        """Its session."""
        return SessionKey(self.session_id, self.user_id)

    @property
    def addressee(self) -> SessionKey:
        """The session that carries it out."""
        return SessionKey(self.session_id if self.to_session is None else self.to_session, self.user_id)

    @property
    def run_id(self) -> str:
        """The id of the run that this occurrence begins. It is the same each time the occurrence is attempted.

        So an addition that is repeated finds the run, and so does an attempt after one whose answer was lost.
        """
        if self.to_session is not None:
            return self.delivery_id
        return f"{self.delivery_id}-{self.revision - self.attempts}"

    def is_missed(self, now: float) -> bool:
        """Return whether its next occurrence is to be left out, since it is late."""
        return self.missed == "skip" and now > self.occurs_at + MISSED_AFTER_S

    def after_occurrence(self, now: float) -> "Delivery | None":
        """Return the delivery as it is after its next occurrence; None if that is the last one."""
        passed = self.occurs_at if self.missed == "run_all" else now
        next_at = next_due(self.schedule, self.occurs_at, passed) if self.schedule else None
        if next_at is None:
            return None
        return replace(self, occurs_at=next_at, due_at=next_at, attempts=0, why=None, revision=self.revision + 1)

    def after_failure(self, why: str, due_at: float | None) -> "Delivery":
        """Return the delivery as it is after an attempt that failed, to be tried again at `due_at`, or given up."""
        return replace(self, due_at=due_at, attempts=self.attempts + 1, why=why, revision=self.revision + 1)

    _repr_html_ = record_html


@dataclass(frozen=True)
class DeliveryChange:
    """A change of one delivery: an addition, a replacement or a removal. It is carried out whole or refused.

    It is refused unless the stored delivery has the id and the revision of `before`.
    """

    before: Delivery | None
    """None: `after` is added. Its session has no delivery with its key, and its user none with its id."""
    after: Delivery | None
    """None: `before` is removed. A replacement keeps id, session and key, and has a revision that is 1 higher."""

    @property
    def delivery_id(self) -> str:
        """Which delivery it changes."""
        delivery = self.before or self.after
        return delivery.delivery_id if delivery else ""


MAX_WHY_CHARS = 1000
"""The longest reason for a failure that is stored, in characters."""


def check_delivery(delivery: Delivery) -> Delivery:
    """Return a delivery that each store can keep.

    Raises:
        InvalidInputError: its schedule or a time cannot be used; names the field.
        NameRefusedError: its id or key cannot be kept: see `check_names`.
    """
    check_names("delivery key", delivery.key, quotes=False)
    check_names("delivery_id", delivery.delivery_id, quotes=False)
    if not delivery.key:
        raise InvalidInputError("key", shown(delivery.key), "must not be empty")
    is_call = delivery.kind == "call"
    if delivery.delivery_id.startswith(CALL_ID) != is_call or (delivery.delivery_id > CALL_ID) != is_call:
        reason = f"ids of calls begin with {CALL_ID!r}, and those of other deliveries sort before it"
        raise InvalidInputError("delivery_id", shown(delivery.delivery_id), reason)
    if delivery.to_session is not None:
        check_names("to_session", delivery.to_session, quotes=False)
        if delivery.schedule:
            raise InvalidInputError("schedule", shown(delivery.schedule), "a delivery to another session occurs once")
    check_time("occurs_at", delivery.occurs_at)
    if delivery.due_at is not None:
        check_time("due_at", delivery.due_at)
    if delivery.schedule:
        check_schedule(delivery.schedule)
    return delivery
