"""Files of sessions: prompts and results that name them, forks, deletions, encryption, and stores without a place."""

import base64
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from servers.over_http import over_http
from turnwise import (
    AsyncSessionManager,
    EchoEngine,
    Encryption,
    InProcess,
    OpenAIEngine,
    SessionConfig,
    SessionManager,
    tool,
)
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.errors import (
    FileNotStoredError,
    FileRefusedError,
    FilesUnavailableError,
    InvalidInputError,
    InvalidPromptError,
    KeyMissingError,
    ReadOnlyStoreError,
)
from turnwise.memory.conversation.blocks import Document, Image, ToolResult
from turnwise.memory.files.records import FileRecord
from turnwise.testing import LocalProvider, tool_script

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LARGE = PNG + b"\0" * 70_000
PDF = b"%PDF-1.7 " + b"\0" * 10

ASKED: list[Sequence[dict[str, Any]]] = []


def note(messages: Sequence[dict[str, Any]]) -> str:
    ASKED.append(messages)
    return "I see"


@pytest.fixture
def engine() -> Iterator[OpenAIEngine]:
    ASKED.clear()
    with LocalProvider(reply=note) as provider:
        yield OpenAIEngine("local", base_url=provider.base_url, api_key="none", max_retries=0)


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The settings of managers of each store."""
    settings: dict[str, Any] = {"placement": InProcess()}
    match request.param:
        case "memory":
            return {**settings, "store": f"memory://{tmp_path.name}"}
        case "sqlite":
            return {**settings, "store": f"sqlite:///{tmp_path}/chats.db"}
    name = {"postgresql": "database", "redis": "redis_url"}[request.param]
    return {**settings, "store": request.getfixturevalue(name), "files": tmp_path / "attached"}


def folder_of(place: dict[str, Any], tmp_path: Path) -> Path | None:
    """Return the folder with the bytes; None if they are in memory."""
    return None if place["store"].startswith("memory:") else place.get("files", tmp_path / "chats.db-files")


def names_in(folder: Path | None, files: Sequence[FileRecord]) -> set[str]:
    """Return the names of what is stored; of the files themselves where bytes are in memory."""
    return {file.object_id for file in files} if folder is None else {path.name for path in folder.glob("*")}


def attached() -> list[Any]:
    """Return what the newest request had attached."""
    content = next(message["content"] for message in reversed(ASKED[-1]) if message["role"] == "user")
    return [part for part in content if part["type"] != "text"] if isinstance(content, list) else []


def uri(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def test_requests_have_the_bytes_of_files_and_the_history_has_their_ids(
    place: dict[str, Any], engine: OpenAIEngine, tmp_path: Path
) -> None:
    with SessionManager(**place, engine=engine) as manager:
        chat = manager.open("chat")
        picture, paper = chat.files.put("cat.png", PNG), chat.files.put("paper.pdf", PDF)
        turn = chat.run("look", Image(file=picture.file_id), Document(file=paper.file_id)).wait()
        image, document = turn.blocks[1:3]
        assert image == Image(file=picture.file_id, media_type="image/png", size=len(PNG))
        assert document == Document(file=paper.file_id, name="paper.pdf", media_type="application/pdf", size=len(PDF))
        assert [part.get("image_url", part.get("file")) for part in attached()] == [
            {"url": uri(PNG, "image/png")},
            {"filename": "paper.pdf", "file_data": uri(PDF, "application/pdf")},
        ]
        chat.run("and again").wait()
        assert uri(PNG, "image/png") in str(ASKED[-1])
        assert sorted(file.name for file in chat.files.list()) == ["cat.png", "paper.pdf"]
        assert {file.name: chat.files.get(file.file_id) for file in chat.files.list()} == {
            "cat.png": PNG,
            "paper.pdf": PDF,
        }
        assert b"".join(chat.files.read(paper.file_id, 2, 6)) == PDF[2:6]
        assert chat.files.info(paper.file_id) == paper
    with SessionManager(**place, engine=engine) as manager:
        assert manager.get("chat").files.get(picture.file_id) == PNG
        assert names_in(folder_of(place, tmp_path), [picture, paper]) == {picture.object_id, paper.object_id}


def test_large_attachments_become_files_by_themselves(
    place: dict[str, Any], engine: OpenAIEngine, tmp_path: Path
) -> None:
    """Once for each content, of prompts, appended prompts and imports; small ones and texts stay in the history."""
    large = Image.from_bytes(LARGE, "image/png")
    with SessionManager(**place, engine=engine) as manager:
        chat = manager.open("chat")
        small, text = Image.from_bytes(PNG, "image/png"), Document(name="a.txt", text="a" * 100_000)
        chat.append(large)
        turn = chat.run("look", large, small, text, idempotency_key="k").wait()
        first, _, second, *others = turn.blocks[:-1]
        assert first == second == Image(file=chat.files.list()[0].file_id, media_type="image/png", size=len(LARGE))
        assert others == [small, text]
        assert str(ASKED[-1]).count(uri(LARGE, "image/png")) == 2
        assert chat.run("look", large, small, text, idempotency_key="k").wait().id == turn.id
        parts = [{"type": "image_url", "image_url": {"url": uri(LARGE, "image/png")}}]
        imported = manager.import_messages("old", [{"role": "user", "content": parts}])
        assert [block.kind for block in imported.latest().blocks] == ["image"]  # type: ignore[union-attr]
        assert imported.latest().blocks[0].file is not None  # type: ignore[union-attr]
        files = [*chat.files.list(), *imported.files.list()]
        assert len({file.object_id for file in files}) == 1
        assert names_in(folder_of(place, tmp_path), files) == {files[0].object_id}


def test_a_fork_keeps_files_that_its_parent_deletes(
    place: dict[str, Any], engine: OpenAIEngine, tmp_path: Path
) -> None:
    folder = folder_of(place, tmp_path)
    with SessionManager(**place, engine=engine) as manager:
        chat = manager.open("chat")
        picture = chat.files.put("cat.png", PNG)
        chat.run("look", Image(file=picture.file_id)).wait()
        fork = chat.fork(session_id="fork")
        chat.delete()
        assert fork.files.get(picture.file_id) == PNG
        fork.run("again").wait()
        assert uri(PNG, "image/png") in str(ASKED[-1])
        assert names_in(folder, fork.files.list()) == {picture.object_id}
        assert fork.files.delete(picture.file_id)
        assert not fork.files.delete(picture.file_id)
        fork.run("and now").wait()
        assert "[image (image/png) is left out: its file was deleted]" in str(ASKED[-1])
        assert names_in(folder, []) == set()


def test_the_files_of_a_user_go_into_the_sessions_that_name_them(
    place: dict[str, Any], engine: OpenAIEngine, tmp_path: Path
) -> None:
    folder = folder_of(place, tmp_path)
    with SessionManager(**place, engine=engine) as manager:
        library, toms = manager.files(user_id="ann"), manager.files(user_id="tom")
        picture, same = library.put("cat.png", PNG), toms.put("cat.png", PNG)
        assert picture.object_id != same.object_id
        chat = manager.open("chat", user_id="ann")
        assert chat.files.list() == []
        chat.run("look", Image(file=picture.file_id)).wait()
        assert [file.object_id for file in chat.files.list()] == [picture.object_id]
        library.delete(picture.file_id)
        assert chat.files.get(picture.file_id) == PNG
        foreign = manager.open("chat", user_id="tom")
        for file_id in (picture.file_id, "file-" + "0" * 24, "../../etc/passwd"):
            with pytest.raises(InvalidPromptError, match="file"):
                foreign.run("look", Image(file=file_id))
        with pytest.raises(FileNotStoredError):
            foreign.files.get(picture.file_id)
        assert foreign.latest() is None
        manager.forget("ann")
        assert names_in(folder, [same]) == {same.object_id}
        assert toms.get(same.file_id) == PNG
        manager.forget("tom")
        assert names_in(folder, []) == set()


@tool
async def chart(context: ToolContext) -> ToolResult:
    """Draw a chart."""
    assert context.files is not None
    kept = await context.files.put("chart.png", PNG)
    assert await context.files.get(kept.file_id) == PNG
    assert [file.name for file in await context.files.list()] == ["chart.png"]
    drawn = [Image(file=kept.file_id), Image.from_bytes(LARGE, "image/png")]
    return ToolResult.of("drawn", *drawn)


def test_tools_put_files_and_return_them(place: dict[str, Any]) -> None:
    script = tool_script([[("chart", {})], "It is drawn."])
    ASKED.clear()

    def reply(messages: list[dict[str, Any]]) -> Any:
        ASKED.append(messages)
        return script(messages)

    with LocalProvider(reply=reply) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="none", tools=[chart], max_retries=0)
        with SessionManager(**place, engine=engine) as manager:
            chat = manager.open("chat")
            turn = chat.run("draw").wait()
            assert turn.text == "It is drawn."
            (result,) = (block for block in turn.blocks if isinstance(block, ToolResult))
            assert not result.is_error, result.text
            assert {block.file for block in result.attachments} == {file.file_id for file in chat.files.list()}
            assert uri(PNG, "image/png") in str(ASKED[-1])
            assert uri(LARGE, "image/png") in str(ASKED[-1])


def test_encrypted_files_are_readable_with_the_key_alone(engine: OpenAIEngine, tmp_path: Path) -> None:
    keys = {"ann": b"a" * 32}
    settings: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path}/chats.db",
        "placement": InProcess(),
        "engine": engine,
        "encryption": Encryption(key=keys.get, cache_s=0.0),
    }
    with SessionManager(**settings) as manager:
        chat = manager.open("chat", user_id="ann")
        secret = chat.files.put("secret.txt", b"the secret")
        assert chat.run("read", Document(file=secret.file_id)).wait().text == "I see"
        assert "the secret" in str(ASKED[-1])
        stored = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(b"the secret" in data or b"secret.txt" in data for data in stored)
        assert secret.digest.encode() not in b"".join(stored)
        del keys["ann"]
        with pytest.raises(KeyMissingError):
            chat.files.get(secret.file_id)
        manager.forget("ann")
        assert list((tmp_path / "chats.db-files").glob("*")) == []


def test_without_a_place_files_are_refused_and_attachments_stay(database: str, engine: OpenAIEngine) -> None:
    large = Image.from_bytes(LARGE, "image/png")
    with SessionManager(database, engine=engine, placement=InProcess()) as manager:
        chat = manager.open("chat")
        for verb in (lambda: chat.files.put("a", b"a"), chat.files.list, manager.files().list):
            with pytest.raises(FilesUnavailableError, match=r"pass files='/path/of/a/folder'"):
                verb()
        with pytest.raises(InvalidPromptError, match=r"pass files='/path/of/a/folder'"):
            chat.run("look", Image(file="file-" + "0" * 24))
        assert chat.run("look", large).wait().blocks[1] == large
        chat.delete()


def test_files_are_listed_in_pages_also_over_http(tmp_path: Path) -> None:
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        files = manager.open("chat").files
        file_ids = sorted(files.put(f"{number}.txt", b"text").file_id for number in range(3))
        assert [file.file_id for file in files.list(limit=2)] == file_ids[:2]
        assert [file.file_id for file in files.list(after=file_ids[1])] == file_ids[2:]


def test_files_are_bounded_for_a_session_and_for_a_user(tmp_path: Path) -> None:
    config = SessionConfig(
        max_file_bytes=10, max_session_files=2, max_session_file_bytes=15, max_user_file_bytes=25, max_inline_bytes=0
    )
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess(), "config": config}
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:
        chat, other = manager.open("chat"), manager.open("other")
        with pytest.raises(FileRefusedError, match="max_file_bytes, 10"):
            chat.files.put("a", b"x" * 11)
        chat.files.put("a", b"a" * 10)
        with pytest.raises(FileRefusedError, match="max_session_file_bytes is 15"):
            chat.files.put("b", b"b" * 6)
        chat.files.put("b", b"b" * 5)
        with pytest.raises(FileRefusedError, match="max_session_files is 2"):
            chat.files.put("c", b"")
        other.files.put("a", b"a" * 10)  # its content is there already
        manager.files().put("c", b"c" * 10)
        with pytest.raises(FileRefusedError, match="max_user_file_bytes is 25"):
            other.files.put("d", b"d")
        assert len(list((tmp_path / "chats.db-files").glob("*"))) == 3
        assert [file.name for file in chat.files.list(limit=1)] == ["a"]
        assert [file.name for file in chat.files.list(chat.files.list(limit=1)[0].file_id)] == ["b"]


def test_a_manager_that_reads_only_reads_files(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:
        file = manager.open("chat").files.put("a", b"a")
    with SessionManager(f"sqlite:///{tmp_path}/chats.db", **settings, read_only=True) as manager:
        chat = manager.get("chat")
        assert chat.files.get(file.file_id) == b"a"
        with pytest.raises(ReadOnlyStoreError):
            chat.files.put("b", b"b")
        with pytest.raises(ReadOnlyStoreError):
            chat.files.delete(file.file_id)
        for wrong in ("", "a", "../a", "file-" + "0" * 24 + "/../..", 7, None):
            with pytest.raises(InvalidInputError, match="file_id"):
                chat.files.get(wrong)  # type: ignore[arg-type]


async def test_the_asynchronous_family_has_the_same(tmp_path: Path, engine: OpenAIEngine) -> None:
    async with AsyncSessionManager(
        f"sqlite:///{tmp_path}/chats.db", engine=engine, placement=InProcess(), files=tmp_path / "elsewhere"
    ) as manager:
        chat = await manager.open("chat")
        read, write = os.pipe()
        os.write(write, PNG)
        os.close(write)
        with os.fdopen(read, "rb") as stream:  # which cannot be read twice
            file = await chat.files.put("cat.png", stream)
        assert await chat.files.get(file.file_id) == PNG
        assert b"".join([piece async for piece in chat.files.read(file.file_id)]) == PNG
        run = await chat.run("look", Image(file=file.file_id))
        await run.wait()
        assert uri(PNG, "image/png") in str(ASKED[-1])
        assert [path.name for path in (tmp_path / "elsewhere").glob("*")] == [file.object_id]
        await (await manager.files()).put("b", PNG)
        await chat.delete()
        assert len(await (await manager.files()).list()) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
def test_a_text_file_is_read_in_the_encoding_that_it_tells(encoding: str, engine: OpenAIEngine, tmp_path: Path) -> None:
    data = "Zürich 20:10".encode(encoding)
    assert Document.from_bytes("a.txt", data, "text/plain").text == "Zürich 20:10"
    settings: dict[str, Any] = {"placement": InProcess(), "files": f"file://{tmp_path}"}
    with SessionManager(f"memory://{tmp_path.name}", engine=engine, **settings) as manager:
        chat = manager.open("trip")
        chat.run("When?", Document(file=chat.files.put("a.txt", data, media_type="text/plain").file_id)).wait()
    assert "a.txt:\nZürich 20:10" in str(ASKED[-1]).replace("\\n", "\n")
