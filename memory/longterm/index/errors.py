"""Turns errors of Chroma and of embedding functions into `StoreError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.errors import ConfigError, StoreError


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Convert errors of Chroma and of embedding functions to StoreError. Only this function does so."""
    try:
        yield
    except (ConfigError, StoreError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise StoreError(f"{subject}: {reason}; check that it exists and that no other process uses it") from error
