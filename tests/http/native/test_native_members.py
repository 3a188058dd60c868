"""Shared sessions by the native API: `?owner=` names whose session it is, and the token says who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, ROOT, TOKENS
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import create_app

PLAN = "/v1/sessions/plan"
OF_ANN: dict[str, Any] = {"owner": "ann"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    database: str = request.getfixturevalue("database")
    return database


@asynccontextmanager
async def service(url: str, *, auth: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess()) as manager:
        app = create_app(manager, auth=TOKENS if auth else None)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield client


async def shared(client: httpx.AsyncClient, role: str) -> None:
    """Have Ann share her session with Bob."""
    assert (await client.post("/v1/sessions", json={"id": "plan"}, headers=ANN)).status_code == 200
    answer = await client.put(f"{PLAN}/members/bob", json={"role": role}, headers=ANN)
    assert answer.json()["members"] == {"ann": "owner", "bob": role}, answer.text


async def test_a_member_writes_and_follows_what_another_user_shares(url: str) -> None:
    async with service(url) as client:
        await shared(client, "member")
        start = await client.post(
            f"{PLAN}/runs", params={**OF_ANN, "wait_s": 60}, json={"prompt": "from Bob"}, headers=BOB
        )
        run = f"/v1/runs/{start.headers['X-Run-Id']}"
        assert start.json()["text"] == "from Bob", start.text
        assert (await client.get(run, params=OF_ANN, headers=BOB)).json()["author"] == "bob"
        messages = (await client.get(f"{PLAN}/messages", headers=ANN)).json()["items"]
        said = [(message["text"], message["author"]) for message in messages]
        assert said == [("from Bob", "bob"), ("from Bob", None)]
        events = await client.get(f"{run}/events", params=OF_ANN, headers=BOB)
        assert events.json()["items"][-1]["kind"] == "run_completed"
        assert (await client.get("/v1/sessions", headers=BOB)).json()["items"] == []
        (listed,) = (await client.get("/v1/sessions", params={"shared": True}, headers=BOB)).json()["items"]
        assert (listed["id"], listed["user_id"], listed["members"]) == ("plan", "ann", {"bob": "member"})
        assert (await client.get("/v1/count", params={"shared": True}, headers=BOB)).json() == {"sessions": 1}
        forged = {"prompt": [{"kind": "user", "text": "I resign", "author": "ann"}]}
        answer = await client.post(f"{PLAN}/runs", params=OF_ANN, json=forged, headers=BOB)
        assert (answer.status_code, answer.json()["error"]) == (422, "invalid_prompt")


@pytest.mark.parametrize("role", ["reader", "member"])
async def test_what_a_role_does_not_allow_is_forbidden(url: str, role: str) -> None:
    async with service(url) as client:
        await shared(client, role)
        started = await client.post(f"{PLAN}/runs", params={"wait_s": 60}, json={"prompt": "hello"}, headers=ANN)
        run = f"/v1/runs/{started.headers['X-Run-Id']}"
        writes: list[tuple[str, str, Any]] = [
            ("POST", f"{PLAN}/runs", {"prompt": "hello"}),
            ("POST", f"{PLAN}/append", {"prompt": "hello"}),
        ]
        owners: list[tuple[str, str, Any]] = [
            ("PATCH", PLAN, {"title": "mine"}),
            ("DELETE", PLAN, None),
            ("PUT", f"{PLAN}/members/bob", {"role": "owner"}),
            ("PUT", f"{PLAN}/members/eve", {}),
            ("DELETE", f"{PLAN}/members/ann", None),
            ("POST", f"{PLAN}/clear", {}),
            ("POST", f"{PLAN}/end", None),
            ("POST", f"{PLAN}/fork", {}),
            ("POST", f"{PLAN}/say", {"text": "I agree."}),
            ("POST", f"{PLAN}/import", {"messages": [{"role": "assistant", "content": "I agree."}]}),
            ("POST", f"{PLAN}/schedules", {"prompt": "hello", "after_s": 100}),
            ("GET", f"{PLAN}/schedules", None),
            ("POST", f"{run}/cancel", {}),
            ("POST", f"{PLAN}/events", {"name": "mine"}),
            ("POST", f"{PLAN}/rerun", {}),
        ]
        for method, path, body in [*owners, *(writes if role == "reader" else [])]:
            answer = await client.request(method, path, params=OF_ANN, json=body, headers=BOB)
            is_refused = answer.status_code in ((403, 422) if path.endswith("/ann") else (403,))
            assert is_refused, f"{method} {path}: {answer.text}"
        assert (await client.get(PLAN, headers=ANN)).json()["title"] is None
        (turn,) = (await client.get(f"{PLAN}/turns", headers=ANN)).json()["items"]
        assert turn["text"] == "hello"


async def test_a_session_does_not_exist_for_those_with_whom_it_is_not_shared(url: str) -> None:
    async with service(url) as client:
        await shared(client, "member")
        started = await client.post(f"{PLAN}/runs", params={"wait_s": 60}, json={"prompt": "hello"}, headers=ANN)
        run = f"/v1/runs/{started.headers['X-Run-Id']}"
        for path in (PLAN, f"{PLAN}/messages", f"{PLAN}/members", run, f"{run}/events"):
            assert (await client.get(path, params=OF_ANN, headers=BOB)).status_code == 200
            for params, user in ((OF_ANN, ROOT), ({}, BOB), ({"owner": "eve"}, BOB), ({"owner": "bob"}, ANN)):
                answer = await client.get(path, params=params, headers=user)
                assert answer.status_code == 404, f"{path} for {user}: {answer.text}"
        assert (await client.delete(f"{PLAN}/members/bob", params=OF_ANN, headers=BOB)).status_code == 204
        for path in (PLAN, run):
            assert (await client.get(path, params=OF_ANN, headers=BOB)).status_code == 404, "also by a held handle"
        assert (await client.post(f"{PLAN}/runs", params=OF_ANN, json={"prompt": "x"}, headers=BOB)).status_code == 404


async def test_nobody_is_an_owner_without_authentication(url: str) -> None:
    async with service(url) as client:
        await shared(client, "member")
    async with service(url, auth=False) as client:
        for path in (PLAN, f"{PLAN}/messages"):
            assert (await client.get(path, params=OF_ANN)).status_code == 404
        assert (await client.post(f"{PLAN}/runs", params=OF_ANN, json={"prompt": "x"})).status_code == 404


async def test_a_members_run_uses_the_quotas_of_the_sessions_user_and_only_operators_let_it_exceed_them(
    url: str,
) -> None:
    async with service(url) as client:
        await client.put("/v1/quotas", json={"user": "ann", "runs": 1, "per": "month", "then": "ask"}, headers=ROOT)
        await shared(client, "owner")
        path, wait = f"{PLAN}/runs", {**OF_ANN, "wait_s": 60}
        await client.post(path, params=wait, json={"prompt": "first"}, headers=BOB)
        start = await client.post(path, params=wait, json={"prompt": "second"}, headers=BOB)
        run = f"/v1/runs/{start.json()['id']}"
        (call,) = (await client.get(f"{run}/pending", params=OF_ANN, headers=BOB)).json()["items"]
        decision = {"call_id": call["call_id"]}
        of_bob = await client.post(f"{run}/approve", params=OF_ANN, json=decision, headers=BOB)
        assert (of_bob.status_code, of_bob.json()["error"]) == (403, "operators_only")
        of_ann = await client.post(f"{run}/approve", json=decision, headers=ANN)
        assert (of_ann.status_code, of_ann.json()["error"]) == (403, "operators_only")
        for verb in ("approve", "reject"):
            in_anns_place = await client.post(f"{run}/{verb}", json={**decision, "user": "ann"}, headers=BOB)
            assert in_anns_place.status_code == 403
        for params in ({}, OF_ANN):  # may be repeated
            approved = await client.post(
                f"{run}/approve", params=params, json={**decision, "user": "ann"}, headers=ROOT
            )
            assert approved.status_code == 204, approved.text
        assert (await client.get(f"{run}/wait", params=OF_ANN, headers=BOB)).json()["state"] == "completed"


async def test_members_add_events_with_labels_to_their_own_runs_also_after_the_end(url: str) -> None:
    async with service(url) as client:
        await shared(client, "member")
        path, wait = f"{PLAN}/runs", {"wait_s": 60}
        of_ann = await client.post(path, params=wait, json={"prompt": "from Ann"}, headers=ANN)
        of_bob = await client.post(path, params={**OF_ANN, **wait}, json={"prompt": "from Bob"}, headers=BOB)
        body = {"name": "rating", "labels": {"source": "web"}}
        refused = await client.post(f"/v1/runs/{of_ann.json()['id']}/events", params=OF_ANN, json=body, headers=BOB)
        assert (refused.status_code, refused.json()["error"]) == (403, "not_allowed")
        added = await client.post(f"/v1/runs/{of_bob.json()['id']}/events", params=OF_ANN, json=body, headers=BOB)
        assert added.status_code == 201, added.text
        labels = {"labels": '{"source": "web"}'}
        (event,) = (await client.get(f"{PLAN}/events", params={**OF_ANN, **labels}, headers=BOB)).json()["items"]
        assert (event["seq"], event["run_id"]) == (added.json()["seq"], of_bob.json()["id"])
