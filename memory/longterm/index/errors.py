"""Turns errors of Chroma and of embedding functions into `StoreError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.errors import ConfigError, StoreError


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Convert errors of Chroma and of embedding functions to StoreError. Only this function does so."""
    try:
        yield
    except (ConfigError, StoreError):
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise StoreError(f"{what}: {why}; check that it exists and that no other process uses it") from error
