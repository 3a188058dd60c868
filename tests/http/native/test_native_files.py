"""Files over HTTP: uploads in pieces, downloads of parts, other users' files, and names and types of strangers."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from servers.http_service import ANN, BOB, TOKENS, in_process, manager_of, on_server
from turnwise import SessionConfig
from turnwise.http import HttpSettings, create_app
from turnwise.http.native.files import range_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_a_file_is_stored_listed_read_in_parts_and_deleted(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post("/v1/sessions", json={"id": "chat"})
        for place in ("/v1/sessions/chat/files", "/v1/files"):
            stored = await client.post(place, params={"name": "cät.png"}, content=PNG)
            assert stored.status_code == 201
            file = stored.json()
            assert (file["name"], file["media_type"], file["size"]) == ("cät.png", "image/png", len(PNG))
            assert file["session_id"] == ("chat" if "sessions" in place else None)
            path = stored.headers["location"]
            assert path == f"{place}/{file['file_id']}"
            assert (await client.get(path)).json() == file
            assert (await client.get(place)).json() == {"items": [file], "cursor": None}
            whole = await client.get(f"{path}/content")
            assert (whole.status_code, whole.content) == (200, PNG)
            assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''c%C3%A4t.png"
            assert whole.headers["content-type"] == "image/png"
            assert whole.headers["x-content-type-options"] == "nosniff"
            assert whole.headers["content-length"] == str(len(PNG))
            part = await client.get(f"{path}/content", headers={"Range": "bytes=2-5"})
            assert (part.status_code, part.content) == (206, PNG[2:6])
            assert part.headers["content-range"] == f"bytes 2-5/{len(PNG)}"
            behind = await client.get(f"{path}/content", headers={"Range": f"bytes={len(PNG)}-"})
            assert (behind.status_code, behind.headers["content-range"]) == (416, f"bytes */{len(PNG)}")
            for was_there in (True, False):
                assert (await client.delete(path)).json() == {"deleted": was_there}
            for missing in (path, f"{path}/content"):
                answer = await client.get(missing)
                assert (answer.status_code, answer.json()["error"]) == (404, "file_not_stored")


async def test_a_prompt_names_a_file(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post("/v1/sessions", json={"id": "chat"})
        file = (await client.post("/v1/files", params={"name": "cat.png"}, content=PNG)).json()
        prompt = ["look", {"kind": "image", "file": file["file_id"]}]
        run = await client.post("/v1/sessions/chat/runs", json={"prompt": prompt})
        assert run.status_code == 202, run.text
        await client.get(f"/v1/runs/{run.json()['id']}/wait")
        turn = await client.get("/v1/sessions/chat/turns")
        assert f'"file":"{file["file_id"]}"' in turn.text
        assert [item["file_id"] for item in (await client.get("/v1/sessions/chat/files")).json()["items"]] == [
            file["file_id"]
        ]
        wrong = ["look", {"kind": "image", "file": "file-" + "0" * 24}]
        answer = await client.post("/v1/sessions/chat/runs", json={"prompt": wrong})
        assert (answer.status_code, answer.json()["error"]) == (422, "invalid_prompt")


async def test_pages_of_files_have_cursors(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        ids = [(await client.post("/v1/files", params={"name": f"{n}"}, content=b"x")).json()["file_id"] for n in "abc"]
        page = (await client.get("/v1/files", params={"limit": 2})).json()
        assert ([item["file_id"] for item in page["items"]], page["cursor"]) == (ids[:2], ids[1])
        page = (await client.get("/v1/files", params={"limit": 2, "after": page["cursor"]})).json()
        assert ([item["file_id"] for item in page["items"]], page["cursor"]) == (ids[2:], None)


async def test_nobody_reaches_the_files_of_another_user(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post("/v1/sessions", json={"id": "anns"})
        paths = [
            (await client.post(place, params={"name": "a"}, content=b"secret")).headers["location"]
            for place in ("/v1/sessions/anns/files", "/v1/files")
        ]
        for path in paths:
            for target in (path, f"{path}/content"):
                answer = await client.get(target, headers=BOB)
                assert (answer.status_code, b"secret" in answer.content) == (404, False)
            deleted = await client.delete(path, headers=BOB)
            assert deleted.status_code == 404 or deleted.json() == {"deleted": False}
            assert (await client.get(f"{path}/content")).content == b"secret"
        assert (await client.get("/v1/files", headers=BOB)).json()["items"] == []
        assert (await client.get("/v1/files", headers={"Authorization": ""})).status_code == 401
        refused = await client.post("/v1/sessions/anns/files", params={"name": "b"}, content=b"x", headers=BOB)
        assert refused.status_code == 404


@pytest.mark.parametrize(
    ("name", "content_type", "status"),
    [
        ("../../etc/passwd", "text/plain", 201),
        ('a"; filename=b.exe', "text/html", 201),
        ("a\r\nSet-Cookie: a=b", "text/plain", 422),
        ("", "text/plain", 422),
        ("a" * 256, "text/plain", 422),
        ("a", "no type", 422),
    ],
)
async def test_names_and_types_of_strangers_do_no_harm(
    name: str, content_type: str, status: int, tmp_path: Path
) -> None:
    async with in_process(tmp_path) as client:
        headers = {"Content-Type": content_type}
        stored = await client.post("/v1/files", params={"name": name}, content=b"<script>", headers=headers)
        assert stored.status_code == status, stored.text
        if status == 201:
            content = await client.get(f"{stored.headers['location']}/content")
            assert content.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
            assert not set(content.headers["content-disposition"].partition("''")[2]) & set('"; /\\\r\n')
            assert content.headers["content-security-policy"].startswith("sandbox")
            assert "set-cookie" not in content.headers
        assert len(list((tmp_path / "chats.db-files").glob("*"))) == (status == 201)


async def test_files_have_a_bound_of_their_own(tmp_path: Path) -> None:
    """A file may be larger than other bodies; one that is too large is refused while it is read, and leaves nothing."""
    config = SessionConfig(max_file_bytes=3 << 20)
    async with manager_of(tmp_path, config=config) as manager:
        app = create_app(manager, auth=TOKENS, settings=HttpSettings(max_body_bytes=1000))
        sent = 0

        async def pieces(count: int) -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(count):
                sent += 1
                yield b"[" * (1 << 20)

        async with (
            on_server(app) as url,
            httpx.AsyncClient(base_url=url, headers=ANN, timeout=60) as client,
        ):
            stored = await client.post("/v1/files", params={"name": "a"}, content=pieces(3))
            assert (stored.status_code, stored.json()["size"]) == (201, 3 << 20)
            for size in (4, 9):
                refused = await client.post("/v1/files", params={"name": "b"}, content=b"x" * (size << 20))
                assert refused.status_code in (413, 422)
            other = await client.post("/v1/sessions", json={"title": "t" * 2000})
            assert other.status_code == 413
            assert len((await client.get("/v1/files")).json()["items"]) == 1
        assert len(list((tmp_path / "chats.db-files").glob("*"))) == 1


async def test_half_an_upload_leaves_nothing(tmp_path: Path) -> None:
    async with manager_of(tmp_path) as manager, on_server(create_app(manager, auth=TOKENS)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/files?name=a HTTP/1.1\r\nHost: x\r\nAuthorization: {ANN['Authorization']}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n".encode() + b"half")
        await writer.drain()
        folder = tmp_path / "chats.db-files"
        while not list(folder.glob("*")):
            await asyncio.sleep(0.01)
        writer.close()
        while list(folder.glob("*")):
            await asyncio.sleep(0.01)
        assert await (await manager.files(user_id="ann")).list() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("bytes=0-3", (0, 4)),
        ("bytes=5-", (5, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-99", (8, 10)),
        ("bytes=10-", (10, 10)),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("bytes=-", None),
        ("items=0-3", None),
        ("bytes=" + "9" * 40 + "-", None),
    ],
)
def test_ranges_are_read(text: str | None, expected: tuple[int, int] | None) -> None:
    assert range_of(text, 10) == expected
