"""How rarely a process of sessions looks for garbage."""

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thousands of sessions are many objects, few of them garbage: looking for it often took a fifth of a turn."""


def collect_rarely() -> None:
    """Have Python's collector come rarely, and never walk what is loaded by now.

    To be called before the modules of a session are imported, a quarter of whose time the collector would take, and
    again behind it: walking them would cost milliseconds in the midst of a turn.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
