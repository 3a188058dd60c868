"""When a schedule is due, as callers say it, and the id of one whose addition may be repeated."""

from __future__ import annotations

import hashlib
import json

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.deliveries.schedules import Schedule, When


def when_of(
    *,
    at: float | None,
    after_s: float | None,
    every_s: float | None,
    cron: str | None,
    timezone: str | None,
    until: float | None,
) -> When | None:
    """Return when a schedule is due; None if nothing of it is said. Its session checks the values.

    Raises:
        InvalidInputError: an argument belongs to another one, which is missing.
    """
    if timezone is not None and cron is None:
        raise InvalidInputError("timezone", shown(timezone), "it is that of cron: pass cron, too")
    recurs = every_s is not None or cron is not None
    if until is not None and not recurs:
        raise InvalidInputError("until", shown(until), "it ends what recurs: pass every_s or cron, too")
    if at is None and after_s is None and not recurs:
        return None
    schedule = Schedule(every_s=every_s, cron=cron, timezone=timezone or "UTC", until=until) if recurs else None
    return When(at=at, after_s=after_s, schedule=schedule)


def repeatable_id(session_id: str, user_id: str, idempotency_key: str, key: str | None = None) -> str:
    """Return the id of the delivery that a repeatable call of `Session.schedule` adds. Without `key`, it is its key."""
    names = json.dumps([user_id, session_id, idempotency_key, key]).encode()
    return hashlib.blake2b(names, digest_size=12).hexdigest()
