"""How the laws of an interface are put: checks without a test framework, each of which names what is broken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

Error = TypeVar("Error", bound=Exception)

Law = Callable[..., Awaitable[None]]
"""Takes objects that nobody has used yet, all of the same data, empty at first: as many as it has parameters.

Raises:
    AssertionError: they break the law; names it.
"""


class Closeable(Protocol):
    """What laws are checked on."""

    async def close(self) -> None:
        """Let go of what it holds."""


async def check_law(law: Law, make: Callable[[], Closeable]) -> None:
    """Check one law on as many objects as it takes, and close them."""
    made = [make() for _ in inspect.signature(law).parameters]
    try:
        await law(*made)
    finally:
        for each in made:
            await each.close()


def collector(laws: list[Law]) -> Callable[[Law], Law]:
    """Return a decorator that adds a law to these: whatever fails in it is an AssertionError that names it."""

    def collect(check: Law) -> Law:
        @functools.wraps(check)
        async def named(*objects: Any) -> None:
            try:
                await check(*objects)
            except Exception as error:
                why = str(error) if isinstance(error, AssertionError) else repr(error)
                raise AssertionError(f"{check.__name__}: {why}") from error

        laws.append(named)
        return named

    return collect


def equal(found: object, expected: object, what: str) -> None:
    """Raise AssertionError unless they are equal."""
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


async def refuses(kind: type[Error], verb: Awaitable[object], what: str) -> Error:
    """Return the error of this kind that the verb raises; AssertionError if it returns."""
    try:
        found = await verb
    except kind as error:
        return error
    raise AssertionError(f"{what}: found {found!r}, expected {kind.__name__}")
