"""What `RedisStore` adds to the codec of records: numbers as text that sorts like them, and rows of ledgers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from turnwise.errors import StoreError
from turnwise.memory.conversation.codec import decoded, encode_json
from turnwise.memory.conversation.events import Event, EventRow, encode_body
from turnwise.memory.conversation.ledger import NUMBERS, ZEROS, LedgerKey, LedgerRow


def encode_event(event: Event) -> str:
    """Return the text of an event that is stored after its sequence number."""
    kind, body = encode_body(event)
    return f"{encode_json([kind, event.at, event.turn_index, event.run_id, event.key])}\n{body}"


def event_row(key: str, text: bytes) -> EventRow:
    """Return the row of an event from its stored text: the sequence number followed by the text of `encode_event`.

    Raises:
        CorruptRecordError: the text is damaged; names the key.
    """

    def read() -> EventRow:
        head, body = text[PADDED_DIGITS:].decode().split("\n", 1)
        kind, time, turn_index, run_id, event_key = json.loads(head)
        return EventRow(int(text[:PADDED_DIGITS]), time, turn_index, run_id, event_key, kind, body)

    return decoded(key, read)


PADDED_DIGITS = 19
"""Digits of a turn's index or an event's sequence number as text, so that texts sort like numbers."""


def padded(number: int) -> str:
    """Return a number as text of fixed width, which sorts like the number.

    Raises:
        ValueError: the number is below 0 or too large.
    """
    if not 0 <= number < 10**PADDED_DIGITS:
        raise ValueError(f"{number} is not between 0 and 10**{PADDED_DIGITS}")
    return f"{number:0{PADDED_DIGITS}d}"


def finite(time_s: float, subject: str) -> str:
    """Return a time as text that parses to the same number.

    Raises:
        StoreError: the time is not finite, so it cannot be sorted.
    """
    if not math.isfinite(time_s):
        raise StoreError(f"{subject} is {time_s}, which is no time; nothing was written")
    return repr(float(time_s))


def ledger_field(row: LedgerRow, agent: str | None, name: str) -> str:
    """Return the field of a ledger's hash that has one number of a row."""
    values = [row.day, agent or "", row.kind, row.model, row.tool, row.tenant or "", row.engine or ""]
    return f"{encode_json(values)}\n{name}"


def read_ledger(session: bytes, user: bytes, fields: Sequence[bytes]) -> Iterator[tuple[LedgerKey, list[int]]]:
    """Yield the rows of a ledger.

    Args:
        session: the name of its session; empty for the ledger of a user, and of nobody.
        user: the name of its user; empty for the others.
        fields: names and numbers by turns.
    """
    session_id, user_id = json.loads(session) if session else ("", json.loads(user) if user else "")
    rows: dict[str, list[int]] = {}
    for field, number in zip(fields[::2], fields[1::2], strict=True):
        text, _, name = field.decode().partition("\n")
        rows.setdefault(text, [*ZEROS])[NUMBERS.index(name)] = int(number)
    for text, numbers in rows.items():
        day, agent, *names = json.loads(text)
        yield LedgerKey(day, user_id, agent, session_id, *names), numbers
