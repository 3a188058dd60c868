"""What all tests share: reproducible random input, and one Ray for those that need it."""

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import settings

# Ray reads this when it is imported, and hands it to the processes that it starts: no statistics leave the machine.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# What is red for one is red for all. To look further: pytest --hypothesis-profile=explore
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[ModuleType]:
    """One Ray on this machine for the whole test session. Yields the module `ray`."""
    import ray

    ray.init(
        address="local",  # never a cluster that happens to be there
        num_cpus=4,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
