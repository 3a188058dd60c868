"""The error of an adapter whose framework is missing, or has another interface than the adapter was written for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from turnwise.errors import ConfigError, FrameworkError


@contextmanager
def framework(package: str, *, extra: str, tested: str) -> Iterator[None]:
    """Run a body that imports from a framework's package, and turn what its import raises into an error of turnwise.

    Args:
        package: the distribution's name, as pip knows it.
        extra: turnwise's extra that installs it.
        tested: the releases that the adapter was tested with, such as `1.2`.

    Raises:
        ConfigError: the package is not installed.
        FrameworkError: it is, but does not have what the body imports or looks up.
    """
    try:
        installed = version(package)
    except PackageNotFoundError as error:
        raise ConfigError("extra", extra, f"needs {package}: pip install 'turnwise[{extra}]'") from error
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise FrameworkError(package, installed, tested, str(error)) from error


def expect(function: Callable[..., Any], *names: str) -> None:
    """Check, within `framework`, that a function of the framework has these parameters.

    Raises:
        AttributeError: it does not.
    """
    if missing := sorted(set(names) - inspect.signature(function).parameters.keys()):
        raise AttributeError(f"{function.__qualname__} has no parameter {', '.join(missing)}")
