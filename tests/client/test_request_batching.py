"""Requests of one moment in one Ray call, with an actor that answers, breaks off and dies as a seed says: no Ray."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from scale import share
from turnwise.actors.cluster.calls.request_batching import MOST, MOST_BYTES, RequestBatcher
from turnwise.testing.schedules import explore

Answers = list[tuple[int, bytes]]


class Actor:
    """Answers with the request turned round; `call` and `calls` stand for their methods."""

    def __init__(self, dice: random.Random | None = None, *, breaks: float = 0.0, is_dead: bool = False) -> None:
        self.dice = dice
        self.breaks = breaks
        self.is_dead = is_dead
        self.alone: list[bytes] = []
        self.together: list[int] = []
        self.call = Method(self._call)
        self.calls = Method(self._calls)

    async def _call(self, request: bytes) -> bytes:
        self.alone.append(request)
        if self.dice:
            await asyncio.sleep(self.dice.random())
        if self.is_dead:
            raise ActorDiedError
        return request[::-1]

    async def _calls(self, requests: Sequence[bytes]) -> AsyncIterator[Awaitable[Answers]]:
        self.together.append(len(requests))
        unanswered = list(enumerate(requests))
        while unanswered:
            if self.dice:
                await asyncio.sleep(self.dice.random())
                self.dice.shuffle(unanswered)
            count = self.dice.randint(1, len(unanswered)) if self.dice else len(unanswered)
            ready, unanswered = unanswered[:count], unanswered[count:]
            if self.is_dead or (self.dice and self.dice.random() < self.breaks):
                yield _raise(ActorUnavailableError("it has gone", None))
            yield _give([(place, request[::-1]) for place, request in ready])


class Method:
    def __init__(self, work: Any) -> None:
        self.remote = work

    def options(self, **options: Any) -> Method:
        assert options == {"num_returns": "streaming", "max_task_retries": 0}
        return self


async def _raise(error: Exception) -> Answers:
    raise error


async def _give(answers: Answers) -> Answers:
    return answers


def play(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_each_caller_gets_its_own_answer_under_faults_and_cancellations() -> None:
    async def life(seed: int) -> None:
        dice = random.Random(seed)
        actor = Actor(dice, breaks=0.2)
        bundler = RequestBatcher(actor)
        requests = [f"{number}-{dice.random()}".encode() for number in range(150)]

        async def ask(request: bytes) -> None:
            await asyncio.sleep(dice.choice((0.0, 0.0, 1.0)))
            patience_s = dice.choice((None, None, 0.3))
            try:
                assert await asyncio.wait_for(bundler.ask(request), patience_s) == request[::-1]
            except TimeoutError:
                assert patience_s

        await asyncio.gather(*map(ask, requests))
        assert len(actor.together) >= 3 and max(actor.together) <= MOST
        await asyncio.sleep(10)
        assert not bundler._tasks and not bundler._waiting  # noqa: SLF001 - what a long life would gather

    assert explore(share(100, 4), life) == share(100, 4)


async def test_simultaneous_requests_are_sent_together_and_a_single_one_as_a_call() -> None:
    actor = Actor()
    bundler = RequestBatcher.of(actor)
    assert RequestBatcher.of(actor) is bundler
    assert await bundler.ask(b"one") == b"eno"
    assert (actor.alone, actor.together) == ([b"one"], [])
    await asyncio.gather(*(bundler.ask(b"%d" % number) for number in range(MOST + 6)))
    assert (actor.alone, actor.together) == ([b"one"], [MOST, 6])
    large = bytes(MOST_BYTES // 2)
    await asyncio.gather(*(bundler.ask(large) for _ in range(5)))
    assert (actor.alone, actor.together) == ([b"one", large], [MOST, 6, 2, 2])


async def test_each_request_of_a_batch_gets_the_error_of_a_dead_actor() -> None:
    actor = Actor(is_dead=True)
    bundler = RequestBatcher(actor)
    answers = await asyncio.gather(*(bundler.ask(b"%d" % number) for number in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ActorDiedError] * 5
    assert actor.together == [5] and len(actor.alone) == 5
    with pytest.raises(ActorDiedError):
        await bundler.ask(b"again")


async def test_what_cannot_be_sent_is_told_to_all_who_asked() -> None:
    actor = Actor()
    actor.calls = Method(_refuse)
    bundler = RequestBatcher(actor)
    answers = await asyncio.gather(*(bundler.ask(b"%d" % number) for number in range(5)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["it cannot be sent"] * 5
    assert await bundler.ask(b"one") == b"eno"


def _refuse(requests: Sequence[bytes]) -> None:
    raise ValueError("it cannot be sent")
