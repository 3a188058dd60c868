"""When deliveries recur: daylight saving in both directions, ends of months, leap days, and clocks that jump."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from turnwise.errors import InvalidInputError
from turnwise.memory.deliveries.records import MISSED_AFTER_S, Delivery, Missed
from turnwise.memory.deliveries.schedules import MAX_TIME, Schedule, check_schedule, next_due
from turnwise.memory.values.records import replace

LISBON, NEW_YORK, LORD_HOWE, KOLKATA = "Europe/Lisbon", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"

HOUR_S, DAY_S = 3600.0, 86_400.0


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    """Return a local time as seconds since the epoch; `fold=1` is the second of two with this name."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def local(time: float, zone: str) -> str:
    return datetime.fromtimestamp(time, ZoneInfo(zone)).strftime("%m-%d %H:%M %z")


def times(line: str, zone: str, start: str, count: int) -> list[str]:
    """Return the first times of a line after a local time."""
    schedule, due, listed = Schedule(cron=line, timezone=zone), at(start, zone), []
    for _ in range(count):
        next_at = next_due(schedule, due, due)
        assert next_at is not None and next_at > due
        due = next_at
        listed.append(local(due, zone))
    return listed


@pytest.mark.parametrize(
    ("line", "zone", "start", "expected"),
    [
        # Clocks go forward: what is left out is due when they have gone.
        ("30 1 * * *", LISBON, "2026-03-28T00:00", ["03-28 01:30 +0000", "03-29 02:00 +0100", "03-30 01:30 +0100"]),
        ("0 9 * * *", LISBON, "2026-03-28T00:00", ["03-28 09:00 +0000", "03-29 09:00 +0100", "03-30 09:00 +0100"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07T00:00", ["03-07 02:30 -0500", "03-08 03:00 -0400", "03-09 02:30 -0400"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00", ["10-03 02:15 +1030", "10-04 02:30 +1100", "10-05 02:15 +1100"]),
        # Clocks go back: what comes twice is due the first time.
        ("30 1 * * *", LISBON, "2026-10-24T00:00", ["10-24 01:30 +0100", "10-25 01:30 +0100", "10-26 01:30 +0000"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T00:00", ["10-31 01:30 -0400", "11-01 01:30 -0400", "11-02 01:30 -0500"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T00:00", ["04-04 01:45 +1100", "04-05 01:45 +1100", "04-06 01:45 +1030"]),
        # What goes by elapsed time neither skips nor repeats.
        ("*/30 * * * *", NEW_YORK, "2026-03-08T01:15", ["03-08 01:30 -0500", "03-08 03:00 -0400", "03-08 03:30 -0400"]),
        (
            "*/30 * * * *",
            NEW_YORK,
            "2026-11-01T01:15",
            ["11-01 01:30 -0400", "11-01 01:00 -0500", "11-01 01:30 -0500", "11-01 02:00 -0500"],
        ),
        ("0 * * * *", LORD_HOWE, "2026-04-05T00:30", ["04-05 01:00 +1100", "04-05 02:00 +1030", "04-05 03:00 +1030"]),
        # A zone whose offset is no whole hour.
        ("0 9 * * MON-FRI", KOLKATA, "2026-11-27T08:00", ["11-27 09:00 +0530", "11-30 09:00 +0530"]),
        # Ends of months and leap days.
        ("0 0 31 * *", LISBON, "2026-01-30T00:00", ["01-31 00:00 +0000", "03-31 00:00 +0100", "05-31 00:00 +0100"]),
        ("0 12 L * *", "UTC", "2028-01-31T13:00", ["02-29 12:00 +0000", "03-31 12:00 +0000", "04-30 12:00 +0000"]),
        ("0 8 29 2 *", LISBON, "2026-01-01T00:00", ["02-29 08:00 +0000", "02-29 08:00 +0000"]),
    ],
)
def test_a_line_of_cron_follows_its_zone(line: str, zone: str, start: str, expected: list[str]) -> None:
    assert times(line, zone, start, len(expected)) == expected


def test_leap_days_are_four_years_apart_but_for_2100() -> None:
    leap_days = Schedule(cron="0 0 29 2 *")
    years, due = [], at("2092-03-01")
    for _ in range(3):
        due = next_due(leap_days, due, due) or 0.0
        years.append(datetime.fromtimestamp(due, ZoneInfo("UTC")).year)
    assert years == [2096, 2104, 2108]


@pytest.mark.parametrize("zone", [LISBON, NEW_YORK, LORD_HOWE])
@pytest.mark.parametrize("line", ["30 1 * * *", "0,30 2 * * *", "*/20 * * * *", "15 */2 * * *"])
def test_the_next_time_is_the_same_wherever_one_starts_before_it(line: str, zone: str) -> None:
    """Also within the hour that comes twice, and just before the one that is left out."""
    schedule = Schedule(cron=line, timezone=zone)
    for day in ("2026-03-07T18:00", "2026-03-28T18:00", "2026-04-04T10:00", "2026-10-03T10:00", "2026-10-31T22:00"):
        start = at(day)
        listed, due = [], start
        while due < start + DAY_S:
            due = next_due(schedule, due, due) or 0.0
            listed.append(due)
        for minute in range(0, 24 * 60, 7):
            now = start + minute * 60.0
            assert next_due(schedule, start, now) == next(due for due in listed if due > now), local(now, zone)


def test_a_daily_time_comes_once_on_each_day_of_every_year() -> None:
    for zone in (LISBON, NEW_YORK, LORD_HOWE, KOLKATA):
        schedule, due = Schedule(cron="30 1 * * *", timezone=zone), at("2026-01-01T00:00", zone)
        days = []
        for _ in range(365):
            due = next_due(schedule, due, due) or 0.0
            days.append(datetime.fromtimestamp(due, ZoneInfo(zone)).date())
        assert days == [datetime(2026, 1, 1).date() + timedelta(days=number) for number in range(365)]


@given(st.floats(0, 2e9), st.floats(1, 1e7), st.floats(-1e6, 1e8))
def test_times_of_an_interval_lie_on_its_grid_and_after_both(last: float, every_s: float, ahead_s: float) -> None:
    due = next_due(Schedule(every_s=every_s), last, last + ahead_s)
    assert due is not None and due > max(last, last + ahead_s)
    assert due - every_s <= max(last, last + ahead_s) + 1e-3
    count = (due - last) / every_s
    assert abs(count - round(count)) < 1e-3


def test_an_interval_that_is_carried_out_late_does_not_drift() -> None:
    hourly, due = Schedule(every_s=HOUR_S), 1_000_000.0
    for _ in range(1000):
        due = next_due(hourly, due, due + 0.7) or 0.0
    assert due == 1_000_000.0 + 1000 * HOUR_S


@pytest.mark.parametrize("schedule", [Schedule(every_s=HOUR_S), Schedule(cron="0 * * * *")])
def test_a_clock_that_jumps_an_hour_repeats_no_time_and_loses_none_that_is_due(schedule: Schedule) -> None:
    last = at("2026-06-01T09:00")
    forward = next_due(schedule, last, last + HOUR_S + 1.0)
    assert forward == last + 2 * HOUR_S
    back = next_due(schedule, last, last - HOUR_S + 1.0)
    assert back == last + HOUR_S


def test_the_last_time_of_a_schedule_is_its_until() -> None:
    schedule = Schedule(every_s=10.0, until=120.0)
    assert next_due(schedule, 100.0, 100.0) == 110.0
    assert next_due(schedule, 110.0, 110.0) == 120.0
    assert next_due(schedule, 120.0, 120.0) is None
    assert next_due(Schedule(cron="* * * * *", until=100.0), 0.0, 61.0) is None


def test_a_schedule_ends_with_the_calendar() -> None:
    assert next_due(Schedule(every_s=1e9), MAX_TIME - 1, MAX_TIME - 1) is None


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "every_s"),
        ({"every_s": 60.0, "cron": "* * * * *"}, "every_s"),
        ({"every_s": 0.9}, "every_s"),
        ({"every_s": float("nan")}, "every_s"),
        ({"every_s": True}, "every_s"),
        ({"every_s": "60"}, "every_s"),
        ({"cron": ""}, "cron"),
        ({"cron": "0 9 * *"}, "cron"),
        ({"cron": "0 0 9 * * *"}, "cron"),
        ({"cron": "60 9 * * *"}, "cron"),
        ({"cron": "0 9 31 2 *"}, "cron"),
        ({"cron": "0 9 30 2 MON"}, None),
        ({"cron": "0 9 * * MON-"}, "cron"),
        ({"cron": "0 9 L/2 * *"}, None),
        ({"cron": "0 9 * * 1#9"}, "cron"),
        ({"cron": 9}, "cron"),
        ({"cron": "0 9 * * *", "timezone": "Lisbon"}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": "../../etc/passwd"}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": "Europe"}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": ""}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": None}, "timezone"),
        ({"every_s": 60.0, "until": -1.0}, "until"),
        ({"every_s": 60.0, "until": float("inf")}, "until"),
        ({"every_s": 60.0}, None),
        ({"cron": "*/5 0-6 1,15 JAN-MAR mon#2", "timezone": "America/Argentina/Buenos_Aires"}, None),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused_by_its_field(values: dict[str, Any], field: str | None) -> None:
    schedule = Schedule(**values)
    if field is None:
        assert check_schedule(schedule) is schedule
        return
    with pytest.raises(InvalidInputError) as raised:
        check_schedule(schedule)
    assert raised.value.field == field


def delivery(missed: Missed = "run_once", schedule: Schedule | None = None, occurs_at: float = 1000.0) -> Delivery:
    settings: dict[str, Any] = {"occurs_at": occurs_at, "due_at": occurs_at, "schedule": schedule, "missed": missed}
    return Delivery(delivery_id="d", session_id="s", key="k", attempts=2, why="it failed", **settings)


@pytest.mark.parametrize(("missed", "occurs_at"), [("run_once", 1600.0), ("skip", 1600.0), ("run_all", 1100.0)])
def test_after_an_outage_the_next_occurrence_depends_on_what_becomes_of_missed_ones(
    missed: Missed, occurs_at: float
) -> None:
    after = delivery(missed, Schedule(every_s=100.0)).after_occurrence(1555.0)
    assert after and (after.occurs_at, after.due_at) == (occurs_at, occurs_at)
    assert (after.revision, after.attempts, after.why) == (2, 0, None)


def test_only_what_skips_leaves_out_occurrences_and_only_late_ones() -> None:
    late = 1000.0 + MISSED_AFTER_S
    assert not delivery("skip").is_missed(late) and delivery("skip").is_missed(late + 0.1)
    assert not delivery("run_once").is_missed(late + 1e6) and not delivery("run_all").is_missed(late + 1e6)


def test_a_delivery_is_gone_after_its_last_occurrence() -> None:
    assert delivery().after_occurrence(1000.0) is None
    assert delivery(schedule=Schedule(every_s=100.0, until=1099.0)).after_occurrence(1000.0) is None


def test_each_occurrence_has_a_run_of_its_own_whichever_attempt_begins_it() -> None:
    first = replace(delivery(schedule=Schedule(every_s=100.0)), revision=5)
    second = first.after_occurrence(1000.0)
    failed = first.after_failure("the model is away", 1010.0)
    assert second and len({first.run_id, second.run_id}) == 2 and failed.run_id == first.run_id
    following = failed.after_occurrence(1000.0)
    changed = replace(failed, revision=failed.revision + 1, attempts=0)
    assert following and len({first.run_id, following.run_id, changed.run_id}) == 2, "a change is another occurrence"
    assert (failed.occurs_at, failed.due_at, failed.attempts, failed.why) == (1000.0, 1010.0, 3, "the model is away")
