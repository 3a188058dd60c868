"""A machine that stands still for half a minute makes Ray start once more, and turnwise says so."""

import re

LATE = re.compile(r"^.*Ray did not start within 30 s, .*\n", re.MULTILINE)


def without_late_start(errors: str) -> str:
    """Return what a program has printed, without the line that its Ray has come late."""
    return LATE.sub("", errors)
