"""Whose request it is: a function of one's own, and the tokens of a file or a variable; without Ray."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.adapters import mcp_server
from turnwise.errors import ConfigError, InvalidIdError, OverloadedError
from turnwise.http import BearerTokens, HttpSettings, Identity, create_app
from turnwise.http.problems import TooManyStreams
from turnwise.http.service import Caller, Service

TOKEN = "a-secret-that-nobody-may-see"


def plain(connection: HTTPConnection) -> str | None:
    return connection.headers.get("x-user")


def identities(connection: HTTPConnection) -> Identity | None:
    name = connection.headers.get("x-user")
    return Identity(name) if name else None


async def awaited(connection: HTTPConnection) -> Identity | str | None:
    return identities(connection) or plain(connection)


@pytest.mark.parametrize("auth", [plain, identities, awaited])
async def test_a_function_says_who_makes_a_request(auth: Any) -> None:
    connections: list[HTTPConnection] = []

    def counted(connection: HTTPConnection) -> Identity | str | Awaitable[Identity | str | None] | None:
        connections.append(connection)
        return auth(connection)  # type: ignore[no-any-return]

    manager = AsyncSessionManager("memory://auth", engine=EchoEngine())
    transport = httpx.ASGITransport(create_app(manager, auth=counted))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert (await client.get("/openai/v1/models", headers={"X-User": "ann"})).is_success
        assert len(connections) == 1
        for path in ("/openai/v1/models", "/v1/sessions", "/v1/sessions/chat", "/v1/runs"):
            refused = await client.get(path)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer", path
            body = await client.post(path, content=b"{", headers={"Content-Type": "application/json"})
            assert body.status_code == 401, f"{path} was parsed for nobody"
        assert (await client.get("/health")).is_success


class RefusedError(HTTPException):
    """What a function of one's own raises."""


@pytest.mark.parametrize("error", [RefusedError(403, "not from there"), OverloadedError("s", "mailbox", 100)])
async def test_a_function_that_raises_gets_the_answer_of_its_error(error: Exception) -> None:
    def raising(connection: HTTPConnection) -> str:
        raise error

    manager = AsyncSessionManager("memory://auth", engine=EchoEngine())
    transport = httpx.ASGITransport(create_app(manager, auth=raising))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path in ("/openai/v1/models", "/v1/sessions"):
            response = await client.get(path)
            assert response.status_code == (403 if isinstance(error, RefusedError) else 429), path


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        ({}, "nobody could use the service"),
        ({"short": "ann"}, "16 or more printable ASCII characters"),
        ({TOKEN + "\n": "ann"}, "printable"),
        ({TOKEN + "é": "ann"}, "ASCII"),
        ({f"{TOKEN} and more": "ann"}, "no spaces"),
        ({TOKEN: ""}, "its user has a name"),
        ([TOKEN], "JSON object"),
        (TOKEN, "JSON object"),
        ({TOKEN: 5}, "JSON object"),
        ({TOKEN: {"operator": True}}, "JSON object"),
        ({TOKEN: {"user": "ann", "operator": "yes"}}, "JSON object"),
        ({TOKEN: {"user": "ann", "admin": True}}, "JSON object"),
    ],
)
def test_tokens_that_cannot_be_used_are_refused_and_not_quoted(
    users: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps(users), encoding="utf-8")
    monkeypatch.setenv("TURNWISE_HTTP_TOKENS", json.dumps(users))
    reads: list[Callable[[], BearerTokens]] = [
        lambda: BearerTokens.from_file(tmp_path / "tokens.json"),
        BearerTokens.from_environment,
    ]
    for read in reads:
        with pytest.raises(ConfigError, match=reason) as caught:
            read()
        assert TOKEN not in str(caught.value)


def test_a_token_of_the_least_length_is_found() -> None:
    least = "sixteen-letters."
    assert BearerTokens({least: "ann"}).find(least) == Identity("ann")


def test_tokens_that_are_no_json_or_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens.json").write_text(f"{TOKEN}: ann", encoding="utf-8")
    with pytest.raises(ConfigError, match="JSON object") as caught:
        BearerTokens.from_file(tmp_path / "tokens.json")
    assert TOKEN not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        BearerTokens.from_file(tmp_path / "nowhere.json")
    monkeypatch.delenv("TURNWISE_HTTP_TOKENS", raising=False)
    with pytest.raises(ConfigError, match="not set"):
        BearerTokens.from_environment()


@pytest.mark.parametrize("broken", ["{", "[]", "{}", '{"a-token-of-a-bad-name": "a\\nb"}', None])
def test_a_changed_file_of_tokens_counts_at_once_and_a_broken_one_not_at_all(
    broken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files are replaced as Kubernetes does: what the path names is another file from one moment to the next."""
    monkeypatch.setattr("turnwise.http.auth._LOOK_S", 0.0)
    path = tmp_path / "tokens.json"

    def replace(text: str) -> None:
        new = tmp_path / "new.json"
        new.write_text(text, encoding="utf-8")
        new.replace(path)

    replace(json.dumps({TOKEN: "ann", "a-token-that-was-stolen": "ben"}))
    tokens = BearerTokens.from_file(path)
    assert tokens.find("a-token-that-was-stolen") == Identity("ben")
    replace(json.dumps({TOKEN: "ann", "a-token-that-is-new": {"user": "ben", "operator": True}}))
    assert tokens.find("a-token-that-was-stolen") is None
    assert tokens.find("a-token-that-is-new") == Identity("ben", is_operator=True)
    path.unlink() if broken is None else replace(broken)
    for _ in range(3):
        assert tokens.find(TOKEN) == Identity("ann")
    (record,) = caplog.records
    assert record.levelname == "ERROR" and path.name in caplog.text and TOKEN not in caplog.text
    replace(json.dumps({TOKEN: "cem"}))
    assert tokens.find(TOKEN) == Identity("cem")


@pytest.mark.parametrize("user", [None, "", "a\nb"])
def test_an_identity_without_a_user_is_refused(user: Any) -> None:
    """It would be given what all users have."""
    with pytest.raises(InvalidIdError, match="user id"):
        Identity(user)
    with pytest.raises(InvalidIdError, match="user id"):
        mcp_server(AsyncSessionManager("memory://", engine=EchoEngine()), user_id=user)


def test_callers_without_authentication_share_the_streams_of_the_service() -> None:
    manager = AsyncSessionManager("memory://", engine=EchoEngine())
    service = Service(manager, HttpSettings(max_streams_per_user=1, max_streams=3), None)
    caller: Any = Caller(service, None, None)  # type: ignore[arg-type]
    with ExitStack() as rooms:
        for _ in range(3):
            rooms.enter_context(caller.reserve_stream(is_needed=True))
        with pytest.raises(TooManyStreams, match="3 streams"):
            caller.reserve_stream(is_needed=True)
