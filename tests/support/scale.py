"""How much of what takes minutes a run of the tests does."""

import os


def share(count: int, one_of: int = 20) -> int:
    """Return how many of so many schedules a run takes: one of twenty, or of so many; all of them with `make races`."""
    return count if "TURNWISE_ALL" in os.environ else count // one_of
