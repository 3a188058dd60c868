"""What a client is told when an actor does not answer: no cluster, and calls that fail as the test says."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from turnwise.actors.cluster.calls import local_calls
from turnwise.actors.cluster.calls.actor_process import ActorProcess
from turnwise.actors.hosting.reach import NoProcessError, Reach
from turnwise.actors.hosting.runtime import AwayError, CallError


class Call:
    """The method of an actor, whose calls all fail; notes how often Ray would repeat each, if that is limited."""

    def __init__(self, error: Exception, repeats: list[int | None], most: int | None = None) -> None:
        self.error = error
        self.repeats = repeats
        self.most = most

    def options(self, *, max_task_retries: int) -> Call:
        return Call(self.error, self.repeats, max_task_retries)

    def remote(self, request: bytes) -> Call:
        self.repeats.append(self.most)
        return self

    def future(self) -> Future[bytes]:
        future = Future[bytes]()
        future.set_exception(self.error)
        return future


@pytest.fixture(autouse=True)
def failing_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(*call: Any) -> None: ...

    def fail(call: Call, timeout: float) -> bytes:
        raise call.error

    monkeypatch.setattr(local_calls, "ask", nobody)
    monkeypatch.setattr(local_calls, "ask_blocking", lambda *_: None)
    monkeypatch.setattr(ray, "get", fail)


async def error_of(error: Exception, *, is_repeatable: bool = True) -> Exception:
    """Return what both ways of asking raise when the actor's call fails."""
    errors: list[Exception] = []
    call = Call(error, [])
    process = ActorProcess(SimpleNamespace(call=call), is_shared=False)
    for ask in (process.ask, process.ask_blocking):
        try:
            answer: Any = ask(b"", Reach(time.monotonic(), until=0.0), is_repeatable=is_repeatable)
            await answer
        except Exception as raised:  # noqa: BLE001 - it is what the test looks at
            errors.append(raised)
    first, second = errors
    assert (type(first), str(first), first.__cause__) == (type(second), str(second), error)
    assert call.repeats == [None if is_repeatable else 0] * 2
    return first


@pytest.mark.parametrize("is_repeatable", [True, False])
@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RayActorError(error_msg="The actor died."), AwayError, "The actor died."),
        (RayActorError(actor_init_failed=True), CallError, "cannot start: install this turnwise"),
        (
            RayTaskError("call", "", ValueError("no such verb")),
            CallError,
            r"failed there: ValueError\('no such verb'\)",
        ),
        (NoProcessError("actor a is RESTARTING"), CallError, "actor a is RESTARTING; Ray's logs of this actor say why"),
        (ActorUnschedulableError("no node"), CallError, "no node may run its process: open a manager on the node"),
        (RayError("something else"), CallError, "RayError: something else"),
        (GetTimeoutError("the time is over"), TimeoutError, "the time is over"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_error_of_ray_says_whether_another_process_may_answer(
    error: Exception, kind: type[Exception], reason: str, is_repeatable: bool
) -> None:
    raised = await error_of(error, is_repeatable=is_repeatable)
    assert type(raised) is kind
    with pytest.raises(kind, match=reason):
        raise raised


async def test_an_actor_that_another_actor_failed_is_not_taken_for_dead() -> None:
    """Ray raises one error of both kinds then."""
    within = RayTaskError("call", "", RayActorError(error_msg="another actor died")).as_instanceof_cause()
    assert isinstance(within, RayActorError)
    raised = await error_of(within)
    assert type(raised) is CallError and "failed there" in str(raised)
