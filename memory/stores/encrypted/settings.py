"""`Encryption`: the settings of an encrypted store, which has one key per user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import PlainValidator

from turnwise.memory.values.checked_settings import Seconds, checked_settings
from turnwise.memory.values.required_arguments import needs

KEY_BYTES = 32


def _function(key: Any) -> Any:
    if not callable(key):
        raise ValueError("pass a function from a user id to 32 bytes, or None")
    return key


@needs(key="pass a function from a user's id to the user's key")
@dataclass(frozen=True)
@checked_settings()
class Encryption:
    """Keys of users, and how long they are cached. Needs `cryptography`: `pip install turnwise[encryption]`.

    Every user has a key. Deleting a key makes the stored data of its user unreadable, also in backups, and of no other
    user. The fields that `EncryptedStore` lists stay readable. Long-term memories are not encrypted, since they search
    their texts. The process of an open session has the decrypted data in memory until it gives up the session.
    """

    key: Annotated[Callable[[str], bytes | None], PlainValidator(_function)] = field(repr=False)
    """Returns the key of a user id: 32 random bytes, always the same. Returns None or raises KeyError if there is no
    key. It is pickled for every process with sessions, and called there on threads, also concurrently. It should fetch
    keys from where they are stored, and have none itself."""
    cache_s: Seconds = 60.0
    """How long a process uses a key before it fetches the key again, in seconds, 0 or more. A deleted key may be used
    for as long."""
