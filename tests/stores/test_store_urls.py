"""Session stores from URLs, also stores of other packages."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from turnwise.adapters import TurnwiseSaver, TurnwiseStore
from turnwise.adapters.langgraph.checkpoints import open_checkpoints
from turnwise.adapters.langgraph.items import open_items as open_graph_items
from turnwise.errors import ConfigError, StoreClosedError, StoreError, StoreURLError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.event_store.urls import check_history_url, open_history
from turnwise.memory.longterm.items.urls import open_items
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.urls import open_store, read_only, resolve_url

Install = Callable[..., None]

MONGO = """
from turnwise.errors import StoreClosedError
from turnwise.memory.stores.in_memory import InMemoryStore

class MongoStore(InMemoryStore):
    def __init__(self, url):
        super().__init__()
        self.url = url

def closed(url):
    raise StoreClosedError("mine")

def rude(url):
    raise RuntimeError(f"cannot reach {url}")

def less(url):
    return object()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution in a folder that is searched for modules, as an installer would leave it."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def install(name: str, entries: str, module: str = MONGO) -> None:
        package = name.replace("-", "_")
        info = folder / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[turnwise.stores]\n{entries}\n")
        (folder / f"{package}.py").write_text(module)
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install


def test_a_url_opens_the_store_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds: dict[str, type] = {
        "memory://name": InMemoryStore,
        "sqlite:///a.db": SQLStore,
        "postgresql://u@h/x": SQLStore,
        "redis://h": RedisStore,
        "rediss://u:p@h:1/2?ssl_cert_reqs=none": RedisStore,
    }
    for url, kind in kinds.items():
        assert type(open_store(url)) is kind
    assert repr(open_store("redis://u:secret@h/3")) == "RedisStore('redis://u:***@h/3')"
    assert resolve_url("redis://u:secret@h/3") == "redis://u:secret@h/3"
    for wrong in ("redis://:secret@h/x", "redis://:secret@h?retries=1"):
        with pytest.raises(StoreURLError) as error:
            open_store(wrong)
        assert "secret" not in f"{error.value} {error.value.__cause__}"


def test_a_redis_keeps_no_history_apart() -> None:
    for opens in (check_history_url, open_history):
        with pytest.raises(
            ConfigError, match=r"history_store=.*use sqlite:/// or postgresql://, or leave it out"
        ) as error:
            opens("redis://:secret@h")
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("opens", [open_checkpoints, open_graph_items, TurnwiseSaver, TurnwiseStore])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_redis_url_is_refused_for_checkpoints_and_graph_items(opens: Callable[[str], Any], scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"use sqlite:/// or postgresql://") as error:
        opens(f"{scheme}://:secret@h")
    assert "secret" not in str(error.value)


def test_a_store_of_another_package_is_opened_by_its_scheme(install: Install) -> None:
    with pytest.raises(StoreURLError, match=r"scheme is not known.*entry point of the group turnwise\.stores"):
        open_store("mongo://h/x")
    install("turnwise-mongo", "mongo = turnwise_mongo:MongoStore")
    store: Any = open_store("mongo://u:secret@h/x")
    assert type(store).__name__ == "MongoStore" and store.url == "mongo://u:secret@h/x"
    assert resolve_url("mongo://h/x") == "mongo://h/x"
    asyncio.run(store.create(SessionRecord(session_id="s")))
    assert asyncio.run(store.count()) == 1
    with pytest.raises(ConfigError, match="has events with its sessions only") as error:
        open_history("mongo://u:secret@h/x")
    assert "secret" not in str(error.value)
    opens: Callable[[str], Any]
    for opens in (open_items, open_checkpoints, open_graph_items):
        with pytest.raises(StoreURLError, match="another package's store keeps sessions only"):
            opens("mongo://h/x")
    for url in ("Mongo://h", "mongo:h", "mongo"):
        with pytest.raises(StoreURLError, match="not known"):
            open_store(url)


def test_turnwise_s_own_schemes_cannot_be_overridden(install: Install, tmp_path: Path) -> None:
    schemes = ("memory", "sqlite", "postgresql", "redis", "rediss")
    install("turnwise-mongo", "\n".join(f"{scheme} = turnwise_mongo:MongoStore" for scheme in schemes))
    urls = (f"memory://{tmp_path}", f"sqlite:///{tmp_path}/a.db", "postgresql://h/x", "redis://h", "rediss://h")
    assert [type(open_store(url)).__name__ for url in urls] == ["InMemoryStore", *["SQLStore"] * 2, *["RedisStore"] * 2]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("no_such_module:Store", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("turnwise_broken:NoSuchStore", r"cannot be imported: AttributeError: .*NoSuchStore"),
        ("turnwise_broken:rude", r"raised RuntimeError"),
        (
            "turnwise_broken:less",
            r"returned a object, which is not a SessionStore: it lacks activate, add_delivery, blocks, change_deli",
        ),
    ],
)
def test_a_broken_store_of_another_package_is_an_error_that_names_it(install: Install, entry: str, reason: str) -> None:
    install("turnwise-broken", f"broken = {entry}")
    with pytest.raises(StoreURLError, match=rf"'{entry}' of the distribution turnwise-broken 1\.2 {reason}") as error:
        open_store("broken://u:secret@h")
    assert "secret" not in str(error.value) and error.value.url == "broken://u:***@h"


def test_a_turnwise_error_of_another_package_is_raised_unchanged(install: Install) -> None:
    install("turnwise-mine", "mine = turnwise_mine:closed")
    with pytest.raises(StoreClosedError, match="store mine is closed"):
        open_store("mine://h")


def test_a_scheme_that_two_packages_register_is_refused(install: Install) -> None:
    for name in ("one", "two"):
        install(f"turnwise-{name}", f"both = turnwise_{name}:MongoStore")
    with pytest.raises(StoreURLError, match="one installed package must have its scheme") as error:
        open_store("both://h")
    assert "turnwise-one 1.2" in str(error.value) and "turnwise-two 1.2" in str(error.value)


@pytest.mark.parametrize("kind", ["file", "file with options", "file as SQLite names it", "postgres"])
async def test_a_read_only_store_is_not_created_migrated_or_written(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b#c"
    folder.mkdir()
    urls = {
        "file": f"sqlite:///{folder}/chats.db",
        "file with options": f"sqlite:///{folder}/chats.db?timeout=5",
        "file as SQLite names it": f"sqlite:///file:{quote(quote(str(folder)))}/chats.db?uri=true",
    }
    url = urls.get(kind) or request.getfixturevalue("database")

    reader = open_store(read_only(url))
    with pytest.raises(StoreError):
        await reader.count()
    assert list(folder.iterdir()) == []
    writer = open_store(url)
    await writer.create(SessionRecord(session_id="one"))
    assert await reader.count() == 1
    with pytest.raises(StoreError, match=r"read.?only"):
        await reader.create(SessionRecord(session_id="two"))
    with pytest.raises(StoreError, match=r"read.?only"):
        await reader.activate(SessionKey("one"))
    await reader.close()
    assert (await writer.get(SessionKey("one"))).epoch == 0 and await writer.count() == 1
    await writer.close()
    monkeypatch.setattr(SQLStore, "schema", replace(SQLStore.schema, version=2, migrations={1: ["SELECT 1"]}))
    with pytest.raises(StoreError, match=r"has schema version 1, .* run `turnwise migrate`"):
        await (late := open_store(read_only(url))).count()
    await late.close()


def test_the_read_only_url_of_other_stores_is_unchanged() -> None:
    assert read_only("redis://h/1") == "redis://h/1" and read_only("memory://x") == "memory://x"
