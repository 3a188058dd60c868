"""`examples/fastapi_chat.py` in the process of its tests, by turnwise's fixtures; test_programs.py kills workers."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

import fastapi_chat
from turnwise import AsyncSessionManager
from turnwise.stores import Quota
from turnwise.testing import MakeManager, Pause, RecordingEngine

pytest_plugins = ["turnwise.testing.pytest_plugin"]


@asynccontextmanager
async def browser(manager: AsyncSessionManager) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the app, with this manager."""
    fastapi_chat.app.state.manager = manager
    transport = httpx.ASGITransport(fastapi_chat.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        yield client


async def run_of(client: httpx.AsyncClient, chat: str, prompt: str) -> str:
    answer = await client.post(f"/chats/{chat}", params={"prompt": prompt})
    return str(answer.raise_for_status().json()["run"])


async def follow(client: httpx.AsyncClient, run: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbers and events of a run's stream, up to its end."""
    answer = await client.get(f"/runs/{run}", headers={"Last-Event-ID": str(after)})
    *frames, end = answer.text.rstrip("\n").split("\n\n")
    assert end == "event: end\ndata: {}"
    fields = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in frames]
    return [(int(frame["id"]), json.loads(frame["data"])) for frame in fields]


def text_of(numbered: list[tuple[int, dict[str, Any]]]) -> str:
    return "".join(event["text"] for _, event in numbered if event["kind"] == "text_delta")


async def test_an_answer_is_streamed_and_replayed_behind_what_was_seen(
    async_turnwise_manager: MakeManager[AsyncSessionManager], scripted_engine: type[RecordingEngine]
) -> None:
    engine = scripted_engine(["It rains in Oslo.", "Take an umbrella."])
    async with browser(async_turnwise_manager(engine)) as client:
        assert "<form>" in (await client.get("/")).text
        run = await run_of(client, "trip", "How is the weather?")
        numbered = await follow(client, run)
        assert text_of(numbered) == "It rains in Oslo." and numbered[-1][1]["kind"] == "run_completed"
        assert await follow(client, run, after=numbered[0][0]) == numbered[1:]
        await follow(client, await run_of(client, "trip", "What do I need?"))
    assert [block.kind for block in engine.calls[-1].blocks] == ["user", "text", "user"], "it knows the first turn"


async def test_a_chat_that_answers_is_busy_until_it_is_stopped(
    async_turnwise_manager: MakeManager[AsyncSessionManager], scripted_engine: type[RecordingEngine]
) -> None:
    engine = scripted_engine([["Well, ", Pause(math.inf)], "Yes."])
    async with browser(async_turnwise_manager(engine)) as client:
        run = await run_of(client, "trip", "Shall I?")
        busy = await client.post("/chats/trip", params={"prompt": "again"})
        assert busy.status_code == 409 and "if_busy=" in busy.json()["detail"]
        assert (await client.post(f"/runs/{run}/stop")).json() == {"state": "cancelled"}
        assert (await follow(client, run))[-1][1]["kind"] == "run_cancelled"
        assert text_of(await follow(client, await run_of(client, "trip", "Shall I?"))) == "Yes."


async def test_a_turn_is_answered_anew_and_messages_are_marked_found_and_paid_for(
    async_turnwise_manager: MakeManager[AsyncSessionManager], scripted_engine: type[RecordingEngine]
) -> None:
    engine = scripted_engine(["It rains in Oslo.", "The sun shines in Rome."])
    async with browser(async_turnwise_manager(engine)) as client:
        await follow(client, await run_of(client, "trip", "How is Oslo?"))
        edited = await client.post("/chats/trip", params={"prompt": "How is Rome?", "at": 0})
        await follow(client, edited.raise_for_status().json()["run"])
        again = await client.post("/chats/trip", params={"prompt": "How is Bergen?", "at": 0})
        assert again.status_code == 409, "another version is shown"
        prompt, answer = (await client.get("/chats/trip")).json()
        assert (prompt["text"], answer["text"]) == ("How is Rome?", "The sun shines in Rome.")
        assert prompt["versions"] == [0, 1]
        place = f"{answer['session_id']}#{answer['turn_index']}:{answer['number']}"
        marked = await client.post("/chats/trip/marks", params={"message": place, "thumb": 1})
        assert marked.json()["value"] == 1
        assert (await client.get("/chats/trip")).json()[1]["marks"]["thumb"]["value"] == 1
        (hit,) = (await client.get("/search", params={"text": "sun shines"})).json()
        assert hit["session_id"] == "trip" and not (await client.get("/search", params={"text": "Bergen"})).json()
        (cost,) = (await client.get("/costs")).json()
        assert cost["runs"] == 2


async def test_a_quota_that_is_used_up_says_when_to_try_again(
    async_turnwise_manager: MakeManager[AsyncSessionManager], scripted_engine: type[RecordingEngine]
) -> None:
    manager = async_turnwise_manager(scripted_engine(["Yes."]))
    await manager.set_quota(Quota(user_id="*", runs=1, per="day"))
    async with browser(manager) as client:
        await follow(client, await run_of(client, "trip", "Shall I?"))
        refused = await client.post("/chats/trip", params={"prompt": "Really?"})
        assert refused.status_code == 429 and 0 < int(refused.headers["Retry-After"]) <= 86_401


async def test_a_run_that_is_not_the_users_is_not_found(
    async_turnwise_manager: MakeManager[AsyncSessionManager],
) -> None:
    manager = async_turnwise_manager()
    async with browser(manager) as client:
        assert (await client.get("/runs/none")).status_code == 404
        other = await (await manager.open("private", user_id="tom")).run("mine")
        assert (await client.get(f"/runs/{other.run_id}")).status_code == 404
        assert (await client.post(f"/runs/{other.run_id}/stop")).status_code == 404
