"""How much of what takes minutes a run of the tests does."""

import os


def share(count: int) -> int:
    """Return how many of so many schedules a run takes: a quarter, and all of them with `make races`."""
    return count if "TURNWISE_ALL" in os.environ else count // 4
