"""Store URLs: open the store of a URL, resolve paths, hide passwords."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode

from turnwise.errors import ConfigError, StoreURLError
from turnwise.memory.values.collection_pauses import importing

if TYPE_CHECKING:
    from turnwise.memory.stores.base import SessionStore

SQL_SCHEMES = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
REDIS_SCHEMES = ("redis", "rediss")
_OWN_SCHEMES = ("memory", *SQL_SCHEMES, *REDIS_SCHEMES)


def redact(url: str) -> str:
    """Return the URL without its password, for messages. Works on malformed URLs too."""
    url = re.sub(r"(?s)((?://|^\w+:)[^:/@?]*:).*@", r"\1***@", str(url))
    # Also hides `sslpassword=`, and the password of libpq's form `host=h password=p`, which is not a URL.
    return re.sub(r"(?i)(\w*password\s*=)[^&]*", r"\1***", url)


def resolve_url(url: str) -> str:
    """Return the URL with a SQLite path made absolute, so that it means the same file in every process.

    Raises:
        StoreURLError: the URL's scheme is not known, or the URL names no file.
    """
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or (scheme not in _OWN_SCHEMES and not _is_foreign(scheme)):
        reason = (
            "its scheme is not known, and no installed package has it as an entry point of the group turnwise.stores"
        )
        raise StoreURLError(redact(url), reason)
    if scheme.startswith("sqlite"):
        path, _, options = rest.removeprefix("/").partition("?")
        if not path or path == ":memory:" or not rest.startswith("/"):
            reason = "it names no file (three slashes for a relative path, four for an absolute one)"
            raise StoreURLError(redact(url), reason)
        if path.startswith("file:"):  # SQLite's own URI form, used with `uri=true`
            if not path.startswith("file:/") or "mode=memory" in options:
                raise StoreURLError(redact(url), "it names no file by its absolute path, as file:/path does")
            return url
        return f"{scheme}:///{Path(path).expanduser().resolve()}" + (f"?{options}" if options else "")
    return url


READ_ONLY = "-c default_transaction_read_only=on"
"""The PostgreSQL option that makes a connection read-only."""


def read_only(url: str) -> str:
    """Return a URL that opens the same SQL database read-only. URLs of other stores are returned unchanged.

    A store that is opened read-only neither creates nor migrates tables, and creates no SQLite file. Of several servers
    of PostgreSQL, a URL that wants the one that takes writes means the primary: the driver would take none for that.
    """
    scheme, _, rest = resolve_url(url).partition("://")
    if scheme not in SQL_SCHEMES:
        return url
    place, _, options = rest.partition("?")
    parameters = parse_qsl(options)
    if scheme.startswith("sqlite"):
        path = place.removeprefix("/")
        # SQLAlchemy unquotes every path once, and SQLite unquotes its URI form once more.
        file = path if path.startswith("file:") else f"file:{quote(quote(unquote(path)))}"
        parameters = [parameter for parameter in parameters if parameter[0] not in ("mode", "uri")]
        return f"{scheme}:///{file}?{urlencode([*parameters, ('mode', 'ro'), ('uri', 'true')])}"
    more = " ".join([*(value for name, value in parameters if name == "options"), READ_ONLY])
    parameters = [parameter for parameter in parameters if parameter[0] != "options"]
    parameters = [("target_session_attrs", "primary") if one == _TAKES_WRITES else one for one in parameters]
    return f"{scheme}://{place}?{urlencode([*parameters, ('options', more)], quote_via=quote)}"


_TAKES_WRITES = ("target_session_attrs", "read-write")


def with_hosts_apart(url: str) -> str:
    """Return a URL of several servers of PostgreSQL, as `postgresql://a:5432,b:5432/name`, in the form of SQLAlchemy.

    Other URLs are returned unchanged.
    """
    parts = re.fullmatch(r"(?s)(postgresql[^:]*://)([^/?]*@)?([^/?]*,[^/?]*)(/[^?]*)?(?:\?(.*))?", url)
    if parts is None:
        return url
    scheme, user, places, path, options = parts.groups(default="")
    hosts, ports = [], []
    for place in places.split(","):
        host, _, port = place.rpartition(":") if re.search(r":\d*$", place) else (place, "", "")
        hosts.append(host)
        ports.append(port)
    more = f"host={','.join(hosts)}" + (f"&port={','.join(ports)}" if any(ports) else "")
    return f"{scheme}{user}{path}?{'&'.join(filter(None, (more, options)))}"


def shown_url(url: str) -> str:
    """Return the URL of an opened store, for messages: without its password, and without what `read_only` adds."""
    place, _, options = url.partition("?")
    parameters = parse_qsl(options)
    if place.startswith("sqlite") and ("mode", "ro") in parameters:
        own_parameters = [parameter for parameter in parameters if parameter[0] not in ("mode", "uri", "immutable")]
        scheme, _, file = place.partition("file:")
        place = f"{scheme}{unquote(unquote(file))}"
    else:
        own_parameters = [
            (name, value.removesuffix(READ_ONLY).strip()) for name, value in parameters if value != READ_ONLY
        ]
    if own_parameters == parameters:
        return redact(url)
    return redact(f"{place}?{urlencode(own_parameters, quote_via=quote)}" if own_parameters else place)


def open_store(url: str) -> SessionStore:
    """Return a store for the URL. Imports its driver, so call it off the event loop. It connects at first use.

    A scheme that turnwise does not have is looked up among other packages' stores: see `memory/stores/plugins`.

    Raises:
        StoreURLError: the URL's scheme is not known, its driver is not installed, or another package's store fails.
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
        with importing("sqlalchemy"):
            from turnwise.memory.stores.sql.store import SQLStore  # takes 0.15 s, so only processes that need it

        return SQLStore(url)
    from turnwise.memory.stores.plugins import open_registered

    return open_registered(url)


def resolve_own_url(url: str) -> str:
    """Return the resolved URL of one of turnwise's own stores.

    Raises:
        StoreURLError: the scheme belongs to another package's store, or is not known.
    """
    url = resolve_url(url)
    if url.partition("://")[0] not in _OWN_SCHEMES:
        raise StoreURLError(redact(url), "another package's store keeps sessions only")
    return url


def resolve_non_redis_url(url: str, contents: str) -> str:
    """Return the resolved URL of one of turnwise's own stores, for what Redis does not keep.

    Args:
        contents: what is kept at the URL, for the error.

    Raises:
        StoreURLError: the scheme belongs to another package's store, or is not known.
        ConfigError: the URL names a Redis.
    """
    url = resolve_own_url(url)
    if url.partition("://")[0] in REDIS_SCHEMES:
        reason = f"Redis keeps sessions and memory items only: use sqlite:/// or postgresql:// for {contents}"
        raise ConfigError("store", redact(url), reason)
    return url


def _is_foreign(scheme: str) -> bool:
    from turnwise.memory.stores.plugins import is_registered

    return is_registered(scheme)
