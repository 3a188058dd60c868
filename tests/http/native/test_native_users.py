"""Each native route that names a session or a run, asked by another user than the one whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_agents_on_ray import obey

from servers.http_service import BOB, in_process
from tools.agent_tools import prompt
from turnwise.testing import LocalProvider


@pytest.fixture(scope="module")
def provider_url() -> Iterator[str]:
    with LocalProvider(reply=obey) as provider:
        yield provider.base_url


async def routes_of(client: httpx.AsyncClient) -> list[tuple[str, str, Any]]:
    """Return the routes that name a session or a run: method, path, and the example of the body."""
    document = (await client.get("/openapi.json")).json()
    routes: list[tuple[str, str, Any]] = []
    for path, methods in document["paths"].items():
        if path.startswith(("/v1/sessions/{session_id}", "/v1/runs/{run_id}")):
            routes += [(method.upper(), path, example_of(document, route)) for method, route in methods.items()]
    return routes


def example_of(document: Any, route: Mapping[str, Any]) -> Any:
    if "application/json" not in route.get("requestBody", {}).get("content", {}):
        return None
    name = route["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return document["components"]["schemas"][name]["examples"][0]


async def waiting(client: httpx.AsyncClient, path: str, folder: Path) -> tuple[str, str]:
    """Start a run that waits for an approval; return its id and the call's."""
    labels = {"notes": str(folder / "notes.txt")}
    body = {"prompt": prompt([("pay", {"euros": 5})], "paid"), "labels": labels}
    run_id = (await client.post(f"{path}/runs", json=body)).json()["id"]
    calls: list[Any] = []
    page: Any = {"next": 0}
    while not calls:
        page = (await client.get(f"/v1/runs/{run_id}/events", params={"after": page["next"], "wait_s": 60})).json()
        calls = [event for event in page["items"] if event["kind"] == "approval_requested"]
    while (await client.get(f"/v1/runs/{run_id}/wait?timeout_s=0")).json()["state"] == "running":
        pass  # a call is asked for before the run is suspended
    return run_id, calls[0]["call_id"]


def place_of(pattern: str, **ids: str) -> str:
    """Return the path of a route."""
    return pattern.format(place="0:0", key="tea", cursor="0:0", name="thumb", user_id="eve", **ids)


async def test_no_route_reaches_a_session_or_a_run_of_another_user(tmp_path: Path, provider_url: str) -> None:
    async with in_process(tmp_path, provider_url) as client:
        path = "/v1/sessions/anns"
        await client.post("/v1/sessions", json={"id": "anns", "engine": "agent", "title": "Ann's"})
        item = (await client.post(f"{path}/memory", json={"text": "Ann loves trains."})).json()["id"]
        await client.put(f"{path}/notes", json={"content": "Ann's notes"})
        await client.post(f"{path}/schedules", json={"prompt": "Ann's tea", "after_s": 3600, "key": "tea"})
        file_id = (await client.post(f"{path}/files", params={"name": "a"}, content=b"Ann's")).json()["file_id"]
        run_id, call_id = await waiting(client, path, tmp_path)

        async def state() -> list[Any]:
            places = [
                path,
                *(f"{path}/{name}" for name in ("turns", "runs", "events", "schedules", "memory", "notes", "files")),
            ]
            places += [f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/pending"]
            return [(await client.get(place)).json() for place in places]

        before = await state()
        routes = await routes_of(client)
        for method, pattern, example in routes:
            body = {**example, "call_id": call_id} if "call_id" in (example or {}) else example
            answers, query = [], {"name": "a"} if (method, pattern.rpartition("/")[2]) == ("POST", "files") else {}
            for session, run in (("anns", run_id), ("nobodys", "nothing")):
                place = place_of(pattern, session_id=session, run_id=run, item_id=item, file_id=file_id)
                for owner in (None, "ann"):
                    params = {**query, **({"owner": owner} if owner else {})}
                    answer = await client.request(method, place, json=body, headers=BOB, params=params)
                    answers.append(answer.text.replace(session, "...").replace(run, "..."))
                    assert answer.status_code == 404, (method, place, owner, answer.text)
            assert len(set(answers)) == 1, (method, pattern)
        assert len(routes) > 40 and await state() == before

        await client.put(f"{path}/members/bob", json={"role": "reader"})
        shared = await state()
        for method, pattern, example in routes:
            body = {**example, "call_id": call_id} if "call_id" in (example or {}) else example
            place = place_of(pattern, session_id="anns", run_id=run_id, item_id=item, file_id=file_id)
            if method != "GET" and not place.endswith("/expand"):
                answer = await client.request(
                    method, place, json=body, headers=BOB, params={"owner": "ann", "name": "a"}
                )
                refusal = 422 if "/messages/0:0" in place and method == "DELETE" else 403  # it is no place
                assert answer.status_code in (403, refusal), (method, place, answer.text)
        assert await state() == shared
        await client.delete(f"{path}/members/bob")
        before = await state()

        memory_path = "/v1/sessions/bobs/memory"
        await client.post("/v1/sessions", json={"id": "bobs", "engine": "agent"}, headers=BOB)
        for method, place, change in (
            ("PATCH", f"{memory_path}/items/{item}", {"text": "Bob's"}),
            ("POST", f"{memory_path}/pin", {"id": item}),
            ("POST", f"{memory_path}/unpin", {"id": item}),
        ):
            assert (await client.request(method, place, json=change, headers=BOB)).json() == {"found": False}, place
        deleted = await client.post(f"{memory_path}/delete", json={"ids": [item]}, headers=BOB)
        assert deleted.json() == {"deleted": 0, "left": []} and await state() == before
        forgetting: list[dict[str, Any]] = [{"text": "Ann loves trains"}, {"text": "Ann's notes"}]
        forgetting.append({"mentions": [{"memory": "facts", "id": item}], "notes": ["Ann's notes"]})
        for body in forgetting:
            assert (await client.post(f"{memory_path}/forget-about", json=body, headers=BOB)).is_success
        assert await state() == before
