"""Ids: which are valid, and how new ones are made."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
import unicodedata

from turnwise.errors import InvalidIdError, NameRefusedError, shown

MAX_LENGTH = 256

MAX_BYTES = 768
"""The most bytes of an id in UTF-8, so that a database can index a user, a session and the key of an event together."""

MAX_INDEXED_BYTES = 2560
"""The most bytes, in UTF-8, of the names by which a database finds one row. PostgreSQL indexes up to 2,704 bytes."""


def new_id() -> str:
    """Return a new id of 24 hexadecimal digits. Ids sort by the time they were made, to the millisecond."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


_FILE_ID = re.compile(r"file-[0-9a-f]{24,64}")


def is_file_id(value: object) -> bool:
    """Return whether a value has the form of a file's id."""
    return isinstance(value, str) and bool(_FILE_ID.fullmatch(value))


def new_key() -> int:
    """Return a unique 63-bit number. It stays unique if the store is restored to an earlier state.

    It is made of the time in milliseconds and of random bits. Numbers grow within a process; those of several processes
    are ordered by their clocks.
    """
    return _keys.next()


def new_row_key() -> int:
    """Return a number as `new_key` does, of 47 bits: rows of an SQL database that name it take 6 bytes for it, not 8.

    Two processes may make the same number in the same millisecond, so the caller tries again if it is taken.
    """
    return _row_keys.next()


class _Keys:
    """Makes numbers of a time in milliseconds, for which 42 bits are enough for a century, and random bits."""

    def __init__(self, random_bits: int) -> None:
        self._lock = threading.Lock()
        self._random_bits = random_bits
        self._last = 0

    def next(self) -> int:
        with self._lock:
            now = (time.time_ns() // 1_000_000) << self._random_bits
            self._last = max(now + secrets.randbits(self._random_bits), self._last + 1)
            return self._last


_keys, _row_keys = _Keys(21), _Keys(5)


def check_id(kind: str, value: str) -> str:
    """Return `value` if it can be an id: 1 to 256 characters, none of them a control character or a lone surrogate.

    In UTF-8 it takes at most `MAX_BYTES`.

    `.` and `..` cannot: clients leave them out of an address, also as `%2e%2e`, so nothing could be reached by them.

    Raises:
        InvalidIdError: it cannot. The message calls it an id of `kind`.
    """
    if not isinstance(value, str):
        raise InvalidIdError(kind, shown(value), "it is not a string")
    value = str.__str__(value)
    if not value.strip():
        raise InvalidIdError(kind, value, "it is blank")
    if value in (".", ".."):
        raise InvalidIdError(kind, value, "an address cannot hold it")
    if len(value) > MAX_LENGTH:
        raise InvalidIdError(kind, f"{value[:32]}...", f"it has {len(value)} characters")
    if not value.isprintable() and any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
        raise InvalidIdError(kind, value, "it holds a control character")
    if (size := len(value.encode())) > MAX_BYTES:
        raise InvalidIdError(kind, f"{value[:32]}...", f"it has {size} bytes")
    return value


def check_names(field: str, *names: str | None, quotes: bool = True) -> None:
    """Raise unless each store can keep these names, and can find a row by all of them together.

    Ids of callers are checked by `check_id`, which is stricter. Each store makes these checks, so that all stores take
    the same names.

    Args:
        field: what they are, for the error.
        names: None is passed over.
        quotes: whether the error shows names with characters that cannot be kept.

    Raises:
        NameRefusedError: they have a null character or a lone surrogate, or take more than `MAX_INDEXED_BYTES`.
    """
    if reason := _reason_to_refuse([name for name in names if name is not None]):
        is_shown = quotes or str(MAX_INDEXED_BYTES) in reason
        value = shown(names[0] if len(names) == 1 else names) if is_shown else "..."
        raise NameRefusedError(field, value, reason)


def _reason_to_refuse(names: list[str]) -> str | None:
    if not all(isinstance(name, str) for name in names):
        return "must be a string"
    text = "".join(names)
    if "\0" in text:
        return "must not have a null character, which databases cannot keep"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "must not have a lone surrogate, which UTF-8 cannot encode"
    if size > MAX_INDEXED_BYTES:
        return f"must take at most {MAX_INDEXED_BYTES} bytes in UTF-8, not {size}: databases cannot index longer ones"
    return None


def digest_of(user_id: str, id: str) -> bytes:
    """Return a 16-byte digest of a user's id and an item's id, which reveals neither."""
    return hashlib.blake2b(f"{len(user_id)}:{user_id}{id}".encode(errors="surrogatepass"), digest_size=16).digest()
