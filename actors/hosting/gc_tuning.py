"""Tunes Python's garbage collector for processes of sessions and memories."""

import gc

THRESHOLDS = (20_000, 5, 5)
"""Thousands of sessions or items are many objects, few of them garbage: looking for it often took a fifth of a turn.

What engines leave, such as clients that refer to themselves, may be in the oldest generation when their session goes.
That is collected after half a million new objects, which are some 100 MB.
"""


def collect_rarely() -> None:
    """Make garbage collection rare, and exclude all objects that exist now.

    Call it before a session's modules are imported, since collection would take a quarter of that time, and again after
    the import, since walking the modules would cost milliseconds during a turn, or while memories are searched.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
