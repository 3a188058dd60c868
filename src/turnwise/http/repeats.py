"""Routes whose requests a client may repeat when their answer was lost: see `Answers`.

The client names a request by an id of its own. Another process of the service does not know it: the client says whether
the request is carried out there, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from turnwise.errors import InvalidInputError, shown
from turnwise.http.remembered_answers import RequestName
from turnwise.http.service import caller_of

REQUEST_ID = "X-Turnwise-Request"
"""The header by which a client names a request, so that it can repeat it."""

IF_UNKNOWN = "X-Turnwise-If-Unknown"
"""The header of a repeated request: `refuse` if it is not to be carried out where its id is not known."""

MAX_ID_CHARS = 256


class RepeatableRoute(APIRoute):
    """A route whose requests may have an id: see `Answers`. Requests that read are answered anew."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer_anew = super().get_route_handler()
        if self.methods == {"GET"}:
            return answer_anew

        async def answer(request: Request) -> Response:
            request_id = request.headers.get(REQUEST_ID)
            if request_id is None:
                return await answer_anew(request)
            if not 0 < len(request_id) <= MAX_ID_CHARS:
                raise InvalidInputError(REQUEST_ID, shown(request_id), f"must have 1 to {MAX_ID_CHARS} characters")
            caller = await caller_of(request)
            target = f"{request.url.path}?{request.url.query}"
            name = RequestName(caller.user_id, request.query_params.get("owner"), request_id, request.method, target)
            refuses_unknown = request.headers.get(IF_UNKNOWN) == "refuse"
            return await caller.service.answers.once(
                name, lambda: answer_anew(request), refuses_unknown=refuses_unknown
            )

        return answer
