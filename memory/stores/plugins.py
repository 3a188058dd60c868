"""Stores of other packages, found by the scheme of their URLs.

A package registers a store as an entry point of the group `turnwise.stores`. The entry point's name is the scheme, its
value a callable that takes the URL and returns a `SessionStore`. Install the package on all nodes that run sessions.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from turnwise.errors import StoreURLError, TurnwiseError
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.urls import redact

GROUP = "turnwise.stores"


def is_registered(scheme: str) -> bool:
    """Return whether an installed package has a store for the scheme. Slow: scans the installed packages."""
    return bool(entry_points(group=GROUP, name=scheme))


def open_registered(url: str) -> SessionStore:
    """Import the package that registers the URL's scheme, and return the store that it makes for the URL.

    Raises:
        StoreURLError: two packages have the scheme, or the store cannot be imported, raises, or is not a SessionStore.
        TurnwiseError: raised by the package itself.
    """
    registered = entry_points(group=GROUP, name=url.partition("://")[0])
    # A package that is installed twice counts once.
    entries = list({entry.value: entry for entry in registered}.values())
    owner = " and ".join(map(_description, entries))
    if len(entries) != 1:
        raise StoreURLError(
            redact(url), f"one installed package must have its scheme, and it belongs to {owner or 'none'}"
        )
    try:
        make = entries[0].load()
    except Exception as error:
        raise StoreURLError(redact(url), f"{owner} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        store = make(url)
    except TurnwiseError:
        raise
    except Exception as error:  # its message may have the password, so only the cause has it
        raise StoreURLError(redact(url), f"{owner} raised {type(error).__name__}") from error
    if not isinstance(store, SessionStore):
        missing = sorted(name for name in _VERBS if not hasattr(store, name))
        reason = (
            f"{owner} returned a {type(store).__name__}, which is not a SessionStore: it lacks {', '.join(missing)}"
        )
        raise StoreURLError(redact(url), reason)
    return store


_VERBS = [name for name, value in vars(SessionStore).items() if callable(value) and not name.startswith("_")]


def _description(entry: EntryPoint) -> str:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
    return f"the store {entry.value!r} of the distribution {distribution}"
