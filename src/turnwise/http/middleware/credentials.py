"""`Credentials`: answers 401 before a request is read any further."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from turnwise.http.auth import Auth, Identity, identity_of
from turnwise.http.openai import errors
from turnwise.http.problems import unauthorized_response

_IDENTITY = "turnwise.identity"
"""The key of a connection's scope under which is who makes the request."""


def asked_once(auth: Auth) -> Auth:
    """Return an `Auth` that asks `auth` once for each request, and keeps the answer in the request's scope."""

    async def remembered(connection: HTTPConnection) -> Identity | None:
        if _IDENTITY not in connection.scope:
            connection.scope[_IDENTITY] = await identity_of(auth, connection)
        identity: Identity | None = connection.scope[_IDENTITY]
        return identity

    return remembered


class Credentials:
    """An ASGI middleware that lets a request to the API in only if `auth` knows its user.

    The body of a request without a known user is never parsed. If `auth` raises, the request passes: its route asks
    again, and turns the error into an answer.

    Args:
        auth: made by `asked_once`, since the route asks it too.
    """

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if path.startswith(("/v1/", "/openai/v1/")) and not await self._is_known(scope):
            wrong = "Incorrect API key provided: send a valid token."
            native = path.startswith("/v1/")
            refusal = unauthorized_response() if native else errors.answer(401, wrong, code="invalid_api_key")
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _is_known(self, scope: Scope) -> bool:
        try:
            return await identity_of(self._auth, HTTPConnection(scope)) is not None
        except Exception:  # noqa: BLE001 - the route answers each
            return True
