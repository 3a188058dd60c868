"""Keys and passwords are in no text, record, name or log; and stored data is never executed."""

import ast
import asyncio
import json
import logging
import os
import pickle
import re
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.redaction import redacted
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.core import SessionCore
from turnwise.errors import ConfigError, CorruptRecordError, StoreError, StoreURLError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.events import PromptAppended
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.event_store.sql import SQLHistory
from turnwise.memory.event_store.urls import open_history
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.items.urls import open_items
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.urls import open_store, redact
from turnwise.testing import LocalProvider, tool_script

ROOT = Path(__file__).parents[2]
KEY = 'sk-"unique/4711+secret'
"""A secret with characters that are escaped in URLs and in JSON."""


class Echo(BaseHTTPRequestHandler):
    """Refuses each request, and quotes its headers after as much text as its path says."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        quoted = "x" * int(self.path.split("/")[1]) + self.headers["Authorization"]
        body = json.dumps({"detail": quoted, "headers": dict(self.headers)}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def echo() -> Iterator[str]:
    """A careless server; yields its address."""
    server = HTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def texts_of(value: object) -> str:
    """Return all texts by which a value can be shown, for errors with their causes."""
    texts = [str(value), repr(value), repr(pickle.dumps(value)), repr(pickle.loads(pickle.dumps(value)))]
    if isinstance(value, BaseException):
        texts += [*traceback.format_exception(value), repr(vars(value))]
    return "\n".join(texts)


def assert_hidden(text: str, secret: str = KEY) -> None:
    """Raise AssertionError if the text has the secret, or more than the first few characters of it."""
    for form in (secret[:12], secret[4:], json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")):
        assert form not in text, text[max(0, text.find(form) - 200) :][:400]


async def run(file: Path, engine: OpenAIEngine) -> str:
    """Run a prompt in a session on a file; return everything that can be read afterwards, also the file's bytes."""
    store = SQLStore(f"sqlite:///{file}")
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, engine)
    await core.admission.start(["hello"], run_id="r")
    outcome = await core.reads.wait("r")

    records = [
        outcome.run,
        outcome.turn,
        (await core.reads.events())[0],
        await store.runs(SessionKey("s")),
        await store.turns(SessionKey("s")),
    ]
    raw = [await asyncio.to_thread(Path(f"{file}{more}").read_bytes) for more in ("", "-wal")]
    await core.ownership.leave()
    await store.close()
    return "\n".join([*map(texts_of, records), b"".join(raw).decode(errors="replace")])


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_key_that_the_provider_quotes_is_neither_stored_nor_logged(
    api: Any, echo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For any length of the text before it, so that no part of a cut key remains."""
    caplog.set_level(logging.DEBUG)

    async def check() -> None:
        for before in (0, 160, 165, 169, 1000):
            engine = OpenAIEngine("local", api=api, base_url=f"{echo}/{before}", api_key=KEY, max_retries=0)
            text = await run(tmp_path / str(before), engine)
            assert "refused the request" in text and ("***" in text or before > 150), text[:2000]
            assert_hidden(text)

    asyncio.run(check())
    assert_hidden(caplog.text)


@tool
def env(how: str) -> str:
    """Show the environment."""
    text = f"OPENAI_API_KEY={os.environ['OPENAI_API_KEY']}"
    if how == "raise":
        raise ValueError(text)
    return text


@pytest.mark.parametrize("how", ["raise", "return"])
@pytest.mark.parametrize("on_error", ["continue", "abort"])
def test_a_key_that_a_tool_shows_is_neither_stored_nor_sent(
    how: str, on_error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other texts of the tool are not changed, and neither is a short key, which could be an ordinary word."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with LocalProvider(reply=tool_script([[("env", {"how": how})], "done"])) as provider:
        settings: dict[str, Any] = {"base_url": provider.base_url, "tools": ToolRegistry(env, on_error=on_error)}
        text = asyncio.run(run(tmp_path / "key", OpenAIEngine("local", **settings)))
        assert "OPENAI_API_KEY=***" in text
        assert_hidden(text + caplog.text + repr([record.body for record in provider.requests]))
        monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
        assert "OPENAI_API_KEY=EMPTY" in asyncio.run(run(tmp_path / "word", OpenAIEngine("local", **settings)))


def test_a_secret_is_redacted_plain_and_quoted() -> None:
    for quoted in (KEY, json.dumps({"a": KEY}), quote(KEY, safe=""), f"a {KEY}{KEY} b"):
        assert_hidden(redacted(quoted, ["other", KEY]))
    assert redacted(f"a {KEY} b", [KEY]) == "a *** b" and redacted("text", []) == "text"


def test_settings_do_not_show_a_password() -> None:
    url = "ftp://user:{}@host/v1".format("hunter2")
    with pytest.raises(ConfigError) as caught:
        OpenAIEngine("local", base_url=url)
    assert "hunter2" not in texts_of(caught.value) and "user" in str(caught.value)
    assert_hidden(repr(OpenAIEngine("local", api_key=KEY)))


URLS = [
    ("postgresql", "postgresql://user:{}@127.0.0.1:1/name?connect_timeout=1"),
    ("postgresql", "postgresql://user@127.0.0.1:1/name?password={}&connect_timeout=1"),
    ("postgresql", "postgresql://user@127.0.0.1:1/name?sslpassword={}&connect_timeout=1"),
    ("postgresql", "postgresql://user:{}@127.0.0.1:port/name"),
    ("postgresql", "postgresql://user:{}@127.0.0.1:1/name?no_such_option=1"),
    ("mysql", "mysql://user:{}@127.0.0.1/name"),
    ("redis", "redis://user:{}@127.0.0.1:1/0"),
    ("redis", "redis://:{}@127.0.0.1:1/0"),
    ("redis", "redis://127.0.0.1:1/0?password={}"),
    ("redis", "rediss://user:{}@127.0.0.1:1/name"),
    ("redis", "redis://user:{}@127.0.0.1:1/0?no_such_option=1"),
]
MAKERS: dict[str, list[Callable[[str], Any]]] = {
    "redis": [RedisStore, RedisItems, open_store, open_items],
    "postgresql": [SQLStore, SQLHistory, SQLItems, open_store, open_history, open_items],
}
MAKERS["mysql"] = MAKERS["postgresql"]


async def ask(store: Any) -> None:
    """Read everything from a store."""
    match store:
        case RedisItems() | SQLItems():
            await store.scan("u")
        case SQLHistory():
            await store.events(SessionKey("s"))
        case _:
            await store.get(SessionKey("s"))


@pytest.mark.parametrize("password", ["hunter2-4711", "hun%24ter2-%404711"])
@pytest.mark.parametrize(("kind", "url"), URLS)
def test_no_error_shows_the_password_of_a_store_url(
    kind: str, url: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the URL is invalid, and if no server answers."""
    caplog.set_level(logging.DEBUG)
    url = url.format(password)

    async def check(make: Callable[[str], Any]) -> None:
        store = make(url)
        try:
            assert "4711" not in repr(store) + str(store)
            await ask(store)
        finally:
            await store.close()

    for make in MAKERS[kind]:
        with pytest.raises((StoreError, StoreURLError)) as caught:
            asyncio.run(check(make))
        assert "4711" not in texts_of(caught.value), make
    assert "4711" not in redact(url) + caplog.text


def test_names_handles_and_errors_have_no_key_and_no_url(
    ray_session: ModuleType, make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    """Everybody on the cluster sees names of actors, and handles are passed to other programs."""
    with LocalProvider(api_key="another") as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key=KEY, max_retries=0)
        manager = make_ray_manager(engine=engine)
        chat = manager.open("s", metadata={"a": 1})
        handle = chat.run("hello")
        with pytest.raises(Exception, match=r"Incorrect API key provided: \*\*\*") as caught:
            handle.wait()
        names = repr(ray_session.util.list_named_actors(all_namespaces=True))
        assert "turnwise" in names
        text = "\n".join([names, *map(texts_of, (caught.value, chat, handle, chat.info(), chat.runs(), chat.events()))])
        assert_hidden(text)
        assert str(tmp_path) + "/chats.db" not in text
    for url in ("postgresql://user:hunter2@127.0.0.1:port/x", "mysql://user:hunter2@h/x"):
        with pytest.raises(StoreURLError) as refused:
            make_ray_manager(store=url).count()
        assert "hunter2" not in texts_of(refused.value)


# Nothing stored is code

CODE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
CODE_CALLS = {"eval", "exec", "compile", "__import__"}


BETWEEN_PROCESSES = {"chroma_process.py": {"pickle"}, "embedding_function.py": {"pickle"}}
"""What the package's own processes send each other: no such pickle is ever stored."""


def test_store_readers_import_nothing_that_could_execute_stored_data() -> None:
    files = sorted((ROOT / "memory").rglob("*.py"))
    assert files
    for path in files:
        text = path.read_text(encoding="utf-8")
        if (CODE_MODULES | CODE_CALLS).isdisjoint(re.findall(r"\w+", text)):
            continue
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            match node:
                case ast.Import():
                    names = [alias.name.partition(".")[0] for alias in node.names]
                case ast.ImportFrom():
                    names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
                case ast.Call(func=ast.Name(id=name)) if name in CODE_CALLS:
                    names = [name]
            used_names = (CODE_MODULES | CODE_CALLS).intersection(names) - BETWEEN_PROCESSES.get(path.name, set())
            assert not used_names, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} uses {used_names}"


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["text", "bytes"])
def test_a_pickle_in_a_record_is_refused_and_not_executed(form: str, tmp_path: Path) -> None:
    touched = tmp_path / "made"
    harmful: Any = pickle.dumps(Touch(touched), protocol=0)
    pickle.loads(harmful)
    touched.rmdir()  # it works, so it would have been seen
    value = harmful.decode() if form == "text" else harmful

    async def fill(store: SQLStore) -> None:
        await store.create(SessionRecord(session_id="s"))
        session = (await store.activate(SessionKey("s"))).session
        run = RunRecord(run_id="r", session_id="s", turn_index=0, state="completed", first_seq=1, created_at=1.0)
        event = PromptAppended(session_id="s", seq=1, at=1.0)
        session = session.committed(log_size=1)
        turn = TurnRecord(index=0)
        commit = Commit(session=session, blocks=["{}"], turns=[turn], new_run=run, events=[event])
        await store.commit(SessionKey("s"), 1, commit)

    async def read_block(store: SQLStore) -> None:
        cache, spans = BlockCache(), (Span((await store.get(SessionKey("s"))).log, 0, 1),)
        cache.add_spans(spans, await store.blocks(spans))
        cache.read(spans)

    reads: dict[str, Callable[[SQLStore], Any]] = {
        "blocks.body": read_block,
        "sessions.metadata": lambda store: store.get(SessionKey("s")),
        "turns.metadata": lambda store: store.turns(SessionKey("s")),
        "turns.stop_reason": lambda store: store.turns(SessionKey("s")),
        "turns.input": lambda store: store.turns(SessionKey("s")),
        "runs.calls": lambda store: store.runs(SessionKey("s")),
        "runs.why": lambda store: store.run("r"),
        "events.body": lambda store: store.events(SessionKey("s")),
    }

    async def check(place: str) -> None:
        table, column = place.split(".")
        store = SQLStore(f"sqlite:///{tmp_path}/{place}.db")
        await fill(store)
        with closing(sqlite3.connect(tmp_path / f"{place}.db")) as connection, connection:
            connection.execute(f"UPDATE turnwise_{table} SET {column} = ?", (value,))
        connection.close()
        with pytest.raises(CorruptRecordError):
            await reads[place](store)
        await store.close()

    for place in reads:
        asyncio.run(check(place))
    assert not touched.exists()
