"""Schedules by the native API: runs that begin later, within a user's rights and bounds."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, TOKENS
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.http import HttpSettings, create_app
from turnwise.testing import LocalProvider

CHAT = "/v1/sessions/chat"
SCHEDULES = f"{CHAT}/schedules"
LATER: dict[str, Any] = {"prompt": "hello", "after_s": 3600}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    database: str = request.getfixturevalue("database")
    return database


@asynccontextmanager
async def service(url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a store in this process, with Ann's session "chat", as Ann's client."""
    with LocalProvider() as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url, api_key="none")
        async with AsyncSessionManager(url, engine=engine, placement=InProcess()) as manager:
            app = create_app(manager, auth=TOKENS, settings=HttpSettings(**settings))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            options: dict[str, Any] = {"base_url": "http://service", "headers": ANN, "timeout": 60}
            async with httpx.AsyncClient(transport=transport, **options) as client:
                await client.post("/v1/sessions", json={"id": "chat"})
                yield client


async def added(client: httpx.AsyncClient, status: int = 201, **body: Any) -> dict[str, Any]:
    answer = await client.post(SCHEDULES, json={**LATER, **body})
    assert answer.status_code == status, answer.text
    schedule: dict[str, Any] = answer.json()
    return schedule


async def test_a_schedule_is_added_listed_changed_and_cancelled(url: str) -> None:
    async with service(url) as client:
        body: dict[str, Any] = {
            "prompt": ["What", "is new?"],
            "cron": "0 9 * * MON-FRI",
            "timezone": "Europe/Lisbon",
            "key": "a/b",
        }
        body |= {"instructions": "Be short.", "labels": {"a": "b"}, "missed": "skip", "if_busy": "drop"}
        answer = await client.post(SCHEDULES, json=body)
        news = answer.json()
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"{SCHEDULES}/a%2Fb"
        assert news | {"key": "a/b", "cron": "0 9 * * MON-FRI", "timezone": "Europe/Lisbon", "every_s": None} == news
        assert news["due_at"] == news["occurs_at"] > time.time() and news["attempts"] == 0 and news["why"] is None
        assert (news["missed"], news["if_busy"], news["kind"]) == ("skip", "drop", "prompt")
        assert [block["text"] for block in news["prompt"]] == ["What", "is new?"]
        assert news["options"] == {"instructions": "Be short.", "labels": {"a": "b"}}
        assert (await client.get(answer.headers["location"])).json() == news
        assert await added(client, key="a/b") == news, "one of this name stays as it is"

        other = await added(client, at="2030-05-01T09:00:00+02:00", after_s=None)
        assert other["occurs_at"] == 1_903_849_200.0 and other["key"] == other["id"] and other["cron"] is None
        first = (await client.get(SCHEDULES, params={"limit": 1})).json()
        second = (await client.get(SCHEDULES, params={"limit": 1, "cursor": first["cursor"]})).json()
        assert first["items"] + second["items"] == [news, other] and second["cursor"] is None

        changed = await client.patch(f"{SCHEDULES}/a%2Fb", json={"every_s": 60, "until": 1_903_849_200})
        assert changed.status_code == 200, changed.text
        assert changed.json() | {"every_s": 60.0, "cron": None, "timezone": None, "until": 1_903_849_200.0} == (
            changed.json()
        )
        assert changed.json()["options"] == news["options"] and changed.json()["if_busy"] == "drop"
        renewed = (await client.patch(f"{SCHEDULES}/a%2Fb", json={"prompt": "Hi", "model": "m"})).json()
        assert renewed["prompt"][0]["text"] == "Hi" and renewed["options"] == {"model": "m"}
        assert renewed["every_s"] == 60.0 and renewed["missed"] == "skip"
        assert (await client.delete(f"{SCHEDULES}/a%2Fb")).json() == {"cancelled": True}
        assert (await client.delete(f"{SCHEDULES}/a%2Fb")).json() == {"cancelled": False}
        for method in ("GET", "PATCH"):
            missing = await client.request(method, f"{SCHEDULES}/a%2Fb", json={"every_s": 60})
            assert missing.status_code == 404 and missing.json()["error"] == "delivery_not_found"
        assert (await client.get("/v1/schedules")).json()["items"] == [other]


async def test_followers_see_a_scheduled_run_come(url: str) -> None:
    async with service(url) as client:
        await added(client, after_s=0.05, instructions="Say it.")
        after, kinds = 0, list[str]()
        while "run_completed" not in kinds:
            page = (await client.get(f"{CHAT}/events", params={"after": after, "wait_s": 30})).json()
            after, kinds = page["next"] or after, kinds + [event["kind"] for event in page["items"]]
        (run,) = (await client.get(f"{CHAT}/runs")).json()["items"]
        assert run["state"] == "completed" and (await client.get(SCHEDULES)).json()["items"] == []


async def test_a_repeated_request_schedules_once(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db", max_schedules_per_user=1) as client:
        key = {"Idempotency-Key": "k-1"}
        answers = [await client.post(SCHEDULES, json=LATER, headers=key) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[1].text
        first, again = (answer.json() for answer in answers)
        assert first == again and len((await client.get(SCHEDULES)).json()["items"]) == 1
        assert (await client.patch(f"{SCHEDULES}/{first['key']}", json={"after_s": 0})).is_success
        while (await client.get(SCHEDULES)).json()["items"]:
            await client.get(f"{CHAT}/events", params={"wait_s": 0.05, "after": 100})
        assert (await client.delete(f"{SCHEDULES}/{first['key']}")).json() == {"cancelled": False}


async def test_what_was_carried_out_is_not_scheduled_again(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        key = {"Idempotency-Key": "k-1"}
        for body in ({"prompt": "hello", "after_s": 0}, {"prompt": "hello", "after_s": 0, "key": "own"}):
            runs = len((await client.get(f"{CHAT}/runs")).json()["items"])
            first = (await client.post(SCHEDULES, json=body, headers=key)).json()
            while len((await client.get(f"{CHAT}/runs")).json()["items"]) == runs:
                await client.get(f"{CHAT}/events", params={"wait_s": 0.05, "after": 100})
            again = (await client.post(SCHEDULES, json=body, headers=key)).json()
            assert again["id"] == first["id"] and (await client.get(SCHEDULES)).json()["items"] == []
            assert len((await client.get(f"{CHAT}/runs")).json()["items"]) == runs + 1


async def test_a_user_has_no_more_schedules_than_the_service_allows(url: str) -> None:
    async with service(url, max_schedules_per_user=2) as client:
        await client.post("/v1/sessions", json={"id": "chat"}, headers=BOB)
        await client.post("/v1/sessions", json={"id": "other"})
        for key in ("one", "two"):
            await added(client, key=key)
        refused = await added(client, 409, key="three")
        assert refused["error"] == "too_many_schedules" and refused["value"] == 2
        assert "cancel one" in refused["detail"] and "max_schedules_per_user" in refused["detail"]
        assert (await client.post("/v1/sessions/other/schedules", json=LATER)).status_code == 409
        assert (await client.post(SCHEDULES, json=LATER, headers=BOB)).status_code == 201
        await added(client, key="two")
        await client.delete(f"{SCHEDULES}/one")
        await added(client, key="three")


async def test_users_reach_their_own_schedules_only(url: str) -> None:
    async with service(url) as client:
        await client.post("/v1/sessions", json={"id": "chat"}, headers=BOB)
        anns = await added(client, key="tea")
        assert (await client.get("/v1/schedules", headers=BOB)).json()["items"] == []
        assert (await client.get(SCHEDULES, headers=BOB)).json()["items"] == []
        assert (await client.get(f"{SCHEDULES}/tea", headers=BOB)).status_code == 404
        assert (await client.patch(f"{SCHEDULES}/tea", json={"after_s": 1}, headers=BOB)).status_code == 404
        assert (await client.delete(f"{SCHEDULES}/tea", headers=BOB)).json() == {"cancelled": False}
        bobs = (await client.post(SCHEDULES, json={**LATER, "key": "tea"}, headers=BOB)).json()
        assert bobs["user_id"] == "bob" and bobs["id"] != anns["id"]
        assert (await client.get("/v1/schedules")).json()["items"] == [anns]
        assert (await client.get("/v1/schedules", headers={"Authorization": "none"})).status_code == 401


BAD: list[tuple[dict[str, Any], str]] = [
    ({"after_s": None}, "pass at, after_s, every_s or cron"),
    ({"at": 5}, "pass either at or after_s"),
    ({"at": "tomorrow", "after_s": None}, "with its zone, such as 2030-05-01T09:00:00+02:00"),
    ({"at": "2030-05-01T09:00:00", "after_s": None}, "with its zone"),
    ({"at": "2030-02-31T09:00:00Z", "after_s": None}, "with its zone"),
    ({"at": "9" * 100_000, "after_s": None}, "with its zone"),
    ({"at": -1, "after_s": None}, "at"),
    ({"at": True, "after_s": None}, "at"),
    ({"after_s": "5"}, "after_s"),
    ({"after_s": -1}, "after_s"),
    ({"every_s": 0.1}, "every_s"),
    ({"every_s": 60, "cron": "0 9 * * *"}, "either every_s or cron"),
    ({"cron": "0 9 * *"}, "five fields"),
    ({"cron": "0 9 31 2 *"}, "write one such as"),
    ({"cron": "0 9 * * *", "timezone": "Mars/Olympus"}, "IANA"),
    ({"timezone": "UTC"}, "pass cron"),
    ({"until": 5}, "pass every_s or cron"),
    ({"key": ""}, "key"),
    ({"key": "x" * 257}, "key"),
    ({"key": "a\nb"}, "key"),
    ({"missed": "all"}, "missed"),
    ({"if_busy": "wait"}, "if_busy"),
    ({"prompt": None}, "prompt"),
    ({"turn_id": "t"}, "turn_id"),
    ({"user_id": "bob"}, "user_id"),
    ({"tools": [{"name": "t", "parameters": {"type": "nothing"}}]}, "parameters"),
]


async def test_bad_input_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        for body, reason in BAD:
            answer = await client.post(SCHEDULES, json={**LATER, **body})
            assert answer.status_code in (409, 422) and reason in answer.text, (body, answer.text)
            assert len(answer.content) < 4000, body
        assert (await client.get(SCHEDULES)).json()["items"] == []
        for query in ("cursor=%00", "limit=0", "limit=1001"):
            for path in (SCHEDULES, "/v1/schedules"):
                assert (await client.get(f"{path}?{query}")).status_code == 422, query
        await added(client, key="tea")
        changes: list[dict[str, Any]] = [{"labels": {"a": "b"}}, {"key": "other"}, {"timezone": "UTC"}, {"prompt": []}]
        for change in changes:
            answer = await client.patch(f"{SCHEDULES}/tea", json=change)
            assert answer.status_code == (200 if change == {"prompt": []} else 422), (change, answer.text)
        await client.post(f"{CHAT}/end")
        ended = await client.post(SCHEDULES, json=LATER)
        assert ended.status_code == 409 and ended.json()["error"] == "session_ended"


async def test_tools_and_types_of_answers_are_kept(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        parameters = {"type": "object", "properties": {"precise": {"type": "boolean"}}}
        output = {"type": "object", "properties": {"name": {"type": "string"}}}
        body: dict[str, Any] = {
            "tools": [{"name": "locate", "parameters": parameters}],
            "output": output,
            "timeout_s": 60,
        }
        schedule = await added(client, **body)
        assert schedule["options"]["tools"]["locate"] and schedule["options"]["output"]["schema"]["type"] == "object"
        assert schedule["options"]["timeout_s"] == 60.0
