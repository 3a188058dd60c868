"""Errors as problem details (RFC 9457): the error's class, its ids, and what to do.

A client finds the class in `error`, each of the error's fields beside it, and the message, which names the remedy, in
`detail`. Another user's session or run is answered as one that does not exist.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from turnwise.errors import (
    CorruptRecordError,
    EncryptionError,
    EngineError,
    FrameworkError,
    IdempotencyConflictError,
    InvalidInputError,
    InvalidRequestError,
    LongTermMemoryError,
    MemoryOverheardError,
    NotAllowedError,
    NotFoundError,
    OperatorsOnlyError,
    OverloadedError,
    QuotaExceededError,
    ReadOnlyMemoryError,
    ReadOnlyStoreError,
    RunNotFoundError,
    ServiceAwayError,
    ServiceError,
    SessionLostError,
    SessionNotFoundError,
    SessionOwnerError,
    SessionRevertedError,
    StoreError,
    TurnwiseError,
    UnknownVerbError,
    WaitTimeoutError,
    WebhookChangedError,
    WireVersionError,
    shown,
)
from turnwise.http.native.models import name_of

STATUS: Mapping[type[TurnwiseError], int] = {
    InvalidInputError: 422,
    NotFoundError: 404,
    SessionOwnerError: 404,
    IdempotencyConflictError: 422,
    OverloadedError: 429,
    QuotaExceededError: 429,
    OperatorsOnlyError: 403,
    NotAllowedError: 403,
    MemoryOverheardError: 403,
    ReadOnlyStoreError: 403,
    ReadOnlyMemoryError: 403,
    InvalidRequestError: 422,
    EngineError: 502,
    FrameworkError: 500,
    CorruptRecordError: 500,
    EncryptionError: 500,
    SessionRevertedError: 409,
    WebhookChangedError: 409,
    StoreError: 503,
    SessionLostError: 503,
    ServiceError: 502,
    ServiceAwayError: 503,
    UnknownVerbError: 500,
    WireVersionError: 503,
    LongTermMemoryError: 503,
    WaitTimeoutError: 504,
    TurnwiseError: 409,
}
"""The status of each error: that of its nearest base class in this table. All others are 409: a state forbids them."""

RETRY_AFTER_S = "1"
"""When a client may try again after 429 and 503, in seconds, unless the error says it."""

_log = logging.getLogger(__name__)


class Unauthorized(Exception):  # noqa: N818 - an answer, not an error of turnwise
    """The request has no valid credentials."""


class TooManyStreams(Exception):  # noqa: N818 - an answer, not an error of turnwise
    """As many streams are open as may be."""

    def __init__(self, which: str) -> None:
        super().__init__(f"{which} are open, and no more may be: close one, or wait until one ends")


class RequestUnknown(Exception):  # noqa: N818 - an answer, not an error of turnwise
    """A repeated request is refused, since this process does not know its answer."""

    def __init__(self, request_id: str) -> None:
        remedy = "it may have been carried out elsewhere: look at what it was to change before you send it anew"
        super().__init__(f"this process does not know request {shown(request_id)}; {remedy}")


_WORDS = {
    416: "range_not_satisfiable",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}
_WORDS |= {416: "range_not_satisfiable"}
_WORDS |= {415: "unsupported_media_type", 422: "invalid_request", 429: "too_many_requests", 503: "unavailable"}


_REMEDIES: Mapping[type[TurnwiseError], tuple[str, str]] = {
    SessionNotFoundError: ("open() creates one", "POST /v1/sessions creates one"),
    RunNotFoundError: ("runs() lists those there are", "GET /v1/runs lists them"),
}
"""The remedies at the end of messages that name a method of Python, and what HTTP says in their place."""


def word_of(status: int) -> str:
    """Return the `error` of a problem that is no error of turnwise, by its status."""
    return _WORDS.get(status, "bad_request" if status < 500 else "internal")  # noqa: PLR2004 - the server's fault


def status_of(error: TurnwiseError) -> int:
    """Return the HTTP status for an error."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def retry_after(error: TurnwiseError) -> dict[str, str]:
    """Return the header that says when to try again, where the error knows that: after a quota begins anew."""
    return {"Retry-After": str(math.ceil(error.retry_after_s))} if isinstance(error, QuotaExceededError) else {}


def problem(status: int, title: str, detail: str, **fields: Any) -> dict[str, Any]:
    """Return a problem as its members: `type`, `title`, `status` and `detail`, and others beside them."""
    kind = fields.get("error")
    return {"type": f"urn:turnwise:{kind}" if kind else "about:blank", "title": title, "status": status} | {
        "detail": detail,
        **fields,
    }


def problem_of(error: TurnwiseError, *, of_service: bool = True) -> dict[str, Any]:
    """Return an error as a problem, with its fields that JSON has as members: clients make the error of them.

    Args:
        of_service: whether remedies name routes of the service; an app of one's own may not have them.
    """
    status = status_of(error)
    fields = {name: getattr(error, name) for name in error.fields}
    plain = {name: value for name, value in fields.items() if _is_plain(value)}
    title = name_of(error).replace("_", " ").capitalize()
    remedy, http_remedy = _REMEDIES.get(type(error), ("", "")) if of_service else ("", "")
    detail = str(error).removesuffix(remedy) + http_remedy
    # The members that every problem has win over fields with the same names.
    return plain | problem(status, title, detail, error=name_of(error))


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(member) for key, member in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool | None)


_TITLES = {
    401: "The request has no valid token.",
    403: "It is for operators only, the user's role does not allow it, or what would be changed is read-only.",
    404: "There is no such thing, or it is another user's.",
    409: "The state of the session or the run does not allow it.",
    422: "The request is not valid; `errors` or `field` says where.",
    413: "The body is too large.",
    416: "The range is behind the end.",
    429: "A limit is reached: try again later.",
    503: "The store or the session's process cannot be reached: try again later.",
}


MEDIA_TYPE = "application/problem+json"


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems that a route answers with, for its description."""
    return {status: _documented(status, _TITLES[status]) for status in statuses}


def _documented(status: int, description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    answer: dict[str, Any] = {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return answer


BUSY: dict[int | str, dict[str, Any]] = {
    409: _documented(409, "Another run is active: `run_id`; `if_busy` has what can be done.")
}
"""The problem of a route that starts a run, for its description."""

SCHEMA = {
    "title": "Problem",
    "description": "Problem details (RFC 9457). The fields of the error are further members.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "`urn:turnwise:` and the error, or about:blank."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, to which ids, and what to do."},
        "error": {"type": "string", "description": "The error, as a word for programs."},
    },
    "required": ["type", "title", "status", "detail", "error"],
    "additionalProperties": True,
    "examples": [
        {
            "type": "urn:turnwise:session_not_found",
            "title": "Session not found",
            "status": 404,
            "detail": "no session 'chat-1': POST /v1/sessions creates one",
            "error": "session_not_found",
            "session_id": "chat-1",
        }
    ],
}
"""The schema of all problems."""


def answer(body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem as a response."""
    retry = {"Retry-After": RETRY_AFTER_S} if body["status"] in (429, 503) else {}
    text = json.dumps(body, separators=(",", ":"))  # in ASCII, since what it quotes may have lone surrogates
    return Response(text, body["status"], {**retry, **(headers or {})}, MEDIA_TYPE)


def unauthorized_response() -> Response:
    """Return the answer to a request without valid credentials."""
    body = problem(401, "Unauthorized", "send a valid token: 'Authorization: Bearer <token>'", error="unauthorized")
    return answer(body, {"WWW-Authenticate": "Bearer"})


def answer_errors(app: FastAPI) -> None:
    """Answer turnwise's errors that leave the routes of an app, as the service does: with their status, as problems.

    A problem is JSON of the type `application/problem+json` (RFC 9457). What may be tried again later has the header
    `Retry-After`. Remedies in `detail` name methods of Python, since the app's routes are its own. Errors of the
    server, whose status is 500 or higher, are logged.
    """
    _answer_errors(app, of_service=False)


def _answer_errors(app: FastAPI, *, of_service: bool) -> None:
    @app.exception_handler(TurnwiseError)
    async def turnwise_error(request: Request, error: TurnwiseError) -> Response:
        if status_of(error) >= 500:  # noqa: PLR2004 - the server's fault
            _log.error("%s %s: %s", request.method, shown(request.url.path), error)
        return answer(problem_of(error, of_service=of_service), retry_after(error))


def install(app: FastAPI) -> None:
    """Answer all errors of the app's native routes with problems."""
    _answer_errors(app, of_service=True)

    @app.exception_handler(Unauthorized)
    async def unauthorized(request: Request, error: Unauthorized) -> Response:
        return unauthorized_response()

    @app.exception_handler(TooManyStreams)
    async def too_many(request: Request, error: TooManyStreams) -> Response:
        return answer(problem(429, "Too many streams", str(error), error="too_many_streams"))

    @app.exception_handler(RequestUnknown)
    async def unknown(request: Request, error: RequestUnknown) -> Response:
        return answer(problem(409, "Request unknown", str(error), error="request_unknown"))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = [{"at": list(map(str, e["loc"])), "why": e["msg"]} for e in error.errors()]
        first = errors[0] if errors else {"at": [], "why": "it cannot be read"}
        detail = f"{'.'.join(first['at'])}: {first['why']}"
        return answer(problem(422, "Invalid request", detail, error="invalid_request", errors=errors))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        word, detail = word_of(error.status_code), str(error.detail)
        return answer(problem(error.status_code, detail, detail, error=word), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, shown(request.url.path), exc_info=error)
        return answer(problem(500, "Internal error", "the service's log has the cause", error="internal"))
