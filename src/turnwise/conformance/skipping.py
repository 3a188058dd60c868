"""`SkippedError`: a law does not apply to what is checked."""


class SkippedError(Exception):
    """Raised by a law that does not apply; says why."""
