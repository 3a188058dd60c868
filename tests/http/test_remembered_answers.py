"""A request with an id is carried out once, whenever its repetition arrives."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response, StreamingResponse

from turnwise.errors import StoreError
from turnwise.http.problems import RequestUnknown
from turnwise.http.remembered_answers import Answers, RequestName

NAME = RequestName("ann", None, "1", "POST", "/v1/sessions")


class Work:
    """Counts how often it is carried out, and ends when it may."""

    def __init__(self, outcome: Response | Exception) -> None:
        self.may_end = asyncio.Event()
        self.count = 0
        self._outcome = outcome

    async def __call__(self) -> Response:
        self.count += 1
        await self.may_end.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


async def started(answers: Answers, work: Work) -> asyncio.Task[Response]:
    """Begin a request; return when it is under way."""
    first = asyncio.create_task(answers.once(NAME, work, refuses_unknown=False))
    while not work.count:
        await asyncio.sleep(0)
    return first


async def test_a_repeated_request_waits_for_the_first() -> None:
    answers, work = Answers(), Work(Response(b"done", 201, {"Location": "/v1/sessions/a"}))
    first = await started(answers, work)
    others = [asyncio.create_task(answers.once(NAME, work, refuses_unknown=is_strict)) for is_strict in (True, False)]
    await asyncio.sleep(0)
    work.may_end.set()
    later = await answers.once(NAME, work, refuses_unknown=True)
    responses = [later, await first, *await asyncio.gather(*others)]
    assert {(response.status_code, bytes(response.body)) for response in responses} == {(201, b"done")}
    assert {response.headers["Location"] for response in responses} == {"/v1/sessions/a"} and work.count == 1


async def test_an_error_of_turnwise_is_raised_again() -> None:
    answers, work = Answers(), Work(StoreError("the store is away"))
    work.may_end.set()
    for _ in range(2):
        with pytest.raises(StoreError):
            await answers.once(NAME, work, refuses_unknown=False)
    assert work.count == 1


@pytest.mark.parametrize("outcome", [StreamingResponse(iter(())), ValueError("a fault of the service")])
async def test_what_cannot_be_answered_twice_is_not_known(outcome: Response | Exception) -> None:
    answers, work = Answers(), Work(outcome)
    first = await started(answers, work)
    waiting = asyncio.create_task(answers.once(NAME, work, refuses_unknown=True))
    await asyncio.sleep(0)
    work.may_end.set()
    await asyncio.gather(first, return_exceptions=True)
    with pytest.raises(RequestUnknown):
        await waiting
    with pytest.raises(RequestUnknown):
        await answers.once(NAME, work, refuses_unknown=True)
    assert work.count == 1


async def test_a_request_that_was_abandoned_is_carried_out_again() -> None:
    answers, work = Answers(), Work(Response(b"done"))
    first = await started(answers, work)
    waiting = asyncio.create_task(answers.once(NAME, work, refuses_unknown=False))
    await asyncio.sleep(0)
    first.cancel()
    work.may_end.set()
    assert bytes((await waiting).body) == b"done" and work.count == 2
