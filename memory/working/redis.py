"""`RedisNotes`: notes in Redis."""

from __future__ import annotations

from typing import ClassVar

from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.ids import digest_of
from turnwise.memory.conversation.required_arguments import needs
from turnwise.memory.longterm.base import Scope
from turnwise.memory.stores.redis.database import RedisDatabase
from turnwise.memory.working.base import Change, check_scope, decode_note

_READ = "return redis.call('HGET', KEYS[1], ARGV[1])"

_REPLACE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= (ARGV[2] ~= '' and ARGV[2]) then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
"""
"""Replaces a text if it is still the expected one. '' means no text, since stored texts are JSON."""

_PURGE = """
if ARGV[1] then return redis.call('HDEL', KEYS[1], ARGV[1]) end
local count = redis.call('HLEN', KEYS[1])
redis.call('DEL', KEYS[1])
return count
"""


@needs(url="pass where it is, such as RedisNotes('redis://localhost')")
class RedisNotes(RedisDatabase):
    """Stores notes in Redis, 6.2 or later. See `RedisDatabase` for their durability.

    A user's notes are one hash, under a digest of the user's id. If another change was stored after a change had read
    the note, the change reads and runs again. So concurrent changes take effect one after the other.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with options as redis-py takes them.
        prefix: the prefix of all keys. Stores with different prefixes can share a database without seeing each other.
        timeout_s: how long to wait for a connection, and for an answer, before a StoreError.
        connections: the most connections at once; further calls wait for a free one.

    Raises:
        StoreURLError: the URL names no Redis, or the client is not installed.
        ConfigError: a setting is out of its range.
    """

    scripts: ClassVar = {"read": _READ, "replace": _REPLACE, "purge": _PURGE}

    async def read(self, scope: Scope) -> str | None:
        return decode_note(scope, await self._raw(scope))

    async def change(self, scope: Scope, change: Change) -> str | None:
        check_scope(scope)
        while True:
            raw = await self._raw(scope)
            text = change(decode_note(scope, raw))
            args = (_field(scope), raw or "", to_json(text) or "")
            if await self._run("replace", [self._key(scope.user_id)], args):
                return text

    async def purge(self, user_id: str, *, session_id: str | None = None) -> int:
        args = [] if session_id is None else [_field(Scope(user_id=user_id, session_id=session_id))]
        return int(await self._run("purge", [self._key(user_id)], args))

    async def _raw(self, scope: Scope) -> bytes | None:
        raw: bytes | None = await self._run("read", [self._key(scope.user_id)], [_field(scope)], again=True)
        return raw

    def _key(self, user_id: str) -> str:
        return f"{self._prefix}:notes:{{{digest_of(user_id, '').hex()}}}"


def _field(scope: Scope) -> str:
    return "user" if scope.session_id is None else digest_of(scope.user_id, scope.session_id).hex()
