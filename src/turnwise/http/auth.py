"""Whose request it is: `Auth`, and `BearerTokens`, which reads tokens from a mapping, a file or the environment.

The user of a request comes from here and never from its body, so no client can act as another user. Operators may: they
name the user by a header, see `service.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator
from starlette.requests import HTTPConnection

from turnwise.errors import ConfigError, TurnwiseError, shown
from turnwise.memory.quotas.tenants import check_tenant
from turnwise.memory.values.checked_settings import checked_settings
from turnwise.memory.values.ids import check_id


def _tenant(value: object) -> str | None:
    return None if value is None else check_tenant(value)


@dataclass(frozen=True)
@checked_settings()
class Identity:
    """Who makes a request.

    Raises:
        InvalidIdError: the user's id or the tenant cannot be one.
    """

    user_id: Annotated[str, PlainValidator(partial(check_id, "user id"))]
    """Of a request without a user, `Auth` returns None, and no identity."""
    is_operator: bool = False
    """An operator's console shows all users' sessions. In the API, an operator has the webhooks, quotas, spending and
    tenants of all users, and may act in the place of any user: see `X-Turnwise-User` in the page about HTTP."""
    tenant: Annotated[str | None, PlainValidator(_tenant)] = None
    """If given, the service gives the user this tenant: see `AsyncSessionManager.set_tenant`. It does so at the user's
    first request in each of its processes, and whenever another tenant is named."""


Auth = Callable[[HTTPConnection], "Identity | str | Awaitable[Identity | str | None] | None"]
"""Returns who makes a request: an `Identity`, a user's id, or None if the request is to be answered with 401.

It may be a coroutine function. It is called once for each request; for an open page of the console, with each thing
that is done there and every few seconds, so that a login that is not valid any more ends the page.
"""


async def identity_of(auth: Auth, connection: HTTPConnection) -> Identity | None:
    """Ask `auth` who makes a request; None if it does not know."""
    identity = auth(connection)
    if inspect.isawaitable(identity):
        identity = await identity
    return Identity(identity) if isinstance(identity, str) else identity


def bearer_token(authorization: str) -> str | None:
    """Return the token in the header `Authorization`; None if it has another scheme. Schemes are in any case."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class BearerTokens:
    """An `Auth` by tokens: `Authorization: Bearer <token>`. Keeps the tokens' digests only. Thread-safe.

    Args:
        users: the user of each token: an id, or an `Identity`.

    Raises:
        ConfigError: there is no token, or one that is shorter than 16 characters or has characters that a header
            cannot carry; the error does not quote it.
    """

    def __init__(self, users: Mapping[str, str | Identity], *, _file: _WatchedFile | None = None) -> None:
        self._users = _by_digest(users)
        self._file = _file

    @classmethod
    def from_file(cls, path: str | Path) -> BearerTokens:
        """Read a JSON object of tokens; a value is a user's id, or `{"user": "ann", "tenant": "acme"}`.

        An operator's has `"operator": true`. If the file changes, it is read again within a second of the next request.
        While it then cannot be read, or holds something else, the tokens stay as they were, and the log has an error.

        Raises:
            ConfigError: the file cannot be read, or holds something else.
        """
        file = _WatchedFile(Path(path))
        return cls(_users_in(file.read(), str(path)), _file=file)

    @classmethod
    def from_environment(cls, name: str = "TURNWISE_HTTP_TOKENS") -> BearerTokens:
        """Read the JSON object of `from_file` from an environment variable.

        Raises:
            ConfigError: the variable is not set, or holds something else.
        """
        if name not in os.environ:
            raise ConfigError("tokens", shown(name), "the environment variable is not set")
        return cls(_users_in(os.environ[name], name))

    def __call__(self, connection: HTTPConnection) -> Identity | None:
        token = bearer_token(connection.headers.get("authorization", ""))
        return None if token is None else self.find(token)

    def find(self, token: str) -> Identity | None:
        """Return whose token this is. Takes as long for any wrong one."""
        self._read_again()
        digest, identity = _digest(token), None
        for stored_digest, user in self._users.items():
            if hmac.compare_digest(stored_digest, digest):
                identity = user
        return identity

    def _read_again(self) -> None:
        """Take the tokens of the file, if it was changed."""
        if self._file is None or not self._file.has_changed():
            return
        try:
            self._users = _by_digest(_users_in(self._file.read(), str(self._file.path)))
        except TurnwiseError:
            _log.exception("The tokens stay as they were, since %s is no file of tokens any more", self._file.path)


def _by_digest(users: Mapping[str, str | Identity]) -> dict[bytes, Identity]:
    """Return the users by the digests of their tokens. Refuse tokens that cannot be used."""
    if not users:
        raise ConfigError("tokens", "{}", "there is no token, so nobody could use the service: give one, or no auth")
    for token, user in users.items():
        name = user if isinstance(user, str) else user.user_id
        if not (isinstance(token, str) and len(token) >= _SHORTEST and token.isascii() and token.isprintable()):
            raise ConfigError("tokens", shown(name), f"its token needs {_SHORTEST} or more printable ASCII characters")
        if " " in token or not name:
            raise ConfigError("tokens", shown(name), "a token has no spaces, and its user has a name")
    users_by_digest = {_digest(token): user for token, user in users.items()}
    return {key: Identity(user) if isinstance(user, str) else user for key, user in users_by_digest.items()}


def _users_in(text: str, source: str) -> dict[str, str | Identity]:
    """Return the users of a JSON object of tokens; see `BearerTokens.from_file`."""
    form = 'it must hold a JSON object such as {"a-secret-token": "ann", "another-token": {"user": "bob"}}'
    try:
        entries = json.loads(text)
    except ValueError:
        raise ConfigError("tokens", shown(source), form) from None
    if not isinstance(entries, dict):
        raise ConfigError("tokens", shown(source), form)
    users: dict[str, str | Identity] = {}
    for token, user in entries.items():
        match user:
            case str():
                users[token] = user
            case {"user": str(name), **options} if _are_options(options):
                tenant: Any = options.get("tenant")
                users[token] = Identity(name, bool(options.get("operator", False)), tenant)
            case _:
                raise ConfigError("tokens", shown(source), form)
    return users


class _WatchedFile:
    """A file that is looked at once a second, at most."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] = ()
        """What the file's status was when it was read, or could not be."""
        self._looks_again_at = 0.0

    def has_changed(self) -> bool:
        """Return whether the file is another one than when it was read; False within a second of the last look."""
        if (now := time.monotonic()) < self._looks_again_at:
            return False
        self._looks_again_at = now + _LOOK_S
        return self._status() != self._seen

    def read(self) -> str:
        """Return the file's text.

        Raises:
            ConfigError: it cannot be read.
        """
        self._seen = self._status()  # first, so that a change meanwhile is seen later
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError("tokens", shown(str(self.path)), f"the file cannot be read: {reason}") from None

    def _status(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino


_log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often a file of tokens is looked at, at most."""

_SHORTEST = 16


def _are_options(entry: Mapping[Any, object]) -> bool:
    """Return whether an entry has, besides the user, what `BearerTokens.from_file` takes."""
    tenant, operator = entry.get("tenant"), entry.get("operator", False)
    return set(entry) <= {"operator", "tenant"} and (tenant is None or isinstance(tenant, str)) and operator in (0, 1)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
