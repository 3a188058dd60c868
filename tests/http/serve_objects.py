"""What a configuration names by import path, and what stands for a worker of a service."""

import os
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path

from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.wire_version import unpacked_settings
from turnwise.http.auth import Identity
from turnwise.http.config import ServiceConfig
from turnwise.memories import StaticMemory
from turnwise.strategies.keep_last import KeepLast

engine = EchoEngine()
memory = StaticMemory(["The office opens at nine."], name="own")
strategy = KeepLast(turns=3)


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"


def auth(connection: object) -> Identity:
    return Identity("ann")


def work(start: bytes, bound: socket.socket, parent: Connection) -> None:
    """Be a worker that does not start once, if the file that stands for its store is there; the next stops all."""
    config: ServiceConfig
    config, _ = unpacked_settings(start)
    broken = Path(config.store)
    if broken.exists():
        broken.rename(f"{broken}.was")
        raise SystemExit(1)
    parent.send(os.getpid())
    if broken.with_name(f"{broken.name}.was").exists():
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
