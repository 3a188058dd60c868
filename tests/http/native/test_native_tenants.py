"""Tenants over HTTP: operators give them to users, tokens name them, and nobody sees what another tenant has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from servers.http_service import ANN, BOB, ROOT, in_process
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import ConfigError, InvalidIdError
from turnwise.http import BearerTokens, Identity, create_app
from turnwise.memory.quotas.records import Quota

QUOTAS, TENANTS, USAGE = "/v1/quotas", "/v1/tenants", "/v1/usage"


async def run(client: httpx.AsyncClient, headers: dict[str, str]) -> int:
    """Run a prompt in a session of a user; return the status."""
    await client.post("/v1/sessions", json={"id": "chat"}, headers=headers)
    answer = await client.post("/v1/sessions/chat/runs?wait_s=60", json={"prompt": "hi"}, headers=headers)
    return answer.status_code


async def test_operators_give_users_tenants_and_list_them(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        for user, tenant in (("ann", "acme"), ("bob", "ümläut & co"), ("a/b", "acme")):
            path = f"/v1/users/{user.replace('/', '%2F')}/tenant"
            for _ in range(2):
                shown = await client.put(path, json={"tenant": tenant}, headers=ROOT)
                assert shown.json() == {"user": user, "tenant": tenant}, shown.text
        listed = (await client.get(TENANTS, headers=ROOT)).json()
        assert listed["items"] == [{"tenant": "acme", "users": 2}, {"tenant": "ümläut & co", "users": 1}]
        first = (await client.get(TENANTS, params={"limit": 1}, headers=ROOT)).json()
        rest = (await client.get(TENANTS, params={"limit": 1, "cursor": first["cursor"]}, headers=ROOT)).json()
        assert [*first["items"], *rest["items"]] == listed["items"]
        users = (await client.get(f"{TENANTS}/acme/users", headers=ROOT)).json()
        assert users == {"items": ["a/b", "ann"], "cursor": None}
        assert (await client.get("/v1/users/ann/tenant", headers=ANN)).json() == {"user": "ann", "tenant": "acme"}
        await client.put("/v1/users/ann/tenant", json={"tenant": None}, headers=ROOT)
        assert (await client.get("/v1/users/ann/tenant", headers=ROOT)).json()["tenant"] is None
        for body in ({"tenant": ""}, {"tenant": "*"}, {"tenant": "x" * 65}, {"tenant": 1}, {}):
            refused = await client.put("/v1/users/ann/tenant", json=body, headers=ROOT)
            assert refused.status_code == 422, refused.text


async def test_nobody_sees_what_another_tenant_has(tmp_path: Path) -> None:
    async with in_process(tmp_path) as client:
        for user, tenant in (("ann", "acme"), ("bob", "other")):
            await client.put(f"/v1/users/{user}/tenant", json={"tenant": tenant}, headers=ROOT)
        quotas: list[dict[str, Any]] = [{"tenant": "acme", "runs": 1}, {"tenant": "other", "runs": 7}]
        for quota in (*quotas, {"tenant": "*", "tokens": 10**6}):
            set_ = await client.put(QUOTAS, json={**quota, "per": "month"}, headers=ROOT)
            assert set_.status_code == 200, set_.text
        assert [await run(client, headers) for headers in (ANN, BOB)] == [200, 200]
        assert (await run(client, ANN), await run(client, BOB)) == (429, 200)
        for headers, tenant, limit, used in ((ANN, "acme", 1, 1), (BOB, "other", 7, 2)):
            own = (await client.get(QUOTAS, headers=headers)).json()["items"]
            assert {quota["tenant"] for quota in own} == {tenant, "*"}
            (runs,) = [quota for quota in own if quota["limits"] == "runs"]
            assert (runs["limit"], runs["used"]) == (limit, used)
            rows = (await client.get(USAGE, params={"by": "tenant,user"}, headers=headers)).json()["rows"]
            assert [row["tenant"] for row in rows] == [tenant]
        refused: list[tuple[str, dict[str, Any]]] = [
            *((path, {"tenant": tenant}) for path in (QUOTAS, USAGE) for tenant in ("acme", "other")),
            *(
                (TENANTS, {}),
                (f"{TENANTS}/acme/users", {}),
                (f"{TENANTS}/other/users", {}),
                ("/v1/users/bob/tenant", {}),
            ),
        ]
        for path, params in refused:
            answer = await client.get(path, params=params, headers=ANN)
            assert (answer.status_code, answer.json()["error"]) == (403, "operators_only"), path
        answer = await client.put("/v1/users/ann/tenant", json={"tenant": "other"}, headers=ANN)
        assert answer.status_code == 403
        shown = (await client.get(QUOTAS, params={"tenant": "other"}, headers=ROOT)).json()["items"]
        assert {(quota["tenant"], quota["used"]) for quota in shown if quota["limits"] == "runs"} == {("other", 2)}
        usage = (await client.get(USAGE, params={"tenant": "other", "by": "user"}, headers=ROOT)).json()
        assert [(row["user"], row["runs"]) for row in usage["rows"]] == [("bob", 2)]


async def test_a_token_names_the_tenant_of_its_user(tmp_path: Path) -> None:
    tokens = BearerTokens(
        {
            "a-long-secret-of-ann": Identity("ann", tenant="acme"),
            "another-secret-of-ann": Identity("ann", tenant="other"),
            "a-long-secret-of-bob": "bob",
        }
    )
    manager = AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess())
    async with manager:
        await manager.set_quota(Quota(tenant="acme", runs=1, per="month"))
        await manager.set_tenant("bob", "by hand")
        transport = httpx.ASGITransport(create_app(manager, auth=tokens), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:

            async def asks(token: str) -> int:
                return await run(client, {"Authorization": f"Bearer {token}"})

            assert [await asks("a-long-secret-of-ann") for _ in range(2)] == [200, 429]
            assert await manager.tenant("ann") == "acme"
            assert await asks("another-secret-of-ann") == 200
            assert await manager.tenant("ann") == "other"
            assert await asks("a-long-secret-of-ann") == 429
            assert await asks("a-long-secret-of-bob") == 200
            assert await manager.tenant("bob") == "by hand"


def test_tokens_in_a_file_name_tenants(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"a-long-secret-of-ann": {"user": "ann", "tenant": "acme", "operator": true}}', encoding="utf-8")
    identity = BearerTokens.from_file(path).find("a-long-secret-of-ann")
    assert identity == Identity("ann", is_operator=True, tenant="acme")
    path.write_text('{"a-long-secret-of-ann": {"user": "ann", "tenant": 1}}', encoding="utf-8")
    with pytest.raises(ConfigError):
        BearerTokens.from_file(path)
    with pytest.raises(InvalidIdError, match="stands for each"):
        Identity("ann", tenant="*")
