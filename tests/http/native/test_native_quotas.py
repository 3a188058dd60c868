"""Quotas over HTTP: operators set them, users see their own, and what is refused says when to try again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from servers.http_service import ANN, BOB, ROOT, in_process
from turnwise.memory.quotas.records import Quota

QUOTAS = "/v1/quotas"


def chat(text: str) -> tuple[str, dict[str, Any]]:
    return "/openai/v1/chat/completions", {"model": "echo", "messages": [{"role": "user", "content": text}]}


def response(text: str) -> tuple[str, dict[str, Any]]:
    return "/openai/v1/responses", {"model": "echo", "input": text}


def front_end(text: str) -> tuple[str, dict[str, Any]]:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return "/v1/ui/chat", {"id": "new", "messages": [message], "trigger": "submit-message", "engine": "echo"}


def agent(text: str) -> tuple[str, dict[str, Any]]:
    body = {"threadId": "new", "runId": "r", "messages": [{"id": "m1", "role": "user", "content": text}]}
    return "/v1/ag-ui/echo", {**body, "state": {}, "tools": [], "context": [], "forwardedProps": {}}


async def test_a_run_over_a_quota_is_refused_with_429_in_each_dialect(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.put(QUOTAS, json={"user": "*", "runs": 1, "per": "month"}, headers=ROOT)
        await client.post("/v1/sessions", json={"id": "chat"})
        first = await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "hi"})
        assert first.status_code in (200, 201, 202), first.text
        refused = await client.post("/v1/sessions/chat/runs", json={"prompt": "hi"})
        problem = refused.json()
        assert (refused.status_code, problem["error"]) == (429, "quota_exceeded")
        assert (problem["used"], problem["limit"], problem["scope"]) == (1, 1, "user 'ann'")
        assert refused.headers["Retry-After"] == str(math.ceil(problem["retry_after_s"]))
        assert 1 <= int(refused.headers["Retry-After"]) <= 31 * 86_400
        for path, body in (chat("hi"), response("hi")):
            refused = await client.post(path, json=body, headers={"X-Session-Id": "chat"})
            error = refused.json()["error"]
            assert (refused.status_code, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded"), path
            assert int(refused.headers["Retry-After"]) > 1
        for path, body in (front_end("hi"), agent("hi")):
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]) == (429, "quota_exceeded"), path
            assert int(refused.headers["Retry-After"]) > 1
        assert (await client.get("/v1/count")).json() == {"sessions": 1}  # a refused run leaves no session
        bob = await client.post("/openai/v1/responses", json=response("hi")[1], headers=BOB)
        assert bob.status_code == 200


async def test_operators_set_quotas_and_users_see_what_they_have_used(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        for method, path in (("PUT", QUOTAS), ("DELETE", f"{QUOTAS}/x")):
            refused = await client.request(method, path, json={"runs": 5})
            assert (refused.status_code, refused.json()["error"]) == (403, "operators_only")
        for body in ({}, {"runs": 1, "tokens": 1}, {"runs": 0}, {"runs": 1, "per": "hour"}, {"runs": 1, "extra": 1}):
            assert (await client.put(QUOTAS, json=body, headers=ROOT)).status_code == 422, body
        each = Quota(user_id="*", runs=5, per="month").quota_id
        for runs in (4, 5):
            await client.put(QUOTAS, json={"user": "*", "runs": runs, "per": "month"}, headers=ROOT)
        shown = (await client.put(QUOTAS, json={"user": "*", "runs": 5, "per": "month"}, headers=ROOT)).json()
        assert (shown["id"], shown["limit"], shown["limits"]) == (each, 5, "runs") and "used" not in shown
        await client.put(QUOTAS, json={"user": "bob", "cost": 2.5, "then": "queue"}, headers=ROOT)
        await client.post("/openai/v1/responses", json=response("hi")[1])
        (own,) = (await client.get(QUOTAS)).json()["items"]
        assert (own["id"], own["used"], own["left"]) == (each, 1, 4)
        bobs = (await client.get(QUOTAS, headers=BOB)).json()["items"]
        assert sorted((quota["limits"], quota["used"]) for quota in bobs) == [("cost", 0), ("runs", 0)]
        assert len((await client.get(QUOTAS, headers=ROOT)).json()["items"]) == 2
        assert (await client.get(QUOTAS, params={"user": "ann"}, headers=ROOT)).json()["items"] == [own]
        assert (await client.get(QUOTAS, params={"user": "bob"}, headers=ANN)).status_code == 403
        for removed in (True, False):
            answer = await client.delete(f"{QUOTAS}/{each}", headers=ROOT)
            assert answer.json() == {"removed": removed}


async def test_only_an_operator_lets_a_run_exceed_a_quota(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.put(QUOTAS, json={"user": "ann", "runs": 1, "per": "month", "then": "ask"}, headers=ROOT)
        await client.post("/v1/sessions", json={"id": "chat"})
        await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "a"})
        run = (await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "b"})).json()
        path = f"/v1/runs/{run['id']}"
        (call,) = (await client.get(f"{path}/pending")).json()["items"]
        assert call["call_id"] == f"quota-{Quota(user_id='ann', runs=1, per='month').quota_id}"
        refused = await client.post(f"{path}/approve", json={"call_id": call["call_id"]})
        assert (refused.status_code, refused.json()["error"]) == (403, "operators_only")
        refused = await client.post(f"{path}/approve", json={"call_id": call["call_id"], "user": "ann"}, headers=BOB)
        assert refused.status_code == 403
        approved = await client.post(f"{path}/approve", json={"call_id": call["call_id"], "user": "ann"}, headers=ROOT)
        assert approved.status_code == 204, approved.text
        assert (await client.get(f"{path}/wait")).json()["state"] == "completed"


async def test_answers_of_which_nothing_is_stored_are_counted_too(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        await client.put(QUOTAS, json={"user": "*", "runs": 2, "per": "month"}, headers=ROOT)
        path, body = chat("hi")
        statuses = [(await client.post(path, json=body)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = await client.post(path, json={**body, "stream": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
