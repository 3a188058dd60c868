"""`Schedule`: when a delivery recurs. The next time is a pure function of the last one and of the time now.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.values.ranges import MAX_SECONDS
from turnwise.memory.values.records import Record

MIN_EVERY_S = 1.0
"""The shortest time between two occurrences, in seconds."""

MAX_TIME = 253_402_214_400.0
"""The latest time of a delivery, in seconds since the epoch: the last day of the year 9999, in every time zone."""

CRON_FIELDS = 5


@dataclass(frozen=True, kw_only=True)
class Schedule(Record):
    """When a delivery recurs: every `every_s` seconds, or when `cron` says; one of the two is set.

    A line of cron is read as Debian's cron reads it, daylight saving included. Where clocks go forward, an occurrence
    at a time that is left out is due when the clocks have gone forward; where they go back, one at a time that comes
    twice is due the first time. A line whose hours or minutes begin with `*` goes by elapsed time instead, so it
    neither skips nor repeats an interval.
    """

    every_s: float | None = None
    cron: str | None = None
    """Minute, hour, day of the month, month, day of the week, such as `0 9 * * MON-FRI`."""
    timezone: str = "UTC"
    """The time zone of `cron`, by its IANA name, such as `Europe/Lisbon`."""
    until: float | None = None
    """The last time at which it may occur, in seconds since the epoch; None: it recurs without end."""


@dataclass(frozen=True, kw_only=True)
class When:
    """When a delivery occurs: exactly one of the three says when first, or a schedule alone does."""

    at: float | None = None
    """Seconds since the epoch."""
    after_s: float | None = None
    """Seconds from now, by the store's clock."""
    schedule: Schedule | None = None
    """When it recurs. Without `at` and `after_s`, it occurs first when the schedule says so after now."""

    def first(self, now: float) -> float:
        """Return the time of the first occurrence.

        Raises:
            InvalidInputError: none or two of the fields say when, or one cannot be used.
        """
        if self.schedule:
            check_schedule(self.schedule)
        if self.at is not None and self.after_s is not None:
            raise InvalidInputError("after_s", shown(self.after_s), "pass either at or after_s")
        if self.at is not None:
            return check_time("at", self.at)
        if self.after_s is not None:
            return now + check_number("after_s", self.after_s, 0.0, MAX_SECONDS, "a number of seconds")
        if self.schedule is None:
            raise InvalidInputError("at", None, "pass at, after_s, every_s or cron")
        if (first := next_due(self.schedule, now, now)) is None:
            raise InvalidInputError("until", shown(self.schedule.until), "the schedule ends before it is due")
        return first


def next_due(schedule: Schedule, last_due: float, now: float) -> float | None:
    """Return the first time of the schedule after `last_due` that is also after `now`; None if there is none.

    Times of `every_s` are counted from `last_due`, so they do not drift. If the clock was set back, `now` may be before
    `last_due`: no time comes twice.

    Args:
        last_due: when the schedule was due last, or began, in seconds since the epoch.
    """
    after = max(last_due, now)
    due = (
        _next_of_cron(schedule.cron, schedule.timezone, after)
        if schedule.cron
        else _next_of_every(schedule, last_due, after)
    )
    last = MAX_TIME if schedule.until is None else schedule.until
    return None if due is None or due > min(last, MAX_TIME) else due


def _next_of_every(schedule: Schedule, last_due: float, after: float) -> float:
    every_s = schedule.every_s or MAX_SECONDS
    count = math.floor((after - last_due) / every_s) + 1
    due = last_due + count * every_s
    return due if due > after else due + every_s  # the division may have rounded


def _next_of_cron(line: str, timezone: str, after: float) -> float | None:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

    zone = ZoneInfo(timezone)
    start = datetime.fromtimestamp(after, zone)
    if any(field.startswith("*") for field in line.split()[:2]):
        return _next_by_elapsed_time(line, zone, after)
    # While clocks are back, times of the hour before, which came first, follow too.
    return next((due for time in CronSim(line, start) if (due := time.timestamp()) > after), None)


LONGEST_SHIFT = timedelta(hours=3)
"""Clocks are set by less than this at a time."""


def _next_by_elapsed_time(line: str, zone: tzinfo, after: float) -> float | None:
    """Return the first moment after `after` at which clocks show a time of the line; None if there is none.

    Where clocks go back, they show some times twice, and where they go forward, some never. `CronSim` does not find all
    of them where clocks are set by half an hour, so here it only lists what fits on a clock that is never set.
    """
    from cronsim import CronSim

    start = datetime.fromtimestamp(after, zone)
    first = next(CronSim(line, start.replace(tzinfo=None)), None)
    if first is None:
        return None
    near = [start - LONGEST_SHIFT, start, *(first.replace(tzinfo=zone) + shift for shift in (_NONE, LONGEST_SHIFT))]
    if len({time.utcoffset() for time in near}) == 1:  # clocks are not set about then
        return first.replace(tzinfo=zone).timestamp()
    due: float | None = None
    for reading in CronSim(line, start.replace(tzinfo=None) - LONGEST_SHIFT):
        if due is not None and reading > datetime.fromtimestamp(due, zone).replace(tzinfo=None) + LONGEST_SHIFT:
            break
        moments = (reading.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
        for moment in moments:
            is_shown = datetime.fromtimestamp(moment, zone).replace(tzinfo=None) == reading
            if is_shown and moment > after:
                due = moment if due is None else min(due, moment)
    return due


_NONE = timedelta()


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule that a store can keep and that `next_due` can follow.

    Raises:
        InvalidInputError: names the field and what is wrong with it.
    """
    if (schedule.every_s is None) == (schedule.cron is None):
        raise InvalidInputError("every_s", shown(schedule.every_s), "pass either every_s or cron")
    if schedule.every_s is not None:
        check_number("every_s", schedule.every_s, MIN_EVERY_S, MAX_SECONDS, "a number of seconds")
    if schedule.until is not None:
        check_time("until", schedule.until)
    _check_zone(schedule.timezone)
    if schedule.cron is not None:
        _check_cron(schedule.cron, schedule.timezone)
    return schedule


def check_time(field: str, value: float) -> float:
    """Return a time in seconds since the epoch.

    Raises:
        InvalidInputError: it is no number from 0 to `MAX_TIME`.
    """
    return check_number(field, value, 0.0, MAX_TIME, "seconds since the epoch")


def check_number(field: str, value: float, least: float, most: float, unit: str) -> float:
    """Return a number within a range.

    Raises:
        InvalidInputError: it is no number, or out of the range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidInputError(field, shown(value), f"must be {unit}, from {least:g} to {most:g}")
    return float(value)


def _check_zone(timezone: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(timezone)
    except (TypeError, ValueError, OSError, LookupError):  # what a name that is a path, a folder or unknown leads to
        reason = "must be an IANA name such as 'Europe/Lisbon' that this machine knows"
        raise InvalidInputError("timezone", shown(timezone), reason) from None


def _check_cron(line: str, timezone: str) -> None:
    from cronsim import CronSimError

    example = "such as '0 9 * * MON-FRI': minute, hour, day of the month, month, day of the week"
    if not isinstance(line, str) or len(line.split()) != CRON_FIELDS:
        raise InvalidInputError("cron", shown(line), f"must have five fields, {example}")
    try:
        due = _next_of_cron(line, timezone, 0.0)
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        raise InvalidInputError(
            "cron", shown(line), f"it cannot be read ({str(error) or 'bad step'}); write one {example}"
        ) from None
    if due is None:
        raise InvalidInputError("cron", shown(line), "it is never due: no day fits")
