"""Commands on a store whose sessions are encrypted: its keys are in the programs that use it, so it is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from filled import files, turnwise

from turnwise.actors.session.core import SessionCore
from turnwise.memory.archive.export import export_session
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.urls import open_store
from turnwise.testing.scripted_engine import ScriptedEngine

KEY = bytes(range(32))
SECRET = "rosebud"


async def fill(url: str, ttl_s: float | None = None) -> None:
    store = EncryptedStore(open_store(url), Encryption(lambda _: KEY))
    await store.create(
        SessionRecord(session_id="chat", user_id="ann", title=SECRET, created_at=1.0, updated_at=1.0, ttl_s=ttl_s)
    )
    core = SessionCore(SessionKey("chat", "ann"), store, ScriptedEngine([f"a {SECRET}"]))
    await core.admission.start([SECRET], run_id="r-1", labels={"a": SECRET})
    await core.reads.wait("r-1")
    await store.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('sealed')}/store.db"
    asyncio.run(fill(url))
    return url


LOOKING = [
    *(
        "ls",
        "runs",
        "usage",
        "top {store} --once",
        "tail",
        "tail {store} chat --user ann --after 0",
        "runs {store} chat --user ann",
    ),
    *(
        "show {store} chat --user ann",
        "show {store} chat --user ann 0",
        "show {store} chat --user ann --as-sent",
        "export {store} chat --user ann",
        "dataset {store} --without-consent",
    ),
]
CHANGING = [
    *(
        "cancel {store} chat --user ann",
        "cancel {store} r-1",
        "approve {store} chat --user ann",
        "reject {store} r-1",
        "end {store} chat --user ann",
    ),
    *(
        "rm {store} chat --user ann --yes",
        "fork {store} chat --user ann",
        "import {store} {file}",
        "chat",
        "chat {store} new --create",
    ),
    *("mcp {store} --user bob", "serve {store} --check"),
]


@pytest.mark.parametrize("words", [*LOOKING, *CHANGING])
def test_an_encrypted_store_is_refused_with_what_to_do(words: str, store: str, tmp_path: Path) -> None:
    """No command takes a key, whatever the environment has. None adds a plain session, which no program could list."""
    folder = Path(store.removeprefix("sqlite:///")).parent
    before = store_files(folder)
    (tmp_path / "file").write_text(archive(), encoding="ascii")
    env = {"TURNWISE_STORE": store, "OPENAI_API_KEY": "sk-none", "TURNWISE_KEY": KEY.hex()}
    ran = turnwise(*words.format(store=store, file=tmp_path / "file").split(), env=env)
    assert (ran.exit_code, ran.stdout) == (1, ""), ran.output
    assert ran.stderr.startswith("error: session chat is encrypted: open its store in a program, with the encryption=")
    assert ran.stderr.count("\n") == 1 and SECRET not in ran.stderr and KEY.hex() not in ran.stderr
    assert store_files(folder) == before


def test_expired_sessions_of_an_encrypted_store_are_deleted_but_not_archived(tmp_path: Path) -> None:
    """Deleting needs no key."""
    url = f"sqlite:///{tmp_path}/store.db"
    asyncio.run(fill(url, ttl_s=0.001))
    swept = turnwise("sweep", url, "--archive", str(tmp_path / "archive"))
    assert (
        swept.exit_code == 1
        and "chat of ann: session chat is encrypted" in swept.stderr
        and "deleted: 0" in swept.stdout
    )
    assert not files(tmp_path / "archive")
    assert "deleted: 1" in turnwise("sweep", url).stdout


def store_files(folder: Path) -> dict[str, bytes]:
    return {name: held for name, held in files(folder).items() if name == "store.db"}


def archive() -> str:
    """Return an exported session."""

    async def exported() -> str:
        store, lines = InMemoryStore(), list[str]()
        await store.create(SessionRecord(session_id="other", user_id="ann"))
        await export_session(store, SessionKey("other", "ann"), lines.append)
        return "".join(lines)

    return asyncio.run(exported())
