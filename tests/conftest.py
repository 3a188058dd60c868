"""What all tests share: reproducible random input, and one Ray for those that need it."""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from lanes import TAKEN, may_need_ray, take

from engines import ScriptedEngine
from processes.fork_server import workers_by_fork
from processes.programs import link_programs
from scale import of_today, share
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.cluster import ray_address as addresses
from turnwise.actors.hosting.placement import Dedicated, InProcess, Placement
from turnwise.testing.faulty_url import register
from virtual_time import play

if TYPE_CHECKING:
    from pages.snippets import SnippetRunner
    from servers.postgres_server import PostgresServer
    from servers.redis_server import RedisServer

# Ray reads this when it is imported, and hands it to the processes that it starts: no statistics leave the machine.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# It looks for new logs ten times in a second, and at all processes once in five: the more there are, the more it takes.
os.environ["RAY_LOG_MONITOR_MANY_FILES_THRESHOLD"], os.environ["LOG_NAME_UPDATE_INTERVAL_S"] = "0", "2"
os.environ["REPORTER_UPDATE_INTERVAL_MS"] = "60000"

# It gives its workers the lowest priority but four, and they would get next to nothing beside the tests that compute.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it

# A machine that stands still for a while is no dead node.
os.environ.setdefault("RAY_health_check_failure_threshold", "20")

# The processes of sessions import the engines of these tests.
FOLDERS = {file.parent for pattern in ("*/*.py", "*/*/test_*.py") for file in Path(__file__).parent.glob(pattern)}
ROOMS = sorted(map(str, FOLDERS))
sys.path += [room for room in ROOMS if room not in sys.path]
os.environ["PYTHONPATH"] = os.pathsep.join([*ROOMS, *filter(None, [os.environ.get("PYTHONPATH")])])

# Thousands of processes need not compile again what they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What tests write need not outlive the machine: where memory is to be had for files, no test waits for a disk.
IN_MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30
if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    tempfile.tempdir = str(IN_MEMORY)

# Tests start no program that `make test` has not set up. What they start may start others.
_programs = tempfile.TemporaryDirectory(prefix="turnwise-")
link_programs(Path(_programs.name))
os.environ["PATH"] = _programs.name

# Not for what tests start.
LANE = os.environ.pop(TAKEN, None)

# Who is started in the background ignores SIGINT, and so would what tests start: they interrupt it, and themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# And stores with faults, by their URLs.
_faulty = tempfile.TemporaryDirectory(prefix="turnwise-")
register(_faulty.name)

# What is red for one is red for all. To look further: pytest --hypothesis-profile=explore
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, print_blob=True, max_examples=share(100, 4)
)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-days", action="store_true", help="in a lane: run what takes turns by day, too")


@pytest.hookimpl(tryfirst=True)  # before it is looked which are deselected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a Ray, and run it last: some of the rest forks, which who talks to a cluster should not."""
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")
        if item.get_closest_marker("ray") and not may_need_ray(item.path):
            raise pytest.UsageError(f"{item.nodeid} needs a Ray and is in no lane: see may_need_ray in tests/lanes.py")
    items.sort(key=lambda item: item.get_closest_marker("ray") is not None)
    if LANE is not None and not config.getoption("all_days"):
        chosen = of_today(items)
        config.hook.pytest_deselected(items=[*set(items).difference(chosen)])
        items[:] = chosen


_files: list[pytest.Module] = []
"""The files of a lane that it has not come to. None is imported yet."""


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule() -> Generator[None, pytest.Module | None, pytest.Module | None]:
    """Note a file, which may be one of those that pytest was given, or one beside it."""
    file = yield
    if file is not None:
        _files.append(file)
    return file


def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect, in a lane, only files at first, and then the tests of one file each time; see `_take`."""
    if LANE is None:
        return None
    manager = session.config.pluginmanager
    if not _files:
        session.perform_collect(genitems=False)
        places = {path: place for place, path in enumerate(session.config.args)}
        once = {str(file.path): file for file in _files}  # pytest makes some files twice
        _files[:] = sorted((once[path] for path in once.keys() & places), key=lambda file: places[str(file.path)])
    else:
        session.items = [*session.genitems(_files.pop(0))]
        says_how_many = manager.get_plugin("terminalreporter")
        select = manager.subset_hook_caller("pytest_collection_modifyitems", [says_how_many])
        select(session=session, config=session.config, items=session.items)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of the files that no other lane has taken, in a lane; see `tests/lanes.py`."""
    if LANE is None or session.config.option.collectonly:
        return None
    left = _take(session, LANE)
    item = next(left, None)
    while item is not None:
        following = next(left, None)  # pytest keeps the fixtures that it shares with this one
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _take(session: pytest.Session, lane: str) -> Iterator[pytest.Item]:
    """Yield the tests of the files that no other lane has taken, each imported when it is taken."""
    session.testscollected = 0
    while _files:
        if not take(_files[0].path, lane):
            _files.pop(0)
            continue
        session.config.hook.pytest_collection(session=session)
        session.testscollected += len(session.items)
        _let_imports_be()
        yield from session.items


def pytest_collection_finish() -> None:
    """See `_let_imports_be`."""
    _let_imports_be()


def _let_imports_be() -> None:
    """Let no garbage collection walk what was imported, also in processes that tests fork: it was a tenth of a run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on an event loop of its own: one with virtual time if it is marked so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = play if pyfuncitem.get_closest_marker("virtual_time") else asyncio.run
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def no_ray_by_accident(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start or join a Ray only if it is marked so: others would take seconds, and change what follows."""
    if not request.node.get_closest_marker("ray"):
        monkeypatch.setattr(addresses, "check_ray_address", partial(_refuse_ray, addresses.check_ray_address))


def _refuse_ray(check: Callable[[], None]) -> None:
    check()  # what it refuses is not joined
    raise AssertionError("this test is not marked `ray`: pass placement=InProcess(), or mark it")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[ModuleType]:
    """One Ray on this machine for the whole test session. Yields the module `ray`."""
    import ray

    init: Callable[[], Any] = partial(
        ray.init,
        address="local",  # never a cluster that happens to be there
        num_cpus=4,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
    )

    def start() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # a start that times out leaves its processes to Python
            try:
                init()
            except Exception as error:  # Ray raises no class of its own
                if "timed out during startup" not in str(error):
                    raise
            gc.collect()
        if not ray.is_initialized():
            init()
        node: Any = ray._private.worker._global_node  # noqa: SLF001 - Ray has no other name for it
        node.kill_log_monitor()  # it reads all logs ten times in a second, and prints none

    try:
        with workers_by_fork(start):
            yield ray
            ray.shutdown()
    finally:
        ray.shutdown()


@pytest.fixture
def ray_address(ray_session: ModuleType) -> Iterator[str]:
    """The address of that Ray, for processes that a test starts; their actors in the default namespace end with it."""
    yield ray_session.get_runtime_context().gcs_address
    end_actors(ray_session, "turnwise")


@pytest.fixture(scope="module", autouse=True)
def actors_end_with_their_file() -> Iterator[None]:
    """What the tests of a file leave would run on beside all others: an idle actor takes a hundredth of a processor."""
    yield
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        end_actors(ray)


def end_actors(ray: ModuleType, namespace: str | None = None) -> None:
    """End the actors that have names, in a namespace or in all of them."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if namespace in (None, actor["namespace"]):
            with contextlib.suppress(ValueError):  # it has left by itself
                ray.kill(ray.get_actor(actor["name"], namespace=namespace))


@pytest.fixture
def namespace(tmp_path: Path) -> str:
    """The namespace of the test's managers."""
    return f"test-{tmp_path.name}"


@pytest.fixture
def make_manager(tmp_path: Path, namespace: str) -> Iterator[Callable[..., SessionManager]]:
    """Makes managers of one SQLite file in a namespace of the test's own, whose sessions run in this process."""
    yield from _managers(tmp_path, namespace, InProcess())


@pytest.fixture
def make_ray_manager(
    ray_session: ModuleType, tmp_path: Path, namespace: str
) -> Iterator[Callable[..., SessionManager]]:
    """Makes managers of one SQLite file in a namespace of the test's own; their actors end with the test."""
    try:
        yield from _managers(tmp_path, namespace, Dedicated())
    finally:
        end_actors(ray_session, namespace)


def _managers(tmp_path: Path, namespace: str, placement: Placement) -> Iterator[Callable[..., SessionManager]]:
    managers = []

    def make(**settings: Any) -> SessionManager:
        chosen: dict[str, Any] = {
            "store": f"sqlite:///{tmp_path}/chats.db",
            "engine": ScriptedEngine(),
            "placement": placement,
            **settings,
        }
        manager = SessionManager(chosen.pop("store"), namespace=namespace, **chosen)
        managers.append(manager)
        return manager

    try:
        yield make
    finally:
        for manager in managers:
            manager.close()


@pytest.fixture(scope="session")
def postgres(postgres_server: "PostgresServer") -> str:
    """The URL of the tests' PostgreSQL, without a database."""
    return postgres_server.address


@pytest.fixture
def database(postgres_server: "PostgresServer") -> Iterator[str]:
    """The URL of an empty database, which goes with the test."""
    name = postgres_server.make_database()
    yield postgres_server.address.format(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty SQL database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("database"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["PostgresServer"]:
    """A PostgreSQL that tests may stop: they leave it up."""
    from servers.postgres_server import PostgresServer

    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        server = PostgresServer(Path(folder))
        try:
            yield server
        finally:
            server.stop("immediate")


@pytest.fixture(scope="session")
def redis_server() -> Iterator["RedisServer"]:
    """A Redis of the tests' own."""
    from servers.redis_server import RedisServer

    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        server = RedisServer(Path(folder), appendonly="no")
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="session")
def snippets() -> Iterator["SnippetRunner"]:
    """Runs code blocks of the documentation: on one Ray, and in one process."""
    from pages.snippets import SnippetRunner, snippet_environment

    with snippet_environment() as env:
        runner = SnippetRunner(env)
        try:
            yield runner
        finally:
            runner.close()


@pytest.fixture
def redis_url(redis_server: "RedisServer") -> str:
    """The URL of a Redis that is empty."""
    with redis_server.client as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged, as by tests that inject thousands of faults, each of which would be a line."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vector memories do in small steps, for the sake of others, takes larger ones and no rests."""
    monkeypatch.setattr("turnwise.memory.longterm.index.item_vectors.REST", 0)
    monkeypatch.setattr("turnwise.memory.longterm.index.item_vectors.DELETED", 64)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    """Batches of memories are a tenth of their size, so that few items are many of them; returns ten.

    With `make races` they are as large as ever, and it returns one.
    """
    from turnwise.memory.longterm import vector as vector_memory
    from turnwise.memory.longterm.index import collection, item_vectors
    from turnwise.memory.longterm.index.chroma_process import CHROMA_PROCESS, carry_out
    from turnwise.memory.longterm.items import base, sql
    from turnwise.memory.longterm.items.in_memory import InMemoryItems

    if share(20) == 20:
        return 1
    monkeypatch.setattr(vector_memory, "BATCH", 26)
    monkeypatch.setattr(item_vectors, "BATCH", 26)
    monkeypatch.setattr(collection, "PAGE", 200)
    opened: dict[Any, collection.VectorCollection] = {}  # by this process, where these sizes apply
    monkeypatch.setattr(CHROMA_PROCESS, "ask", lambda key, verb, *args: carry_out(opened, key, verb, args))
    monkeypatch.setattr(sql, "AT_ONCE", 20)
    monkeypatch.setattr(base, "_PAGE", 100)
    stores: tuple[Any, ...] = (InMemoryItems, sql.SQLItems)
    for store in stores:
        monkeypatch.setitem(store.sweep.__kwdefaults__, "limit", 100)
    return 10


@pytest.fixture
def limit_pages() -> Iterator[Callable[[int], None]]:
    """A function that limits the pages of SQLite files, as a full disk does."""
    from stored.sql_traffic import disk_for_sqlite

    with disk_for_sqlite() as limit:
        yield limit


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator["Callable[..., RedisServer]"]:
    """Starts servers of Redis that a test may kill."""
    from servers.redis_server import RedisServer

    servers = []

    def start(**settings: str) -> RedisServer:
        server = RedisServer(tmp_path, **settings)
        servers.append(server)
        server.start()
        return server

    try:
        yield start
    finally:
        for server in servers:
            server.kill()
