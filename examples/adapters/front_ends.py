"""A chat for `useChat` of the Vercel AI SDK in a FastAPI app of your own: streamed, cut off, and read on.

    pip install 'turnwise[http]'; python examples/adapters/front_ends.py

An engine that repeats the prompt answers.
"""

import asyncio
import tempfile
from typing import Annotated, Any

import httpx2
from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse

from turnwise import AsyncSessionManager, EchoEngine
from turnwise.adapters import VercelEncoder, front_end_stream

BODY = {"id": "chat-1", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi there!"}]}]}


async def main() -> None:
    async with AsyncSessionManager(f"sqlite:///{tempfile.mkdtemp()}/chats.db", engine=EchoEngine()) as manager:
        app = FastAPI()

        @app.post("/api/chat")
        async def chat(body: dict[str, Any], last_event_id: Annotated[str | None, Header()] = None) -> Any:
            session, last = await manager.open(body["id"], if_exists="keep"), body["messages"][-1]
            execution = await session.run(last["parts"][0]["text"], idempotency_key=last["id"])
            stream = front_end_stream(execution, encoder := VercelEncoder(last_event_id))
            return StreamingResponse(stream, media_type="text/event-stream", headers=dict(encoder.headers))

        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://app") as client:
            lines = (await client.post("/api/chat", json=BODY)).text.splitlines()
            after = {"Last-Event-ID": next(line for line in lines if line.startswith("id: "))[4:]}
            following_lines = (await client.post("/api/chat", json=BODY, headers=after)).text.splitlines()
            print(*lines, "--- behind the first frame, after a reconnect:", *following_lines, sep="\n")


asyncio.run(main())
