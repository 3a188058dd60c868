"""`Answers`: what this process answered a short while ago to requests that change something.

A client that has lost an answer repeats its request, with the same id, and gets the first answer: the request is
carried out once. A repeated request that arrives while the first is under way waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from starlette.responses import Response

from turnwise.errors import TurnwiseError
from turnwise.http.problems import RequestUnknown

HELD_S = 180.0
"""For how long an answer is remembered. Clients repeat requests for a minute by default."""

MAX_ANSWERS, MAX_BYTES = 10_000, 16 * 2**20
"""How many answers, and how many bytes of them, are remembered at most; the oldest are dropped first."""


@dataclass(frozen=True)
class RequestName:
    """Names a request. The user is part of it, so nobody gets the answer to the request of another user."""

    user_id: str
    owner: str | None
    request_id: str
    method: str
    path: str


@dataclass(frozen=True)
class _Answer:
    """What a request was answered with: a response, or an error of turnwise."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    error: TurnwiseError | None
    at: float

    @classmethod
    def of(cls, response: Response) -> Self:
        return cls(response.status_code, list(response.raw_headers), bytes(response.body), None, time.monotonic())

    @classmethod
    def failed(cls, error: TurnwiseError) -> Self:
        return cls(0, [], b"", error, time.monotonic())

    def response(self) -> Response:
        """Return the response, or raise the error."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        response = Response(self.body, self.status)
        response.raw_headers = list(self.headers)
        return response


class Answers:
    """The answers to requests that changed something, which this process gave a short while ago."""

    def __init__(self) -> None:
        self._under_way: dict[RequestName, asyncio.Future[_Answer | None]] = {}
        self._answers: OrderedDict[RequestName, _Answer] = OrderedDict()
        self._bytes = 0

    async def once(
        self, name: RequestName, work: Callable[[], Awaitable[Response]], *, refuses_unknown: bool
    ) -> Response:
        """Carry out a request unless it is known; return its answer, or raise its error, as it was the first time.

        Args:
            refuses_unknown: whether a request that is not known is refused.

        Raises:
            RequestUnknown: it is refused, or its first answer cannot be given twice.
        """
        self._drop_old()
        while (under_way := self._under_way.get(name)) is not None:
            answer = await asyncio.shield(under_way)
            if answer is not None:
                return answer.response()
            if refuses_unknown:
                raise RequestUnknown(name.request_id)
        if (held := self._answers.get(name)) is not None:
            return held.response()
        if refuses_unknown:
            raise RequestUnknown(name.request_id)
        return await self._carry_out(name, work)

    async def _carry_out(self, name: RequestName, work: Callable[[], Awaitable[Response]]) -> Response:
        end: asyncio.Future[_Answer | None] = asyncio.get_running_loop().create_future()
        self._under_way[name] = end
        answer: _Answer | None = None
        try:
            response = await work()
            # A stream has no body yet, so its answer cannot be given twice.
            answer = _Answer.of(response) if hasattr(response, "body") else None
            return response
        except TurnwiseError as error:
            answer = _Answer.failed(error)
            raise
        finally:
            del self._under_way[name]
            end.set_result(answer)
            if answer is not None:
                self._answers[name] = answer
                self._bytes += len(answer.body)
                self._drop_old()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - HELD_S
        while self._answers:
            name, answer = next(iter(self._answers.items()))
            if len(self._answers) <= MAX_ANSWERS and self._bytes <= MAX_BYTES and answer.at >= oldest:
                return
            del self._answers[name]
            self._bytes -= len(answer.body)
