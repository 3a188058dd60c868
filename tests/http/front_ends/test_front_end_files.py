"""Files and shared sessions by front ends: `useChat` of the Vercel AI SDK, and clients of AG-UI, by their requests."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, ROOT, in_process

CHAT, AG_UI = "/v1/ui/chat", "/v1/ag-ui"
OF_ANN = {"owner": "ann"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
LARGE = "data:image/png;base64," + base64.b64encode(PNG + b"\0" * 70_000).decode()
ABSENT = "file-" + "0" * 24


def useChat(message_id: str, *parts: dict[str, Any] | str) -> dict[str, Any]:  # noqa: N802 - the client's name
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"id": "chat", "messages": [{"id": message_id, "role": "user", "parts": texts}]}


def ag_ui(message_id: str, *parts: dict[str, Any] | str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {
        "threadId": "chat", "runId": "r", "messages": [{"id": message_id, "role": "user", "content": content}], **fields
    }  # fmt: skip


async def prompts_of(client: httpx.AsyncClient) -> list[list[dict[str, Any]]]:
    """Return the prompts of each turn of Ann's chat, without what is not set."""
    turns = (await client.get("/v1/sessions/chat/turns", headers=ANN)).json()["items"]
    return [
        [{name: value for name, value in block.items() if value is not None} for block in turn["blocks"][:-1]]
        for turn in turns
    ]


async def put(client: httpx.AsyncClient, path: str = "/v1/files", name: str = "cat.png", data: bytes = PNG) -> str:
    file_id: str = (await client.post(path, params={"name": name}, content=data)).json()["file_id"]
    return file_id


async def test_a_large_file_of_a_message_becomes_a_file_and_the_message_may_be_repeated(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        body = useChat("m1", "Look.", {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": LARGE})
        runs = {(await client.post(CHAT, json=body)).headers["x-run-id"] for _ in range(2)}
        assert len(runs) == 1
        (file,) = (await client.get("/v1/sessions/chat/files")).json()["items"]
        assert (await prompts_of(client))[0][1]["file"] == file["file_id"]
        smaller = LARGE[:-8] + "AAAAAAAA"[::-1].replace("A", "B")
        other = useChat("m1", "Look.", {"type": "file", "mediaType": "image/png", "url": smaller})
        refused = await client.post(CHAT, json=other)
        assert (refused.status_code, refused.json()["error"]) == (422, "idempotency_conflict")


async def test_use_chat_gets_the_addresses_of_files_and_may_send_them_back(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        file_id = await put(client)
        by_reference = {"type": "file", "mediaType": "image/png", "url": "", "providerReference": {"turnwise": file_id}}
        answered = await client.post(CHAT, json=useChat("m1", "Look.", by_reference))
        assert answered.status_code == 200, answered.text
        (message, _) = (await client.get(f"{CHAT}/chat/messages")).json()["messages"]
        part = message["parts"][1]
        assert part == {
            "type": "file",
            "mediaType": "image/png",
            "url": f"http://service/v1/sessions/chat/files/{file_id}/content",
        }
        assert (await client.get(part["url"])).content == PNG
        for url in (part["url"], part["url"].removeprefix("http://service"), f"/v1/files/{file_id}/content"):
            again = await client.post(CHAT, json=useChat(url[:40], "And again?", {**part, "url": url}))
            assert again.status_code == 200, again.text
            assert (await prompts_of(client))[-1][1]["file"] == file_id
        repeated = await client.post(CHAT, json={**useChat("m1", "Look.", part), "trigger": "regenerate-message"})
        assert repeated.status_code == 200, repeated.text
        assert (await prompts_of(client))[-1][1]["file"] == file_id


async def test_ag_ui_names_files_by_their_ids_also_in_the_parts_of_old_clients(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        picture, paper = await put(client), await put(client, name="paper.pdf", data=b"%PDF-1.7")
        encoded = base64.b64encode(PNG).decode()
        parts: list[dict[str, Any]] = [
            {"type": "image", "source": {"type": "file", "value": picture}},
            {"type": "document", "source": {"type": "file", "value": paper, "provider": "turnwise"}},
            {"type": "image", "source": {"type": "url", "value": f"http://service/v1/files/{picture}/content"}},
            {"type": "binary", "mimeType": "image/png", "id": picture},
            {"type": "binary", "mimeType": "application/pdf", "id": paper, "filename": "mine.pdf"},
            {"type": "binary", "mimeType": "image/png", "data": encoded},
            {"type": "binary", "mimeType": "image/png", "url": "https://example.org/cat.png"},
        ]
        answered = await client.post(AG_UI, json=ag_ui("m1", "Look.", *parts))
        assert answered.status_code == 200, answered.text
        (blocks,) = await prompts_of(client)
        assert [(block["kind"], block.get("file")) for block in blocks[1:]] == [
            ("image", picture),
            ("document", paper),
            ("image", picture),
            ("image", picture),
            ("document", paper),
            ("image", None),
            ("image", None),
        ]
        assert [block.get("name") for block in blocks if block["kind"] == "document"] == ["paper.pdf", "mine.pdf"]
        assert blocks[-2]["data"] == encoded and blocks[-1]["url"] == "https://example.org/cat.png"
        names = {item["file_id"] for item in (await client.get("/v1/sessions/chat/files")).json()["items"]}
        assert names == {picture, paper}


async def test_a_file_that_cannot_be_had_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post("/v1/sessions", json={"id": "other"}, headers=BOB)
        of_bob = (await client.post("/v1/files", params={"name": "b"}, content=b"b", headers=BOB)).json()["file_id"]
        file = {"type": "file", "mediaType": "image/png"}
        wrong: list[tuple[str, dict[str, Any], str, str]] = [
            (CHAT, useChat("m", {**file, "providerReference": {"turnwise": of_bob}}), "invalid_prompt", of_bob),
            (CHAT, useChat("m", {**file, "url": f"/v1/files/{ABSENT}/content"}), "invalid_prompt", ABSENT),
            (CHAT, useChat("m", {**file, "url": "/v1/files/cat.png/content"}), "invalid_input", "parts[0].url"),
            (CHAT, useChat("m", {**file, "providerReference": {"turnwise": 5}}), "invalid_input", "providerReference"),
            (CHAT, useChat("m", {**file, "providerReference": "x"}), "invalid_input", "providerReference"),
            (CHAT, useChat("m", {**file, "providerReference": {"openai": "file-1"}}), "invalid_input", "parts[0].url"),
        ]
        absent = {"type": "binary", "mimeType": "image/png", "id": ABSENT}
        of_others = {"type": "image", "source": {"type": "file", "value": of_bob}}
        wrong += [(AG_UI, ag_ui("m", part), "invalid_prompt", "file") for part in (absent, of_others)]
        for part, place in (
            ({"type": "image", "source": {"type": "file", "value": "../etc"}}, "content.0.source.value"),
            ({"type": "image", "source": {"type": "file", "value": "x", "provider": "openai"}}, "source.provider"),
            ({"type": "audio", "source": {"type": "data", "value": "aGk=", "mimeType": "audio/wav"}}, "content.0.type"),
            ({"type": "binary", "mimeType": "audio/wav", "data": "aGk="}, "content.0.type"),
            ({"type": "binary", "mimeType": "image/png"}, "source"),
            ({"type": "binary"}, "source"),
        ):
            wrong.append((AG_UI, ag_ui("m", part), "inval", place))
        for path, body, error, place in wrong:
            answer = await client.post(path, json=body)
            assert answer.status_code == 422, (body, answer.text)
            assert answer.json()["error"].startswith(error) and place in answer.text, (body, answer.text)
        assert (await client.get("/v1/sessions/chat")).status_code == 404


@pytest.mark.parametrize("front_end", ["useChat", "ag_ui"])
async def test_a_member_answers_in_a_session_that_another_user_shares(tmp_path: Path, front_end: str) -> None:
    async with in_process(tmp_path) as client:
        path, message = (CHAT, useChat) if front_end == "useChat" else (AG_UI, ag_ui)
        absent = await client.post(path, json=message("m0", "Hello!"), params=OF_ANN, headers=BOB)
        assert absent.status_code == 404, "nobody makes a session of somebody else"
        assert (await client.get("/v1/sessions/chat")).status_code == 404
        assert (await client.post(path, json=message("m1", "From Ann."))).status_code == 200
        await client.put("/v1/sessions/chat/members/bob", json={"role": "member"})
        runs = {
            (await client.post(path, json=message("m2", "From Bob."), params=OF_ANN, headers=BOB)).headers["x-run-id"]
            for _ in range(2)
        }
        assert len(runs) == 1, "a repeated message is one"
        assert [prompts[0].get("author") for prompts in await prompts_of(client)] == [None, "bob"]
        assert (await client.get(f"{path}/chat/stream", params=OF_ANN, headers=BOB)).status_code == 204
        own = await client.post(path, json=message("m3", "In my own."), headers=BOB)
        assert own.status_code == 200 and len(await prompts_of(client)) == 2

        await client.put("/v1/sessions/chat/members/bob", json={"role": "reader"})
        refused = await client.post(path, json=message("m4", "May I?"), params=OF_ANN, headers=BOB)
        assert (refused.status_code, refused.json()["error"]) == (403, "not_allowed")
        assert (await client.get(f"{path}/chat/stream", params=OF_ANN, headers=BOB)).status_code == 204
        await client.delete("/v1/sessions/chat/members/bob")
        for user in (BOB, ROOT):
            assert (await client.post(path, json=message("m4", "?"), params=OF_ANN, headers=user)).status_code == 404
            assert (await client.get(f"{path}/chat/stream", params=OF_ANN, headers=user)).status_code == 404


async def test_use_chat_shows_authors_and_files_of_a_shared_session_to_its_members(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.post(CHAT, json=useChat("m1", "From Ann."))
        for name, role in (("bob", "member"), ("root", "reader")):
            await client.put(f"/v1/sessions/chat/members/{name}", json={"role": role})
        part = {"type": "file", "mediaType": "image/png", "url": LARGE}
        await client.post(CHAT, json=useChat("m2", "From Bob.", part), params=OF_ANN, headers=BOB)
        shown = (await client.get(f"{CHAT}/chat/messages", params=OF_ANN, headers=ROOT)).json()["messages"]
        assert [message.get("metadata") for message in shown if message["role"] == "user"] == [None, {"author": "bob"}]
        url = shown[2]["parts"][1]["url"]
        assert url.endswith("/content?owner=ann")
        assert (await client.get(url, headers=ROOT)).content == base64.b64decode(LARGE.partition(",")[2])

        for user, author in ((BOB, "bob"), (ANN, "bob")):  # each answers Bob's message again, which stays his
            again = {**useChat("m2", "From Bob.", part), "trigger": "regenerate-message"}
            params = OF_ANN if user is BOB else {}
            answered = await client.post(CHAT, json=again, params=params, headers=user)
            assert answered.status_code == 200, answered.text
            assert (await prompts_of(client))[-1][0]["author"] == author
        edited = {**useChat("m2", "From Ann, instead."), "messageId": "m2"}
        assert (await client.post(CHAT, json=edited)).status_code == 200
        assert (await prompts_of(client))[-1][0]["author"] == "ann"
        assert json.loads((await client.get("/v1/sessions/chat")).text)["members"] == {
            "bob": "member",
            "root": "reader",
        }
