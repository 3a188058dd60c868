"""Files in every store: races of puts and deletions, kills between bytes and records, half uploads, hostile names."""

import asyncio
import inspect
import io
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import (
    ConfigError,
    CorruptRecordError,
    FileExpiredError,
    FileNotStoredError,
    FileRefusedError,
    SessionNotFoundError,
    StoreError,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.files import access as access_module
from turnwise.memory.files.access import FileAccess
from turnwise.memory.files.base import PIECE_BYTES
from turnwise.memory.files.fsspec_files import FsspecFiles
from turnwise.memory.files.records import FileLimits, media_type_of
from turnwise.memory.files.stored_objects import StoredObjects
from turnwise.memory.files.urls import check_files_url, files_beside
from turnwise.memory.stores.encrypted.files import EncryptedFiles
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.sql.store import SQLStore

LIMITS = FileLimits(file_bytes=3 * PIECE_BYTES, session_bytes=1 << 30, session_files=100, user_bytes=1 << 30)

CHAT, ANN, TOM = SessionKey("chat", "ann"), SessionKey("", "ann"), SessionKey("", "tom")

KEYS = Encryption(key=lambda user_id: user_id.encode().ljust(32, b"."))


class KilledError(BaseException):
    """The process ends here: nothing after it is done."""


class Killing:
    """Delegates each method, and raises before or after the call of a number, as a kill of the process would."""

    def __init__(self, inner: Any, deaths: "Deaths") -> None:
        self._inner, self._deaths = inner, deaths

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def called(*args: Any, **kwargs: Any) -> Any:
            self._deaths.pass_()
            answer = await method(*args, **kwargs)
            self._deaths.pass_()
            return answer

        return called


class Deaths:
    """Counts the points at which a process may be killed, and kills it at one of them."""

    def __init__(self, at: int) -> None:
        self.left, self.passed = at, 0

    def pass_(self) -> None:
        self.passed += 1
        if self.passed == self.left:
            raise KilledError


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    if request.param == "memory":
        store = InMemoryStore()
        return lambda: store
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


async def opened(make_store: Callable[[], Any], folder: Path, *keys: SessionKey) -> tuple[Any, FileAccess]:
    store = make_store()
    for key in keys:
        await store.create(SessionRecord(session_id=key.session_id, user_id=key.user_id))
    return store, FileAccess(store, FsspecFiles(str(folder)), LIMITS)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")}


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def objects_of(store: Any, *keys: SessionKey) -> set[str]:
    return {file.object_id for key in keys for file in await store.files(key)}


async def test_a_content_is_kept_once_for_each_user(make_store: Callable[[], Any], tmp_path: Path) -> None:
    store, access = await opened(make_store, folder := tmp_path / "files", CHAT)
    first = await access.put(CHAT, "a.txt", b"the same")
    second = await access.put(ANN, "b.txt", io.BytesIO(b"the same"))
    await access.put(TOM, "c.txt", [b"the ", b"same"])
    assert len(names_in(folder)) == 2
    assert first.object_id == second.object_id
    assert [await access.get(key, file.file_id) for key, file in ((CHAT, first), (ANN, second))] == [b"the same"] * 2
    with pytest.raises(FileNotStoredError, match=r"user 'tom' has no file"):
        await access.get(TOM, first.file_id)
    await access.delete(CHAT, first.file_id)
    assert await access.get(ANN, second.file_id) == b"the same"
    await access.delete(ANN, second.file_id)
    assert names_in(folder) == await objects_of(store, TOM)
    assert await access.forget("tom") == 1
    assert names_in(folder) == set()
    await store.close()


async def test_a_session_that_is_deleted_takes_the_bytes_along(make_store: Callable[[], Any], tmp_path: Path) -> None:
    store, access = await opened(make_store, folder := tmp_path / "files", CHAT)
    await access.put(CHAT, "a", b"a")
    shared = await access.put(CHAT, "b", b"b")
    await access.put(ANN, "b", b"b")
    await store.delete(CHAT)
    assert await access.collect() == 1
    assert names_in(folder) == {shared.object_id}
    with pytest.raises(SessionNotFoundError):
        await access.put(CHAT, "late", b"late")
    assert names_in(folder) == {shared.object_id}
    await store.close()


@pytest.mark.by_turns
async def test_puts_and_deletions_of_one_content_lose_nothing(make_store: Callable[[], Any], tmp_path: Path) -> None:
    """Two processes put and delete the same content; each file that was acknowledged, and not deleted, is readable."""
    (store, one), folder = await opened(make_store, tmp_path / "files", CHAT), tmp_path / "files"
    other_store, other = await opened(make_store, folder)
    kept: set[str] = set()

    async def churn(number: int) -> None:
        access = (one, other)[number % 2]
        for step in range(6):
            file = await access.put((CHAT, ANN)[step % 2], f"{number}-{step}", b"the same")
            assert await access.bytes_of(file) == b"the same"
            if (number + step) % 3:
                await (one, other)[step % 2].delete(file.key, file.file_id)
            else:
                kept.add(file.file_id)

    await asyncio.gather(*map(churn, range(6)))
    files = [file for key in (CHAT, ANN) for file in await store.files(key)]
    assert {file.file_id for file in files} == kept
    assert [await one.bytes_of(file) for file in files] == [b"the same"] * len(kept)
    await one.collect()
    assert names_in(folder) == {file.object_id for file in files}
    await store.close()
    await other_store.close()


@pytest.mark.by_turns
async def test_a_kill_anywhere_leaves_no_record_without_bytes(
    make_store: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each await of a put, of one with the same content, and of deletions; what is left behind is collected."""
    at, was_killed = 0, True
    while was_killed:
        at += 1
        store, access = await opened(make_store, folder := tmp_path / f"files-{at}", key := SessionKey(f"s{at}", "ann"))
        deaths = Deaths(at)
        dying = FileAccess(Killing(store, deaths), Killing(FsspecFiles(str(folder)), deaths), LIMITS)
        user = SessionKey("", f"user-{at}")
        was_killed = False
        try:
            first = await dying.put(user, "a", b"one")
            await dying.put(user, "b", b"one")
            await dying.put(user, "c", b"two")
            await dying.delete(user, first.file_id)
        except KilledError:
            was_killed = True
        for file in await store.files(user):
            assert await access.bytes_of(file) in (b"one", b"two"), f"killed at {at}"
        again = await access.put(user, "d", b"one")  # a process goes on while what was left behind is still there
        assert await access.bytes_of(again) == b"one"
        monkeypatch.setattr(access_module, "RESERVED_S", -60.0)
        await access.collect()
        monkeypatch.undo()
        assert names_in(folder) == await objects_of(store, user), f"killed at {at}"
        assert await access.bytes_of(again) == b"one"
        await store.delete(key)
        if not isinstance(store, InMemoryStore):
            await store.close()
    assert at > 20


async def test_a_put_that_counts_as_dead_is_refused(
    make_store: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, access = await opened(make_store, folder := tmp_path / "files")
    monkeypatch.setattr(access_module, "RESERVED_S", -60.0)

    in_store = FileAccess(store, StoredObjects(objects := InMemoryStore()), LIMITS)

    async def slow() -> AsyncIterator[bytes]:
        yield b"one"
        await access.collect()
        await in_store.collect()
        yield b"two"

    with pytest.raises(StoreError, match="files in"):  # what was written so far is deleted under the put
        await access.put(ANN, "a", slow())
    with pytest.raises(FileExpiredError, match="put the file again"):
        await in_store.put(ANN, "a", slow())
    assert objects._objects == {}  # noqa: SLF001 - the bytes that came too late
    assert (await store.files(ANN), names_in(folder)) == ([], set())
    await store.close()


async def test_half_an_upload_stores_nothing(make_store: Callable[[], Any], tmp_path: Path) -> None:
    store, access = await opened(make_store, folder := tmp_path / "files")

    async def cut() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await access.put(ANN, "a", cut())
    never = asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        yield b"half"
        never.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(access.put(ANN, "a", waiting()))
    await never.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await store.files(ANN), names_in(folder)) == ([], set())
    await store.close()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "C:\\windows\\a.txt", "a" * 255, "naïve 中.txt", ".", "~", "'; DROP--"]
)
async def test_a_name_is_text_and_names_nothing(name: str, tmp_path: Path) -> None:
    store, access = await opened(InMemoryStore, folder := tmp_path / "deep" / "files")
    file = await access.put(ANN, name, b"x")
    assert file.name == name
    assert files_below(tmp_path) == [folder / file.object_id]
    assert mode_of(folder) == 0o700
    await store.close()


@pytest.mark.parametrize("name", ["", " ", "a" * 256, "a\nb", "a\0b", "a\u202eb", "\ud800", None, 7, b"a"])
async def test_a_name_that_is_no_plain_text_is_refused(name: Any, tmp_path: Path) -> None:
    store, access = await opened(InMemoryStore, tmp_path)
    with pytest.raises(FileRefusedError, match="nothing was stored"):
        await access.put(ANN, name, b"x")
    assert await store.unused_objects(1e12) == []


async def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    _, access = await opened(InMemoryStore, tmp_path)
    for data in ("text", 7, None, io.StringIO("text"), ["text"]):
        with pytest.raises(FileRefusedError, match="bytes"):
            await access.put(ANN, "a", data)  # type: ignore[arg-type]
    for media_type in ("", "png", "image/png\n", "image/" + "x" * 300):
        with pytest.raises(FileRefusedError, match="no media type"):
            await access.put(ANN, "a", b"x", media_type)
    assert names_in(tmp_path) == set()


async def test_a_stream_is_bounded_while_it_is_read(tmp_path: Path) -> None:
    store, access = await opened(InMemoryStore, tmp_path)
    pieces = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pieces
        while True:
            pieces += 1
            yield b"x" * PIECE_BYTES

    with pytest.raises(FileRefusedError, match=r"more than max_file_bytes, 3145728"):
        await access.put(ANN, "a", endless())
    assert (pieces, names_in(tmp_path), await store.files(ANN)) == (4, set(), [])


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 5])
@pytest.mark.parametrize("kind", ["folder", "memory://", "in the store", "encrypted"])
async def test_parts_of_a_file_are_read(kind: str, size: int, tmp_path: Path) -> None:
    store, data = InMemoryStore(), os.urandom(size)
    inner: Any = {"memory://": FsspecFiles(f"memory://{tmp_path.name}"), "in the store": StoredObjects(store)}.get(kind)
    files = inner or FsspecFiles(str(tmp_path))
    access = FileAccess(store, EncryptedFiles(files, KEYS) if kind == "encrypted" else files, LIMITS)
    file = await access.put(ANN, "a", data)
    assert await access.bytes_of(file) == data
    for start, stop in ((0, 0), (0, 5), (PIECE_BYTES - 2, PIECE_BYTES + 2), (size - 3, size), (size, size + 9)):
        begin = max(0, start)
        assert b"".join([piece async for piece in access.read(file, begin, stop)]) == data[begin:stop]
    await access.delete(ANN, file.file_id)
    with pytest.raises(CorruptRecordError, match="missing"):
        await access.bytes_of(file)


async def test_encrypted_bytes_tell_nothing_and_cannot_be_moved(tmp_path: Path) -> None:
    store, inner = InMemoryStore(), FsspecFiles(str(tmp_path))
    access = FileAccess(store, EncryptedFiles(inner, KEYS), LIMITS)
    secret, other = [await access.put(ANN, name, name.encode() * 9) for name in ("secret", "others")]
    path, other_path = tmp_path / secret.object_id, tmp_path / other.object_id
    stored = path.read_bytes()
    assert b"secret" not in stored
    for damaged in (other_path.read_bytes(), stored[:-1], stored[:20] + bytes([stored[20] ^ 1]) + stored[21:], b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptRecordError):
            await access.bytes_of(secret)
    toms = FileAccess(store, EncryptedFiles(inner, Encryption(key=lambda _: b"another key".ljust(32))), LIMITS)
    path.write_bytes(stored)
    with pytest.raises(StoreError, match="key"):
        await toms.bytes_of(secret)


async def test_damaged_bytes_are_an_error(tmp_path: Path) -> None:
    _, access = await opened(InMemoryStore, tmp_path)
    file = await access.put(ANN, "a", b"whole")
    (tmp_path / file.object_id).write_bytes(b"who")
    with pytest.raises(CorruptRecordError, match="3 bytes instead of 5"):
        await access.get(ANN, file.file_id)
    (tmp_path / file.object_id).write_bytes(b"wh0le")
    with pytest.raises(CorruptRecordError, match="not those that were stored"):
        await access.get(ANN, file.file_id)


async def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store, access = await opened(InMemoryStore, tmp_path / "file")
    with pytest.raises(StoreError, match="is the folder there"):
        await access.put(ANN, "a", b"x")
    assert await store.files(ANN) == []
    nowhere = FileAccess(store, FsspecFiles("nosuchscheme://bucket"), LIMITS)
    with pytest.raises(ConfigError, match="fsspec cannot open it"):
        await nowhere.put(ANN, "a", b"x")


def test_where_files_are_is_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_files_url("files") == check_files_url(Path("files")) == f"{tmp_path}/files"
    assert check_files_url("file://" + str(tmp_path / "a")) == str(tmp_path / "a")
    assert check_files_url("s3://bucket/folder") == "s3://bucket/folder"
    assert files_beside("sqlite:////data/chats.db?mode=rw") == "/data/chats.db-files"
    assert files_beside("sqlite:////data/a%20b.db") == "/data/a b.db-files"
    assert files_beside("postgresql://host/name") is None
    for wrong in ("", "a\0b", 7, b"a", "https://example.org/"):
        with pytest.raises(ConfigError, match="files"):
            check_files_url(wrong)


@pytest.mark.parametrize(
    ("name", "head", "media_type"),
    [
        ("a", b"\x89PNG\r\n\x1a\n....", "image/png"),
        ("a.txt", b"%PDF-1.7", "application/pdf"),
        ("a.csv", b"a,b", "text/csv"),
        ("notes", "naïve".encode(), "text/plain"),
        ("notes", "naïve".encode()[:3], "text/plain"),
        ("a", b"\0\1\2", "application/octet-stream"),
        ("a", b"", "application/octet-stream"),
        ("a", b"RIFF....WEBP", "image/webp"),
    ],
)
def test_the_type_of_a_file_is_told_by_its_bytes_and_its_name(name: str, head: bytes, media_type: str) -> None:
    assert media_type_of(name, head) == media_type
