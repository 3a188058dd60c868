"""A store with sessions that have run, made without a Ray, and what the command line says about it."""

from __future__ import annotations

import asyncio
import functools
import math
import multiprocessing
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pyte
from typer import testing
from typer.main import get_command

from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.core import SessionCore
from turnwise.cli import app
from turnwise.memory.conversation.blocks import Thinking
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.urls import open_store
from turnwise.testing.scripted_engine import Pause, ScriptedEngine

HOSTILE = "\x1b[31m[bold red]danger[/bold red]\x1b[2J\u202egnp"


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"rain in {city}"


@tool(approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def fill(url: str) -> None:
    """Fill an empty store: see the sessions below."""
    store = open_store(url)
    try:
        await _talk(
            store,
            SessionRecord(session_id="chat", user_id="ann", agent="travel", title="A week in Oslo", created_at=1.0),
            {"r-1": "Will it rain?", "r-2": "And tomorrow?"},
            [[Thinking(text="Hm."), ("weather", {"city": "Oslo"})], "Take an umbrella.", ["So ", "it seems."]],
        )
        await _talk(
            store, SessionRecord(session_id="bad", user_id=HOSTILE[8:20], title=HOSTILE), {"r-3": HOSTILE}, [HOSTILE]
        )
        await _talk(store, SessionRecord(session_id="money", user_id="bob"), {"r-4": "Pay 7"}, [("pay", {"euros": 7})])
        own = SessionRecord(session_id="mine", user_id="ann")
        await _talk(store, own, {"r-5": "Hello"}, ["Hello, Ann."])
        await _talk(store, SessionRecord(session_id="long"), {"r-6": "Think"}, [["Well, ", Pause(math.inf)]])
        await store.create(SessionRecord(session_id="empty", status="ended"))
    finally:
        await store.close()


async def _talk(store: SessionStore, session: SessionRecord, prompts: Mapping[str, str], script: list[Any]) -> None:
    await store.create(session)
    core = SessionCore(session.key, store, ScriptedEngine(script, tools=[weather, pay]))
    for run_id, prompt in prompts.items():
        await core.admission.start([prompt], run_id=run_id)
        while (await core.reads.run(run_id)).state == "running" and session.session_id != "long":
            await asyncio.sleep(0.005)


def filled(url: str) -> str:
    """Fill an empty store; return its URL."""
    asyncio.run(fill(url))
    return url


vars(testing)["_get_command"] = functools.cache(get_command)  # to make all commands takes longer than to carry out one


def turnwise(*words: str, **settings: Any) -> testing.Result:
    """Carry out a command in this process, without a terminal."""
    return testing.CliRunner().invoke(app, words, **settings)


def rows(shown: str) -> list[dict[str, str]]:
    """Return the rows of a table that was printed without a terminal."""
    names, *lines = (line.split("\t") for line in shown.splitlines())
    return [dict(zip(names, line, strict=True)) for line in lines]


def on_terminal(
    *words: str, columns: int = 100, lines: int = 40, raw: bytearray | None = None, **env: str
) -> pyte.Screen:
    """Carry out a command in a terminal; return what its screen shows at the end. `raw` gets all that it was sent."""
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    settings = {**os.environ, "TERM": "xterm-256color", **env}
    child = _FORKS.Process(target=_carry_out, args=(words, os.ttyname(slave), settings))
    child.start()
    while master in select.select([master, child.sentinel], [], [], 60)[0]:
        shown = os.read(master, 65_536)
        stream.feed(shown)
        if raw is not None:
            raw += shown
    child.join(10)
    child.close()
    os.close(slave)
    os.close(master)
    return screen


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "turnwise.actors.client.manager", "turnwise.memory.stores.sql.store"])


def _carry_out(words: Sequence[str], terminal: str, settings: dict[str, str]) -> None:
    """Carry out a command in this process, which is a new one, on a terminal."""
    file = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    for number in range(3):
        os.dup2(file, number)
    os.close(file)
    os.environ.clear()
    os.environ.update(settings)
    encoding = settings.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding=encoding) for number, mode in enumerate(("r", "w", "w"))
    )
    app(words, prog_name="turnwise")


def text_of(screen: pyte.Screen) -> str:
    """Return the lines of a screen."""
    return "\n".join(line.rstrip() for line in screen.display).rstrip()


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, with what they hold."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
