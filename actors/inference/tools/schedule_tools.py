"""`schedule_tools`: tools by which a model sets reminders, at which its session begins a run by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field

from turnwise.actors.inference.attempt import reason
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.errors import (
    ConfigError,
    DeliveryNotFoundError,
    InvalidInputError,
    SessionEndedError,
    ToolError,
    TurnwiseError,
)
from turnwise.memory.deliveries.payload import read_run_payload
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedule_access import REMINDER, ScheduleAccess
from turnwise.memory.deliveries.schedules import Schedule, When, next_due
from turnwise.memory.longterm.recall.quoting import quote_json
from turnwise.memory.values.checked_settings import PositiveCount, PositiveSeconds, checked_settings

MOST_CHARACTERS = 2000
"""The maximum length of what a reminder says, in characters."""

MOST_AFTER_S = 366 * 86_400.0
"""The most seconds after which a reminder comes that is set for a time from now: a year."""

LOOKED_AHEAD = 16
"""How many occurrences of a line of cron are looked at, to find how often it recurs."""


@dataclass(frozen=True, kw_only=True)
@checked_settings()
class ReminderLimits:
    """How models may use the tools."""

    timezone: str
    most: PositiveCount
    least_every_s: PositiveSeconds


def schedule_tools(
    *, timezone: str = "UTC", most: int = 20, least_every_s: float = 3600.0, change: bool = True
) -> tuple[Tool, ...]:
    """Return tools by which a model sets reminders, for an engine's `tools`.

    They are `set_reminder`, `list_reminders`, `change_reminder` and `cancel_reminder`. At the time of a reminder the
    session begins a run whose prompt says what was to be reminded of; see `Session.schedule`. `list_reminders` also
    tells the time.

    They use the calling session; user and session are not arguments. A model sees and changes the reminders that it
    set in this session, and no schedules of programs. A failed call is an error result that says what to do instead.
    All are `repeatable`: a call that is repeated after a crash adds nothing twice.

    Args:
        timezone: the IANA name of the time zone in which times are said and understood, such as `Europe/Lisbon`.
        most: how many reminders all sessions of a user may have together. Sessions that set one at the same moment may
            exceed it.
        least_every_s: how many seconds a recurring reminder lets pass, at least.
        change: whether `change_reminder` and `cancel_reminder` are included.

    Raises:
        ConfigError: there is no such time zone, or a number is not above 0.
    """
    try:
        ZoneInfo(timezone)
    except (ValueError, OSError, LookupError) as error:
        raise ConfigError("timezone", timezone, "pass an IANA name, such as Europe/Lisbon") from error
    limits = ReminderLimits(timezone=timezone, most=most, least_every_s=least_every_s)
    functions: list[Callable[..., Any]] = [set_reminder, list_reminders]
    functions += [change_reminder, cancel_reminder] if change else []
    return tuple(tool(partial(function, limits=limits), repeatable=True) for function in functions)


_Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        description="What you will be told then, so that you know what to do or to say: whole sentences, with names.",
    ),
]
_NewText = Annotated[str | None, Field(min_length=1, max_length=MOST_CHARACTERS, description="The new text.")]
_At = Annotated[
    str | None,
    Field(description="Once, at this time, as 2026-12-31T09:00; list_reminders tells the time that it is now."),
]
_After = Annotated[
    float | None, Field(gt=0, le=MOST_AFTER_S, description="Or once, after so many seconds: 600 is in ten minutes.")
]
_Cron = Annotated[
    str | None,
    Field(
        max_length=100,
        description="Or again and again: a line of cron of five fields, minute, hour, day of the month, month, day of "
        "the week, such as 0 9 * * MON-FRI.",
    ),
]
_Until = Annotated[str | None, Field(description="The last time at which it recurs, as 2026-12-31T09:00.")]
_Id = Annotated[str, Field(description="The reminder's id, as set_reminder or list_reminders gave it.")]


async def set_reminder(
    text: _Text,
    context: ToolContext,
    *,
    at: _At = None,
    after_s: _After = None,
    cron: _Cron = None,
    until: _Until = None,
    limits: ReminderLimits,
) -> str:
    """Set a reminder: at its time you are told the text, and can then tell the user, or do what it says.

    Give one of at, after_s and cron.
    """
    digest = hashlib.blake2b(context.idempotency_key.encode(errors="surrogatepass"), digest_size=10).hexdigest()
    key = f"{REMINDER}{digest}"
    with _schedules(context) as schedules:
        when = _when(schedules, limits, at, after_s, cron, until)
        if when is None:
            raise ToolError("It has no time: give one of at, after_s and cron.")
        is_new = key not in [reminder.key for reminder in await schedules.reminders()]
        if is_new and await schedules.count(limits.most) >= limits.most:
            raise ToolError(f"There are {limits.most} reminders already, and no more may be set: cancel one first.")
        added = await schedules.add(key, _prompts(schedules, limits, text), when)
    return quote_json({"set": _shown(added, limits)})


async def list_reminders(context: ToolContext, *, limits: ReminderLimits) -> str:
    """List the reminders that you have set in this conversation, and tell the time that it is now."""
    with _schedules(context) as schedules:
        reminders = await schedules.reminders()
        now = _time(schedules.now(), limits)
    return quote_json({"now": now, "reminders": [_shown(reminder, limits) for reminder in reminders]})


async def change_reminder(
    id: _Id,
    context: ToolContext,
    *,
    text: _NewText = None,
    at: _At = None,
    after_s: _After = None,
    cron: _Cron = None,
    until: _Until = None,
    limits: ReminderLimits,
) -> str:
    """Change what a reminder says, or when it comes. null leaves a field as it is; a new time replaces the old one."""
    with _schedules(context) as schedules:
        when = _when(schedules, limits, at, after_s, cron, until)
        prompts = None if text is None else _prompts(schedules, limits, text)
        changed = await schedules.change(id, prompts=prompts, when=when)
    return quote_json({"changed": _shown(changed, limits)})


async def cancel_reminder(id: _Id, context: ToolContext, *, limits: ReminderLimits) -> str:
    """Cancel a reminder, for all times."""
    with _schedules(context) as schedules:
        return quote_json({"cancelled": id} if await schedules.cancel(id) else _MISSING)


_MISSING = {"nothing_changed": "no reminder has this id: list_reminders tells ids"}


def _when(  # noqa: PLR0917 - the arguments of the tools
    schedules: ScheduleAccess,
    limits: ReminderLimits,
    at: str | None,
    after_s: float | None,
    cron: str | None,
    until: str | None,
) -> When | None:
    """Return when a reminder comes; None if nothing says so.

    Raises:
        ToolError: it cannot come then; the message is for the model.
    """
    now = schedules.now()
    if sum(value is not None for value in (at, after_s, cron)) > 1:
        raise ToolError("Give one of at, after_s and cron, and no other of them.")
    if cron is None and until is not None:
        raise ToolError("until is for reminders that recur: give cron, too.")
    if at is not None:
        if (time_s := _seconds(at, limits)) <= now:
            raise ToolError(f"{at} has passed: it is {_time(now, limits)}. Give a later time.")
        return When(at=time_s)
    if after_s is not None:
        return When(at=now + after_s)
    if cron is None:
        return None
    last_s = None if until is None else _seconds(until, limits)
    when = When(schedule=Schedule(cron=cron, timezone=limits.timezone, until=last_s))
    due = when.first(now)
    for _ in range(LOOKED_AHEAD):
        following = next_due(Schedule(cron=cron, timezone=limits.timezone), due, due)
        if following is None:
            break
        if following - due < limits.least_every_s:
            raise ToolError(f"It may recur every {limits.least_every_s:g} seconds at most: give another line of cron.")
        due = following
    return when


def _seconds(text: str, limits: ReminderLimits) -> float:
    try:
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=_zone(limits))).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ToolError(f"{text!r} is no time: write it as 2026-12-31T09:00.") from None


def _time(time_s: float, limits: ReminderLimits) -> str:
    return f"{datetime.fromtimestamp(time_s, _zone(limits)):%A %Y-%m-%dT%H:%M} {limits.timezone}"


def _zone(limits: ReminderLimits) -> tzinfo:
    return ZoneInfo(limits.timezone)


def _prompts(schedules: ScheduleAccess, limits: ReminderLimits, text: str) -> list[str]:
    """Return the prompts of a reminder's run: the last one is its text."""
    return [f"The user says nothing. This is a reminder that you set on {_time(schedules.now(), limits)}:", text]


def _shown(reminder: Delivery, limits: ReminderLimits) -> dict[str, Any]:
    """Return a reminder as it is shown to the model."""
    prompts, _ = read_run_payload(reminder)
    shown = {"id": reminder.key, "text": getattr(prompts[-1], "text", "")}
    shown["next"] = _time(reminder.occurs_at, limits) if reminder.due_at is not None else "never: it has failed"
    if reminder.schedule and reminder.schedule.cron:
        shown["cron"] = reminder.schedule.cron
    return shown


@contextmanager
def _schedules(context: ToolContext) -> Iterator[ScheduleAccess]:
    """Yield the context's access to schedules; convert its errors to messages that say what the model should do.

    Raises:
        ToolError: there are no schedules here, or the session refuses. A retry would be refused again.
        TurnwiseError: the store failed.
    """
    if context.schedules is None:
        raise ToolError(f"There are no reminders here. {_WITHOUT}")
    try:
        yield context.schedules
    except ToolError:
        raise
    except DeliveryNotFoundError:
        raise ToolError(f"Nothing was changed: {_MISSING['nothing_changed']}.") from None
    except SessionEndedError as error:
        raise ToolError(f"The conversation ends, so it takes no reminders. {_WITHOUT}") from error
    except InvalidInputError as error:
        raise ToolError(f"It is refused: {error.why}. Nothing was changed: mend it and call again.") from error
    except Exception as error:
        raise TurnwiseError(f"{reason(error)}. {_WITHOUT}") from error


_WITHOUT = "Go on without it, and tell the user if that matters."
