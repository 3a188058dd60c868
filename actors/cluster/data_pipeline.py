"""Work in numbered pieces that Ray Data distributes over a pool of actors, and an object that these actors share."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from turnwise.actors.hosting.identity import pickled
from turnwise.actors.wire_version import packed, unpacked, unpacked_answer, unpacked_settings
from turnwise.errors import ConfigError, StoreError, TurnwiseError

PIECES_AT_ONCE = 2
"""How many pieces an actor works on at the same time, so that the end of one does not leave it idle."""

MOST_TASKS = 1000
"""Into how many tasks the pieces are divided at most."""

Work = Callable[[int], bytes]
"""Does the piece of a number, and returns its result. It may block, and is called from several threads."""


class SharedObject:
    """An object in an actor of its own, whose methods other processes call. It pickles.

    It ends with the process that made it.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    def host(cls, make: Callable[[], object]) -> SharedObject:
        """Return the object that a function makes, in a new actor."""
        host: Any = ray.remote(_Host)
        return cls(host.options(num_cpus=0).remote(pickled(make)))

    async def call(self, name: str, *arguments: Any) -> Any:
        """Return what the method of this name returns."""
        return unpacked_answer(await self._actor.call.remote(packed((name, arguments))))

    def end(self) -> None:
        """End the actor."""
        ray.kill(self._actor)


class _Host:
    def __init__(self, make: bytes) -> None:
        self._value = unpacked_settings(make)()

    def call(self, request: bytes) -> bytes:
        name, arguments = unpacked(request)
        return packed(getattr(self._value, name)(*arguments))


class _Worker:
    """An actor of the pool, as Ray Data calls it."""

    def __init__(self, make: bytes) -> None:
        self._work: Work = unpacked_settings(make)()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        return {"result": [self._work(int(number)) for number in batch["number"]]}


def processors() -> int:
    """Return how many processors the cluster has, at least one."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def check_ray_data() -> None:
    """Raise ConfigError if Ray Data cannot be imported here."""
    try:
        importlib.import_module("ray.data")
    except ImportError as error:
        reason = f"Ray Data cannot be imported ({error}): pip install 'turnwise[dataset]', or leave on_ray out"
        raise ConfigError("on_ray", True, reason) from error


def results_on_ray(make: Callable[[], Work], numbers: Sequence[int], *, workers: int) -> Iterator[bytes]:
    """Yield the results of pieces as they come, in any order. Blocks between two results.

    An actor that dies is started anew, and its pieces are done again.

    Args:
        make: makes, in each actor, what does its pieces. It is pickled.
        workers: the number of actors.

    Raises:
        TurnwiseError: a piece raised it.
        StoreError: a piece, or Ray, failed otherwise.
    """
    check_ray_data()
    data: Any = importlib.import_module("ray.data")
    context = data.DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.CRITICAL)  # its errors are raised here
    try:
        items = [{"number": number} for number in numbers]
        results = data.from_items(items, override_num_blocks=max(1, min(len(items), MOST_TASKS))).map_batches(
            _Worker,
            fn_constructor_args=(pickled(make),),
            batch_size=1,
            compute=data.ActorPoolStrategy(
                size=workers,
                max_tasks_in_flight_per_actor=PIECES_AT_ONCE,
                max_concurrent_calls_per_actor=PIECES_AT_ONCE,
                enable_true_multi_threading=True,
            ),
            num_cpus=min(1.0, processors() / workers),
        )
        for row in results.iter_rows():
            yield row["result"]
    except TurnwiseError:
        raise
    except Exception as error:
        raise _cause(error) from error
    finally:
        context.enable_progress_bars = before
        log.setLevel(level)


def _cause(error: BaseException) -> TurnwiseError:
    """Return the error of turnwise's that is behind one of Ray's."""
    seen: BaseException | None = error
    while seen is not None:
        cause = getattr(seen, "cause", None)
        for candidate in (seen, cause):
            if isinstance(candidate, TurnwiseError):
                return candidate
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return StoreError(f"the work on Ray failed ({type(error).__name__}: {error})")
