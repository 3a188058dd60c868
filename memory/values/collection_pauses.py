"""Pauses of Python's garbage collector, while many objects are made of which hardly one is garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

FEW = 100
"""For as many records, no pause is made: they are fewer objects than a collection comes after."""


class collection_paused:  # noqa: N801 - used as a context manager
    """Pause garbage collection while this block makes objects that stay; for no longer than some milliseconds.

    The collector runs after each 700 new objects, and walks those that stay several times. The new objects are left to
    the next collection.

    Args:
        records: of how many records the objects are.
    """

    __slots__ = ("_is_paused",)

    def __init__(self, records: int) -> None:
        self._is_paused = records > FEW and gc.isenabled()

    def __enter__(self) -> None:
        if self._is_paused:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._is_paused:
            gc.enable()


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Pause garbage collection while this block imports a module, unless the module is imported already.

    An import makes up to a hundred thousand objects, hardly one of them garbage, and collections would take up to a
    third of its time. Afterwards all objects of the process count as old, as if they had survived collections. If the
    program has frozen objects (`gc.freeze`), they stay frozen, and the new ones are left to the next collection.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
