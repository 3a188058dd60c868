"""The bodies of requests and answers that are about schedules, as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from turnwise.errors import InvalidInputError
from turnwise.http.native.models import AnswerOptions, BeginOptions, Body, Shown, example
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryKind, Missed
from turnwise.memory.deliveries.texts import time_of
from turnwise.memory.stores.base import Page


def _seconds(value: Any, info: ValidationInfo) -> Any:
    return time_of(info.field_name or "at", value) if isinstance(value, str) else value


Moment = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]
"""A time: seconds since the epoch, or a text as RFC 3339 has it."""

ScheduleKey = Annotated[str, Field(min_length=1, max_length=256)]


class _Times(Body):
    """When a schedule is due."""

    at: Moment | None = None
    """When it is due first: seconds since the epoch, or a time with its zone, such as `2030-05-01T09:00:00+02:00`."""
    after_s: float | None = None
    """Or in how many seconds."""
    every_s: float | None = None
    """It recurs after each so many seconds, at least 1, counted from the first time."""
    cron: Annotated[str, Field(max_length=256)] | None = None
    """Or at the times of a line of cron: minute, hour, day of the month, month, day of the week."""
    timezone: Annotated[str, Field(max_length=256)] | None = None
    """The IANA name of the time zone of `cron`; UTC if omitted."""
    until: Moment | None = None
    """The last time at which it may recur."""


TIMES = list(_Times.model_fields)
"""The arguments of `Session.schedule` that say when."""


class AddSchedule(_Times, BeginOptions, AnswerOptions):
    """What to run later, when, and how. One of `at`, `after_s`, `every_s` and `cron` is needed."""

    model_config = example(prompt="What is new?", cron="0 9 * * MON-FRI", timezone="Europe/Lisbon", key="news")

    key: ScheduleKey | None = None
    """Names the schedule in its session: if there is one of this name, it stays as it is, and is answered. A new id if
    omitted."""
    missed: Missed = "run_once"
    """What becomes of occurrences that nobody could carry out in time: one run for all of them; `run_all`: one for
    each; `skip`: none for those that are more than a minute late."""
    if_busy: IfBusy = "enqueue"
    """What happens at an occurrence while another run is active: see the route that starts runs. With `drop`, this
    occurrence is left out; with `reject`, it is tried again until the session is free."""


class ChangeSchedule(_Times, BeginOptions, AnswerOptions):
    """What to change; what is omitted stays. A time replaces all that was said of times, and a prompt all options."""

    model_config = example(cron="30 8 * * *", timezone="Europe/Lisbon")

    missed: Missed | None = None
    if_busy: IfBusy | None = None  # type: ignore[assignment]
    """See the route that adds schedules."""


class ScheduleShown(Shown):
    """A schedule."""

    id: str
    session_id: str
    user_id: str
    key: str
    """Names it in its session."""
    kind: DeliveryKind
    to_session: str | None
    """The session of the user that a message goes to; null for schedules, which are their own session's."""
    revision: int
    """Each change raises it by 1."""
    occurs_at: float
    """The time of its next occurrence, in seconds since the epoch."""
    due_at: float | None
    """When that is tried: later, after attempts that failed. Null: it was given up, until it is changed."""
    every_s: float | None
    cron: str | None
    timezone: str | None
    until: float | None
    missed: Missed
    if_busy: IfBusy
    created_at: float
    attempts: int
    """How often the next occurrence was attempted in vain."""
    why: str | None
    """Why the last attempt failed."""
    prompt: list[AnyBlock]
    """What its runs begin with."""
    options: dict[str, Any]
    """The options of its runs that are set, such as `instructions` and `labels`."""

    @classmethod
    def of(cls, delivery: Delivery) -> ScheduleShown:
        """Return a schedule as it is shown; one whose payload cannot be read has no prompt, and says why."""
        prompt: list[Any] = []
        options: dict[str, Any] = {}
        why = delivery.why
        try:
            prompt, options = read_run_payload(delivery)
        except InvalidInputError as error:
            why = why or str(error)
        recurrence = delivery.schedule
        return cls(
            id=delivery.delivery_id,
            **{name: getattr(delivery, name) for name in _DELIVERY_FIELDS},
            every_s=recurrence.every_s if recurrence else None,
            cron=recurrence.cron if recurrence else None,
            timezone=recurrence.timezone if recurrence and recurrence.cron else None,
            until=recurrence.until if recurrence else None,
            prompt=prompt,
            why=why,
            options={name: value for name, value in options.items() if name != "trace"},
        )


_COMPUTED = ("id", "every_s", "cron", "timezone", "until", "prompt", "why", "options")
_DELIVERY_FIELDS = [name for name in ScheduleShown.model_fields if name not in _COMPUTED]


class SchedulePage(Shown):
    """A page of schedules."""

    items: list[ScheduleShown]
    cursor: str | None
    """Pass it to get the next page; null if there is none."""

    @classmethod
    def of(cls, page: Page[Delivery]) -> SchedulePage:
        return cls(items=[ScheduleShown.of(delivery) for delivery in page], cursor=page.cursor)


class ScheduleCancelled(Shown):
    """Whether there was such a schedule."""

    model_config = example(cancelled=True)

    cancelled: bool
