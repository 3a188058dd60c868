"""What users of `openai` set on its client, as settings of the engine."""

from __future__ import annotations

import json
import pickle
from typing import Any

import httpx2
import pytest

from local_provider import LocalProvider
from quirks import EVENTS, HI, JSON, STREAM, QuirkServer, chunk, completed, events, message, spoken
from test_openai_engine import answer, engine_of, failure
from turnwise.actors.inference.openai.engine import AzureOpenAI, OpenAIEngine
from turnwise.errors import ConfigError

CHAT = (200, EVENTS, events(*STREAM, chunk("stop")))
RESPONSES = (200, EVENTS, events(completed(spoken("Hi there"))))


def engine(server: QuirkServer, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine("local", **{"base_url": server.base_url, "max_retries": 0, **settings})


def test_headers_and_query_go_along_with_each_request() -> None:
    with QuirkServer(CHAT) as server:
        settings = {
            "base_url": f"{server.base_url}?tenant=7",
            "default_headers": {"X-Team": "blue"},
            "default_query": {"trace": "on"},
            "organization": "org-1",
            "project": "proj-1",
        }
        chosen = pickle.loads(pickle.dumps(engine(server, **settings)))
        assert answer(chosen)[0] == HI
        ((target, headers),) = server.heads
    assert target == "/v1/chat/completions?tenant=7&trace=on"
    assert (headers["x-team"], headers["openai-organization"], headers["openai-project"]) == ("blue", "org-1", "proj-1")


def fresh_token() -> str:
    return "token-from-entra"


async def awaited_token() -> str:
    return "token-from-entra"


@pytest.mark.parametrize("api_key", [fresh_token, awaited_token])
def test_a_function_gives_the_key_of_each_request(api_key: Any) -> None:
    with QuirkServer(CHAT) as server:
        assert answer(engine(server, api_key=api_key))[0] == HI
        assert server.heads[0][1]["authorization"] == "Bearer token-from-entra"


def refused_token() -> str:
    raise RuntimeError("the directory is away")


def test_a_function_that_gives_no_key_fails_its_run_only() -> None:
    with QuirkServer(CHAT) as server:
        with pytest.raises(RuntimeError, match="the directory is away"):
            answer(engine(server, api_key=refused_token))
        assert server.requests == []


def counting_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"X-Proxy": "yes"})


def test_an_http_client_of_ones_own_is_used() -> None:
    with QuirkServer(CHAT) as server:
        chosen = pickle.loads(pickle.dumps(engine(server, http_client=counting_client)))
        assert answer(chosen)[0] == HI
        assert server.heads[0][1]["x-proxy"] == "yes"


@pytest.mark.parametrize(
    ("api", "api_version", "target", "header"),
    [
        ("chat", "2024-10-21", "/openai/deployments/local/chat/completions?api-version=2024-10-21", "api-key"),
        ("responses", "2025-03-01-preview", "/openai/responses?api-version=2025-03-01-preview", "api-key"),
        ("chat", None, "/openai/v1/chat/completions", "authorization"),
        ("responses", None, "/openai/v1/responses", "authorization"),
    ],
)
def test_azure_is_asked_by_its_paths(api: Any, api_version: str | None, target: str, header: str) -> None:
    with QuirkServer(CHAT if api == "chat" else RESPONSES) as server:
        azure = AzureOpenAI(endpoint=server.base_url.removesuffix("/v1"), api_version=api_version)
        chosen = engine(server, api=api, base_url=None, azure=azure, api_key="azure-key", provider="azure")
        assert answer(chosen)[0] == HI
        asked, headers = server.heads[0]
    assert asked == target
    assert headers[header].removeprefix("Bearer ") == "azure-key"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_answer_can_be_asked_for_in_one_piece(api: Any) -> None:
    whole = message(content="Hi there") if api == "chat" else completed(spoken("Hi there"))["response"]
    with QuirkServer((200, JSON, json.dumps(whole).encode())) as server:
        blocks, context = answer(engine(server, api=api, stream=False))
        assert blocks == HI and context.text == "Hi there"
        (request,) = server.requests
    assert request["stream"] is False
    assert "stream_options" not in request


@pytest.mark.parametrize(("api", "left_out"), [("chat", None), ("responses", False)])
def test_the_provider_keeps_the_answer_only_if_it_is_told_to(api: Any, left_out: bool | None) -> None:
    with QuirkServer(CHAT if api == "chat" else RESPONSES) as server:
        answer(engine(server, api=api))
        answer(engine(server, api=api, store=True))
        assert [request.get("store") for request in server.requests] == [left_out, True]


def test_the_time_until_an_answer_begins_has_a_limit_of_its_own_that_retries_share() -> None:
    with LocalProvider() as provider:
        error, _ = failure(engine_of(provider, "hang", first_byte_s=0.2, timeout_s=30.0, max_retries=5))
    assert "sent nothing within first_byte_s=0.2, retries included" in str(error)
    assert len(provider.requests) == 1, "no time was left for a retry"


def test_an_answer_may_take_longer_to_begin_than_its_silences_last() -> None:
    with LocalProvider() as provider:
        blocks, _ = answer(engine_of(provider, first_byte_s=30.0, timeout_s=5.0))
        assert [block.kind for block in blocks] == ["text"]
        error, _ = failure(engine_of(provider, "stall", first_byte_s=30.0, timeout_s=0.1, max_retries=0))
    assert "sent nothing for timeout_s=0.1" in str(error)


@pytest.mark.parametrize(
    "settings",
    [
        {"default_headers": {"X": 1}},
        {"default_query": {"a": None}},
        {"http_client": "proxy"},
        {"connect_timeout_s": 0},
        {"first_byte_s": float("nan")},
        {"azure": AzureOpenAI(endpoint="https://a.openai.azure.com"), "base_url": "https://example.org"},
    ],
    ids=str,
)
def test_a_setting_of_the_client_that_cannot_be_used_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        OpenAIEngine("local", **settings)


def test_a_server_that_takes_no_schemas_is_told_the_schema_in_the_instructions() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with QuirkServer(CHAT) as server:
        answer(engine(server, provider="deepseek", system="Be brief.").answering(schema))
        (request,) = server.requests
    assert request["response_format"] == {"type": "json_object"}
    told = request["messages"][0]
    assert told["role"] == "system" and told["content"].startswith("Be brief.\n\nAnswer with one JSON object")
    assert told["content"].endswith(json.dumps(schema))


def test_an_endpoint_of_azure_is_a_url() -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        AzureOpenAI(endpoint="my-resource")
