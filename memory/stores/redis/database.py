"""`RedisDatabase`: the base of both Redis stores, with connections, scripts as transactions, and error conversion."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from turnwise.errors import ConfigError, CorruptRecordError, StoreError, StoreURLError
from turnwise.memory.stores.loop_thread import LoopThread
from turnwise.memory.stores.store_owner import Shared, StoreOwner, rivals_among
from turnwise.memory.stores.urls import REDIS_SCHEMES, redact
from turnwise.memory.values.ranges import check_seconds, check_whole_number

CONNECT_S = 4.0
"""How long to wait for a new connection, in seconds. A server without TLS never answers a TLS client."""

MAX_CONNECTIONS = 10_000
"""The most connections of one store: a server has not many more."""

Argument = str | bytes | int | float

MISFIT = """
-- Redis keeps what a script has written before an error. So scripts check the keys that they write to first.
local function misfit(kind, names)
  for _, name in ipairs(names) do
    local other = redis.call('TYPE', name).ok
    if other ~= 'none' and other ~= kind then return name, 'it is a ' .. other .. ', and has to be a ' .. kind end
  end
end
"""
"""Lua for scripts: `misfit` returns the first of the keys that is of another kind, and why; nil if there is none."""


class RedisDatabase(Shared):
    """Base of `RedisStore` and `RedisItems`, in Redis 6.2 or later. Connects at first use.

    Each method is one script, which Redis runs atomically. Scripts are called on the store's own event loop, so the
    store can be used from several event loops. A pickle has the settings, with the password.

    Acknowledged writes are on disk only with `appendonly yes` and `appendfsync always`. With `everysec` a crash may
    lose a second of writes, without an append-only file more. With a `maxmemory-policy` other than `noeviction`, Redis
    may evict stored data. Deleted data stays in Redis's files until it rewrites them (`BGREWRITEAOF`, `BGSAVE`).

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with options as redis-py takes them.
        prefix: the prefix of all keys. Stores with different prefixes can share a database without seeing each other.
        timeout_s: how long to wait for a free connection, and for an answer, before a StoreError. A new connection is
            waited for up to 4 s; `?socket_connect_timeout=` sets that.
        connections: the most connections at once; further calls wait for a free one.

    Raises:
        StoreURLError: the URL names no Redis, or the client is not installed.
        ConfigError: a setting is out of its range.
    """

    scripts: ClassVar[dict[str, str]]
    """The scripts of the subclass, by name."""

    def __init__(self, url: str, *, prefix: str = "turnwise", timeout_s: float = 30.0, connections: int = 8) -> None:
        if not re.fullmatch(r"[\w:.-]{1,64}", prefix, re.ASCII):
            raise ConfigError("prefix", prefix, "must be 1 to 64 letters, digits, '_', ':', '.' or '-'")
        check_seconds("timeout_s", timeout_s, may_be_0=False)
        check_whole_number("connections", connections, 1, MAX_CONNECTIONS)
        self._settings: dict[str, Any] = {
            "url": url,
            "prefix": prefix,
            "timeout_s": timeout_s,
            "connections": connections,
        }
        self._prefix = prefix
        self._name = redact(url)
        self._client = _client(url, self._name, timeout_s, connections)
        self._scripts = {name: self._client.register_script(script) for name, script in self.scripts.items()}
        self._thread = LoopThread(self._name)
        self._shared_by: StoreOwner | None = None
        self._is_named = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._settings), ()

    async def close(self) -> None:
        """Close the connections. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        await self._thread.close(self._client.aclose)

    def own(self, owner: StoreOwner) -> None:
        """See `Shared`. Names the connections after the owner, if the Redis user may do that."""
        self._shared_by = owner

    async def rivals(self) -> list[str]:
        """See `Shared`."""
        from redis.exceptions import ResponseError

        async def ask() -> list[str]:
            await self._name_connections()
            try:
                clients = await self._client.client_list()
            except ResponseError:
                return []  # the Redis user may not list connections
            database = str(self._client.get_connection_kwargs().get("db", 0))
            return [client["name"] for client in clients if client["db"] == database]

        with self._translated():
            return rivals_among(await self._thread.run(ask), self._shared_by)

    async def _name_connections(self) -> None:
        """Name one connection now, and all future ones when they are made."""
        from redis.exceptions import ResponseError

        settings = self._client.get_connection_kwargs()
        if self._shared_by and not self._is_named and not settings.get("client_name"):
            try:
                await self._client.client_setname(self._shared_by.label)
            except ResponseError:
                pass  # the Redis user may not name connections
            else:
                settings["client_name"] = self._shared_by.label
        self._is_named = True

    async def _run(self, name: str, keys: Sequence[str], args: Sequence[Argument], *, again: bool = False) -> Any:
        """Run a script atomically and return its result.

        Args:
            again: whether the script may run twice. If so, it is tried once more when the connection breaks.

        Raises:
            StoreClosedError: the store was closed.
            CorruptRecordError: the script cannot read a record; nothing was written.
            StoreError: Redis cannot be reached, or refuses. If the answer is lost, the script may have run.
        """
        from redis.exceptions import ConnectionError as NotConnected

        async def call() -> Any:
            if not self._is_named:
                await self._name_connections()
            encoded = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
            try:
                return await self._scripts[name](keys=keys, args=encoded)
            except NotConnected:
                if not again:
                    raise
            return await self._scripts[name](keys=keys, args=encoded)

        with self._translated():
            return await self._thread.run(call)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert the errors of Redis to StoreError. Only this method does so."""
        from redis.exceptions import RedisError

        try:
            yield
        except (UnicodeEncodeError, UnicodeDecodeError) as error:  # its attributes hold the whole text
            raise StoreError(f"store {self._name}: a text cannot be stored or read: {error.reason}") from None
        except (RedisError, OSError, ValueError) as error:
            message = next(iter(str(error).strip().splitlines()), type(error).__name__)
            if corrupt := re.match(r"CORRUPT (\S+ \S+) (.*)", message):
                raise CorruptRecordError(corrupt[1], corrupt[2]) from error
            raise StoreError(f"store {self._name}: {message}; {_remedy(error, self._name)}") from error


def _remedy(error: Exception, url: str) -> str:
    """Return what to do about an error of Redis."""
    from redis import exceptions

    cluster = (exceptions.AskError, exceptions.ClusterDownError, exceptions.ClusterCrossSlotError)
    if isinstance(error, cluster):
        return "it is a node of a Redis Cluster, and its keys may be on others: use a Redis that is no cluster"
    message = str(error)
    for word, remedy in _OF_ANSWER.items():
        if word in message:
            return remedy
    if not isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return "it answered so: is it Redis 6.2 or later, and has nobody else written to these keys?"
    if url.startswith("rediss:"):
        return "is it reachable, and does it speak TLS? If not, its URL begins with redis:// instead of rediss://"
    return "is it reachable?"


_ACCESS = "its URL needs the name and password of a user who may run scripts on these keys"
_OF_ANSWER = {
    "maxmemory": "it is out of memory: raise maxmemory, or delete sessions; nothing was written, and data can be read",
    "MISCONF": "free space on its disk, then try again: nothing was written, and stored data can be read",
    "READONLY": "it is a replica: write to the primary",
    "NOAUTH": _ACCESS,
    "WRONGPASS": _ACCESS,
    "NOPERM": _ACCESS,
    "LOADING": "it reads its files after a start: try again",
    "BUSY": "a script of somebody runs for long: try again",
    "max number of clients": "it has as many connections as it takes: raise its maxclients, or lower connections",
    "WRONGTYPE": "something else has written to this key: restore it from a backup, or use another prefix",
}
"""The remedy, by a word of Redis's answer. Without an answer, Redis was not reached."""


def encode(text: str) -> bytes:
    """Return a name in bytes. Names that UTF-8 cannot encode are allowed: they can be looked up, not stored."""
    return text.encode(errors="surrogatepass")


def _client(url: str, shown: str, timeout_s: float, connections: int) -> Any:
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.connection import parse_url
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
    except ModuleNotFoundError as error:
        raise StoreURLError(shown, f"its client is missing ({error}): pip install 'turnwise[redis]'") from error
    try:
        parts = urlsplit(url)
        if parts.scheme not in REDIS_SCHEMES:
            raise StoreURLError(shown, f"its scheme is not one of {', '.join(REDIS_SCHEMES)}")
        if not (parts.path.strip("/") or "0").isdecimal():
            raise StoreURLError(shown, "what follows its host is not the number of a database")
        options: dict[str, Any] = {
            "max_connections": connections,
            "timeout": timeout_s,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": min(timeout_s, CONNECT_S),
            **parse_url(url),
            # Retries and the decoding of answers are set here; options of the URL do not override them.
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "protocol": 2,
        }
        pool = BlockingConnectionPool(**options)
        # Checks the options without connecting.
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, AttributeError, RedisError):  # its message may quote the URL
        raise StoreURLError(shown, "it is no URL that redis-py takes, or has an option that it does not") from None
    return Redis.from_pool(pool)
