"""The service on a real server: who leaves, who does not read, who comes by the thousand, and ids of any characters."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from servers.http_service import BOB, WAIT_S, Frames, frames, frames_of, manager_of, on_server, served
from turnwise.http import create_app

SSE = {"Accept": "text/event-stream"}
CANCEL = {"X-On-Disconnect": "cancel"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


async def opened(client: httpx.AsyncClient, session_id: str, engine: str = "slow") -> str:
    answer = await client.post("/v1/sessions", json={"id": session_id, "engine": engine, "if_exists": "keep"})
    assert answer.is_success, answer.text
    return f"/v1/sessions/{quote(session_id, safe='')}"


async def state_of(client: httpx.AsyncClient, run_id: str) -> Any:
    return (await client.get(f"/v1/runs/{run_id}/wait?timeout_s=60")).json()["state"]


IDS = [
    "a/b",
    "a%2Fb",
    "100%",
    "é ü 漢",
    "a?b#c&d=e",
    "/",
    "//",
    "<script>",
    "%",
    "a b",
    "v1/sessions",
    "runs",
    "~.-_",
    "'\"",
]


@pytest.mark.parametrize("prefix", ["", "/api"])
async def test_ids_may_have_any_characters(folder: Path, prefix: str) -> None:
    async with manager_of(folder) as manager:
        app = create_app(manager)
        outer = FastAPI()
        outer.state.service = app.state.service
        outer.mount("/api", app)
        async with (
            on_server(outer if prefix else app) as url,
            httpx.AsyncClient(base_url=url + prefix, timeout=100) as client,
        ):
            for name in IDS:
                path = await opened(client, name)
                response = await client.get(path)
                assert response.is_success and response.json()["id"] == name, (name, response.text)
                run = await client.post(f"{path}/runs?wait_s=60", json={"prompt": name})
                assert run.json()["session_id"] == name and run.json()["text"] == name
                assert run.headers["location"] == f"{prefix}/v1/runs/{run.json()['id']}"
                items = (await client.get(f"{path}/messages")).json()["items"]
                assert {item["text"] for item in items} == {name}
            missing = await client.get("/v1/sessions/a%2Fb%2Fc")
            assert missing.status_code == 404 and missing.json()["session_id"] == "a/b/c"
            for wrong in ("a%0d%0aX-Evil:%201", "%00", "a%1fb", "%ff" * 300, "x" * 257):
                refused = await client.get(f"/v1/sessions/{wrong}")
                assert refused.status_code in (404, 422), wrong
                assert "x-evil" not in refused.headers
                assert prefix or refused.headers["content-type"] == "application/problem+json"


async def test_a_run_outlives_its_client_unless_it_asks_otherwise(folder: Path) -> None:
    async with served(folder) as (_, client):
        path = await opened(client, "leaving")

        async def leave(headers: dict[str, str]) -> str:
            body = {"prompt": "word " * 300, "if_busy": "interrupt"}
            async with client.stream("POST", f"{path}/runs", json=body, headers={**SSE, **headers}) as response:
                async for frame in frames(response):
                    if frame["event"] == "text_delta":
                        break
                return response.headers["x-run-id"]

        kept_run = await leave({})
        assert await state_of(client, kept_run) == "completed"
        assert await state_of(client, await leave(CANCEL)) == "cancelled"

        run = (await client.post(f"{path}/runs", json={"prompt": "word " * 3000})).json()
        impatient = httpx.Timeout(60, read=0.3)
        with pytest.raises(httpx.ReadTimeout):
            await client.get(f"/v1/runs/{run['id']}/wait?timeout_s=60", timeout=impatient)
        async with client.stream("GET", f"/v1/runs/{run['id']}/events", headers=SSE) as response:
            await anext(frames(response))
        assert (await client.get(f"/v1/runs/{run['id']}")).json()["state"] == "running"
        with pytest.raises(httpx.ReadTimeout):
            await client.get(f"/v1/runs/{run['id']}/wait?timeout_s=60", headers=CANCEL, timeout=impatient)
        assert await state_of(client, run["id"]) == "cancelled"
        waiting = asyncio.create_task(
            client.post(f"{path}/runs?wait_s=60", json={"prompt": "word " * 3000}, headers=CANCEL)
        )
        newest = run["id"]
        while newest == run["id"]:
            assert not waiting.done()
            newest = (await client.get("/v1/runs?limit=1")).json()["items"][0]["id"]
        waiting.cancel()  # which closes its connection
        assert await state_of(client, newest) == "cancelled"
        refused = await client.get(f"/v1/runs/{run['id']}/wait", headers={"X-On-Disconnect": "maybe"})
        assert refused.status_code == 422 and refused.json()["field"] == "X-On-Disconnect"


async def test_streams_of_two_users_tell_once_and_in_order_what_their_sessions_say(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        path = await opened(client, "speaker")
        await client.post("/v1/sessions", json={"id": "speaker", "engine": "slow"}, headers=BOB)

        async def follow(headers: dict[str, str], count: int) -> list[Any]:
            told: list[Any] = []
            async with client.stream("GET", f"{path}/events", headers={**SSE, **headers}) as response:
                async for frame in frames(response):
                    told.append(frame)
                    if sum(frame["event"] == "run_completed" for frame in told) == count:
                        break
            return told

        slow = " ".join(["word"] * 24)
        following = asyncio.gather(follow({}, 3), follow(BOB, 1))
        await client.post(f"{path}/say", json={"text": "Hello, Ann."})
        await client.post(f"{path}/runs", json={"prompt": slow})
        queued = await client.post(f"{path}/say", json={"text": "One more thing."})
        assert (await client.get(queued.headers["location"])).json()["state"] == "queued"
        await client.post(f"{path}/say", json={"text": "Hello, Bob."}, headers=BOB)
        anns, bobs = await asyncio.wait_for(following, WAIT_S)
        for told, texts in ((anns, ["Hello, Ann.", slow, "One more thing."]), (bobs, ["Hello, Bob."])):
            ends = [frame["data"] for frame in told if frame["event"] == "run_completed"]
            assert [end["blocks"][-1]["text"] for end in ends] == texts
            numbers = [int(frame["id"]) for frame in told]
            assert numbers == sorted(set(numbers))
            assert sum(frame["event"] == "run_started" for frame in told) == len(texts)


async def test_a_client_whose_run_was_dropped_leaves_the_active_run_alone(folder: Path) -> None:
    async with served(folder) as (_, client):
        path = await opened(client, "dropping")
        active = (await client.post(f"{path}/runs", json={"prompt": "word " * 300})).json()["id"]
        dropped = {"prompt": "hello", "if_busy": "drop"}
        async with client.stream("POST", f"{path}/runs", json=dropped, headers={**SSE, **CANCEL}) as response:
            assert response.headers["x-run-id"] == active
            await anext(frames(response))
        assert await state_of(client, active) == "completed"


async def test_a_setting_may_cancel_the_runs_of_clients_that_leave(folder: Path) -> None:
    async with served(folder, {"on_disconnect": "cancel"}) as (_, client):
        path = await opened(client, "by default")
        body = {"prompt": "word " * 3000}
        async with client.stream("POST", f"{path}/runs?stream=true", json=body) as response:
            run_id = response.headers["x-run-id"]
        assert await state_of(client, run_id) == "cancelled"
        async with client.stream("GET", f"/v1/runs/{run_id}/events", headers=SSE) as response:
            events = [frame["event"] async for frame in frames(response)]
        assert events[-1] == "run_cancelled"


async def test_a_silent_stream_has_heartbeats_and_ends_when_the_service_stops(folder: Path) -> None:
    async with served(folder, {"heartbeat_s": 0.05}) as (app, client):
        path = await opened(client, "silent")
        async with client.stream("GET", f"{path}/events", headers=SSE) as response:
            chunks = response.aiter_bytes()
            text = b""
            while text.count(b": still here\n\n") < 3:
                text += await anext(chunks)
            assert text.startswith(b"retry: 1000\n\n")
            waiting = asyncio.create_task(client.get(f"{path}/events?wait_s=60"))
            run = (await client.post(f"{path}/runs", json={"prompt": "word " * 300})).json()
            polled = asyncio.create_task(client.get(f"/v1/runs/{run['id']}/wait?timeout_s=60"))
            assert (await waiting).json()["items"]
            app.state.service.stop()
            async for chunk in chunks:
                text += chunk
            assert (await polled).json()["state"] == "running"
        assert Frames().feed(text)


@pytest.mark.by_turns
async def test_a_thousand_idle_streams_of_one_process_get_what_comes(folder: Path) -> None:
    many, sessions = 1000, 20
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with served(folder, auth=False) as (_, client):
        paths = [await opened(client, f"idle {number}") for number in range(sessions)]
        host, port = client.base_url.host, client.base_url.port

        async def reader(path: str) -> dict[str, Any]:
            stream, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path}/events?stream=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await stream.readuntil(b"retry: 1000\n\n")
            ready.append(path)
            frames = Frames()
            while True:
                for line in frames.feed((await stream.readuntil(b"\n\n")).split(b"\r\n")[-1]):
                    writer.close()
                    return line

        ready: list[str] = []
        readers = [asyncio.create_task(reader(paths[number % sessions])) for number in range(many)]
        while len(ready) < many:
            await asyncio.sleep(0.05)
            assert not any(reader.done() for reader in readers)
        for path in paths:
            assert (await client.post(f"{path}/events", json={"name": "ping"})).status_code == 201
        for frame in await asyncio.wait_for(asyncio.gather(*readers), WAIT_S):
            assert frame["event"] == "custom" and frame["data"]["name"] == "ping"


async def test_a_user_has_so_many_streams_at_once(folder: Path) -> None:
    async with served(folder, {"max_streams_per_user": 2}) as (_, client):
        path = await opened(client, "limited")
        async with (
            client.stream("GET", f"{path}/events", headers=SSE) as first,
            client.stream("GET", f"{path}/events", headers=SSE) as second,
        ):
            assert first.is_success and second.is_success
            third = await client.get(f"{path}/events", headers=SSE)
            assert third.status_code == 429 and third.json()["error"] == "too_many_streams"
            assert third.headers["retry-after"] == "1"
            assert (await client.get(path)).is_success


@pytest.mark.by_turns
async def test_who_does_not_read_holds_one_page_and_delays_nobody(folder: Path) -> None:
    async with served(folder, auth=False) as (app, client):
        path = await opened(client, "slow reader")
        for number in range(40):
            body = {"name": f"big {number}", "data": {"text": "x" * 500_000}}
            assert (await client.post(f"{path}/events", json=body)).status_code == 201
        stream, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port, limit=1024)
        writer.write(f"GET {path}/events?stream=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert await stream.readexactly(100)
        run = await client.post(f"{path}/runs?wait_s=60", json={"prompt": "hello"})
        assert run.json()["text"] == "hello"
        first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(40, 120):
            body = {"name": f"big {number}", "data": {"text": "x" * 500_000}}
            assert (await client.post(f"{path}/events", json=body)).status_code == 201
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first < 40_000, "kilobytes"
        app.state.service.stop()  # does not wait for it
        writer.close()


async def test_bodies_and_headers_that_are_too_large_are_refused_unread(folder: Path) -> None:
    async with served(folder, {"max_body_bytes": 1000, "max_header_bytes": 4000}, auth=False) as (_, client):
        path = await opened(client, "large")
        host, port = client.base_url.host, client.base_url.port

        async def answer_to(request: bytes) -> bytes:
            stream, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            head = await asyncio.wait_for(stream.readuntil(b"\r\n\r\n"), WAIT_S)
            writer.close()
            return head.split(b"\r\n")[0]

        post = f"POST {path}/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
        assert b" 413 " in await answer_to(post + b"Content-Length: 10000000000\r\n\r\n{")
        chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
        assert b" 413 " in await answer_to(post + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        assert b" 431 " in await answer_to(post + b"X-Large: " + b"x" * 5000 + b"\r\nContent-Length: 2\r\n\r\n{}")
        event_id = f"GET {path}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nLast-Event-ID: ".encode()
        for wrong in (b"1 2", b"-1", b"1e3", b"\xd9\xa1", b"9" * 40, b"a\x0bb"):
            assert b" 4" in await answer_to(event_id + wrong + b"\r\n\r\n"), wrong
        assert (await client.get("/v1/count")).is_success


async def test_texts_come_back_unchanged_and_never_as_markup(folder: Path) -> None:
    texts = [
        "<script>alert(1)</script>",
        "\x1b[31mred\x1b[0m",
        "a\r\n\r\nevent: evil\r\ndata: {}\r\n\r\n",
        "\u2028\u2029\x00 \u202e",
    ]
    async with served(folder) as (_, client):
        path = await opened(client, "markup", engine="echo")
        for text in texts:
            run = await client.post(f"{path}/runs?wait_s=60", json={"prompt": text})
            assert run.json()["text"] == text and run.headers["content-type"] == "application/json"
            events = frames_of((await client.get(f"/v1/runs/{run.json()['id']}/events", headers=SSE)).text)
            assert "evil" not in {event["event"] for event in events}
            assert "".join(event["data"]["text"] for event in events if event["event"] == "text_delta") == text
            titled = await client.patch(path, json={"title": text, "metadata": {"t": text}})
            assert titled.json()["title"] == text and text not in str(titled.headers)
            messages = (await client.get(f"{path}/messages?limit=1")).json()["items"]
            assert messages[0]["text"] == text
        page = await client.get(f"{path}/turns")
        assert (
            page.headers["content-type"] == "application/json" and page.headers["x-content-type-options"] == "nosniff"
        )
