"""The native API does what the Python API does: each route, with the real manager behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_agents_on_ray import obey

from servers.http_service import ANN, BOB, TOKENS, frames_of, in_process, manager_of
from tools.agent_tools import prompt
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.http import create_app
from turnwise.strategies.summarize import Summarize
from turnwise.testing import LocalProvider

SSE = {"Accept": "text/event-stream"}
CITY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def provider_url() -> Iterator[str]:
    with LocalProvider(reply=obey) as provider:
        yield provider.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


async def opened(client: httpx.AsyncClient, session_id: str, **body: Any) -> str:
    response = await client.post("/v1/sessions", json={"id": session_id, **body})
    assert response.status_code == 200, response.text
    return f"/v1/sessions/{session_id}"


async def ran(client: httpx.AsyncClient, path: str, text: str, **options: Any) -> dict[str, Any]:
    response = await client.post(f"{path}/runs?wait_s=60", json={"prompt": text, **options})
    assert response.status_code == 200, response.text
    run: dict[str, Any] = response.json()
    return run


async def test_sessions_are_opened_listed_changed_ended_and_deleted(folder: Path) -> None:
    async with in_process(folder) as client:
        body = {"id": "one", "agent": "travel", "title": "A week in Oslo", "metadata": {"channel": "web"}}
        answer = await client.post("/v1/sessions", json=body)
        assert answer.json() == {"id": "one", "user_id": "ann", "agent": "travel"}
        assert answer.headers["location"] == "/v1/sessions/one"
        refused = await client.post("/v1/sessions", json={**body, "title": "Another"})
        assert refused.status_code == 422 and refused.json()["error"] == "invalid_input"
        assert (await client.post("/v1/sessions", json={**body, "title": "Other", "if_exists": "keep"})).is_success
        changed = await client.patch(
            "/v1/sessions/one", json={"title": "Ten days", "metadata": {"channel": None, "n": [1]}}
        )
        assert changed.json()["title"] == "Ten days" and changed.json()["metadata"] == {"n": [1]}
        await opened(client, "two", agent="shop")
        listed = (await client.get("/v1/sessions?agent=travel")).json()
        assert [session["id"] for session in listed["items"]] == ["one"] and listed["unreadable"] == []
        first = (await client.get("/v1/sessions?limit=1")).json()
        second = (await client.get("/v1/sessions", params={"limit": 1, "cursor": first["cursor"]})).json()
        assert [page["items"][0]["id"] for page in (first, second)] == ["two", "one"]
        by_metadata = await client.get("/v1/sessions", params={"metadata": json.dumps({"n": [1]}), "title": "TEN"})
        assert [session["id"] for session in by_metadata.json()["items"]] == ["one"]
        assert (await client.get("/v1/count?agent=shop")).json() == {"sessions": 1}
        assert (await client.post("/v1/sessions/two/refresh")).status_code == 204
        assert (await client.post("/v1/sessions/two/end")).status_code == 204
        late = await client.post("/v1/sessions/two/runs", json={"prompt": "hello"})
        assert late.status_code == 409 and late.json()["error"] == "session_ended"
        assert [session["id"] for session in (await client.get("/v1/sessions?status=ended")).json()["items"]] == ["two"]
        deletion = await client.request("DELETE", "/v1/sessions/two")
        assert deletion.json()["sessions"] == 1, deletion.text
        missing = await client.get("/v1/sessions/two")
        assert missing.status_code == 404 and missing.headers["content-type"] == "application/problem+json"
        assert missing.json() | {"detail": ""} == {
            "type": "urn:turnwise:session_not_found",
            "title": "Session not found",
            "status": 404,
            "detail": "",
            "error": "session_not_found",
            "session_id": "two",
        }


async def test_a_session_that_was_deleted_and_made_again_is_the_new_one(folder: Path) -> None:
    async with in_process(folder) as client, in_process(folder) as second_client:
        path = await opened(client, "again")
        await ran(client, path, "the first")
        assert (await second_client.delete(path)).is_success
        assert (await client.post(f"{path}/runs", json={"prompt": "x"})).status_code == 404
        await opened(second_client, "again")
        await ran(client, path, "the second")
        turns = (await client.get(f"{path}/turns")).json()["items"]
        assert [turn["text"] for turn in turns] == ["the second"]


async def test_runs_have_all_options_and_are_read_in_each_form(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "runs")
        options = {"turn_id": "t-1", "labels": {"a": "b"}, "timeout_s": 60, "memory": "off"}
        key = {"Idempotency-Key": "k-1"}
        started = await client.post(f"{path}/runs", json={"prompt": "hello there", **options}, headers=key)
        run = started.json()
        assert started.status_code == 202 and started.headers["location"] == f"/v1/runs/{run['id']}"
        again = await client.post(f"{path}/runs?wait_s=60", json={"prompt": "hello there", **options}, headers=key)
        assert again.status_code == 200 and again.json()["id"] == run["id"] and again.json()["text"] == "hello there"
        conflict = await client.post(f"{path}/runs", json={"prompt": "other"}, headers=key)
        assert conflict.status_code == 422 and conflict.json()["run_id"] == run["id"]
        done = (await client.get(f"/v1/runs/{run['id']}/wait")).json()
        assert done["state"] == "completed" and done["error"] is None and done["usage"]["output_tokens"] == 2
        record = (await client.get(f"/v1/runs/{run['id']}")).json()
        assert record["labels"] == {"a": "b"} and record["idempotency_key"] == "k-1" and record["finish"] == "completed"
        assert record["session_id"] == "runs" and record["memory"] == "off" and record["timeout_s"] == 60.0
        events = frames_of((await client.get(f"/v1/runs/{run['id']}/events", headers=SSE)).text)
        assert [*dict.fromkeys(event["event"] for event in events)] == ["run_started", "text_delta", "run_completed"]
        assert [int(event["id"]) for event in events] == [event["data"]["seq"] for event in events]
        page = (await client.get(f"/v1/runs/{run['id']}/events?limit=2")).json()
        rest = (await client.get(f"/v1/runs/{run['id']}/events?after={page['next']}&wait_s=5")).json()
        assert page["items"] + rest["items"] == [
            {**item, **event["data"]} for item, event in zip(page["items"] + rest["items"], events, strict=True)
        ]
        assert rest["next"] is None
        last = {"Last-Event-ID": events[-2]["id"], **SSE}
        assert frames_of((await client.get(f"/v1/runs/{run['id']}/events", headers=last)).text) == events[-1:]
        repeated = {"prompt": "hello there", **options}
        resumed = await client.post(f"{path}/runs", json=repeated, headers={**key, **last})
        assert frames_of(resumed.text) == events[-1:], "the same request goes on where it was cut"
        follow = await client.post(f"{path}/runs?stream=true", json={"prompt": ["more", {"kind": "user", "text": "!"}]})
        assert follow.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert frames_of(follow.text)[-1]["data"]["run_id"] == follow.headers["x-run-id"]
        assert (await client.get(f"{path}/turn")).json()["text"] == "more\n!"
        assert (await client.get(f"{path}/turn?turn_id=t-1")).json()["index"] == 0
        whole = (await client.get(f"{path}/turn?index=1&snapshot=true")).json()
        assert [block["kind"] for block in whole["blocks"]] == ["user", "text", "user", "user", "text"]
        assert [block["kind"] for block in (await client.get(f"/v1/runs/{run['id']}/input")).json()["blocks"]] == [
            "user"
        ]
        assert (await client.get(f"/v1/runs/{run['id']}/phase")).json() == {"phase": "completed"}
        assert [step["kind"] for step in (await client.get(f"/v1/runs/{run['id']}/steps")).json()["items"]] == ["model"]
        assert len((await client.get(f"{path}/runs")).json()["items"]) == 2
        listed = (await client.get("/v1/runs?state=completed&limit=2")).json()
        assert {run_listed["session_id"] for run_listed in listed["items"]} == {"runs"}
        child = await ran(client, path, "on behalf", parent=run["id"])
        children = (await client.get(f"/v1/runs?parent={run['id']}")).json()["items"]
        assert [child_run["id"] for child_run in children] == [child["id"]]
        messages = (await client.get(f"{path}/messages?limit=2")).json()
        assert [message["text"] for message in messages["items"]] == ["on behalf", "on behalf"]
        before = (await client.get(f"{path}/messages?before={messages['cursor']}&newest_first=true")).json()
        assert [message["role"] for message in before["items"]] == ["assistant", "user", "user", "assistant", "user"]
        taken = await client.post(f"{path}/runs", json={"prompt": "x", "turn_id": "t-1"})
        assert taken.status_code == 409 and taken.json()["error"] == "turn_id_taken"
        usage = (await client.get("/v1/usage")).json()
        assert usage["total"]["output_tokens"] >= 6 and (await client.get(path)).json()["usage"]["output_tokens"] == 6


async def test_a_busy_session_names_its_run_and_what_can_be_done(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "busy", engine="scripted")
        first = (await client.post(f"{path}/runs", json={"prompt": "slow 500"})).json()
        busy = await client.post(f"{path}/runs", json={"prompt": "hello"})
        assert busy.status_code == 409 and busy.json()["error"] == "session_busy"
        assert busy.json()["run_id"] == first["id"] and "drop" not in busy.json()["if_busy"]
        assert {"enqueue", "interrupt", "rollback", "latest"} <= {*busy.json()["if_busy"]}
        dropped = (await client.post(f"{path}/runs", json={"prompt": "hello", "if_busy": "drop"})).json()
        assert dropped == first | {"dropped": True}
        queued = (await client.post(f"{path}/runs", json={"prompt": "hello", "if_busy": "enqueue"})).json()
        state = (await client.get(path)).json()
        assert [state["active_run_id"], state["queued_run_ids"]] == [first["id"], [queued["id"]]]
        added = await client.post(
            f"/v1/runs/{first['id']}/events", json={"name": "ticket", "data": {"number": 1}, "labels": {"of": "ann"}}
        )
        assert added.status_code == 201
        labelled = (await client.get(f"{path}/events", params={"labels": '{"of": "ann"}'})).json()["items"]
        assert [event["labels"] for event in labelled] == [{"of": "ann"}]
        for labels in ("of=ann", "[]", '{"of": 1}'):
            for target in (f"{path}/events", "/v1/runs"):
                wrong = await client.get(target, params={"labels": labels})
                assert wrong.status_code == 422 and "labels" in wrong.text
        assert (await client.get("/v1/runs", params={"labels": '{"of": "ann"}'})).json()["items"] == []
        after = {"after": added.json()["seq"] - 1, "limit": 1}
        (event,) = (await client.get(f"/v1/runs/{first['id']}/events", params=after)).json()["items"]
        assert (event["name"], event["data"], event["run_id"]) == ("ticket", {"number": 1}, first["id"])
        waiting = (await client.get(f"/v1/runs/{first['id']}/wait?timeout_s=0")).json()
        assert waiting["state"] == "running" and waiting["text"] is None
        assert (await client.post(f"/v1/runs/{first['id']}/cancel", json={"reason": "stop"})).json() == {
            "cancelled": True
        }
        ended = (await client.get(f"/v1/runs/{first['id']}/wait")).json()
        assert ended["state"] == "cancelled" and ended["error"]["error"] == "run_cancelled"
        assert ended["error"]["why"] == "stop" and ended["text"].startswith("0 ")
        assert (await client.get(f"/v1/runs/{queued['id']}/wait")).json()["text"] == "hello"
        idle = await client.post(f"{path}/cancel", json={})
        assert idle.status_code == 409 and idle.json()["error"] == "no_active_run"
        failed = await ran(client, path, "raise oh no")
        assert failed["state"] == "failed" and "oh no" in failed["error"]["why"]


async def test_no_request_waits_longer_than_the_service_lets_it(folder: Path) -> None:
    async with in_process(folder, max_wait_s=0.05) as client:
        path = await opened(client, "patient", engine="scripted")
        waited = await client.post(f"{path}/runs?wait_s=600", json={"prompt": "slow 5000"})
        run = f"/v1/runs/{waited.json()['id']}"
        assert waited.status_code == 200 and waited.json()["state"] == "running"
        assert (await client.get(f"{run}/wait?timeout_s=600")).json()["state"] == "running"
        assert (await client.post(f"{run}/cancel", json={})).json() == {"cancelled": True}


async def test_a_session_says_a_text_for_its_user_alone(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        path = await opened(client, "speaker")
        key = {"Idempotency-Key": "greeting"}
        said = await client.post(f"{path}/say", json={"text": "Hello!"}, headers=key)
        assert said.status_code == 202 and said.headers["location"] == f"/v1/runs/{said.json()['id']}"
        run = (await client.get(said.headers["location"])).json()
        assert (run["state"], run["says"], run["idempotency_key"]) == ("completed", "Hello!", "greeting")
        again = await client.post(f"{path}/say", json={"text": "Hello!"}, headers=key)
        assert again.json() == said.json()
        other = await client.post(f"{path}/say", json={"text": "Goodbye!"}, headers=key)
        assert other.status_code == 422 and other.json()["error"] == "idempotency_conflict"
        blank = await client.post(f"{path}/say", json={"text": " "})
        assert blank.status_code == 422 and blank.json()["error"] == "invalid_prompt"
        assert (await client.post(f"{path}/say", json={"text": "Hi"}, headers=BOB)).status_code == 404
        await client.post("/v1/sessions", json={"id": "speaker"}, headers=BOB)
        assert (await client.post(f"{path}/say", json={"text": "Hi, Bob."}, headers=BOB)).status_code == 202
        for headers, text in (({}, "Hello!"), (BOB, "Hi, Bob.")):
            page = (await client.get(f"{path}/messages", headers=headers)).json()
            assert [(message["role"], message["text"]) for message in page["items"]] == [("assistant", text)]
        assert (await client.post(f"{path}/end")).status_code == 204
        ended = await client.post(f"{path}/say", json={"text": "Hi"})
        assert ended.status_code == 409 and ended.json()["error"] == "session_ended"


async def test_sessions_are_appended_to_forked_compacted_and_cleared(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "base")
        turn = (await client.post(f"{path}/append", json={"prompt": "first"})).json()
        assert [turn["status"], turn["blocks"]] == ["pending", [{"kind": "user", "text": "first"}]]
        assert (await ran(client, path, "second"))["text"] == "first\nsecond"
        await client.post(f"{path}/append", json={"prompt": ["third"]})
        assert (await client.post(f"{path}/runs?wait_s=60", json={})).json()["text"] == "third"
        fork = await client.post(f"{path}/fork", json={"at": 0, "id": "base/fork"})
        assert fork.status_code == 201 and fork.headers["location"] == "/v1/sessions/base%2Ffork"
        assert (await client.get(fork.headers["location"])).json()["parent"] == "base#0"
        assert (await client.post(f"{path}/fork", json={"at": 0, "id": "base/fork"})).status_code == 201, "repeated"
        taken = await client.post(f"{path}/fork", json={"at": 1, "id": "base/fork"})
        assert taken.status_code == 409 and taken.json()["error"] == "session_exists"
        assert (await client.post(f"{path}/compact", json={"explain": True})).is_success
        added = await client.post(
            f"{path}/events", json={"name": "ticket", "data": {"number": 1}, "labels": {"of": "ann"}}
        )
        assert added.status_code == 201
        labelled = (await client.get(f"{path}/events", params={"labels": '{"of": "ann"}'})).json()["items"]
        assert [event["labels"] for event in labelled] == [{"of": "ann"}]
        for labels in ("of=ann", "[]", '{"of": 1}'):
            for target in (f"{path}/events", "/v1/runs"):
                wrong = await client.get(target, params={"labels": labels})
                assert wrong.status_code == 422 and "labels" in wrong.text
        assert (await client.get("/v1/runs", params={"labels": '{"of": "ann"}'})).json()["items"] == []
        page = (await client.get(f"{path}/events", params={"after": added.json()["seq"] - 1})).json()
        assert [page["items"][0]["name"], page["items"][0]["data"], page["next"]] == ["ticket", {"number": 1}, None]
        params: dict[str, Any] = {"kinds": ["custom", "run_completed"], "limit": 2, "wait_s": 1}
        chosen = (await client.get(f"{path}/events", params=params)).json()["items"]
        assert {event["kind"] for event in chosen} <= {"custom", "run_completed"} and chosen
        wrong = await client.get(f"{path}/events", params={"kinds": "none"})
        assert wrong.status_code == 422 and "kinds" in wrong.text
        cleared = (await client.post(f"{path}/clear", json={"keep_last": 1})).json()
        assert cleared["turns"] == 1
        assert [turn["text"] for turn in (await client.get(f"{path}/turns")).json()["items"]] == ["third"]
        assert (await client.post(f"{path}/engine", json={"engine": "scripted"})).status_code == 204
        assert (await ran(client, path, "who"))["text"] == " ann"
        short = {"prompt": "who", "overflow": {"strategy": "KeepLast", "turns": 1}}
        assert (await client.post(f"{path}/runs?wait_s=60", json=short)).is_success
        for strategy in ({"strategy": "Summarize"}, {"strategy": "KeepLast", "turns": 0}, {}):
            refused = await client.post(f"{path}/runs", json={"prompt": "who", "overflow": strategy})
            assert refused.status_code == 422 and "overflow" in refused.text
        unknown = await client.post(f"{path}/engine", json={"engine": "none"})
        assert unknown.status_code == 422 and unknown.json()["error"] == "config"


async def test_what_a_summary_replaced_is_shown(tmp_path: Path) -> None:
    with LocalProvider(reply=lambda _: "They counted.") as provider:
        writer = OpenAIEngine("local", base_url=provider.base_url, api_key="none")
        config = SessionConfig(max_context_tokens=2000)
        async with manager_of(tmp_path, overflow=Summarize(writer, keep_turns=1), config=config) as manager:
            transport = httpx.ASGITransport(create_app(manager, auth=TOKENS))
            async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=ANN) as client:
                path = await opened(client, "long")
                blocks: list[Any] = []
                summaries: list[Any] = []
                number = 0
                while not summaries:
                    await ran(client, path, f"number {number} {'word ' * 100}")
                    blocks = (await client.get(f"{path}/turn?snapshot=true")).json()["blocks"]
                    summaries = [block for block in blocks if block["kind"] == "summary"]
                    number += 1
                (summary,) = summaries
                assert "They counted." in summary["text"]
                expanded = (await client.post(f"{path}/expand", json={"summary": summary})).json()["blocks"]
                assert [block["text"].split()[1] for block in expanded] == [str(n // 2) for n in range(len(expanded))]
                assert expanded and not any(block in expanded for block in blocks)
                forged = await client.post(f"{path}/expand", json={"summary": {**summary, "of": [["log", 0, 1]]}})
                assert forged.status_code == 422 and forged.json()["error"] == "invalid_input"


async def test_calls_are_approved_rejected_and_provided(folder: Path, provider_url: str) -> None:
    async with in_process(folder, provider_url) as client:
        path = await opened(client, "agent", engine="agent")
        labels: dict[str, Any] = {"labels": {"notes": str(folder / "notes.txt")}}

        async def waiting(steps: str) -> tuple[str, dict[str, Any]]:
            run = (await client.post(f"{path}/runs", json={"prompt": steps, **labels})).json()
            page: dict[str, Any] = {"next": 0, "items": []}
            while not any(event["kind"] == "approval_requested" for event in page["items"]):
                query = {"after": page["next"], "wait_s": 60}
                page = (await client.get(f"/v1/runs/{run['id']}/events", params=query)).json()
            state = "running"  # a call is asked for while others may still be carried out
            while state == "running":
                state = (await client.get(f"/v1/runs/{run['id']}/wait?timeout_s=0")).json()["state"]
            assert state == "awaiting_approval"
            (call,) = (await client.get(f"/v1/runs/{run['id']}/pending")).json()["items"]
            return run["id"], call

        run_id, call = await waiting(prompt([("pay", {"euros": 5})], "paid"))
        assert call["name"] == "pay" and call["input"] == {"euros": 5} and call["wants"] == "approval"
        wrong = await client.post(f"/v1/runs/{run_id}/approve", json={"call_id": "other"})
        assert wrong.status_code == 404 and wrong.json()["error"] == "call_not_found"
        edited = {"call_id": call["call_id"], "input": {"euros": 3}}
        assert (await client.post(f"/v1/runs/{run_id}/approve", json=edited)).status_code == 204
        assert (await client.get(f"/v1/runs/{run_id}/wait")).json()["text"] == "paid"
        late = await client.post(f"/v1/runs/{run_id}/reject", json={"call_id": call["call_id"]})
        assert late.status_code == 409 and late.json()["error"] == "call_decided"
        assert (folder / "notes.txt").read_text() == "paid 3\n"
        run_id, call = await waiting(prompt([("pay", {"euros": 9})], "rejected"))
        rejected = {"call_id": call["call_id"], "reason": "too much"}
        assert (await client.post(f"/v1/runs/{run_id}/reject", json=rejected)).status_code == 204
        turn = (await client.get(f"/v1/runs/{run_id}/wait")).json()
        assert turn["text"] == "rejected"
        run_id, call = await waiting(prompt([("driver", {"question": "where?"})], "there"))
        provided = {"call_id": call["call_id"], "result": {"at": "the station"}}
        assert (await client.post(f"/v1/runs/{run_id}/provide", json=provided)).status_code == 204
        assert (await client.get(f"/v1/runs/{run_id}/wait")).json()["text"] == "there"
        steps = (await client.get(f"/v1/runs/{run_id}/steps")).json()["items"]
        assert [step["kind"] for step in steps] == ["model", "tool", "model"], "the tool was called elsewhere"
        labels["tools"] = [{"name": "locate", "parameters": {"type": "object"}}]
        labels["instructions"] = "Be brief."
        run_id, call = await waiting(prompt([("locate", {})], "found"))
        assert (
            await client.post(f"/v1/runs/{run_id}/provide", json={"call_id": call["call_id"], "result": "here"})
        ).is_success
        assert (await client.get(f"/v1/runs/{run_id}/wait")).json()["text"] == "found"
        run_id, call = await waiting(prompt([("locate", {})], "seen"))
        picture = {"kind": "image", "data": "aGk=", "media_type": "image/png"}
        provided = {"call_id": call["call_id"], "result": {"at": "sea"}, "blocks": [picture]}
        for nothing in ({"call_id": call["call_id"]}, {**provided, "blocks": [{"kind": "user", "text": "no"}]}):
            assert (await client.post(f"/v1/runs/{run_id}/provide", json=nothing)).status_code == 422
        assert (await client.post(f"/v1/runs/{run_id}/provide", json=provided)).status_code == 204
        turn = (await client.get(f"/v1/runs/{run_id}/wait")).json()
        (newest,) = (await client.get(f"{path}/turns?after={turn['turn_index'] - 1}")).json()["items"]
        (result,) = [block for block in newest["blocks"] if block["kind"] == "tool_result"]
        assert json.loads(result["text"]) == {"at": "sea"} and result["blocks"][0]["media_type"] == "image/png"
        labels["tools"][0]["parameters"]["properties"] = {"a": {"$ref": "http://127.0.0.1:1/secret"}}
        refused = await client.post(f"{path}/runs", json={"prompt": "x", **labels})
        assert refused.status_code == 422 and "is not in the schema itself" in refused.json()["detail"]


async def test_an_answer_has_the_schema_of_the_request(folder: Path, provider_url: str) -> None:
    async with in_process(folder, provider_url) as client:
        path = await opened(client, "typed", engine="agent")
        done = await ran(client, path, prompt('{"name": "Paris"}'), output=CITY)
        assert json.loads(done["text"]) == {"name": "Paris"}
        run = (await client.get(f"/v1/runs/{done['id']}")).json()
        assert run["output"] == {"schema": CITY, "retries": 2}
        partials = frames_of((await client.get(f"/v1/runs/{done['id']}/partials")).text)
        assert partials[-1] == {"event": "partial", "data": {"name": "Paris"}}
        wrong = await ran(client, path, prompt('{"name": 5}'), output=CITY, output_retries=0)
        assert wrong["error"]["error"] == "output_invalid"
        bad = await client.post(f"{path}/runs", json={"prompt": "x", "output": {"type": "string"}})
        assert bad.status_code == 422 and "object" in bad.json()["detail"]


async def test_memories_are_saved_recalled_changed_and_forgotten(folder: Path, provider_url: str) -> None:
    async with in_process(folder, provider_url) as client:
        path = await opened(client, "remembering")
        saved = await client.post(f"{path}/memory", json={"text": "Ann loves trains.", "type": "preferences"})
        assert saved.status_code == 201
        odd = {"text": "The café is at 5/7 High Street.", "id": "notes/café: 100%", "aliases": ["the place"]}
        assert (await client.post(f"{path}/memory", json=odd)).json() == {"id": "notes/café: 100%"}
        recalled = (await client.post(f"{path}/memory/recall", json={"query": "trains", "limit": 1})).json()["items"]
        assert [recalled[0]["text"], recalled[0]["memory"], recalled[0]["category"]] == [
            "Ann loves trains.",
            "facts",
            "semantic",
        ]
        narrow: dict[str, dict[str, Any]] = {"Ann loves trains.": {"types": ["preferences"], "category": "semantic"}}
        narrow |= {"goals": {"types": ["goals"]}, "episodes": {"category": "episodic"}, "earlier": {"as_of": 1.0}}
        for text, options in narrow.items():
            recalled = (await client.post(f"{path}/memory/recall", json={"query": "trains", **options})).json()["items"]
            assert [item["text"] for item in recalled] == (
                [text] if "types" in options and "category" in options else []
            )
        apart = (await client.post(f"{path}/memory/recall-apart", json={"query": "trains"})).json()
        assert [item["id"] for item in apart["extracted"]] == [saved.json()["id"]] and apart["failed"] == {}
        place = f"{path}/memory/items/notes%2Fcaf%C3%A9%3A%20100%25"
        assert (await client.patch(place, json={"status": "resolved", "topic": "food"})).json() == {"found": True}
        listed = (await client.get(f"{path}/memory?category=semantic&limit=1")).json()
        rest = (await client.get(f"{path}/memory", params={"cursor": listed["cursor"]})).json()
        items = {item["id"]: item for item in [*listed["items"], *rest["items"]]}
        assert items["notes/café: 100%"]["status"] == "resolved" and items["notes/café: 100%"]["topic"] == "food"
        assert (await client.patch(place, json={})).status_code == 422
        text = "The bakery is at 9 Low Street."
        assert (await client.patch(place, json={"text": text, "status": "active"})).json() == {"found": True}
        again = (await client.post(f"{path}/memory/recall", json={"query": "Where is the bakery?"})).json()["items"]
        assert again[0]["text"] == text
        remaining = (await client.post(f"{path}/memory/recall", json={"query": "Where is the café?"})).json()["items"]
        assert odd["text"] not in [item["text"] for item in remaining]
        pinned = {"id": saved.json()["id"]}
        assert (await client.post(f"{path}/memory/pin", json=pinned)).json() == {"found": True}
        assert (await client.get(f"{path}/memory")).json()["items"]
        assert (await client.post(f"{path}/memory/unpin", json=pinned)).json() == {"found": True}
        assert (await client.post(f"{path}/memory/delete", json={"ids": ["notes/café: 100%", "no"]})).json() == {
            "deleted": 1,
            "left": [],
        }
        assert (await client.put(f"{path}/memory/use", json={"use": "read"})).status_code == 204
        assert (await client.get(path)).json()["memory"] == "read"
        turn = await ran(client, path, "my secret")
        assert (await client.get(f"{path}/memory/wait")).json() == {"done": True}
        forgotten = await client.post(f"{path}/memory/forget", json={"turn_index": turn["turn_index"], "verify": True})
        assert forgotten.json()["turns"] == 1
        assert (await client.put(f"{path}/notes", json={"content": "a plan"})).json() == {"content": "a plan"}
        assert (await client.get(f"{path}/notes")).json() == {"content": "a plan"}
        assert (await client.patch(f"{path}/notes", json={"content": "and more"})).is_success
        assert (await client.delete(f"{path}/notes")).json() == {"found": True}
        response = await client.post("/v1/sessions", json={"id": "remembering"}, headers=BOB)
        assert response.is_success
        assert (await client.get(f"{path}/memory", headers=BOB)).json()["items"] == []
        remaining = (await client.delete("/v1/user")).json()
        assert remaining["sessions"] >= 1 and remaining["items"]["facts"] >= 1 and remaining["verified"]
        assert (await client.get("/v1/count")).json() == {"sessions": 0}
        assert (await client.get("/v1/count", headers=BOB)).json() == {"sessions": 1}


async def test_a_subject_is_previewed_and_forgotten(folder: Path, provider_url: str) -> None:
    async with in_process(folder, provider_url) as client:
        path = await opened(client, "forgetting")
        place = f"{path}/memory/forget-about"
        for text in ("Ann drives a Volvo.", "Ann drove a Volvo to Rome.", "Ann's Volvo is red."):
            await client.post(f"{path}/memory", json={"text": text})
        await client.put(f"{path}/notes", json={"content": "Drives a Volvo.\nLikes figs."})
        preview = (await client.post(place, json={"text": "I drive a Volvo", "preview": True})).json()
        assert {mention["text"] for mention in preview["mentions"]} == {
            "Ann drives a Volvo.",
            "Ann drove a Volvo to Rome.",
        }
        assert preview["notes"] == ["Drives a Volvo."] and preview["failed"] == {}
        assert {mention["why"] for mention in preview["mentions"]} == {"words"}

        (rome,) = (mention for mention in preview["mentions"] if "Rome" in mention["text"])
        chosen = (await client.post(place, json={"mentions": [rome]})).json()
        assert [mention["id"] for mention in chosen["mentions"]] == [rome["id"]] and chosen["notes"] == []
        gone = (await client.post(place, json={"text": "I drive a Volvo"})).json()
        assert [mention["text"] for mention in gone["mentions"]] == ["Ann drives a Volvo."]
        assert (await client.get(f"{path}/notes")).json() == {"content": "Likes figs."}
        texts = [item["text"] for item in (await client.get(f"{path}/memory")).json()["items"]]
        assert "Ann's Volvo is red." in texts and not [text for text in texts if "drove" in text or "drives" in text]

        refused: list[dict[str, Any]] = [{}, {"text": "I am"}, {"preview": True}, {"text": "Volvo", "notes": ["x"]}]
        for wrong in (*refused, {"mentions": [{}]}):
            assert (await client.post(place, json=wrong)).status_code == 422, wrong
        nowhere = await client.post(place, json={"mentions": [{"memory": "shelf", "id": "1"}]})
        assert nowhere.status_code == 422 and "must be one of" in nowhere.json()["detail"]


async def test_a_message_is_removed_by_its_place(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "removing")
        for text in ("one", "two"):
            await ran(client, path, text)
        for text in ("three", "four"):
            assert (await client.post(f"{path}/append", json={"prompt": text})).is_success
        listed = (await client.get(f"{path}/messages")).json()["items"]
        for index in (2, 4, 5):
            removed = await client.delete(f"{path}/messages/{listed[index]['place']}")
            assert removed.json() == {"removed": 1}, removed.text
        remaining = (await client.get(f"{path}/messages")).json()["items"]
        assert [message["id"] for message in remaining] == [listed[index]["id"] for index in (0, 1, 3)]
        turns = (await client.get(f"{path}/turns")).json()["items"]
        assert [turn["removed"] for turn in turns] == [[], [0]] and turns[1]["blocks"][0]["text"] == "two"
        for wrong, status in (("nothing", 422), ("1~5.0-1", 422), ("99~5.0-1", 404)):
            assert (await client.delete(f"{path}/messages/{wrong}")).status_code == status
        foreign = await client.delete(f"{path}/messages/{listed[0]['place']}", headers=BOB)
        assert foreign.status_code == 404
        await ran(client, path, "five")
        (newest,) = (await client.get(f"{path}/turn?snapshot=true")).json()["blocks"][-2:-1]
        assert newest["text"] == "five"


async def test_a_conversation_from_elsewhere_is_imported_and_exported(folder: Path) -> None:
    conversation = [
        {"role": "user", "content": "Where is the key?"},
        {"role": "assistant", "content": "Under the mat."},
    ]
    async with in_process(folder) as client:
        path = await opened(client, "imported")
        refusals: list[dict[str, Any]] = [
            {"messages": []},
            {"messages": [{"role": "wizard", "content": "Hm."}]},
            {"messages": [{"role": "user", "content": 5}]},
            {"messages": conversation, "format": "xml"},
            {"messages": conversation, "idempotency_key": ""},
            {"messages": conversation, "after": -2},
            {"messages": conversation, "memory": "sometimes"},
            {"format": "openai_chat"},
        ]
        for wrong in refusals:
            refused = await client.post(f"{path}/import", json=wrong)
            assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json", wrong
        assert (await client.get(f"{path}/turns")).json()["items"] == []
        for _ in range(2):
            turn = (await client.post(f"{path}/import", json={"messages": conversation, "system": "Be brief."})).json()
            assert (turn["index"], turn["run_id"], turn["text"]) == (0, None, "Under the mat.")
        late = {"messages": conversation, "idempotency_key": "again", "after": -1, "memory": True}
        refused = await client.post(f"{path}/import", json=late)
        assert refused.status_code == 409 and refused.json()["error"] == "turns_changed", refused.text
        shown = (await client.get(f"{path}/export")).json()
        assert shown["format"] == "openai_chat" and shown["left_out"] == {} and shown["messages"][1:] == conversation
        assert shown["messages"][0] == {"role": "system", "content": "Be brief."}
        exported = (await client.get(f"{path}/export?format=anthropic")).json()
        assert exported["system"] == "Be brief." and [message["role"] for message in exported["messages"]] == [
            "user",
            "assistant",
        ]
        assert (await client.get(f"{path}/export?format=xml")).status_code == 422
        for foreign in (
            await client.post(f"{path}/import", json={"messages": conversation, "idempotency_key": "k"}, headers=BOB),
            await client.get(f"{path}/export", headers=BOB),
            await client.get("/v1/sessions/nobody/export"),
        ):
            assert foreign.status_code == 404 and foreign.json()["error"] == "session_not_found"
        assert (await ran(client, path, "And now?"))["state"] == "completed"
        after = (await client.get(f"{path}/export")).json()["messages"]
        assert [message["content"] for message in after[3:]] == ["And now?", "And now?"]


async def test_a_run_without_a_session_leaves_nothing(folder: Path) -> None:
    async with in_process(folder) as client, in_process(folder) as second_client:
        before = (await client.get("/v1/count")).json()
        done = await client.post("/v1/run?wait_s=60", json={"prompt": "hello", "metadata": {"a": 1}})
        assert done.status_code == 200 and done.json()["text"] == "hello"
        run_id = done.json()["id"]
        assert (await client.get(f"/v1/runs/{run_id}/wait")).json()["text"] == "hello"
        assert (await client.get(f"/v1/runs/{run_id}", headers=BOB)).status_code == 404
        assert (await second_client.get(f"/v1/runs/{run_id}/wait")).json()["text"] == "hello", "of another process"
        assert (await second_client.get(f"/v1/runs/{run_id}", headers=BOB)).status_code == 404
        named = await client.post("/v1/run?wait_s=60", json={"prompt": "who", "engine": "scripted"})
        assert named.json()["text"] == " ann"
        events = frames_of((await client.post("/v1/run", json={"prompt": "streamed"}, headers=SSE)).text)
        assert events[-1]["event"] == "run_completed"
        assert (await client.get("/v1/count")).json() == before


async def test_what_is_another_users_is_answered_like_what_does_not_exist(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "private")
        run = await ran(client, path, "mine")
        paths = [path, f"{path}/turns", f"{path}/messages", f"{path}/runs", f"{path}/events", f"{path}/turn"]
        paths += [
            f"/v1/runs/{run['id']}{end}" for end in ("", "/wait", "/events", "/steps", "/pending", "/input", "/phase")
        ]
        unknown = [path.replace("private", "nothing").replace(run["id"], "nothing") for path in paths]
        for own_path, none in zip(paths, unknown, strict=True):
            assert (await client.get(own_path)).is_success
            for headers in (BOB, {**BOB, **SSE}):
                foreign_answer, missing = (
                    await client.get(own_path, headers=headers),
                    await client.get(none, headers=headers),
                )
                assert foreign_answer.status_code == missing.status_code == 404, own_path
                assert foreign_answer.text == missing.text.replace(
                    "nothing", "private" if "private" in own_path else run["id"]
                )
        assert (await client.post(f"/v1/runs/{run['id']}/cancel", json={}, headers=BOB)).status_code == 404
        assert (await client.delete(path, headers=BOB)).status_code == 404
        assert (await client.get("/v1/runs", headers=BOB)).json()["items"] == []
        stolen = await client.post("/v1/sessions", json={"id": "bobs"}, headers=BOB)
        assert stolen.is_success
        foreign = await client.post("/v1/sessions/bobs/runs", json={"prompt": "x", "parent": run["id"]}, headers=BOB)
        assert foreign.status_code == 404 and foreign.json()["error"] == "run_not_found"


async def test_a_turn_is_answered_anew_and_its_versions_are_chosen(folder: Path) -> None:
    async with in_process(folder) as client:
        path = await opened(client, "versions")
        for text in ("one", "two"):
            await ran(client, path, text)
        answer = await client.post(f"{path}/rerun?wait_s=60", json={"prompt": "first", "at": 0})
        assert answer.status_code == 200, answer.text
        turn = (await client.get(f"{path}/turn", params={"index": answer.json()["turn_index"]})).json()
        shown = [
            {"number": 1, "index": 0, "is_shown": False},
            {"number": 2, "index": 2, "is_shown": True},
        ]
        assert (turn["index"], turn["version"], turn["versions"], turn["text"]) == (2, 2, shown, "first")
        stale = await client.post(f"{path}/rerun", json={"at": 1})
        assert stale.status_code == 409 and stale.json()["error"] == "turn_replaced" and "turn 2" in stale.text
        messages = (await client.get(f"{path}/messages")).json()["items"]
        assert [(message["text"], message["versions"]) for message in messages] == [("first", [0, 2])] * 2
        assert (await client.post(f"{path}/choose", json={"index": 1})).json() == {"changed": True}
        assert (await client.post(f"{path}/choose", json={"index": 1})).json() == {"changed": False}
        assert [turn["index"] for turn in (await client.get(f"{path}/turns")).json()["items"]] == [0, 1]
        again = await client.post(f"{path}/rerun", json={}, headers={**SSE, "Idempotency-Key": "again"})
        assert "run_completed" in [frame["event"] for frame in frames_of(again.text)], again.text
        repeated = await client.post(f"{path}/rerun?wait_s=60", json={}, headers={"Idempotency-Key": "again"})
        assert repeated.json()["turn_index"] == 3 and repeated.json()["text"] == "two", repeated.text
        events = (await client.get(f"{path}/events?kinds=turn_replaced")).json()["items"]
        assert [(event["turn_index"], event["replaced"]) for event in events] == [(2, 0), (0, 2), (3, 1)]
        assert (await client.post(f"{path}/choose", json={"index": 9})).status_code == 404
