"""`ActorProcess`: the process of an actor, as clients ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError, RayError, RayTaskError

from turnwise.actors.cluster.calls import actor_waiting, local_calls
from turnwise.actors.cluster.calls.request_batching import RequestBatcher
from turnwise.actors.hosting.reach import NoProcessError, Reach
from turnwise.actors.hosting.runtime import AwayError, CallError


class ActorProcess:
    """A `SessionProcess` that is an actor.

    A request that may be repeated goes over the actor's socket if there is one on this machine, else by Ray, which
    repeats it if the actor dies. Any other goes by Ray, and fails then. By Ray, simultaneous requests from one event
    loop to an actor of many sessions are sent as one call.

    Args:
        actor: Ray's handle.
        is_shared: whether the actor hosts many sessions.
    """

    __slots__ = ("_is_shared", "actor")

    def __init__(self, actor: Any, *, is_shared: bool) -> None:
        self.actor = actor
        self._is_shared = is_shared

    async def ask(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        """See `SessionProcess.ask`."""
        actor = self.actor
        with call_errors():
            if is_repeatable and (local_answer := await local_calls.ask(actor, request, reach)) is not None:
                return local_answer
            if self._is_shared and is_repeatable:
                answer = RequestBatcher.of(actor).ask(request)
            else:
                answer = asyncio.wrap_future(_call_of(actor, is_repeatable).remote(request).future())
            packed: bytes = await actor_waiting.answer_async(actor, answer, reach)
            return packed

    def ask_blocking(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        """See `SessionProcess.ask_blocking`."""
        actor = self.actor
        with call_errors():
            if is_repeatable and (local_answer := local_calls.ask_blocking(actor, request, reach)) is not None:
                return local_answer
            packed: bytes = actor_waiting.answer(actor, _call_of(actor, is_repeatable).remote(request), reach)
            return packed


def _call_of(actor: Any, is_repeatable: bool) -> Any:
    """Return the actor's method `call`. If the actor dies, Ray repeats the call, or the call fails."""
    return actor.call if is_repeatable else actor.call.options(max_task_retries=0)


@contextmanager
def call_errors() -> Iterator[None]:
    """Raise the errors of `SessionProcess.ask` for Ray's."""
    try:
        yield
    except NoProcessError as error:
        reason = "Ray's logs of this actor say why its processes end, or what it waits for"
        raise CallError(f"{error}; {reason}") from error
    except RayTaskError as error:
        raise CallError(f"the request failed there: {error.cause!r}") from error
    except GetTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except RayActorError as error:
        if not error.actor_init_failed:
            raise AwayError(str(error)) from error
        reason = "its process cannot start: install this turnwise, and what it needs, on every node"
        raise CallError(f"{reason} ({error})") from error
    except ActorUnschedulableError as error:
        reason = (
            "no node may run its process: open a manager on the node that has its files, or use a store on a server"
        )
        raise CallError(f"{reason} ({error})") from error
    except RayError as error:
        if "WrongClusterID" in str(error):  # Ray has no class of its own for it
            reason = "the Ray to which this program was connected has ended, and another one runs in its place"
            raise CallError(f"{reason}: start the program again") from error
        raise CallError(f"{type(error).__name__}: {error}") from error
