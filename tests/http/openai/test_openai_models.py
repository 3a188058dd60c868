"""`/openai/v1/models`, and errors in OpenAI's form, which the `openai` client understands."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.http import BearerTokens, HttpSettings, create_app

LOCAL, LARGE = (
    OpenAIEngine("local", base_url="http://127.0.0.1:1"),
    OpenAIEngine("large", base_url="http://127.0.0.1:1"),
)


def client_of(
    engine: Any, *, key: str = "ann's-secret-token", mounted: bool = False, **settings: Any
) -> openai.AsyncOpenAI:
    manager = AsyncSessionManager("memory://models", engine=engine)
    auth = BearerTokens({"ann's-secret-token": "ann"})
    app: Any = create_app(manager, auth=auth, settings=HttpSettings(**settings))
    if mounted:
        from fastapi import FastAPI

        outer = FastAPI()
        outer.mount("/chat", app)
        app = outer
    base_url = "http://service/chat/openai/v1" if mounted else "http://service/openai/v1"
    http = openai.DefaultAsyncHttpxClient(transport=httpx2.ASGITransport(app))
    return openai.AsyncOpenAI(base_url=base_url, api_key=key, http_client=http, max_retries=0)


@pytest.mark.parametrize(
    ("engine", "models", "expected"),
    [
        (LOCAL, (), ["local"]),
        (LOCAL, ("larger", "local"), ["local", "larger"]),
        (EchoEngine(), (), ["default"]),
        ({"fast": LOCAL, "smart": LARGE, "echo": EchoEngine()}, (), ["fast", "smart", "echo", "local", "large"]),
    ],
)
async def test_models_are_engines_and_those_of_the_settings(engine: Any, models: Any, expected: list[str]) -> None:
    for mounted in (False, True):
        async with client_of(engine, models=models, mounted=mounted) as client:
            assert [model.id async for model in client.models.list()] == expected
            assert (await client.models.retrieve(expected[-1])).id == expected[-1]


async def test_errors_are_those_of_openai_s_client() -> None:
    async with client_of(LOCAL) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("gpt-9/x")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        assert "'gpt-9/x' does not exist; this service has 'local'" in missing.value.message
        with pytest.raises(openai.NotFoundError, match="Invalid URL") as unknown:
            await client.post("/audio/speech", cast_to=object, body={})
        assert unknown.value.type == "invalid_request_error"
    async with client_of(LOCAL, key="nobody's-token") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
        assert (refused.value.code, refused.value.type) == ("invalid_api_key", "authentication_error")
        assert "nobody" not in refused.value.message


async def test_an_idempotency_key_is_refused_where_nothing_is_stored() -> None:
    async with client_of({"local": EchoEngine()}) as client:
        key: Any = {"extra_headers": {"Idempotency-Key": "k"}}
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        for request in (
            client.chat.completions.create(model="local", messages=messages, **key),
            client.responses.create(model="local", input="hello", store=False, **key),
        ):
            with pytest.raises(openai.BadRequestError, match="would be answered anew") as refused:
                await request
            assert (refused.value.code, refused.value.param) == ("idempotency_not_stored", "Idempotency-Key")
