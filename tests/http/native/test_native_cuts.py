"""Clients whose connections are cut again and again have each event once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from scale import share
from servers.asgi_stream import streamed
from servers.http_service import ANN, TOKENS, WAIT_S, Frames, frames, manager_of, on_server
from turnwise.http import create_app

CUTS = share(1000)
"""How often followers are cut off in all; `make races` does all."""

SSE = {**ANN, "Accept": "text/event-stream"}

WORDS = 120
"""How many words a run answers with, one every ten milliseconds."""


def prompt_of(rng: random.Random) -> str:
    return " ".join(str(rng.randrange(10**6)) for _ in range(WORDS))


async def start(client: httpx.AsyncClient, path: str, prompt: str, **options: Any) -> str:
    answer = await client.post(f"{path}/runs", json={"prompt": prompt, **options})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def follow(
    app: FastAPI, path: str, last: str, rng: random.Random | None, cuts: list[int]
) -> list[dict[str, Any]]:
    """Return the events up to the one of kind `last`; with a `rng`, dropping the connection at random bytes."""
    frames: list[dict[str, Any]] = []

    def is_whole() -> bool:
        return bool(frames) and frames[-1]["event"] == "run_completed" and frames[-1]["data"]["run_id"] == last

    while not is_whole():
        headers = {**SSE, "Last-Event-ID": frames[-1]["id"]} if frames else SSE
        bytes_left = rng.randrange(20, 2500) if rng else 10**9
        reader = Frames()
        async with streamed(app, path, headers) as chunks:
            async for chunk in chunks:
                frames += reader.feed(chunk[:bytes_left])
                bytes_left -= len(chunk)
                cuts[0] += bytes_left <= 0
                if bytes_left <= 0 or is_whole():
                    break
    return frames


def check(whole: list[dict[str, Any]], pieces: list[dict[str, Any]], text: str, run_id: str) -> None:
    assert [piece["id"] for piece in pieces] == [frame["id"] for frame in whole]
    assert pieces == whole
    numbers = [int(frame["id"]) for frame in whole]
    assert numbers == sorted(set(numbers))
    deltas = [frame["data"] for frame in whole if frame["event"] == "text_delta"]
    assert "".join(delta["text"] for delta in deltas if delta["run_id"] == run_id) == text


async def test_a_thousand_cuts_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """Followers of runs and of sessions across runs, in turn, by seed."""
    cuts = [0]
    seed = 0
    async with manager_of(tmp_path) as manager:
        app = create_app(manager, auth=TOKENS)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=ANN) as client:
            while cuts[0] < CUTS:
                seed += 1
                rng = random.Random(seed)
                session = f"cuts {seed}"
                await client.post("/v1/sessions", json={"id": session, "engine": "slow"})
                path = f"/v1/sessions/cuts%20{seed}"
                prompts = [prompt_of(rng), prompt_of(rng)]
                runs = [await start(client, path, prompts[0])]
                runs.append(await start(client, path, prompts[1], if_busy="enqueue"))
                of_run, of_session = f"/v1/runs/{runs[0]}/events", f"{path}/events"
                run, run_cut, all_, all_cut = await asyncio.wait_for(
                    asyncio.gather(
                        follow(app, of_run, runs[0], None, cuts),
                        follow(app, of_run, runs[0], rng, cuts),
                        follow(app, of_session, runs[1], None, cuts),
                        follow(app, of_session, runs[1], random.Random(-seed), cuts),
                    ),
                    WAIT_S,
                )
                check(run, run_cut, prompts[0], runs[0])
                check(all_, all_cut, prompts[1], runs[1])
                check(all_, all_cut, prompts[0], runs[0])
                assert run == [frame for frame in all_ if frame in run]


@pytest.mark.by_turns
async def test_connections_that_are_cut_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """The same over sockets, with a service that stops once in between."""
    rng = random.Random(7)
    async with manager_of(tmp_path) as manager:
        apps = [create_app(manager, auth=TOKENS) for _ in range(2)]
        async with on_server(apps[1]) as second, on_server(apps[0]) as first:
            urls = [first]
            prompt = " ".join(str(number) for number in range(300))
            async with httpx.AsyncClient(headers=ANN, timeout=60) as client:
                await client.post(f"{second}/v1/sessions", json={"id": "chat", "engine": "slow"})
                run_id = await start(client, f"{second}/v1/sessions/chat", prompt)
                received: list[dict[str, Any]] = []
                cuts = 0
                while not received or received[-1]["event"] != "run_completed":
                    last = {**SSE, "Last-Event-ID": received[-1]["id"]} if received else SSE
                    frames_left = rng.randrange(1, 30)
                    url = f"{urls[-1]}/v1/runs/{run_id}/events"
                    async with client.stream("GET", url, headers=last) as response:
                        async for frame in frames(response):
                            received.append(frame)
                            frames_left -= 1
                            if cuts == 3:
                                apps[0].state.service.stop()  # and the rest comes from the other one
                                urls.append(second)
                            elif frames_left == 0:
                                break
                    cuts += 1
                whole = [frame async for frame in stream_of(client, f"{second}/v1/runs/{run_id}/events")]
        assert cuts > 5 and len(urls) > 1
        check(whole, received, prompt, run_id)


async def stream_of(client: httpx.AsyncClient, url: str) -> Any:
    async with client.stream("GET", url, headers=SSE) as response:
        async for frame in frames(response):
            yield frame
