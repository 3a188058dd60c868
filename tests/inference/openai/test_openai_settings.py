"""The settings of `OpenAIEngine`: keys, the client's settings, and refusals."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from engine_calls import HEALTHY, SESSION, answer, engine_at, engine_of, failure
from quirks import HI, JSON, QuirkServer, completed, message, spoken
from turnwise.actors.inference.engine import EngineBuilder, Framed, InferenceRunner
from turnwise.actors.inference.openai.engine import AzureOpenAI, OpenAIEngine
from turnwise.actors.inference.tools.tool import external_tool
from turnwise.errors import ConfigError, EngineError
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.values.frozen_json import freeze
from turnwise.testing import LocalProvider

KEY = "sk-secret-4711"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider() as provider:
        yield provider


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_headers_and_query_are_sent_with_each_request() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        settings = {
            "base_url": f"{server.base_url}?tenant=7",
            "default_headers": {"X-Team": "blue"},
            "default_query": {"trace": "on"},
            "organization": "org-1",
            "project": "proj-1",
        }
        chosen = pickle.loads(pickle.dumps(engine_at(server, **settings)))
        assert answer(chosen)[0] == HI
        ((target, headers),) = server.heads
    assert target == "/v1/chat/completions?tenant=7&trace=on"
    assert (headers["x-team"], headers["openai-organization"], headers["openai-project"]) == ("blue", "org-1", "proj-1")


def fresh_token() -> str:
    return "token-from-entra"


async def awaited_token() -> str:
    return "token-from-entra"


@pytest.mark.parametrize("api_key", [fresh_token, awaited_token])
def test_a_function_returns_the_key_for_each_request(api_key: Any) -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        assert answer(engine_at(server, api_key=api_key))[0] == HI
        assert server.heads[0][1]["authorization"] == "Bearer token-from-entra"


def refused_token() -> str:
    raise RuntimeError("the directory is away")


def test_a_failing_key_function_fails_only_the_run() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        with pytest.raises(RuntimeError, match="the directory is away"):
            answer(engine_at(server, api_key=refused_token))
        assert server.requests == []


def counting_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"X-Proxy": "yes"})


def test_a_custom_http_client_is_used() -> None:
    with QuirkServer(HEALTHY["chat"]) as server:
        chosen = pickle.loads(pickle.dumps(engine_at(server, http_client=counting_client)))
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
def test_azure_requests_use_its_paths(api: Any, api_version: str | None, target: str, header: str) -> None:
    with QuirkServer(HEALTHY[api]) as server:
        azure = AzureOpenAI(endpoint=server.base_url.removesuffix("/v1"), api_version=api_version)
        chosen = engine_at(server, api=api, base_url=None, azure=azure, api_key="azure-key", provider="azure")
        assert answer(chosen)[0] == HI
        requested, headers = server.heads[0]
    assert requested == target
    assert headers[header].removeprefix("Bearer ") == "azure-key"


def test_an_answer_can_be_requested_without_streaming(api: Any) -> None:
    whole = message(content="Hi there") if api == "chat" else completed(spoken("Hi there"))["response"]
    with QuirkServer((200, JSON, json.dumps(whole).encode())) as server:
        blocks, context = answer(engine_at(server, api=api, stream=False))
        assert blocks == HI and context.text == "Hi there"
        (request,) = server.requests
    assert request["stream"] is False
    assert "stream_options" not in request


@pytest.mark.parametrize(("api", "left_out"), [("chat", None), ("responses", False)])
def test_the_provider_stores_the_answer_only_on_request(api: Any, left_out: bool | None) -> None:
    with QuirkServer(HEALTHY[api]) as server:
        answer(engine_at(server, api=api))
        answer(engine_at(server, api=api, store=True))
        assert [request.get("store") for request in server.requests] == [left_out, True]


def test_the_time_limit_until_an_answer_begins_includes_retries() -> None:
    with LocalProvider() as provider:
        error, _ = failure(engine_of(provider, "hang", first_byte_s=0.2, timeout_s=30.0, max_retries=5))
    assert "sent nothing within first_byte_s=0.2, retries included" in str(error)
    assert len(provider.requests) == 1, "no time was left for a retry"


def test_an_answer_may_begin_later_than_the_longest_silence() -> None:
    with LocalProvider() as provider:
        blocks, _ = answer(engine_of(provider, first_byte_s=30.0, timeout_s=5.0))
        assert [block.kind for block in blocks] == ["text"]
        error, _ = failure(engine_of(provider, "stall", first_byte_s=30.0, timeout_s=0.1, max_retries=0))
    assert "sent nothing for timeout_s=0.1" in str(error)


def test_a_server_without_schemas_gets_the_schema_in_the_instructions() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with QuirkServer(HEALTHY["chat"]) as server:
        answer(engine_at(server, provider="deepseek", system="Be brief.").answering(schema))
        (request,) = server.requests
    assert request["response_format"] == {"type": "json_object"}
    message = request["messages"][0]
    assert message["role"] == "system" and message["content"].startswith("Be brief.\n\nAnswer with one JSON object")
    assert message["content"].endswith(json.dumps(schema))


def test_an_azure_endpoint_must_be_a_url() -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        AzureOpenAI(endpoint="my-resource")


# Keys and settings


def test_no_key_and_no_base_url_is_an_error_at_build() -> None:
    """Acceptance 10."""
    with pytest.raises(EngineError, match="set OPENAI_API_KEY where the session runs, or pass api_key="):
        OpenAIEngine("gpt-5-mini").build(SESSION)


def test_a_custom_server_needs_no_key(provider: LocalProvider) -> None:
    assert answer(engine_of(provider))[0]


def test_key_and_base_url_come_from_the_sessions_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalProvider(api_key=KEY) as provider:
        engine = OpenAIEngine("local")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        assert answer(engine)[0]


@pytest.mark.parametrize(
    ("name", "value"), [("OPENAI_API_KEY", f"{KEY}\n"), ("OPENAI_BASE_URL", "localhost:8000")], ids=["key", "url"]
)
def test_an_invalid_environment_is_an_error_at_build(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=name) as caught:
        OpenAIEngine("gpt-5-mini").build(SESSION)
    assert KEY not in str(caught.value)


def test_a_key_that_the_provider_quotes_is_redacted(caplog: pytest.LogCaptureFixture, api: str) -> None:
    caplog.set_level(logging.DEBUG)
    with LocalProvider(api_key="another") as provider:
        engine = engine_of(provider, api=api, api_key=KEY)
        error, _ = failure(engine)
    assert "Error code: 401 - Incorrect API key provided: ***.; check api_key= or OPENAI_API_KEY" in str(error)
    assert KEY not in "".join(traceback.format_exception(error))
    assert KEY not in repr(engine)
    assert KEY not in caplog.text
    assert "HTTP" in caplog.text


def test_a_key_that_the_answer_quotes_is_redacted(provider: LocalProvider, api: str) -> None:
    error, _ = failure(engine_of(provider, "error", api=api, api_key="broke"))
    assert "The model *** down" in str(error)
    assert "broke down" not in "".join(traceback.format_exception(error))


def test_an_engine_pickles_with_its_key() -> None:
    engine = OpenAIEngine("local", base_url="http://127.0.0.1:1/v1", api_key=KEY, system="Be brief.", extra={"seed": 7})
    assert pickle.loads(pickle.dumps(engine)) == engine
    assert pickle.loads(pickle.dumps(engine)).api_key == KEY


def test_engine_and_runner_fulfil_their_protocols(provider: LocalProvider) -> None:
    engine: EngineBuilder = engine_of(provider)
    runner: InferenceRunner = engine.build(SESSION)
    assert isinstance(engine, EngineBuilder)
    assert isinstance(engine, Framed)
    assert isinstance(runner, InferenceRunner)


def test_the_client_library_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys, turnwise.actors.inference.openai.engine as own; "
        "own.OpenAIEngine('m').frame(); own.OpenAIEngine('m', api='responses').frame(); "
        "print('openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"model": " "},
        {"default_headers": {"X": 1}},
        {"default_query": {"a": None}},
        {"http_client": "proxy"},
        {"connect_timeout_s": 0},
        {"first_byte_s": float("nan")},
        {"azure": AzureOpenAI(endpoint="https://a.openai.azure.com"), "base_url": "https://example.org"},
        {"api": "completions"},
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://localhost/v1"},
        {"base_url": ""},
        {"base_url": "http://"},
        {"base_url": "http://localhost:port/v1"},
        {"base_url": "http://[::1/v1"},
        {"api_key": ""},
        {"api_key": f"{KEY}\n"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"max_retries": -1},
        {"temperature": -0.1},
        {"max_output_tokens": 0},
        {"extra": {"stream": False}},
        {"extra": {"messages": []}},
        {"extra": {"stop": object()}},
        {"extra": ["seed"]},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_an_error_that_names_it(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name}=") as caught:
        OpenAIEngine(**{"model": "local", **settings})
    assert KEY not in str(caught.value)


def test_settings_cannot_be_changed() -> None:
    extra = {"stop": ["END"]}
    engine = OpenAIEngine("local", extra=extra)
    extra["stop"].append("FIN")
    assert engine.extra == {"stop": ("END",)}
    with pytest.raises(AttributeError):
        engine.model = "another"  # type: ignore[misc]


def test_an_engine_for_typed_answers_has_no_tools(api: Any) -> None:
    properties = {"n": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}
    engine = OpenAIEngine("m", api=api, tools=[external_tool("look", "Look.", {"type": "object"})], extra={"seed": 1})
    typed_engine = engine.answering(schema)
    assert (
        not typed_engine.registry.definitions()
        and typed_engine.model == "m"
        and typed_engine.extra
        and typed_engine.extra["seed"] == 1
    )
    output = OutputType.read(typed_engine.output_type)
    assert output and output.schema == freeze(schema) and output.retries is None
    assert engine.registry.definitions() and not engine.output_type


def test_the_sessions_of_a_process_share_certificates() -> None:
    """Loading certificates for each of thousands of sessions would take minutes and gigabytes."""
    engines = [OpenAIEngine("m", base_url="https://127.0.0.1:1/v1", api_key="key") for _ in range(2)]
    runners = [engine._runner() for engine in engines]  # noqa: SLF001 - one for each session
    pools = [runner._client._client._transport._pool for runner in runners]  # noqa: SLF001 - nor this
    assert len({id(pool._ssl_context) for pool in pools}) == 1  # noqa: SLF001 - httpx shows it nowhere
