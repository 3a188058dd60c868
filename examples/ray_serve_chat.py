"""Ray Serve: a deployment of your own, with a durable session for each user that any replica answers for.

    pip install 'turnwise[http]' 'ray[serve]'
    python examples/ray_serve_chat.py               plays two users, and kills a replica in between
    serve run ray_serve_chat:chat                   serves it until Ctrl+C, in this folder: see `chat` below

Replicas keep nothing: sessions are in the store, and their processes are actors of the same Ray. To deploy
`turnwise.http` instead, with all of its routes, see serve_config.yaml.
"""

import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated

import httpx2
import ray
from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse
from ray import serve

from turnwise import AsyncExecutionHandle, AsyncSessionManager, OpenAIEngine, Packed
from turnwise.testing import LocalProvider

app = FastAPI()


async def texts(run: AsyncExecutionHandle) -> AsyncIterator[str]:
    """Yield the answer as it comes. It stands before the class, which Serve pickles where it is decorated."""
    async for event in run.events():
        if event.kind == "text_delta":
            yield event.text


@serve.deployment(num_replicas=2, max_ongoing_requests=200)
@serve.ingress(app)
class Chat:
    """Answers for all users. A session belongs to its user, so no request reaches that of another user."""

    def __init__(self, store: str, model: str, base_url: str | None) -> None:
        engine = OpenAIEngine(model, base_url=base_url)
        self.manager = AsyncSessionManager(store, engine=engine, placement=Packed(hosts=1))

    @app.post("/chat")
    async def chat(self, prompt: str, user: Annotated[str, Header()]) -> StreamingResponse:
        """Stream the answer as text. In a service of yours, the user comes from a token."""
        session = await self.manager.open("chat", user_id=user)
        run = await session.run(prompt, if_busy="enqueue")
        headers = {"X-Run-Id": run.run_id, "X-Replica": serve.get_replica_context().replica_id.unique_id}
        return StreamingResponse(texts(run), media_type="text/plain", headers=headers)

    @app.get("/history")
    async def history(self, user: Annotated[str, Header()]) -> list[tuple[str, str]]:
        session = await self.manager.open("chat", user_id=user)
        return [(message.role, message.text) for message in await session.messages()]


def chat(args: dict[str, str]) -> serve.Application:
    """Build the application, as `serve run ray_serve_chat:chat store=postgresql://user@host/name` does."""
    application: serve.Application = Chat.bind(  # type: ignore[attr-defined]
        args.get("store", "sqlite:///serve.db"), args.get("model", "gpt-5-mini"), args.get("base_url")
    )
    return application


def play(url: str) -> None:
    """Be two users. A replica is killed between two of their questions."""
    with httpx2.Client(base_url=url, timeout=60) as client:

        def ask(user: str, prompt: str) -> None:
            answer = client.post("/chat", params={"prompt": prompt}, headers={"user": user}).raise_for_status()
            print(f"[{user}] > {prompt}\n  {answer.text} (by replica {answer.headers['x-replica']})", flush=True)

        ask("sarah", "Do whales sleep?")
        ask("tom", "Do rivers sleep?")
        killed = next(
            actor for actor in ray.util.list_named_actors(all_namespaces=True) if "REPLICA::" in actor["name"]
        )
        ray.kill(ray.get_actor(killed["name"], namespace=killed["namespace"]))
        print("* a replica was killed", flush=True)
        ask("sarah", "And how long?")
        for user in ("sarah", "tom"):
            messages = client.get("/history", headers={"user": user}).raise_for_status().json()
            print(f"{user}'s session has {len(messages)} messages, the first: {messages[0][1]!r}")


def main() -> None:
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    with ExitStack() as stack:
        args = {"store": f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory(prefix='turnwise-'))}/serve.db"}
        if not os.environ.get("OPENAI_API_KEY"):
            args["base_url"] = stack.enter_context(LocalProvider()).base_url
        stack.callback(serve.shutdown)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(chat(args))
        play(f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    main()
