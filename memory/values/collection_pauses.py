"""`importing`: pauses Python's garbage collector while a large package is imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
