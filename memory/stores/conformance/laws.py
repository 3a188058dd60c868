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
    instances = [make() for _ in inspect.signature(law).parameters]
    try:
        await law(*instances)
    except BaseException:
        for instance in instances:
            with suppress(Exception):  # a broken law says more than that its object cannot be closed
                await _close(instance)
        raise
    for instance in instances:
        await _close(instance)


async def _close(instance: Closeable) -> None:
    closing = instance.close()
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
                reason = str(error) if isinstance(error, AssertionError) else repr(error)
                raise AssertionError(f"{check.__name__}: {reason}") from error

        laws.append(named)
        return named

    return collect


def equal(actual: object, expected: object, subject: str) -> None:
    """Raise AssertionError unless both are equal."""
    if actual != expected:
        raise AssertionError(f"{subject}: found {actual!r}, expected {expected!r}")


async def refuses(kind: type[Error], verb: Awaitable[object], subject: str) -> Error:
    """Return the error of this kind that the verb raises.

    Raises:
        AssertionError: the verb returns.
    """
    try:
        result = await verb
    except kind as error:
        return error
    raise AssertionError(f"{subject}: found {result!r}, expected {kind.__name__}")
