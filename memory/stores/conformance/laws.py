"""Laws of an interface: checks that need no test framework. The error of a check names the law that is broken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

Error = TypeVar("Error", bound=Exception)

Law = Callable[..., Awaitable[None]]
"""Checks one law. Takes one or more new objects that share their data, which is empty at first.

Raises:
    AssertionError: the objects break the law; names it.
"""


class Closeable(Protocol):
    """An object that laws are checked on."""

    def close(self) -> Awaitable[None] | None:
        """Close connections and files."""


async def check_laws(laws: Iterable[Law], make: Callable[[str], Closeable]) -> None:
    """Check laws in order.

    Args:
        make: returns an object for a law's name. Objects of one name share their data.
    """
    for law in laws:
        await check_law(law, functools.partial(make, law.__name__))


async def check_law(law: Law, make: Callable[[], Closeable]) -> None:
    """Check one law on as many objects as it has parameters, and close them."""
    made = [make() for _ in inspect.signature(law).parameters]
    try:
        await law(*made)
    except BaseException:
        for each in made:
            with suppress(Exception):  # a broken law says more than that its object cannot be closed
                await _close(each)
        raise
    for each in made:
        await _close(each)


async def _close(each: Closeable) -> None:
    closing = each.close()
    if closing is not None:
        await closing


def collector(laws: list[Law]) -> Callable[[Law], Law]:
    """Return a decorator that adds a law to `laws` and turns its errors into an AssertionError that names the law."""

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
    """Raise AssertionError unless both are equal."""
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


async def refuses(kind: type[Error], verb: Awaitable[object], what: str) -> Error:
    """Return the error of this kind that the verb raises.

    Raises:
        AssertionError: the verb returns.
    """
    try:
        found = await verb
    except kind as error:
        return error
    raise AssertionError(f"{what}: found {found!r}, expected {kind.__name__}")
