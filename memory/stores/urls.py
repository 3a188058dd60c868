"""From a URL to the store it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode

from turnwise.errors import StoreURLError

if TYPE_CHECKING:
    from turnwise.memory.stores.base import SessionStore

SQL_SCHEMES = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
REDIS_SCHEMES = ("redis", "rediss")
_OWN_SCHEMES = ("memory", *SQL_SCHEMES, *REDIS_SCHEMES)


def redact(url: str) -> str:
    """Return the URL as it may be shown: without its password, also where it is malformed."""
    url = re.sub(r"(?s)((?://|^\w+:)[^:/@?]*:).*@", r"\1***@", str(url))
    # That of a client's own key file too, and of what is no URL: libpq's `host=h password=p`.
    return re.sub(r"(?i)(\w*password\s*=)[^&]*", r"\1***", url)


def resolve_url(url: str) -> str:
    """Return the URL with a SQLite path made absolute, so that it means the same file in every process.

    Raises:
        StoreURLError: the URL is of no known scheme, or names no file.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or (scheme not in _OWN_SCHEMES and not _is_foreign(scheme)):
        why = "its scheme is not known, and no installed package has it as an entry point of the group turnwise.stores"
        raise StoreURLError(redact(url), why)
    if scheme.startswith("sqlite"):
        path, _, options = rest.removeprefix("/").partition("?")
        if not path or path == ":memory:" or not rest.startswith("/"):
            why = "it names no file (three slashes for a relative path, four for an absolute one)"
            raise StoreURLError(redact(url), why)
        if path.startswith("file:"):  # a name in SQLite's own form, which `uri=true` goes with
            if not path.startswith("file:/") or "mode=memory" in options:
                raise StoreURLError(redact(url), "it names no file by its absolute path, as file:/path does")
            return url
        return f"{scheme}:///{Path(path).expanduser().resolve()}" + (f"?{options}" if options else "")
    return url


READ_ONLY = "-c default_transaction_read_only=on"
"""The option of PostgreSQL's by which a connection cannot write."""


def read_only(url: str) -> str:
    """Return the URL of the same store by which an SQL database refuses to be written; of any other the same URL.

    Tables are then neither made nor migrated, and a file of SQLite that is not there is not made.
    """
    scheme, _, rest = resolve_url(url).partition("://")
    if scheme not in SQL_SCHEMES:
        return url
    place, _, options = rest.partition("?")
    given = parse_qsl(options)
    if scheme.startswith("sqlite"):
        path = place.removeprefix("/")
        # SQLAlchemy takes the quotes off once, of every path, and SQLite once more, of this form.
        file = path if path.startswith("file:") else f"file:{quote(quote(unquote(path)))}"
        given = [each for each in given if each[0] not in ("mode", "uri")]
        return f"{scheme}:///{file}?{urlencode([*given, ('mode', 'ro'), ('uri', 'true')])}"
    more = " ".join([*(value for name, value in given if name == "options"), READ_ONLY])
    given = [each for each in given if each[0] != "options"]
    return f"{scheme}://{place}?{urlencode([*given, ('options', more)], quote_via=quote)}"


def open_store(url: str) -> SessionStore:
    """Return a store for the URL. Imports what it needs and connects at first use, so call it off the event loop.

    A scheme that is not turnwise's own is looked up among the stores of other packages, see `memory/stores/plugins`.

    Raises:
        StoreURLError: the URL is of no known scheme, its driver is not installed, or another package's store is broken.
    """
    url = resolve_url(url)
    scheme = url.partition("://")[0]
    if scheme == "memory":
        from turnwise.memory.stores.in_memory import InMemoryStore

        return InMemoryStore()
    if scheme in REDIS_SCHEMES:
        from turnwise.memory.stores.redis.store import RedisStore

        return RedisStore(url)
    if scheme in SQL_SCHEMES:
        from turnwise.memory.stores.sql.store import SQLStore  # 0.15 s that a process with another store need not pay

        return SQLStore(url)
    from turnwise.memory.stores.plugins import open_registered

    return open_registered(url)


def resolve_own_url(url: str) -> str:
    """Return the URL, resolved, if it is of a scheme of turnwise's own.

    Raises:
        StoreURLError: the URL is of another package's store, or of no known scheme.
    """
    url = resolve_url(url)
    if url.partition("://")[0] not in _OWN_SCHEMES:
        raise StoreURLError(redact(url), "another package's store keeps sessions only")
    return url


def is_redis(url: str) -> bool:
    """Return whether the URL is of a Redis."""
    return isinstance(url, str) and url.partition("://")[0] in REDIS_SCHEMES


def _is_foreign(scheme: str) -> bool:
    from turnwise.memory.stores.plugins import is_registered

    return is_registered(scheme)
