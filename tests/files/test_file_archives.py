"""Archives carry the files of a session; an archive whose files were changed is refused, and leaves nothing."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnwise import EchoEngine, InProcess, SessionManager
from turnwise.cli import app
from turnwise.errors import ArchiveError, FilesUnavailableError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import Document
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.base import PIECE_BYTES
from turnwise.memory.files.records import FileLimits
from turnwise.memory.files.stored_objects import StoredObjects
from turnwise.memory.stores.in_memory import InMemoryStore

LIMITS = FileLimits(file_bytes=4 * PIECE_BYTES, session_bytes=1 << 30, session_files=100, user_bytes=1 << 30)
CHAT = SessionKey("chat", "ann")
LARGE = b"0123456789" * (PIECE_BYTES // 4)


def access_to(store: InMemoryStore) -> FileAccess:
    return FileAccess(store, StoredObjects(store), LIMITS)


async def archive_of(*contents: bytes) -> tuple[list[str], list[str]]:
    """Return the lines of an archive of a session with these files, and their ids."""
    store, lines = InMemoryStore(), list[str]()
    await store.create(SessionRecord(session_id="chat", user_id="ann"))
    files = access_to(store)
    ids = [(await files.put(CHAT, f"{n}.txt", data)).file_id for n, data in enumerate(contents)]
    if contents:
        with pytest.raises(FilesUnavailableError, match="files="):
            await export_session(store, CHAT, lines.append)
    lines.clear()
    await export_session(store, CHAT, lines.append, files=files)
    return lines, ids


async def test_an_archive_carries_the_files() -> None:
    lines, ids = await archive_of(b"one", b"", LARGE)
    for user_id in ("ann", "tom"):
        store = InMemoryStore()
        files, key = access_to(store), SessionKey("chat", user_id)
        await import_session(store, lines, user_id=user_id, files=files)
        assert [file.file_id for file in await store.files(key)] == sorted(ids)
        assert [await files.get(key, file_id) for file_id in ids] == [b"one", b"", LARGE]


def resealed(lines: list[str]) -> list[str]:
    """Return lines with the checksum that they have now."""
    body = "".join(lines[:-1])
    end = {"end": {"lines": len(lines) - 1, "sha256": hashlib.sha256(body.encode()).hexdigest()}}
    return [*lines[:-1], json.dumps(end) + "\n"]


def line(value: Any) -> str:
    return json.dumps({"file": value}) + "\n"


HEADER = {"file_id": "file-" + "0" * 24, "name": "a", "media_type": "text/plain", "size": 3, "digest": "0" * 64}


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ([line("YWJj")], "bytes follow no file"),
        ([line(7)], "must be an object"),
        ([line({**HEADER, "object_id": "x"})], "must be an object"),
        ([line({**HEADER, "size": "3"})], "wrong type"),
        ([line({**HEADER, "size": -1})], "has -1 bytes"),
        ([line({**HEADER, "size": 1 << 40})], "may have"),
        ([line({**HEADER, "file_id": "../../etc/passwd"})], "cannot be used"),
        ([line({**HEADER, "media_type": "a\r\nb"})], "cannot be used"),
        ([line({**HEADER, "name": "a\nb"})], "control characters"),
        ([line(HEADER), line("%%%")], "not base64"),
        ([line(HEADER), line(base64.b64encode(b"abcd").decode())], "more bytes than it says"),
        ([line(HEADER), line(base64.b64encode(b"ab").decode())], "not those that it says"),
        ([line(HEADER), line(base64.b64encode(b"abc").decode())], "not those that it says"),
    ],
)
async def test_files_that_are_not_whole_are_refused(added: list[str], reason: str) -> None:
    lines, _ = await archive_of()
    lines[-1:-1] = added
    store = InMemoryStore()
    with pytest.raises(ArchiveError, match=reason):
        await import_session(store, resealed(lines), files=access_to(store))
    assert (await store.count(), await store.files(CHAT), store._objects) == (0, [], {})  # noqa: SLF001


async def test_without_a_place_an_archive_with_files_is_refused() -> None:
    lines, _ = await archive_of(b"one")
    with pytest.raises(ArchiveError, match="files="):
        await import_session(InMemoryStore(), lines)


@pytest.mark.by_turns
def test_the_commands_carry_files_and_a_sweep_deletes_their_bytes(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with SessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.open("chat", ttl_s=0.0)
        file = chat.files.put("a.txt", b"kept")
        chat.run("read", Document(file=file.file_id)).wait()
    archive = tmp_path / "chat.jsonl"
    assert CliRunner().invoke(app, ["export", url, "chat", str(archive)]).exit_code == 0
    assert CliRunner().invoke(app, ["import", copy, str(archive)]).exit_code == 0
    swept = CliRunner().invoke(app, ["sweep", url, "--archive", str(tmp_path / "old"), "--json"])
    assert json.loads(swept.stdout)["archived"] == [{"session_id": "chat", "user_id": "default"}]
    assert list((tmp_path / "a.db-files").glob("*")) == []
    with SessionManager(copy, engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.get("chat")
        assert chat.files.get(file.file_id) == b"kept"
        chat.refresh()
        manager.sweep(tmp_path / "old")
        assert list((tmp_path / "b.db-files").glob("*")) == []
