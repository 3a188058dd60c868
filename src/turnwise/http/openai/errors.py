"""Errors as OpenAI's API answers them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from turnwise.errors import (
    EmptyTurnError,
    InvalidInputError,
    InvalidPromptError,
    InvalidRequestError,
    QuotaExceededError,
    TurnwiseError,
    shown,
)
from turnwise.http.native.models import name_of
from turnwise.http.problems import RETRY_AFTER_S, TooManyStreams, Unauthorized, retry_after, status_of, word_of

_log = logging.getLogger(__name__)

_SERVER = 500

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's `type` of an error by its status; `invalid_request_error` below 500, else `server_error`."""

_PARAM = re.compile(r"params\['([a-z_]+)'\]")

_PARAMS = {"max_output_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort", "verbosity": "text"}
_PARAMS |= {"response_format": "text.format"}


class OpenAIError(Exception):
    """A refusal, in the words of OpenAI's API.

    Args:
        more: further members of the answer's `error`.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.more = more


def invalid(param: str, message: str, code: str | None = None, **more: Any) -> OpenAIError:
    """Return the refusal of a request because of one of its fields."""
    return OpenAIError(400, message, param=param, code=code, **more)


def check_own(owner: str | None, param: str, remedy: str) -> None:
    """Refuse a request that makes something new and names by `owner` another user, whose sessions it is about.

    Raises:
        OpenAIError: it names one.
    """
    if owner is not None:
        raise invalid(param, f"Nothing new can be made for user {shown(owner)}, whom `owner` names: {remedy}.")


def check_no_key(key: str | None, remedy: str) -> None:
    """Refuse an idempotency key of a request of which nothing is stored: its answer could not be found again."""
    if key is not None:
        reason = f"nothing of this request is stored, so a repeated one would be answered anew: {remedy}"
        raise invalid("Idempotency-Key", f"{reason}, or leave the Idempotency-Key out", "idempotency_not_stored")


def unsupported(param: str, message: str = "this service does not support it: leave it out") -> OpenAIError:
    """Return the refusal of a request with a field or a value that the service does not support."""
    return OpenAIError(400, f"{param}: {message}", param=param, code="unsupported_parameter")


def not_found(kind: str, id: str) -> OpenAIError:
    """Return the answer for something that does not exist, or that is another user's."""
    return OpenAIError(404, f"{kind} with id '{id}' not found.", code="not_found")


def body_of(status: int, message: str, *, param: str | None = None, code: str | None = None, **more: Any) -> Any:
    """Return the body of an answer with an error."""
    kind = _KINDS.get(status, "invalid_request_error" if status < _SERVER else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}


def answer(status: int, message: str, headers: Mapping[str, str] | None = None, **fields: Any) -> JSONResponse:
    """Return an error as an answer."""
    retry = {"Retry-After": RETRY_AFTER_S} if status in (429, 503) else {}
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}  # noqa: PLR2004 - no valid credentials
    return JSONResponse(body_of(status, message, **fields), status, {**retry, **challenge, **(headers or {})})


def answer_of(error: TurnwiseError) -> JSONResponse:
    """Return one of turnwise's errors as an answer."""
    if isinstance(error, QuotaExceededError):
        kind = "tokens" if error.unit == "tokens" else "requests"
        return answer(429, str(error), retry_after(error), code="rate_limit_exceeded", type=kind)
    status = 400 if isinstance(error, InvalidInputError | InvalidRequestError) else status_of(error)
    param = getattr(error, "field", None) if isinstance(error, InvalidInputError) else None
    if param and (match := _PARAM.fullmatch(param)):
        param = _PARAMS.get(match[1], match[1])
    if isinstance(error, EmptyTurnError | InvalidPromptError):
        param = "input"
    return answer(status, str(error), param=param, code=name_of(error))


router = APIRouter(prefix="/openai/v1", include_in_schema=False)
"""Answers what is no address of the API; the last of its routers."""


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def unknown(path: str, request: Request) -> Response:
    """Say that there is no such address, or none that takes this method."""
    return answer(404, f"Invalid URL ({request.method} {request.url.path})", code="unknown_url")


class OpenAIRoute(APIRoute):
    """A route that answers errors as OpenAI's API does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:  # noqa: PLR0911 - a table of errors
            try:
                return await handle(request)
            except OpenAIError as error:
                return answer(error.status, str(error), param=error.param, code=error.code, **error.more)
            except TurnwiseError as error:
                if status_of(error) >= _SERVER:
                    _log.error("%s %s: %s", request.method, shown(request.url.path), error)
                return answer_of(error)
            except RequestValidationError as error:
                return _invalid(error)
            except Unauthorized:
                return answer(401, "Incorrect API key provided: send a valid token.", code="invalid_api_key")
            except TooManyStreams as error:
                return answer(429, str(error), code="too_many_streams")
            except HTTPException as error:
                return answer(error.status_code, str(error.detail), code=word_of(error.status_code))
            except Exception as error:  # noqa: BLE001 - the answer has the form of this API, too
                _log.error("%s %s failed", request.method, shown(request.url.path), exc_info=error)
                return answer(_SERVER, "the service had an error: its log has the cause", code="internal")

        return handler


def _invalid(error: RequestValidationError) -> JSONResponse:
    errors = error.errors()
    first = errors[0] if errors else {"loc": (), "msg": "it cannot be read", "type": "invalid"}
    param = _path(tuple(first["loc"])[1:])
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return answer(400, f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return answer(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    if first["type"] == "json_invalid":
        return answer(400, f"The body is not valid JSON: {reason}.", code="invalid_json")
    return answer(400, f"Invalid value for '{param}': {reason}.", param=param or None, code="invalid_value")


def _path(location: tuple[Any, ...]) -> str:
    """Return the path of a field, such as `input[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
