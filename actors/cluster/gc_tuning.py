"""Tunes Python's garbage collector for processes of sessions and memories."""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thousands of sessions or items are many objects, few of them garbage: looking for it often took a fifth of a turn."""


def collect_rarely() -> None:
    """Make garbage collection rare, and exclude all objects that exist now.

    Call it before a session's modules are imported, since collection would take a quarter of that time, and again after
    the import, since walking the modules would cost milliseconds during a turn, or while memories are searched.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
