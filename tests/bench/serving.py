"""Measures the service over HTTP, in a process of its own, beside what it is compared with.

    python serving.py turns PORT_FILE STORE NAMESPACE PROVIDER     the service, until its standard input is closed
    python serving.py floor PORT_FILE                              a bare ASGI app that streams as many events

The floors: the bare `openai` client for the first token, the Python API for a turn, the bare app for event streams.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import ray

from harness import Samples, Table, prompt_of
from turnwise import AsyncSessionManager, EchoEngine, OpenAIEngine, Packed
from turnwise.http import HttpSettings, create_app
from turnwise.http.server.listening import Server, listen
from turnwise.testing import LocalProvider

TOKEN_S = 0.05
"""The time between two tokens of a run that is followed."""

PROMPT = prompt_of(200)

REPLY = "A few words to begin with, and then a few more."


def manager_of(store: str, namespace: str, provider_url: str) -> AsyncSessionManager:
    model = OpenAIEngine("stand-in", base_url=provider_url, api_key="no-key")
    engines: dict[str, Any] = {"echo": EchoEngine(), "slow": EchoEngine(TOKEN_S), "model": model}
    return AsyncSessionManager(store, engine=engines, placement=Packed(hosts=1), namespace=namespace)


# The processes that serve


async def serve(app: Any, port_file: str) -> None:
    gc.collect()
    gc.freeze()  # as `turnwise serve` does, whose socket and server these are, so that connections are kept as there
    bound, started = listen("127.0.0.1", 0), asyncio.Event()
    server = Server(app, HttpSettings().protocol, ready=started.set)
    serving = asyncio.create_task(server.serve([bound]))
    await started.wait()
    await asyncio.to_thread(Path(port_file).write_text, str(bound.getsockname()[1]), encoding="ascii")
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


async def serve_turns(port_file: str, store: str, namespace: str, provider_url: str) -> None:
    async with manager_of(store, namespace, provider_url) as manager:
        await serve(create_app(manager, settings=HttpSettings()), port_file)


async def floor_app(scope: Any, receive: Any, send: Any) -> None:
    """Send an event every `TOKEN_S` to some clients, and nothing to the others, by the query."""
    if scope["type"] != "http":
        return
    tokens = int(scope["query_string"] or 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
    for number in range(tokens):
        await asyncio.sleep(TOKEN_S)
        data = json.dumps({"kind": "text_delta", "seq": number, "at": time.time(), "text": "word "})
        body = f"id: {number}\nevent: text_delta\ndata: {data}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def process(*words: str) -> Iterator[str]:
    """Run this module as a process that serves; yield its URL."""
    with tempfile.TemporaryDirectory(prefix="turnwise-bench-") as folder:
        port_file = Path(folder) / "port"
        address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        command = [sys.executable, __file__, words[0], str(port_file), *words[1:]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **address}) as served:
            while not port_file.exists() or not port_file.read_text(encoding="ascii"):
                if served.poll() is not None:
                    raise RuntimeError(f"the service ended with {served.returncode}")
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port_file.read_text(encoding='ascii')}"
            assert served.stdin
            served.stdin.close()
            served.wait(30)


# The measurements


async def first_tokens(table: Table, url: str, provider_url: str, count: int) -> None:
    """Measure from a POST to the first token, alternating with the bare client of the provider."""
    bare, of_service = Samples(), Samples()
    messages: list[Any] = []
    async with (
        openai.AsyncOpenAI(base_url=provider_url, api_key="no-key", max_retries=0) as client,
        httpx.AsyncClient(base_url=url, timeout=60) as service,
    ):
        await service.post("/v1/sessions", json={"id": "first", "engine": "model"})
        for number in range(-3, count):
            messages.append({"role": "user", "content": f"Tell me, for the {number}th time."})
            with bare.timed():
                stream = await client.chat.completions.create(model="stand-in", messages=messages, stream=True)
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        break
            async for _ in stream:
                pass
            body = {"prompt": messages[-1]["content"]}
            began = time.perf_counter()
            async with service.stream("POST", "/v1/sessions/first/runs?stream=true", json=body) as response:
                received = b""
                async for part in response.aiter_bytes():
                    if b"event: text_delta" not in received and b"event: text_delta" in received + part:
                        of_service.append(time.perf_counter() - began)
                    received += part
            assert b"event: run_completed" in received
            messages.append({"role": "assistant", "content": REPLY})
            if number < 0:
                bare.clear()
                of_service.clear()
    table.line("first token over HTTP: bare client of the provider", bare, "floor")
    table.judge("  the service, above that", (of_service.median - bare.median) * 1000, 15, " ms", of_service)


async def turns(table: Table, url: str, manager: AsyncSessionManager, rounds: int) -> None:
    """Measure a turn of one request, alternating with one of the Python API, on the same host."""
    bare, of_service, turns_each = Samples(), Samples(), 5
    session = await manager.open("python")
    async with httpx.AsyncClient(base_url=url, timeout=60) as service:
        await service.post("/v1/sessions", json={"id": "http"})
        for number in range(-2, rounds):
            for _ in range(turns_each):
                with bare.timed():
                    await (await session.run(PROMPT)).wait()
            for _ in range(turns_each):
                with of_service.timed():
                    answer = await service.post("/v1/sessions/http/runs?wait_s=60", json={"prompt": PROMPT})
                assert answer.json()["text"] == PROMPT, answer.text
            if number < 0:
                bare.clear()
                of_service.clear()
    table.line("turn by the Python API, packed", bare, "floor")
    table.judge("  the same over HTTP", of_service.median / bare.median, 2.5, samples=of_service)


Ready = Callable[[], Awaitable[None]]


async def follow(port: int, path: str, ready: asyncio.Semaphore, delays: Samples, until: bytes) -> int:
    """Read a stream of events up to one of a kind; note how old each delta was when it came."""
    stream, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
    await stream.readuntil(b"retry: 1000\n\n")
    ready.release()
    count = 0
    try:
        while True:
            frame = await stream.readuntil(b"\n\n")
            if b"event: text_delta" in frame:
                delays.append(time.time() - json.loads(frame.partition(b"data: ")[2])["at"])
                count += 1
            if until and until in frame:
                return count
    finally:
        writer.close()


async def followers(table: Table, url: str, floor_url: str, count: int, tokens: int) -> None:
    """Measure how late events come to the followers of many sessions, of which some stream."""
    gc.freeze()  # a pause of this process would be one of all its clients
    port, running = int(url.rpartition(":")[2]), count // 10
    bare, of_service = Samples(), Samples()

    async def all_(port: int, path: Callable[[int], str], until: bytes, delays: Samples, start: Ready | None) -> None:
        ready = asyncio.Semaphore(0)
        reading = [
            asyncio.create_task(follow(port, path(index), ready, delays, until if index < running else b""))
            for index in range(count)
        ]
        for _ in range(count):
            await ready.acquire()
        if start:
            await start()
        await asyncio.gather(*reading[:running])
        for task in reading[running:]:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def floor_path(index: int) -> str:
        return f"/?{tokens if index < running else 0}"

    floor_port = int(floor_url.rpartition(":")[2])
    await all_(floor_port, floor_path, f'"seq": {tokens - 1}'.encode(), bare, None)
    prompt = "word " * tokens
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=20)) as service:
        for index in range(count):
            await service.post("/v1/sessions", json={"id": f"followed {index}", "engine": "slow"})

        async def start() -> None:
            posts = [
                service.post(f"/v1/sessions/followed%20{index}/runs", json={"prompt": prompt})
                for index in range(running)
            ]
            assert all(answer.status_code == 202 for answer in await asyncio.gather(*posts))

        await all_(
            port, lambda index: f"/v1/sessions/followed%20{index}/events", b"event: run_completed", of_service, start
        )
    table.line(f"events of {running} streams, {count} open: a bare ASGI app", bare, "floor")
    late, floor = of_service.percentile(99) * 1000, bare.percentile(99) * 1000
    table.judge(f"  of {running} runs, {count} followed: p99", late, 100, " ms", of_service)
    table.line("  p99, to that of the bare app", result=f"{late / floor:.3g}x")


async def measure(
    table: Table, folder: Path, namespace: str, *, first: int, rounds: int, follow: int, tokens: int
) -> None:
    """Measure all of it."""
    store = f"sqlite:///{folder}/http.db"
    with LocalProvider(token_delay_s=0.001, reply=REPLY) as provider:
        async with manager_of(store, namespace, provider.base_url) as manager:
            with process("turns", store, namespace, provider.base_url) as url, process("floor") as floor_url:
                await first_tokens(table, url, provider.base_url, first)
                await turns(table, url, manager, rounds)
                await followers(table, url, floor_url, follow, tokens)


if __name__ == "__main__":
    program, *words = sys.argv[1:]
    asyncio.run(serve_turns(*words) if program == "turns" else serve(floor_app, *words))
