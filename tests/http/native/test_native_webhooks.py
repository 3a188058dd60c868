"""Webhooks by the native API: operators have all of them, and users their own where the service lets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, ROOT, TOKENS
from servers.webhook_receiver import Receiver
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.http import HttpSettings, create_app
from turnwise.memory.deliveries.webhooks import new_secret

HOOKS = "/v1/webhooks"
HOOK: dict[str, Any] = {"url": "https://example.org/hook", "events": ["run.completed"]}
USERS_OWN: dict[str, Any] = {"max_webhooks_per_user": 2}

LONG_S = 30.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chats.db"
    database: str = request.getfixturevalue("database")
    return database


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@asynccontextmanager
async def service(
    url: str, *, auth: bool = True, options: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a store in this process, as the operator's client. `options` are the manager's."""
    manager = AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess(), **(options or {}))
    async with manager:
        app = create_app(manager, auth=TOKENS if auth else None, settings=HttpSettings(**settings))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=ROOT if auth else {}, timeout=60
        ) as client:
            yield client


async def added(client: httpx.AsyncClient, status: int = 201, *, of: Any = None, **body: Any) -> dict[str, Any]:
    answer = await client.post(HOOKS, json={**HOOK, **body}, headers=of)
    assert answer.status_code == status, answer.text
    webhook: dict[str, Any] = answer.json()
    return webhook


async def ids(client: httpx.AsyncClient, of: Any = None) -> list[str]:
    return [webhook["id"] for webhook in (await client.get(HOOKS, headers=of)).json()["items"]]


async def failed(client: httpx.AsyncClient, webhook_id: str) -> list[dict[str, Any]]:
    """Wait until a webhook has failed calls; return them."""
    async with asyncio.timeout(LONG_S):
        while not (calls := (await client.get(f"{HOOKS}/{webhook_id}/failed")).json()["items"]):
            await asyncio.sleep(0.02)
    return list(calls)


async def told(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    """Wait until the receiver was told so often; return what it was told."""
    async with asyncio.timeout(LONG_S):
        while len(receiver.requests) < count:
            await asyncio.sleep(0.02)
    return receiver.told


async def test_an_operator_adds_lists_changes_and_deletes_webhooks(url: str) -> None:
    async with service(url) as client:
        answer = await client.post(HOOKS, json={**HOOK, "user_id": "ann"})
        webhook = answer.json()
        secret = webhook.pop("secret")
        assert answer.status_code == 201 and secret.startswith("whsec_"), answer.text
        assert webhook | {**HOOK, "user_id": "ann", "is_enabled": True} == webhook
        place = f"{HOOKS}/{webhook['id']}"
        assert answer.headers["location"] == place and (await client.get(place)).json() == webhook
        everyones = await added(client, secret=(own := new_secret()))
        assert everyones.pop("secret") == own and everyones["user_id"] is None
        assert (await client.get(HOOKS)).json() == {"items": sorted([webhook, everyones], key=lambda hook: hook["id"])}

        changed = await client.patch(place, json={"url": "https://example.com", "is_enabled": False})
        assert changed.json() == {**webhook, "url": "https://example.com", "is_enabled": False}, changed.text
        again = await client.patch(place, json={"events": ["session.ended", "run.failed"], "is_enabled": True})
        assert again.json() == {**webhook, "url": "https://example.com", "events": ["session.ended", "run.failed"]}
        assert (await client.patch(place, json={})).json() == again.json()
        renewed = (await client.post(f"{place}/rotate-secret", json={})).json()["secret"]
        assert renewed.startswith("whsec_") and renewed != secret
        assert (await client.post(f"{place}/rotate-secret", json={"secret": own})).json() == {"secret": own}

        assert (await client.delete(place)).json() == {"deleted": True}
        assert (await client.delete(place)).json() == {"deleted": False}
        assert await ids(client) == [everyones["id"]]
        for method, path in ROUTES[1:]:
            answer = await client.request(method, f"{place}{path}", json={})
            assert answer.status_code == 404 and answer.json()["error"] == "webhook_not_found", (method, path)


ROUTES = [
    ("DELETE", ""),
    *(("GET", ""), ("PATCH", ""), ("GET", "/failed")),
    *(("POST", "/send-again"), ("POST", "/rotate-secret")),
]
"""The routes that name a webhook."""


async def test_what_failed_is_listed_and_sent_again(url: str, receiver: Receiver) -> None:
    async with service(url) as client:
        webhook = await added(client, url=receiver.url, allow_private=True)
        place = f"{HOOKS}/{webhook['id']}"
        receiver.status = 410
        for name in ("one", "two"):
            await client.post("/v1/sessions", json={"id": name})
            await client.post(f"/v1/sessions/{name}/runs?wait_s=30", json={"prompt": f"hello {name}"})
            async with asyncio.timeout(LONG_S):
                while (await client.get(place)).json()["is_enabled"]:
                    await asyncio.sleep(0.02)
            await client.patch(place, json={"is_enabled": True})
        async with asyncio.timeout(LONG_S):
            while len(calls := await failed(client, webhook["id"])) < 2:
                await asyncio.sleep(0.02)
        first = (await client.get(f"{place}/failed", params={"limit": 1})).json()
        second = (await client.get(f"{place}/failed", params={"cursor": first["cursor"]})).json()
        assert first["items"] + second["items"] == calls and second["cursor"] is None
        (call, other) = sorted(calls, key=lambda call: call["session_id"])
        assert call["why"] == "it answered 410, so its webhook is disabled" and call["attempts"] == 1
        assert (call["payload"]["type"], call["payload"]["data"]["text"]) == ("run.completed", "hello one")
        assert (call["user_id"], call["session_id"]) == ("root", "one")

        receiver.status, before = 200, len(receiver.requests)
        await client.patch(place, json={"is_enabled": True})
        again = await client.post(f"{place}/send-again", json={"calls": [call["id"], "none"]})
        assert again.json() == {"count": 1}, again.text
        assert (await told(receiver, before + 1))[-1]["data"]["text"] == "hello one"
        assert receiver.requests[-1][1]["webhook-id"] == call["message_id"]
        assert [call["id"] for call in await failed(client, webhook["id"])] == [other["id"]]
        assert (await client.post(f"{place}/send-again", json={})).json() == {"count": 1}
        assert (await told(receiver, before + 2))[-1]["data"]["text"] == "hello two"
        assert (await client.post(f"{place}/send-again", json={})).json() == {"count": 0}


async def test_webhooks_are_for_operators_unless_the_service_lets_users_have_some(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        webhook = await added(client, user_id="ann")
        before = (await client.get(HOOKS)).json()
        for method, path in [("POST", ""), ("GET", ""), *((m, f"/{webhook['id']}{path}") for m, path in ROUTES)]:
            body = HOOK if (method, path) == ("POST", "") else {}
            answer = await client.request(method, f"{HOOKS}{path}", json=body, headers=ANN)
            problem = answer.json()
            assert (answer.status_code, problem["error"]) == (403, "operators_only"), (method, path, problem)
            assert problem["user_id"] == "ann" and "max_webhooks_per_user=0" in problem["detail"]
        assert (await client.get(HOOKS, headers={"Authorization": "none"})).status_code == 401
        assert (await client.get(HOOKS)).json() == before


async def test_users_have_webhooks_of_their_own_sessions_and_reach_no_others(url: str) -> None:
    async with service(url, **USERS_OWN) as client:
        anns, bobs, everyones = [await added(client, of=headers) for headers in (ANN, BOB, None)]
        assert (anns["user_id"], bobs["user_id"], everyones["user_id"]) == ("ann", "bob", None)
        assert await ids(client, ANN) == [anns["id"]] and await ids(client, BOB) == [bobs["id"]]
        assert await ids(client) == sorted(hook["id"] for hook in (anns, bobs, everyones))
        before = (await client.get(HOOKS)).json()
        for method, path in ROUTES:
            answers = [
                await client.request(method, f"{HOOKS}/{name}{path}", json={}, headers=BOB)
                for name in (anns["id"], everyones["id"], "none")
            ]
            texts = [answer.text.replace(anns["id"], "none").replace(everyones["id"], "none") for answer in answers]
            assert len(set(texts)) == 1, (method, path, texts)
            assert answers[0].json() == {"deleted": False} if method == "DELETE" else answers[0].status_code == 404
        assert (await client.get(HOOKS)).json() == before

        for body in ({"user_id": "ann"}, {"allow_private": True}):
            refused = await added(client, 403, of=BOB, **body)
            assert refused["error"] == "operators_only" and next(iter(body)) in refused["detail"], refused
        assert (await added(client, of=BOB, user_id="bob"))["user_id"] == "bob"
        full = await added(client, 409, of=BOB)
        assert (full["error"], full["value"]) == ("too_many_webhooks", 2) and "delete one" in full["detail"]
        await added(client, of=ANN)
        for webhook_id in await ids(client, BOB):
            assert (await client.delete(f"{HOOKS}/{webhook_id}", headers=BOB)).json() == {"deleted": True}
        await added(client, of=BOB)


async def test_a_users_webhook_is_told_of_nobody_elses_sessions(tmp_path: Path, receiver: Receiver) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db", **USERS_OWN) as client:
        await added(client, url=receiver.url, allow_private=True, user_id="ann")
        for headers in (BOB, ANN):
            await client.post("/v1/sessions", json={"id": "chat"}, headers=headers)
            await client.post("/v1/sessions/chat/runs?wait_s=30", json={"prompt": "hello"}, headers=headers)
        assert [message["data"]["user_id"] for message in await told(receiver, 1)] == ["ann"]
        (webhook_id,) = await ids(client, ANN)
        assert (await client.get(f"{HOOKS}/{webhook_id}/failed", headers=ANN)).json()["items"] == []


async def test_a_repeated_request_creates_one_webhook(url: str) -> None:
    async with service(url, **USERS_OWN | {"max_webhooks_per_user": 1}) as client:
        key = {"Idempotency-Key": "k-1"}
        answers = await asyncio.gather(*[client.post(HOOKS, json=HOOK, headers=ANN | key) for _ in range(4)])
        answers.append(await client.post(HOOKS, json=HOOK, headers=ANN | key))
        assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers]
        assert len({answer.text for answer in answers}) == 1 and answers[0].json()["secret"]
        assert len(await ids(client, ANN)) == 1
        other = await client.post(HOOKS, json=HOOK | {"url": "https://example.com"}, headers=ANN | key)
        assert other.status_code == 422 and "use a new key" in other.json()["detail"], other.text
        bobs = (await client.post(HOOKS, json=HOOK, headers=BOB | key)).json()
        roots = (await client.post(HOOKS, json=HOOK, headers=ROOT | key)).json()
        assert len({answers[0].json()["id"], bobs["id"], roots["id"]}) == 3
        assert len({answers[0].json()["secret"], bobs["secret"], roots["secret"]}) == 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://example.org"}, "use https://"),
    ({"url": "https://ann:pw@example.org"}, "leave out the user and the password"),
    ({"url": "ftp://example.org"}, "pass a URL of https"),
    ({"url": "https://" + "x" * 3000}, "url"),
    ({"url": None}, "url"),
    ({"events": []}, "events"),
    ({"events": ["run.started"]}, "events"),
    ({"events": "run.failed"}, "events"),
    ({"secret": "whsec_short"}, "whsec_"),
    ({"secret": "a secret"}, "whsec_"),
    ({"user_id": ""}, "user id"),
    ({"user_id": "a\nb"}, "user id"),
    ({"allow_private": "yes"}, "allow_private"),
    ({"is_enabled": False}, "is_enabled"),
]


async def test_bad_input_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db") as client:
        for body, reason in BAD:
            answer = await client.post(HOOKS, json={**HOOK, **body})
            assert answer.status_code == 422 and reason in answer.text, (body, answer.text)
            assert "pw" not in answer.text and "a secret" not in answer.text and len(answer.content) < 5000
        assert await ids(client) == []
        place = f"{HOOKS}/{(await added(client))['id']}"
        before = (await client.get(place)).json()
        for path, change in (
            ("", {"url": "http://example.org"}),
            ("", {"events": []}),
            ("", {"user_id": "ann"}),
            ("", {"is_enabled": 1}),
            ("/rotate-secret", {"secret": "whsec_short"}),
            ("/send-again", {"calls": []}),
            ("/send-again", {"calls": ["a"] * 1001}),
        ):
            method = "POST" if path else "PATCH"
            answer = await client.request(method, f"{place}{path}", json=change)
            assert answer.status_code == 422, (path, answer.text)
        for query in ("cursor=%00", "limit=0", "limit=1001"):
            assert (await client.get(f"{place}/failed?{query}")).status_code == 422, query
        assert (await client.get(place)).json() == before


async def test_without_authentication_everybody_has_all_webhooks(tmp_path: Path) -> None:
    async with service(f"sqlite:///{tmp_path}/chats.db", auth=False) as client:
        webhook = await added(client, allow_private=True, url="http://localhost:1/hook")
        assert webhook["user_id"] is None and webhook["allow_private"] and await ids(client) == [webhook["id"]]


async def test_a_read_only_service_changes_no_webhook(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with service(url) as client:
        place = f"{HOOKS}/{(await added(client))['id']}"
    async with service(url, options={"read_only": True}) as client:
        changes: list[tuple[str, str, dict[str, Any]]] = [("POST", HOOKS, HOOK), ("DELETE", place, {})]
        for method, path, body in (*changes, ("PATCH", place, {"is_enabled": False})):
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error"]) == (403, "read_only_store"), (method, answer.text)
        assert (await client.get(place)).json()["is_enabled"]
