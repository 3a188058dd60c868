"""One cluster: two replicas of a model of 100 MB, sessions that keep to the one that knows them, memory, a service.

    pip install 'turnwise[http]'
    python examples/cluster/cluster_demo.py    a Ray of its own, two minutes at most; no key, no download

The model runs on the CPU and its words mean nothing: see local_model.py, which serves it. What it has to read is real,
so the demo shows what a session saves that goes on where its beginning is cached, and what happens when that place is
gone. Exits with 0 only if all of it is as it has to be.
"""
# ruff: noqa: S101 - here an assertion is what is shown

import asyncio
import json
import os
import socket
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import openai
import ray
import uvicorn
from local_model import ModelServer

from turnwise import AsyncSession, AsyncSessionManager, LexicalMemory, OpenAIEngine, Packed
from turnwise.engines import HTTPHints, Replicas
from turnwise.http import create_app

TURNS = 2
FACT = "My desk is in the Ghent office, on the third floor."


class ModelReplica:
    """A replica of the model, served by an actor of the cluster."""

    def __init__(self) -> None:
        self.server = ModelServer()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def address(self) -> str:
        return self.server.base_url


async def turn_of(session: AsyncSession, prompt: str) -> float:
    """Hold a turn, and print what the model had in its cache; return the seconds to the first token."""
    began = time.perf_counter()
    run = await session.run(prompt)
    async for event in run.events():
        if event.kind == "text_delta":
            break
    first_s = time.perf_counter() - began
    usage = (await run.wait()).usage
    assert usage is not None
    cached, read = usage.cached_tokens, usage.input_tokens
    print(f"  {session.session_id:8} first token after {first_s:5.2f} s; {cached:4} of {read:4} tokens were cached")
    return first_s


def reads(urls: list[str]) -> str:
    """Return how much each replica has read and reused."""
    numbers = []
    for url in urls:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - a replica of this program
            numbers.append(json.load(answer))
    return "; ".join(
        f"replica {at}: {each['prefilled']} read, {each['reused']} reused" for at, each in enumerate(numbers)
    )


async def main() -> None:
    began = time.perf_counter()
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    replica: Any = ray.remote(ModelReplica)
    env = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    replicas = [replica.options(num_cpus=0, runtime_env=env).remote() for _ in range(2)]
    urls = ray.get([each.address.remote() for each in replicas])
    print(f"a cluster with two replicas of the model, after {time.perf_counter() - began:.0f} s")
    router = Replicas(urls, away_s=60)
    engine = OpenAIEngine(
        "dice",
        router=router,
        provider="vllm",
        cache_hints=HTTPHints(router),
        system="You answer in words that mean nothing. " * 8,
        max_output_tokens=6,
    )
    with tempfile.TemporaryDirectory() as folder:
        memory = LexicalMemory(f"{folder}/memory.db")
        store, placement = f"sqlite:///{folder}/chats.db", Packed(hosts=1)
        async with AsyncSessionManager(store, engine=engine, memory=[memory], placement=placement) as manager:
            await show(manager, urls, replicas)
    print(f"all of it took {time.perf_counter() - began:.0f} s")
    ray.shutdown()


async def show(manager: AsyncSessionManager, urls: list[str], replicas: list[Any]) -> None:
    """Show sessions, memory, a fork, the service, and a replica that dies."""
    print("three sessions in turn, each always at the same replica:")
    users = ["sarah", "tom", "ann"]
    chats = [await manager.open(f"chat-{number}", user_id=user) for number, user in enumerate(users)]
    for turn in range(TURNS):
        for number, chat in enumerate(chats):
            await turn_of(chat, FACT if turn == number == 0 else f"Tell me more of {turn * 10 + number}, please.")
    print(f"  {reads(urls)}")
    await chats[0].memory.wait()
    print("memory: another session is told what the first one was:")
    other = await manager.open("chat-new", user_id="sarah")
    run = await other.run("Where is my desk in the office?")
    await run.wait()
    recalled = [event async for event in run.events() if event.kind == "memory_recalled"]
    assert sum(recalled[0].sent.values()) > 0
    print(f"  recalled: {dict(recalled[0].sent)}")
    print("a fork goes where its parent's beginning is:")
    await turn_of(await chats[1].fork(), "And another way?")
    print("the service, asked by OpenAI's client:")
    print(f"  {await ask_service(manager)!r}")
    print("a replica dies, and its sessions go on at the other one:")
    ray.kill(replicas[0])
    for chat in chats:
        await turn_of(chat, "Are you still there?")


async def ask_service(manager: AsyncSessionManager) -> str:
    """Serve the sessions over HTTP, and return the answer to a request of OpenAI's client."""
    server = uvicorn.Server(uvicorn.Config(create_app(manager), log_level="warning"))
    bound = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/openai/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=120) as client:
        answer = await client.responses.create(input="Where is the Colosseum?")
    server.should_exit = True
    await serving
    assert answer.output_text
    return answer.output_text


if __name__ == "__main__":
    asyncio.run(main())
