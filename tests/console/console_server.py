"""Serves the console in a process of its own, for a browser: `Console` starts it, `main` is it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import console_engine

NAMESPACE = "console"
"""Of the console's actors."""

TOKENS = {name: f"{name}'s-secret;-token\"" for name in ("ann", "bob", "root")}
"""Of two users and an operator."""


class Console:
    """A service with the console in a process of its own, on the tests' Ray. Ends with its `with` block.

    Args:
        program: what Python runs instead of `main` below; it prints the address first.
    """

    def __init__(self, folder: Path, address: str, *, program: Sequence[str] = (), **settings: Any) -> None:
        self.store = str(settings.get("store", f"sqlite:///{folder}/chats.db"))
        options = {**settings, "store": self.store}
        command = [sys.executable, *(program or (__file__, json.dumps(options)))]
        environ = os.environ | {"RAY_ADDRESS": address}
        self.log = folder / "console.log"
        self._log = self.log.open("w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environ)
        assert self.process.stdout
        match = re.search(r"http://[^/\s]+", self.process.stdout.readline())
        assert match, self.log.read_text()
        self.address = match[0]
        self.url = f"{self.address}/console"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)
        self._log.close()

    def tasks(self) -> list[str]:
        """Return the names of the tasks of the console's process."""
        with urllib.request.urlopen(f"{self.address}/tasks", timeout=10) as answer:
            return list(json.load(answer))


async def serve(settings: dict[str, Any]) -> None:
    import uvicorn

    from turnwise.actors.client.manager import AsyncSessionManager
    from turnwise.actors.hosting.placement import Packed
    from turnwise.actors.session.config import SessionConfig
    from turnwise.actors.session.engines.budget import Budget
    from turnwise.console import mount
    from turnwise.http import BearerTokens, Identity, create_app
    from turnwise.memory.longterm.lexical import LexicalMemory

    has_users = settings.get("users", False)
    manager = AsyncSessionManager(
        settings["store"],
        engine=getattr(console_engine, settings.get("engine", "Engine"))(),
        placement=Packed(hosts=1),
        namespace=NAMESPACE,
        memory=[LexicalMemory(settings["memory"])] if "memory" in settings else [],
        read_only=settings.get("read_only", False),
        config=SessionConfig(session_budget=Budget(tokens=50_000, calls=1_000)),
    )
    users = {token: Identity(name, is_operator=name == "root") for name, token in TOKENS.items()}
    async with manager:
        app = create_app(manager, auth=BearerTokens(users) if has_users else None)
        mount(app, app.state.service)

        @app.get("/tasks")
        async def tasks() -> list[str]:
            return sorted(str(task.get_coro()) for task in asyncio.all_tasks())

        listener = socket.create_server(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="info", timeout_graceful_shutdown=3))
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
