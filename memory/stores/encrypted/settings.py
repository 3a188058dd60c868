"""`Encryption`: the settings of an encrypted store, which has one key per user."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from turnwise.errors import ConfigError

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Encryption:
    """Keys, and how long they are held. Needs the package `cryptography`: `pip install turnwise[encryption]`.

    Every user has a key, so to delete a key is to make unreadable what is stored of its user, backups included, and of
    nobody else. What `EncryptedStore` lists stays readable, and long-term memories are not encrypted: they look for
    words in what they keep. A session that is live holds what it has read until it leaves.
    """

    key: Callable[[str], bytes | None] = field(repr=False)
    """Returns the key of a user id: 32 random bytes, always the same. None, or a KeyError, says that it was deleted, or
    never made. Called on a thread, by many at once, in every process that works on sessions, to which it travels by
    pickle: let it ask for keys where they are kept, and hold none."""
    cache_s: float = 60.0
    """How long a process goes on with a key before it asks again, in seconds, 0 or more: a deleted key may do its work
    for so long."""

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise ConfigError("key", type(self.key).__name__, "pass a function from a user id to 32 bytes, or None")
        if not 0 <= self.cache_s < math.inf:
            raise ConfigError("cache_s", self.cache_s, "must be 0 seconds or more")
