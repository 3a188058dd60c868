"""Replicas of a model on Ray Serve: Serve chooses one by the header of the key, so sessions keep to theirs."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.memory.values.ids import new_id

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve's own
    from ray import serve

SESSIONS = 20
"""So many that two replicas have some each, but for one run in 500,000."""


@pytest.fixture(scope="module")
def base_url(ray_session: ModuleType) -> Iterator[str]:
    """The URL of two replicas, which answer with the name of their actor."""

    class Model:
        async def __call__(self, _: Any) -> dict[str, Any]:
            answer = {"role": "assistant", "content": serve.get_replica_context().replica_id.to_full_id_str()}
            choice = {"index": 0, "finish_reason": "stop", "message": answer}
            return {"id": "1", "object": "chat.completion", "created": 0, "model": "served", "choices": [choice]}

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    router = {"request_router_class": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"}
    deployment = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.1}, request_router_config=router)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(deployment(Model).bind(), name="model", route_prefix="/v1")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.shutdown()


def managed(base_url: str, **settings: Any) -> AsyncSessionManager:
    engine = OpenAIEngine("served", base_url=base_url, provider="vllm", stream=False, max_retries=9, **settings)
    return AsyncSessionManager(f"memory://{new_id()}", engine=engine, placement=InProcess())


async def replica_of(session: AsyncSession) -> str:
    """Return the actor that answers the session's next prompt."""
    return (await (await session.run("Which are you?")).wait()).text


async def test_without_the_header_sessions_move(base_url: str) -> None:
    async with managed(base_url, session_header="") as manager:
        chats = [await manager.open(f"chat {number}") for number in range(SESSIONS)]
        assert [await replica_of(chat) for chat in chats] != [await replica_of(chat) for chat in chats]


async def test_serve_keeps_sessions_and_forks_at_one_replica_until_that_is_gone(
    base_url: str, ray_session: ModuleType
) -> None:
    async with managed(base_url) as manager:
        chats = [await manager.open(f"chat {number}") for number in range(SESSIONS)]
        homes = [await replica_of(chat) for chat in chats]
        assert len(set(homes)) == 2
        assert [await replica_of(chat) for chat in chats] == homes
        assert [await replica_of(await chat.fork()) for chat in chats] == homes
        gone = homes[0]
        ray_session.kill(ray_session.get_actor(gone, namespace="serve"))
        for chat, home in zip(chats, homes, strict=True):
            replica = await replica_of(chat)
            assert replica == home or (home == gone and replica != gone)
