"""An agent behind HTTP whose payment waits for a person: one process asks, and another one approves.

    pip install 'turnwise[http]'
    python examples/approval_over_http.py

It serves `turnwise.http` on a free port, asks with an HTTP client, and starts itself again as the person who decides.
The run waits as long as it takes, without a process. Without an OPENAI_API_KEY, a simulated model answers.
"""

import asyncio
import os
import socket
import sys
import tempfile
from contextlib import ExitStack

import httpx2
import uvicorn

from turnwise import AsyncSessionManager, OpenAIEngine, ToolContext, tool
from turnwise.http import create_app
from turnwise.testing import LocalProvider, tool_script


@tool
def balance() -> dict[str, int]:
    """Return what is in the account, in euros."""
    return {"euros": 900}


@tool(approval=lambda arguments, context: int(arguments["euros"]) > 100)
def pay(euros: int, to: str, context: ToolContext) -> str:
    """Pay a bill. More than 100 euros need a person's approval."""
    return f"paid {euros} euros to {to}; receipt {context.idempotency_key[:6]}"  # of which a bank carries out one only


SCRIPT = tool_script([[("balance", {})], [("pay", {"euros": 750, "to": "the hotel"})], "The hotel is paid."])


async def serve_and_ask(store: str, engine: OpenAIEngine) -> None:
    """Serve the agent, ask it, and follow the run until it has ended."""
    async with AsyncSessionManager(store, engine=engine) as manager:
        app = create_app(manager)  # with auth=BearerTokens({...}) where others can reach it
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        bound = socket.create_server(("127.0.0.1", 0))  # a free port, which listens from now on
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
            await client.post("/sessions", json={"id": "bills"})
            started = await client.post("/sessions/bills/runs", json={"prompt": "Pay the hotel: 750 euros."})
            run = started.raise_for_status().json()
            print(f"asked in session {run['session_id']}", flush=True)
            await follow(client, run["id"])
            ended = (await client.get(f"/runs/{run['id']}/wait")).json()
            print(f"{ended['state']}: {ended['text']}")
        server.should_exit = True
        await serving


async def follow(client: httpx2.AsyncClient, run_id: str) -> None:
    """Read the run's events. When a call waits, have another process decide about it."""
    async with client.stream("GET", f"/runs/{run_id}/events", params={"stream": "true"}) as answer:
        async for line in answer.aiter_lines():
            kind = line.removeprefix("event: ") if line.startswith("event: ") else ""
            if kind in ("tool_ended", "approval_requested", "call_decided", "run_completed"):
                print(f"  {kind}", flush=True)
            if kind == "approval_requested":
                person = await asyncio.create_subprocess_exec(sys.executable, __file__, str(client.base_url), run_id)
                await person.wait()


def decide(url: str, run_id: str) -> None:
    """Approve the waiting call with another amount, as anybody can who knows the run's id and may use the service."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        (call,) = client.get(f"/runs/{run_id}/pending").raise_for_status().json()["items"]
        print(f"  [process {os.getpid()}] {call['name']} {call['input']}: approved, for 700 euros", flush=True)
        decision = {"call_id": call["call_id"], "input": {**call["input"], "euros": 700}}
        client.post(f"/runs/{run_id}/approve", json=decision).raise_for_status()


def main() -> None:
    if len(sys.argv) > 1:
        return decide(*sys.argv[1:])
    with ExitStack() as stack:
        engine = OpenAIEngine(os.environ.get("OPENAI_MODEL", "gpt-5-mini"), tools=[balance, pay])
        if not os.environ.get("OPENAI_API_KEY"):
            provider = stack.enter_context(LocalProvider(reply=SCRIPT))
            engine = OpenAIEngine("stand-in", base_url=provider.base_url, tools=[balance, pay])
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-"))
        asyncio.run(serve_and_ask(f"sqlite:///{folder}/bills.db", engine))
    return None


if __name__ == "__main__":
    main()
